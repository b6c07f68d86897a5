"""Asks a chat model for an answer of a given shape, and copes with what it really says.

A client is asked in the strictest way it supports: structured output, then JSON mode, then a plain request. A server
that refuses a way is asked the next one, and that is remembered for the client. What comes back is read leniently, and
an object that the model may only quote is not its answer. A model whose answer cannot be used is asked once more. An
answer that still cannot be used is a result, with the reason in words; only a failing environment raises.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache
from hashlib import sha256
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from autogen_core import CancellationToken
from autogen_core.models import (
    AssistantMessage,
    ChatCompletionClient,
    CreateResult,
    FunctionExecutionResultMessage,
    LLMMessage,
    RequestUsage,
    SystemMessage,
    UserMessage,
)
from pydantic import BaseModel, ValidationError, create_model

from codeact_team.clients import WrappedClient, wrap_client
from codeact_team.json_answers import MARK_FIELD, UnreadableAnswer, read_answer
from codeact_team.parsing import take_thoughts_off

Schema = TypeVar("Schema", bound=BaseModel)
Value = TypeVar("Value", covariant=True)

MAX_TEXT_CHARS = 4_000
"""How much of the model's own text an answer keeps."""

_MAX_NAMED_ERRORS = 3
_MARK_LENGTH = 12

_REFUSING_STATUSES = frozenset({400, 422})
_CUT_SHORT = {
    "length": "The model's answer was cut off at its token limit.",
    "content_filter": "The model's answer was stopped by the provider's content filter.",
}
_TOOL_CALLS = "The model called tools where an answer was asked for."
_ASK_AGAIN = "Your answer could not be used. {problem} Answer again, with the JSON object alone."


@dataclass(frozen=True)
class Answer(Generic[Value]):
    """What a model answered.

    Attributes:
        value: The answer, or what stands in for it where there is a problem.
        problem: Why the model's answer could not be used, for a person and for a model; ``None`` where it could.
        usage: The tokens of all calls made. A call whose client raised instead of returning counts only where the
            error tells its usage.
        text: What the model wrote, without its thoughts, at most :data:`MAX_TEXT_CHARS` characters of it.
        thought: What the model thought before its answer, in whatever way its server tells that.
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


@dataclass(frozen=True)
class _Question(Generic[Schema]):
    """What a model is asked."""

    schema: type[Schema]
    material: str
    """What was said before, which the model may quote."""
    mark: str
    """By which the model marks its answer. Whoever wrote the material cannot know it, as it depends on the whole
    conversation; the same question always has the same mark."""

    @classmethod
    def of(cls, messages: Sequence[LLMMessage], schema: type[Schema]) -> _Question[Schema]:
        texts = [_text(message) for message in messages]
        said = zip(messages[:-1], texts, strict=False)
        material = "\n".join(text for message, text in said if not isinstance(message, SystemMessage))
        hashed = sha256("\0".join([schema.__name__, *texts]).encode(errors="replace"))
        return cls(schema, material, hashed.hexdigest()[:_MARK_LENGTH])


async def ask(
    client: ChatCompletionClient,
    messages: Sequence[LLMMessage],
    schema: type[Schema],
    *,
    cancellation_token: CancellationToken | None = None,
) -> Answer[Schema | None]:
    """Ask for an answer that fits ``schema``; once more, with what is wrong, if the first answer cannot be used.

    Args:
        client: Any model client; its ``model_info`` says how it can be asked.
        messages: The whole conversation, a system message included where there is one. The last message is the
            question. What stands in those before it may be hostile, and is not taken for the answer where the model
            quotes it.
        schema: The shape of the answer. Its description and those of its fields are sent to the model.
        cancellation_token: Stops the call that is under way.

    Returns:
        The answer. Its value is ``None`` where the model said something else, its problem then says what.

    Raises:
        ModelError: If what the client returned, or found in its server's answer, is no answer of a model.
        Exception: Whatever else the client raises where not the model but its surroundings failed: a wrong key, a rate
            limit, a broken connection, a request that is refused in every way of asking.
    """
    question, client = _Question[Schema].of(messages, schema), wrap_client(client)
    first = await _ask_once(client, messages, question, cancellation_token)
    if first.problem is None:
        return first
    said = [AssistantMessage(content=first.text, source="assistant")] if first.text.strip() else []
    repeated = _extended([*messages, *said], _ASK_AGAIN.format(problem=first.problem))
    answer = await _ask_once(client, repeated, question, cancellation_token)
    usage = RequestUsage(
        first.usage.prompt_tokens + answer.usage.prompt_tokens,
        first.usage.completion_tokens + answer.usage.completion_tokens,
    )
    return replace(answer, usage=usage, thought=answer.thought or first.thought)


async def _ask_once(
    client: WrappedClient,
    messages: Sequence[LLMMessage],
    question: _Question[Schema],
    cancellation_token: CancellationToken | None,
) -> Answer[Schema | None]:
    modes = _modes(client)
    for mode in modes:
        try:
            result = await _create(client, messages, question, mode, cancellation_token)
        except Exception as error:
            if mode is not modes[-1] and _refuses_mode(error):
                continue
            if isinstance(error, ValidationError) and error.title == question.schema.__name__:
                # of a client that checks the answer itself
                return Answer(None, _describe(error), RequestUsage(0, 0))
            if (result := _cut_short(error)) is None:
                raise
        _accepted[client.wrapped] = mode
        return _read(result, question, mode)
    raise AssertionError("the plain mode is always there")


def _text(message: LLMMessage) -> str:
    """What a message says; pictures say nothing."""
    if isinstance(message.content, str):
        return message.content
    if isinstance(message, FunctionExecutionResultMessage):
        return "\n".join(result.content for result in message.content)
    if isinstance(message, AssistantMessage):
        return "\n".join(call.arguments for call in message.content)
    return "\n".join(part for part in message.content if isinstance(part, str))


def _fit(text: str, question: _Question[Schema], mode: _Mode) -> tuple[Schema | None, str | None]:
    """The answer in what a model wrote, or ``None`` and the reason in words."""
    # in structured output nothing but the answer is there, and it has no field for a mark
    mark = None if mode is _Mode.STRUCTURED else question.mark
    try:
        found = read_answer(text, mark=mark, material=question.material)
        return question.schema.model_validate(found), None
    except UnreadableAnswer as error:
        return None, str(error)
    except ValidationError as error:
        return None, _describe(error)


def _describe(error: ValidationError) -> str:
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    named = "; ".join(
        f"{'.'.join(str(part) for part in item['loc']) or 'the object'}: {item['msg']}"
        for item in errors[:_MAX_NAMED_ERRORS]
    )
    return f"The model's answer does not have the shape asked for ({named})."


def _modes(client: WrappedClient) -> list[_Mode]:
    info = client.model_info
    supported = {
        _Mode.STRUCTURED: info.get("structured_output", False),
        _Mode.JSON: info["json_output"],
        _Mode.PLAIN: True,
    }
    strictest = _accepted.get(client.wrapped, _Mode.STRUCTURED)
    return [mode for mode, possible in supported.items() if possible and mode >= strictest]


async def _create(
    client: WrappedClient,
    messages: Sequence[LLMMessage],
    question: _Question[Schema],
    mode: _Mode,
    cancellation_token: CancellationToken | None,
) -> CreateResult:
    json_output: Any = _unchecked(question.schema)
    if mode is not _Mode.STRUCTURED:
        messages, json_output = _extended(messages, _instruction(question)), mode is _Mode.JSON
    return await client.create(messages, json_output=json_output, cancellation_token=cancellation_token)


class _Unchecked(BaseModel):
    """A schema that takes every answer for right without reading it."""

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


def _instruction(question: _Question[Any]) -> str:
    schema = question.schema.model_json_schema()
    mark = {
        "const": question.mark,
        "description": "Marks your own answer: never copy it to anything that you quote.",
    }
    schema["properties"] = {MARK_FIELD: mark, **schema["properties"]}
    schema["required"] = [MARK_FIELD, *schema.get("required", ())]
    return "Answer with one JSON object and nothing else. It must match this JSON Schema:\n" + json.dumps(
        schema
    )


def _extended(messages: Sequence[LLMMessage], text: str) -> list[LLMMessage]:
    """The messages with more to the last one where possible: some models want alternating turns."""
    if messages and isinstance(last := messages[-1], UserMessage) and isinstance(last.content, str):
        return [*messages[:-1], last.model_copy(update={"content": f"{last.content}\n\n{text}"})]
    return [*messages, UserMessage(content=text, source="user")]


def _refuses_mode(error: Exception) -> bool:
    """Whether the server, or the client itself, may have refused the way of asking rather than the question."""
    is_wrong_value = type(error) is ValueError or getattr(error, "type_name", "") == "builtins.ValueError"
    return is_wrong_value or getattr(error, "status_code", None) in _REFUSING_STATUSES


def _cut_short(error: Exception) -> CreateResult | None:
    """What the model wrote, where a client raises instead of returning an answer that was cut short."""
    # costs 0.3 s, and only users of that client pay it
    from openai import ContentFilterFinishReasonError, LengthFinishReasonError

    if not isinstance(error, (LengthFinishReasonError, ContentFilterFinishReasonError)):
        return None
    completion = error.completion
    spent = completion.usage if completion else None
    return CreateResult(
        finish_reason="length" if isinstance(error, LengthFinishReasonError) else "content_filter",
        content=(completion.choices[0].message.content if completion else None) or "",
        usage=RequestUsage(spent.prompt_tokens, spent.completion_tokens) if spent else RequestUsage(0, 0),
        cached=False,
    )


def _read(result: CreateResult, question: _Question[Schema], mode: _Mode) -> Answer[Schema | None]:
    if not isinstance(result.content, str):
        return Answer(None, _TOOL_CALLS, result.usage, thought=result.thought)
    text, thought = take_thoughts_off(result.content, result.thought)
    value, problem = _fit(text, question, mode)
    if problem is not None:
        problem = _CUT_SHORT.get(result.finish_reason, problem)
    kept = text[:MAX_TEXT_CHARS].encode(errors="replace").decode()
    return Answer(value, problem, result.usage, kept, thought)
