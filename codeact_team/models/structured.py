"""Structured answers of a model, in whatever way it can give them.

A client is asked in the strictest way it supports: structured output, then JSON mode, then a plain request. A server that
refuses a way is asked the next one, and that is remembered for the client. What comes back is read leniently, and an object
that the model may only quote is not its answer. A model whose answer cannot be used is asked once more. An answer that still
cannot be used is a result, with the reason in words; only a failing environment raises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache
from hashlib import sha256
from typing import Any, Generic, NamedTuple, TypeVar, cast
from weakref import WeakKeyDictionary

import pyjson5
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
from pydantic import BaseModel, JsonValue, ValidationError, create_model

from codeact_team.core.quoting import take_thoughts_off
from codeact_team.models.clients import WrappedClient, wrap_client

MARK_FIELD = "answer_mark"
"""The field by which a model marks an object as its answer."""

_MAX_CHARS = 200_000
_MAX_ATTEMPTS = 20
_STRICT = json.JSONDecoder(strict=False)  # models put bare line breaks into strings

_FENCE = re.compile(r"\s*(`{3,}|~{3,})[ \t]*[\w+-]*[ \t]*(.*)")
_NOTATION = re.compile(
    r"""(?P<string>"(?:[^"\\]|\\.)*+(?:"|\Z)|'(?:[^'\\]|\\.)*+(?:'|\Z))"""
    r"|(?P<curly>[“”][^“”]*[“”]|[‘’][^‘’]*[‘’])"
    r"|(?P<word>\b(?:True|False|None)\b)"
    r"|(?P<comment>\#[^\n]*|//[^\n]*|/\*.*?(?:\*/|\Z))",
    re.DOTALL,
)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")
_WORDS = {"True": "true", "False": "false", "None": "null"}
_NOISE = str.maketrans(dict.fromkeys("\"'\\“”‘’\u200b"))

_EMPTY = "The model gave no answer, or declined to."
_TOO_LONG = f"The model's answer has more than {_MAX_CHARS:,} characters."
_NOT_WRITABLE = "The model's answer holds half a character, and too much besides."
_NO_OBJECT = "The model's answer holds no JSON object."
_NOT_ALONE = "The JSON object in the model's answer may be a quotation: it neither stands alone nor in a code fence at the end."
_QUOTED = (
    f"The JSON object in the model's answer may be a quotation: the same stands in what was said before, and the "
    f"object has no valid {MARK_FIELD!r}."
)


class UnreadableAnswer(ValueError):
    """There is no answer in what a model wrote, or it cannot be told from a quotation; the text says why."""


class _Candidate(NamedTuple):
    text: str
    is_alone: bool


def read_answer(text: str, *, mark: str | None = None, material: str = "") -> dict[str, Any]:
    """Read the object that a model answers with.

    That is an object that stands alone, in a code fence that ends the text, or at the end of the text if it holds the
    mark. Without the mark, no object counts that may be copied from the material.

    Args:
        text: What the model wrote. The work is bounded, whatever it is.
        mark: What the model was told to put into :data:`MARK_FIELD`, unknown to whoever wrote the material; ``None``
            where the server sees to it that the answer stands alone.
        material: What the model may quote from.

    Returns:
        The object, without the mark.

    Raises:
        UnreadableAnswer: If there is none.
    """
    stripped = text.strip()
    if not stripped:
        raise UnreadableAnswer(_EMPTY)
    if len(stripped) > _MAX_CHARS:
        raise UnreadableAnswer(_TOO_LONG)
    problem: UnreadableAnswer | None = None
    for candidate in _candidates(stripped, mark):
        try:
            found = _load(candidate.text)
        except UnreadableAnswer as error:
            problem = problem or error
            continue
        is_marked = found.pop(MARK_FIELD, None) == mark and mark is not None
        is_certain = is_marked or (mark is None and candidate.is_alone)
        if not is_certain and _may_be_quoted(candidate, found, material):
            raise UnreadableAnswer(_QUOTED)
        return found
    raise problem or UnreadableAnswer(_NOT_ALONE if "{" in stripped else _NO_OBJECT)


def read_value(text: str) -> JsonValue:
    """Read the value, of whatever kind, that a model answers with: alone, or in a code fence that ends the text.

    Raises:
        UnreadableAnswer: If there is none.
    """
    stripped = text.strip()
    if len(stripped) > _MAX_CHARS:
        raise UnreadableAnswer(_TOO_LONG)
    fenced = _fenced_at_the_end(stripped)
    return _decode(stripped if fenced is None else fenced.text)


def _candidates(text: str, mark: str | None) -> Iterator[_Candidate]:
    if text.startswith("{"):
        yield _Candidate(text, is_alone=True)
    if (fenced := _fenced_at_the_end(text)) is not None:
        yield fenced
    if mark is None:
        return
    start = text.rfind(mark)
    for _ in range(_MAX_ATTEMPTS):
        if (start := text.rfind("{", 0, max(start, 0))) < 0:
            return
        yield _Candidate(text[start:], is_alone=False)


def _fenced_at_the_end(text: str) -> _Candidate | None:
    lines = text.split("\n")
    fence, held, begins, ends = "", list[str](), False, False
    for number, line in enumerate(lines, start=1):
        if not fence:
            opening = _FENCE.match(line)
            if opening is None:
                ends = ends and not line.strip()
                continue
            fence, line = opening[1], opening[2]
            held, begins, ends = [], number == 1, True
        bare = line.rstrip()
        if bare.endswith(fence) and (number == len(lines) or not bare.strip(f"{fence[0]} \t")):
            held.append(bare[: -len(fence)])
            fence = ""
        else:
            held.append(line)
    return _Candidate("\n".join(held).strip(), begins) if ends else None


def _decode(text: str) -> JsonValue:
    """The value that ``text`` is, in JSON or a notation that can be mistaken for nothing else; nothing is made up."""
    try:
        value = _STRICT.decode(text)
    except (ValueError, RecursionError) as error:
        try:
            value = pyjson5.decode(_NOTATION.sub(_as_json5, text))
        except pyjson5.Json5Exception:
            raise UnreadableAnswer(_explain(text, error)) from None
    return _writable(value) if _SURROGATE.search(text) else value


def _writable(value: JsonValue) -> JsonValue:
    """The same without halves of characters, which JSON can escape and no encoding can write."""
    try:
        return json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
    except (ValueError, RecursionError):
        raise UnreadableAnswer(_NOT_WRITABLE) from None


def _load(text: str) -> dict[str, Any]:
    value = _decode(text)
    if not isinstance(value, dict):
        raise UnreadableAnswer(_NO_OBJECT)
    return cast("dict[str, Any]", value)


def _as_json5(found: re.Match[str]) -> str:
    """What Python, or a typographer, writes otherwise than JSON5, which has comments and trailing commas itself."""
    text = found[0]
    if found["curly"]:
        text = '"' + re.sub(r'(\\.)|"', lambda inner: inner[1] or r"\"", text[1:-1]) + '"'
    if found["string"] or found["curly"]:
        return text.replace("\n", "\\n")
    return _WORDS.get(text, " ")


def _explain(text: str, error: Exception) -> str:
    try:
        _STRICT.raw_decode(text)
    except (ValueError, RecursionError):
        said = (
            error.msg
            if isinstance(error, json.JSONDecodeError)
            else "nested too deeply, or a number too long"
        )
        return f"The model's answer is no valid JSON ({said})."
    return _NOT_ALONE


def _may_be_quoted(candidate: _Candidate, found: Mapping[str, Any], material: str) -> bool:
    """Whether an object may come from the material: as a whole or, amid prose, any of its plain fields.

    Neither spaces nor quotation marks count, as whoever quotes may write them in another way.
    """
    if not material:
        return False
    said = _squeeze(material)
    if _squeeze(candidate.text) in said:
        return True
    if candidate.is_alone:
        return False
    plain = {
        key: _squeeze(json.dumps(value)) for key, value in found.items() if not isinstance(value, list | dict)
    }
    return any(value and f"{_squeeze(key)}:{value}" in said for key, value in plain.items())


def _squeeze(text: str) -> str:
    return "".join(text.lower().translate(_NOISE).split())


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
