"""Asking a chat model for an answer of a given shape, and living with what it really says.

A client is asked in the strictest way it supports: structured output, then JSON mode, then a plain request. A server
that refuses a way is asked the next one, and that is remembered for the client. What comes back is read leniently. An
answer that cannot be used is a result, with the reason in words; only a failing environment raises.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from re import compile as regex
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from autogen_core import CancellationToken
from autogen_core.models import ChatCompletionClient, CreateResult, LLMMessage, RequestUsage, UserMessage
from pydantic import BaseModel, ValidationError, create_model

Schema = TypeVar("Schema", bound=BaseModel)
Value = TypeVar("Value", covariant=True)

MAX_TEXT_CHARS = 4_000
"""How much of the model's own text an answer keeps."""

_MAX_SEARCHED_CHARS = 200_000
_MAX_ATTEMPTS = 100
_MAX_NAMED_ERRORS = 3

_REFUSING_STATUSES = frozenset({400, 422})
_DECODER = json.JSONDecoder(strict=False)  # models put bare line breaks into strings
_OBJECT_START = regex(r'\{\s*(?:\}|"(?:[^"\\]|\\.){0,100}"\s*:)')

_TRUNCATED = "The model's answer was cut off at its token limit."
_FILTERED = "The model's answer was stopped by the provider's content filter."
_EMPTY = "The model gave no answer, or declined to."
_TOOL_CALLS = "The model called tools where an answer was asked for."
_NO_OBJECT = "The model's answer holds no JSON object."
_SEVERAL = "The model's answer holds several JSON objects that differ."


@dataclass(frozen=True)
class Answer(Generic[Value]):
    """What a model answered.

    Attributes:
        value: The answer, or what stands in for it where there is a problem.
        problem: Why the model's answer could not be used, for a person and for a model; ``None`` where it could.
        usage: The tokens of all calls made. A call whose client raised instead of returning counts only where the
            error tells its usage.
        text: What the model wrote, at most :data:`MAX_TEXT_CHARS` characters of it.
        thought: The reasoning that the model gave beside its answer.
    """

    value: Value
    problem: str | None
    usage: RequestUsage
    text: str = ""
    thought: str | None = None

    def or_else(self: Answer[Schema | None], stand_in: Schema) -> Answer[Schema]:
        """The same answer, with ``stand_in`` for a value that is missing."""
        value = stand_in if self.value is None else self.value
        return Answer(value, self.problem, self.usage, self.text, self.thought)


class _Mode(IntEnum):
    """The ways to ask, the strictest first."""

    STRUCTURED = 0
    JSON = 1
    PLAIN = 2


_accepted: WeakKeyDictionary[ChatCompletionClient, _Mode] = WeakKeyDictionary()


async def ask(
    client: ChatCompletionClient,
    messages: Sequence[LLMMessage],
    schema: type[Schema],
    *,
    cancellation_token: CancellationToken | None = None,
) -> Answer[Schema | None]:
    """Ask for an answer that fits ``schema``.

    Args:
        client: Any model client; its ``model_info`` says how it can be asked.
        messages: The whole conversation, a system message included where there is one.
        schema: The shape of the answer. Its description and those of its fields are sent to the model.
        cancellation_token: Stops the call that is under way.

    Returns:
        The answer. Its value is ``None`` where the model said something else, its problem then says what.

    Raises:
        Exception: Whatever the client raises where not the model but its surroundings failed: a wrong key, a rate
            limit, a broken connection, a request that is refused in every way of asking.
    """
    modes = _modes(client)
    for mode in modes:
        try:
            result = await _create(client, messages, schema, mode, cancellation_token)
        except Exception as error:
            if mode is not modes[-1] and _refuses_mode(error):
                continue
            if (answer := _nonsense(error, schema)) is not None:
                return answer
            raise
        _accepted[client] = mode
        return _read_result(result, schema)
    raise AssertionError("the plain mode is always there")


def parse(text: str, schema: type[Schema]) -> tuple[Schema | None, str | None]:
    """Find the answer in what a model wrote: JSON alone, in a fence, or amid prose.

    Several objects that fit but differ are no answer: one of them may be quoted from hostile output.

    Returns:
        The value, or ``None`` and the reason in words. The work is bounded, whatever the text.
    """
    searched = text.lstrip()
    if searched.startswith("<think>"):
        searched = searched.partition("</think>")[2]
    values: list[Schema] = []
    problem = _NO_OBJECT if text.strip() else _EMPTY
    for candidate in _objects(searched[:_MAX_SEARCHED_CHARS]):
        try:
            values.append(schema.model_validate(candidate))
        except ValidationError as error:
            problem = _describe(error)
    if not values:
        return None, problem
    if any(value != values[0] for value in values):
        return None, _SEVERAL
    return values[0], None


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects in ``text``, outermost only."""
    position = 0
    for _ in range(_MAX_ATTEMPTS):
        if (start := _OBJECT_START.search(text, position)) is None:
            return
        try:
            value, position = _DECODER.raw_decode(text, start.start())
        except json.JSONDecodeError as error:
            # not from the next brace: an object inside one that was cut off is not the answer
            position = error.pos
        except (ValueError, RecursionError):
            return  # an absurd number, or nesting: what follows cannot be told from what is inside
        else:
            yield value


def _describe(error: ValidationError) -> str:
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    named = "; ".join(
        f"{'.'.join(str(part) for part in item['loc']) or 'the object'}: {item['msg']}"
        for item in errors[:_MAX_NAMED_ERRORS]
    )
    return f"The model's answer does not have the shape asked for ({named})."


def _modes(client: ChatCompletionClient) -> list[_Mode]:
    info = client.model_info
    supported = {
        _Mode.STRUCTURED: info.get("structured_output", False),
        _Mode.JSON: info["json_output"],
        _Mode.PLAIN: True,
    }
    strictest = _accepted.get(client, _Mode.STRUCTURED)
    return [mode for mode, possible in supported.items() if possible and mode >= strictest]


async def _create(
    client: ChatCompletionClient,
    messages: Sequence[LLMMessage],
    schema: type[BaseModel],
    mode: _Mode,
    cancellation_token: CancellationToken | None,
) -> CreateResult:
    if mode is _Mode.STRUCTURED:
        return await client.create(
            messages, json_output=_unchecked(schema), cancellation_token=cancellation_token
        )
    return await client.create(
        _instructed(messages, schema),
        json_output=True if mode is _Mode.JSON else None,
        cancellation_token=cancellation_token,
    )


class _Unchecked(BaseModel):
    """Lets a client that validates the model's answer find nothing wrong with it, and nothing in it."""

    @classmethod
    def model_validate_json(cls, *_arguments: object, **_options: object) -> Any:
        return None


@cache
def _unchecked(schema: type[BaseModel]) -> type[BaseModel]:
    """``schema`` under the same name, but unchecked by the client.

    An OpenAI client that finds the answer wrong raises, and then nobody learns what the model wrote nor what it cost;
    where it finds nothing wrong, it warns about serializing the parsed object.
    """
    return create_model(
        schema.__name__, __base__=(_Unchecked, schema), __doc__=schema.__doc__, __module__=schema.__module__
    )


def _instructed(messages: Sequence[LLMMessage], schema: type[BaseModel]) -> list[LLMMessage]:
    """The messages with the schema explained, in the last one where possible: some models want alternating turns."""
    instruction = (
        "Answer with one JSON object and nothing else. It must match this JSON Schema:\n"
        + json.dumps(schema.model_json_schema())
    )
    if messages and isinstance(last := messages[-1], UserMessage) and isinstance(last.content, str):
        asked = last.model_copy(update={"content": f"{last.content}\n\n{instruction}"})
        return [*messages[:-1], asked]
    return [*messages, UserMessage(content=instruction, source="user")]


def _refuses_mode(error: Exception) -> bool:
    """Whether the server, or the client itself, may have refused the way of asking rather than the question."""
    return getattr(error, "status_code", None) in _REFUSING_STATUSES or type(error) is ValueError


def _nonsense(error: Exception, schema: type[Schema]) -> Answer[Schema | None] | None:
    """The answer that a client's error stands for, if the model is to blame for it."""
    # costs 0.3 s, and only users of that client pay it
    from openai import ContentFilterFinishReasonError, LengthFinishReasonError

    if isinstance(error, ValidationError) and error.title == schema.__name__:
        return Answer(None, _describe(error), RequestUsage(0, 0))
    if not isinstance(error, (LengthFinishReasonError, ContentFilterFinishReasonError)):
        return None
    problem = _TRUNCATED if isinstance(error, LengthFinishReasonError) else _FILTERED
    if (completion := error.completion) is None:
        return Answer(None, problem, RequestUsage(0, 0))
    spent = completion.usage
    usage = RequestUsage(spent.prompt_tokens, spent.completion_tokens) if spent else RequestUsage(0, 0)
    return _read(completion.choices[0].message.content or "", schema, usage=usage, cut_short=problem)


def _read_result(result: CreateResult, schema: type[Schema]) -> Answer[Schema | None]:
    if not isinstance(result.content, str):
        return Answer(None, _TOOL_CALLS, result.usage, thought=result.thought)
    cut_short = {"length": _TRUNCATED, "content_filter": _FILTERED}.get(result.finish_reason)
    return _read(result.content, schema, usage=result.usage, cut_short=cut_short, thought=result.thought)


def _read(
    text: str,
    schema: type[Schema],
    *,
    usage: RequestUsage,
    cut_short: str | None,
    thought: str | None = None,
) -> Answer[Schema | None]:
    value, problem = parse(text, schema)
    if problem is not None and cut_short is not None:
        problem = cut_short
    kept = text[:MAX_TEXT_CHARS].encode(errors="replace").decode()
    return Answer(value, problem, usage, kept, thought)
