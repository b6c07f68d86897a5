"""Structured answers of a model.

A client is asked in the strictest mode that it supports: structured output, JSON mode, or a plain request. If a server refuses
a mode, the next one is tried, and remembered for the client. Answers are read leniently, but an object that the model may only
have quoted is not its answer. A model whose answer cannot be used is asked once more. An answer that still cannot be used is a
result with a reason in words; only errors of the client and its server raise.
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

from codeact_team.models.clients import WrappedClient, wrap_client
from codeact_team.text.nesting import check_nesting
from codeact_team.text.quoting import take_thoughts_off

_MARK_FIELD = "answer_mark"
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
_NOT_WRITABLE = "The model's answer has half a character (a surrogate), and is too long to repair."
_NO_OBJECT = "The model's answer holds no JSON object."
_NOT_ALONE = "The JSON object in the model's answer may be a quotation: it neither stands alone nor in a code fence at the end."
_QUOTED = (
    f"The JSON object in the model's answer may be a quotation: the same stands in what was said before, and the "
    f"object has no valid {_MARK_FIELD!r}."
)


class UnreadableAnswer(ValueError):
    """A text of a model holds no answer, or one that may be a quotation; the message says why."""


class _Candidate(NamedTuple):
    text: str
    is_alone: bool


def read_object(text: str, *, mark: str | None = None, material: str = "") -> dict[str, Any]:
    """Read the object in a model's answer.

    The object stands alone, or in a code fence that ends the text, or at the end of the text if it holds the mark. An
    object without the mark does not count if it may be copied from the material.

    Args:
        text: The answer. The work is bounded for any text.
        mark: The value that the model was told to put into :data:`_MARK_FIELD`, unknown to the authors of the material;
            ``None`` if the server guarantees that the object stands alone.
        material: The texts that the model may quote.

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
            found: Any = _decode(candidate.text)
            if not isinstance(found, dict):
                raise UnreadableAnswer(_NO_OBJECT)
            found = cast("dict[str, Any]", found)
        except UnreadableAnswer as error:
            problem = problem or error
            continue
        is_marked = found.pop(_MARK_FIELD, None) == mark and mark is not None
        is_certain = is_marked or (mark is None and candidate.is_alone)
        if not is_certain and _may_be_quoted(candidate, found, material):
            raise UnreadableAnswer(_QUOTED)
        return found
    raise problem or UnreadableAnswer(_NOT_ALONE if "{" in stripped else _NO_OBJECT)


def read_value(text: str) -> JsonValue:
    """Read the JSON value in a model's answer, alone or in a code fence that ends it; else :class:`UnreadableAnswer`."""
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
    """Decode JSON, or a similar notation with only one possible meaning; nothing is completed or guessed."""
    try:
        value = _STRICT.decode(text)
        check_nesting(value)
    except (ValueError, RecursionError) as error:
        try:
            value = pyjson5.decode(_NOTATION.sub(_as_json5, text))
        except pyjson5.Json5Exception:
            raise UnreadableAnswer(_explain(text, error)) from None
    if not _SURROGATE.search(text):
        return value
    try:
        # JSON can escape halves of characters, but no encoding can write them
        return json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
    except (ValueError, RecursionError):
        raise UnreadableAnswer(_NOT_WRITABLE) from None


def _as_json5(found: re.Match[str]) -> str:
    """Convert a notation of Python, or a typographer's quotation marks, to JSON5, which allows trailing commas itself."""
    text = found[0]
    if found["curly"]:
        text = '"' + re.sub(r'(\\.)|"', lambda inner: inner[1] or r"\"", text[1:-1]) + '"'
    if found["string"] or found["curly"]:
        return text.replace("\n", "\\n")
    return _WORDS.get(text, " ")


def _explain(text: str, error: Exception) -> str:
    try:
        check_nesting(_STRICT.raw_decode(text)[0])
    except (ValueError, RecursionError):
        reason = (
            error.msg
            if isinstance(error, json.JSONDecodeError)
            else "nested too deeply, or a number too long"
        )
        return f"The model's answer is not valid JSON ({reason})."
    return _NOT_ALONE


def _may_be_quoted(candidate: _Candidate, found: Mapping[str, Any], material: str) -> bool:
    """Whether an object may be quoted, spaces and quotation marks apart: as a whole or, amid prose, any plain field."""
    if not material:
        return False
    squeezed = _squeeze(material)
    if _squeeze(candidate.text) in squeezed:
        return True
    if candidate.is_alone:
        return False
    plain = {
        key: _squeeze(json.dumps(value)) for key, value in found.items() if not isinstance(value, list | dict)
    }
    return any(value and f"{_squeeze(key)}:{value}" in squeezed for key, value in plain.items())


def _squeeze(text: str) -> str:
    return "".join(text.lower().translate(_NOISE).split())


Schema = TypeVar("Schema", bound=BaseModel)
Value = TypeVar("Value", covariant=True)

MAX_TEXT_CHARS = 4_000
"""Characters of the model's text that an answer keeps."""

_MAX_NAMED_ERRORS = 3
_MARK_LENGTH = 12

_REFUSING_STATUSES = frozenset({400, 422})
_CUT_SHORT = {
    "length": "The model's answer was cut off at its token limit.",
    "content_filter": "The model declined, or was stopped by the provider's content filter.",
}
_TOOL_CALLS = "The model called tools where an answer was asked for."
_ASK_AGAIN = "Your answer could not be used. {problem} Answer again, with the JSON object alone."


@dataclass(frozen=True)
class ModelAnswer(Generic[Value]):
    """The answer of a model.

    Attributes:
        value: The value, or a substitute if there is a problem.
        problem: Why the model's answer could not be used, for a person and for a model; ``None`` if it could.
        usage: The tokens of all calls. A call that raised counts only if its error has the usage.
        text: The model's text without its thoughts, at most :data:`MAX_TEXT_CHARS` characters.
        thought: The model's thoughts before the answer.
        finish_reason: Why the model ended its answer, as AutoGen names it.
    """

    value: Value
    problem: str | None
    usage: RequestUsage
    text: str = ""
    thought: str | None = None
    finish_reason: str = "unknown"

    def or_else(self: ModelAnswer[Schema | None], substitute: Schema) -> ModelAnswer[Schema]:
        """Return the same answer, with ``substitute`` for a missing value."""
        value = substitute if self.value is None else self.value
        return ModelAnswer(value, self.problem, self.usage, self.text, self.thought, self.finish_reason)


class _Mode(IntEnum):
    """The modes of a request, the strictest first."""

    STRUCTURED = 0
    JSON = 1
    PLAIN = 2


_accepted: WeakKeyDictionary[ChatCompletionClient, _Mode] = WeakKeyDictionary()


@dataclass(frozen=True)
class _Question(Generic[Schema]):
    """A question to a model, and the messages before it, which the model may quote.

    The model marks its answer by a value that the authors of these cannot know, as it depends on the whole conversation;
    the same question always has the same mark.
    """

    schema: type[Schema]
    material: str
    mark: str

    @classmethod
    def of(cls, messages: Sequence[LLMMessage], schema: type[Schema]) -> _Question[Schema]:
        texts = [_text(message) for message in messages]
        before = zip(messages[:-1], texts, strict=False)
        material = "\n".join(text for message, text in before if not isinstance(message, SystemMessage))
        hashed = sha256("\0".join([schema.__name__, *texts]).encode(errors="replace"))
        return cls(schema, material, hashed.hexdigest()[:_MARK_LENGTH])


async def ask(
    client: ChatCompletionClient,
    messages: Sequence[LLMMessage],
    schema: type[Schema],
    *,
    cancellation_token: CancellationToken | None = None,
) -> ModelAnswer[Schema | None]:
    """Ask for an answer that fits ``schema``; if it cannot be used, ask once more, with the reason.

    Args:
        client: Any model client; its ``model_info`` tells the modes that it supports.
        messages: The whole conversation, with its system message if it has one. The last message is the question. Those
            before may be hostile; what the model quotes from them is not taken for its answer.
        schema: The shape of the answer. Its description and the descriptions of its fields are sent to the model.
        cancellation_token: Stops the call that is under way.

    Returns:
        The answer. If it could not be used, its value is ``None``, and its problem says why.

    Raises:
        ModelError: If the client returned, or its server answered with, something that is no answer of a model.
        Exception: Any other error of the client: a wrong key, a rate limit, a broken connection, a request that is
            refused in every mode.
    """
    question, client = _Question[Schema].of(messages, schema), wrap_client(client)
    first = await _ask_once(client, messages, question, cancellation_token)
    if first.problem is None:
        return first
    reply = [AssistantMessage(content=first.text, source="assistant")] if first.text.strip() else []
    repeated = _extended([*messages, *reply], _ASK_AGAIN.format(problem=first.problem))
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
) -> ModelAnswer[Schema | None]:
    modes = _modes(client)
    for mode in modes:
        asked, json_output = messages, cast("Any", _unchecked(question.schema))
        if mode is not _Mode.STRUCTURED:
            asked, json_output = _extended(messages, _instruction(question)), mode is _Mode.JSON
        try:
            result = await client.ask(asked, json_output=json_output, cancellation_token=cancellation_token)
        except Exception as error:
            if mode is not modes[-1] and _refuses_mode(error):
                continue
            if isinstance(error, ValidationError) and error.title == question.schema.__name__:
                # of a client that checks the answer itself
                return ModelAnswer(None, _describe(error), RequestUsage(0, 0))
            if (result := _cut_short(error)) is None:
                raise
        _accepted[client.wrapped] = mode
        return _read(result, question, mode)
    raise AssertionError("the plain mode is always there")


def _text(message: LLMMessage) -> str:
    """The text of a message, without its pictures."""
    if isinstance(message.content, str):
        return message.content
    if isinstance(message, FunctionExecutionResultMessage):
        return "\n".join(result.content for result in message.content)
    if isinstance(message, AssistantMessage):
        return "\n".join(call.arguments for call in message.content)
    return "\n".join(part for part in message.content if isinstance(part, str))


def _fit(text: str, question: _Question[Schema], mode: _Mode) -> tuple[Schema | None, str | None]:
    """Read the answer in a model's text: the value and ``None``, or ``None`` and the reason in words."""
    # in structured output nothing but the answer is there, and it has no field for a mark
    mark = None if mode is _Mode.STRUCTURED else question.mark
    try:
        found = read_object(text, mark=mark, material=question.material)
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


class _Unchecked(BaseModel):
    """A schema that accepts every answer unread."""

    @classmethod
    def model_validate_json(cls, *_arguments: object, **_options: object) -> Any:
        return None


@cache
def _unchecked(schema: type[BaseModel]) -> type[BaseModel]:
    """Make a schema with the same name and fields that the client does not check.

    An OpenAI client raises if the answer does not fit, without the model's text and its cost; and if it fits, warns about
    serializing the parsed object.
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
    schema["properties"] = {_MARK_FIELD: mark, **schema["properties"]}
    schema["required"] = [_MARK_FIELD, *schema.get("required", ())]
    return "Answer with one JSON object and nothing else. It must match this JSON Schema:\n" + json.dumps(
        schema
    )


def _extended(messages: Sequence[LLMMessage], text: str) -> list[LLMMessage]:
    """Append text to the last message if possible, as some models want alternating turns."""
    if messages and isinstance(last := messages[-1], UserMessage) and isinstance(last.content, str):
        return [*messages[:-1], last.model_copy(update={"content": f"{last.content}\n\n{text}"})]
    return [*messages, UserMessage(content=text, source="user")]


def _refuses_mode(error: Exception) -> bool:
    """Whether the server, or the client itself, may have refused the mode rather than the question."""
    is_wrong_value = type(error) is ValueError or getattr(error, "type_name", "") == "builtins.ValueError"
    return is_wrong_value or getattr(error, "status_code", None) in _REFUSING_STATUSES


def _cut_short(error: Exception) -> CreateResult | None:
    """Make a result of the error that a client raises instead of returning an answer that was cut short."""
    # the import takes 0.3 s, which only users of that client pay
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


def _read(result: CreateResult, question: _Question[Schema], mode: _Mode) -> ModelAnswer[Schema | None]:
    if not isinstance(result.content, str):
        return ModelAnswer(
            None, _TOOL_CALLS, result.usage, thought=result.thought, finish_reason="function_calls"
        )
    text, thought = take_thoughts_off(result.content, result.thought)
    value, problem = _fit(text, question, mode)
    if problem is not None:
        problem = _CUT_SHORT.get(result.finish_reason, problem)
    kept = text[:MAX_TEXT_CHARS].encode(errors="replace").decode()
    return ModelAnswer(value, problem, result.usage, kept, thought, result.finish_reason)
