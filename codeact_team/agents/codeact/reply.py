"""Reads a reply of the model as code, an answer or a handoff."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast

from autogen_agentchat.base import Handoff
from autogen_agentchat.messages import HandoffMessage, ToolCallExecutionEvent, ToolCallRequestEvent
from autogen_core import CancellationToken, FunctionCall
from autogen_core.code_executor import CodeBlock
from autogen_core.models import (
    AssistantMessage,
    ChatCompletionClient,
    CreateResult,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
    LLMMessage,
    UserMessage,
)
from autogen_core.tools import Tool
from pydantic import BaseModel, BeforeValidator, Field, JsonValue, TypeAdapter, ValidationError

from codeact_team.agents.messages import Fault, fault_of, text_of_result
from codeact_team.core.execution import SessionResult
from codeact_team.errors import SettingError
from codeact_team.models.structured import UnreadableAnswer, read_value
from codeact_team.text.markdown import Extraction, extract_code, extract_from_reply
from codeact_team.text.quoting import make_json_inert
from codeact_team.text.visibility import clean
from codeact_team.tools.model_reader import ModelReader
from codeact_team.tools.schemas import SchemaChecker

_IF_ANSWER = "If that was your answer, give it again as it is."


@dataclass(frozen=True)
class Reply:
    """One reply of a model."""

    text: str
    """Its words, with the code in them."""
    thought: str | None
    blocks: list[CodeBlock]
    """The code to run."""
    unsupported: list[str]
    """Labels of code that is not run."""
    invented: bool
    """Whether what followed the code, as if it had run already, is left out."""
    calls: list[FunctionCall]
    remark: str | None
    """Feedback for a reply that is neither runnable code nor an answer."""
    fault: Fault | None
    """The fault of the whole reply, if it has one."""
    may_be_answer: bool
    """Whether it may be an answer all the same: it neither holds nor was to be code."""


NOTHING = Reply("", None, [], [], invented=False, calls=[], remark=None, fault=None, may_be_answer=False)
"""Before the model has written anything."""


def read_reply(result: CreateResult, languages: Sequence[str]) -> Reply:
    """Read what a model has written; code with one of these labels is run."""
    calls = [] if isinstance(result.content, str) else result.content
    text = text_of_result(result)
    found = extract_from_reply("" if calls else text, languages)
    fault = fault_of(result, found)
    return Reply(
        # nor is it to be believed later
        text=text[: found.invented],
        thought=result.thought,
        blocks=[] if fault else found.blocks,
        unsupported=found.unsupported,
        invented=found.invented is not None,
        calls=calls,
        remark=_remark(text, found, languages) if fault is None else fault.to_text(),
        fault=fault,
        may_be_answer=not (calls or found.blocks or found.unclosed),
    )


def _remark(text: str, found: Extraction, languages: Sequence[str]) -> str | None:
    runnable = ", ".join(languages)
    if found.blocks:
        return None
    if found.unsupported:
        labels = ", ".join(found.unsupported)
        return f"No code was run: {labels} is not run here, only {runnable}. {_IF_ANSWER}"
    unlabelled = extract_code(text, languages, default_language="python").blocks
    if any(_CODE_LINE.search(block.code) for block in unlabelled):
        return f"No code was run: a code block is run if it has one of the labels {runnable}. {_IF_ANSWER}"
    return None


_CODE_LINE = re.compile(
    r"""^[ \t]*(?:
        [#@] | [$%!>]+[ ] | \./ | [^\W\d][\w.]*[ \t]*$ | [\w.]+\[ | [rbfu]{1,2}['"]
        | (?:import|from|def|class|for|while|if|elif|else|with|try|return|assert|del|async|await|raise|pass|lambda|not|print|yield
            |global|nonlocal|match)\b
        | (?:sudo|pip3?|python3?|bash|sh|ls|cd|cat|cp|mv|rm|mkdir|touch|chmod|echo|printf|export|source|pwd|head|tail|wc|sort|uniq|cut
            |grep|sed|awk|find|xargs|tar|unzip|curl|wget|git|apt(?:-get)?|make|file|du|df|ps|env|test|which|tree|jq|node|npm|sqlite3
            |perl|gcc)\b
    )|=|[\w\])]\(|[\w)][ ]*[*+%][ ]*[\w(]|[\w)][ ][-/][ ][\w(]|\bfor\b[^\n]{1,80}\bin\b|[ ]-{1,2}[A-Za-z]|&&|\|\|""",
    re.MULTILINE | re.VERBOSE,
)
"""A line that may be Python or of a shell, also one with a mistake. It is not compiled, as it is hostile."""


def _readable(value: object) -> object:
    """Return a copy for AutoGen's model, which writes into its input. Raise a ``ValueError`` if the target is missing."""
    if not isinstance(value, Mapping):
        return value
    given = dict(cast("Mapping[str, object]", value))
    if not isinstance(given.get("target"), str):
        raise ValueError("a handoff needs a target, which is the name of an agent")
    if unknown := given.keys() - Handoff.model_fields:
        raise ValueError(f"a handoff has no {', '.join(sorted(unknown))}")
    return given


HandoffConfig = Annotated[
    str | Annotated[Handoff, BeforeValidator(_readable)], Field(union_mode="left_to_right")
]
"""A config field for a handoff: the name of an agent, or more about it."""


@dataclass(frozen=True)
class HandoffTaken:
    """A handoff that the model has made."""

    target: str
    content: str
    """The message to the other agent."""
    context: list[LLMMessage]
    """Earlier messages that the other agent reads besides."""
    calls: list[FunctionCall]
    """All that the model called, the handoff among them."""
    results: list[FunctionExecutionResult]

    def events(self, source: str) -> tuple[ToolCallRequestEvent, ToolCallExecutionEvent]:
        """Return the events for observers of the agent."""
        return (
            ToolCallRequestEvent(content=self.calls, source=source),
            ToolCallExecutionEvent(content=self.results, source=source),
        )

    def remembered(self, source: str, thought: str | None) -> tuple[LLMMessage, LLMMessage]:
        """Return the messages that the agent itself remembers."""
        return (
            AssistantMessage(content=self.calls, source=source, thought=thought),
            FunctionExecutionResultMessage(content=self.results),
        )

    def message(self, source: str) -> HandoffMessage:
        """The message that hands over."""
        return HandoffMessage(content=self.content, target=self.target, context=self.context, source=source)


class Handoffs:
    """The agents that the work can be handed to; their names differ, and the model has to call tools."""

    def __init__(self, handoffs: Sequence[Handoff | str], model_client: ChatCompletionClient) -> None:
        self._given = list(handoffs)
        full = [Handoff(target=one) if isinstance(one, str) else one for one in handoffs]
        self._by_name = {one.name: one for one in full}
        if len(self._by_name) < len(full):
            names = ", ".join(one.name for one in full)
            raise SettingError(f"handoffs: names must differ, but they are {names}")
        if full and not model_client.model_info["function_calling"]:
            raise SettingError("handoffs: the model of model_client cannot call tools, which they need")
        self._tools = {one.name: one.handoff_tool for one in full}

    def __bool__(self) -> bool:
        return bool(self._given)

    @property
    def tools(self) -> Sequence[Tool]:
        """The tools that the model is offered."""
        return tuple(self._tools.values())

    def dump(self) -> list[Handoff | str]:
        """The handoffs for a config; a :class:`SettingError` if one has no form there."""
        for one in self._given:
            if not isinstance(one, str) and type(one) is not Handoff:
                raise SettingError(
                    f"handoffs: {type(one).__name__} to {one.target!r} cannot be dumped: only Handoff itself, and the "
                    "name of an agent, have a form in a config"
                )
        return list(self._given)

    async def hand_off(
        self, reply: Reply, *, source: str, cancellation_token: CancellationToken
    ) -> HandoffTaken | str | None:
        """Make the first handoff among the calls of a reply: the handoff, why it failed, or ``None`` without any."""
        chosen = next((call for call in reply.calls if call.name in self._by_name), None)
        if chosen is None:
            return None
        tool = self._tools[chosen.name]
        try:
            returned = await tool.run_json(_arguments(chosen), cancellation_token, call_id=chosen.id)
        except Exception as error:  # a tool of the user's, called with what a model made up
            return f"{chosen.name} failed: {type(error).__name__}: {error}"
        content = tool.return_value_as_string(returned)
        results = [
            FunctionExecutionResult(
                content=content if call is chosen else "Not done: the work was handed over.",
                name=call.name,
                call_id=call.id,
                is_error=call is not chosen,
            )
            for call in reply.calls
        ]
        target = self._by_name[chosen.name].target
        context: list[LLMMessage] = (
            [AssistantMessage(content=reply.thought, source=source)] if reply.thought else []
        )
        return HandoffTaken(target, content, context, reply.calls, results)


def _arguments(call: FunctionCall) -> dict[str, object]:
    """The arguments; most handoffs take none, so what cannot be read is left out."""
    try:
        arguments: object = json.loads(call.arguments or "{}")
    except json.JSONDecodeError:
        return {}
    return arguments if isinstance(arguments, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def keep_in_view(
    kept: Sequence[LLMMessage], *, task: Sequence[LLMMessage], said: Sequence[LLMMessage], latest: int
) -> list[LLMMessage]:
    """The messages that a context has kept, with those restored that must not be missing.

    Args:
        kept: The messages in the context, of this run and of earlier ones.
        task: The messages of the task, all of which are needed.
        said: The messages of the run since, in order.
        latest: The index in ``said`` from which on all are needed.
    """
    tail = list(said[latest:])
    rest = list(kept)
    for message in reversed(tail):
        if rest and _same(rest[-1], message):
            rest.pop()
    if not all(_contains(rest, message) for message in task):
        rest = [message for message in rest if not _contains(task, message)]
        of_this_run = (number for number, message in enumerate(rest) if _contains(said, message))
        start = next(of_this_run, len(rest))
        rest[start:start] = task
    return _without_halves([*rest, *tail])


def _contains(messages: Sequence[LLMMessage], message: LLMMessage) -> bool:
    return any(_same(other, message) for other in messages)


def _same(one: LLMMessage, other: LLMMessage) -> bool:
    # a context may give copies, and leave out what the model thought
    return one is other or (type(one) is type(other) and one.content == other.content)


def _without_halves(messages: Sequence[LLMMessage]) -> list[LLMMessage]:
    """The messages without calls of tools that lack results, and results that lack calls: servers refuse either."""
    # a conversation may be long, and is looked through before each call of a model: most is said by the type alone
    if not [one for one in messages if type(one) is not UserMessage and type(one.content) is not str]:
        return [*messages]
    after = [*messages[1:], None]
    before = [None, *messages[:-1]]
    return [
        message
        for earlier, message, later in zip(before, messages, after, strict=True)
        if (
            not (isinstance(message, AssistantMessage) and isinstance(message.content, list))
            and not isinstance(message, FunctionExecutionResultMessage)
        )
        or _belong_together(message, later)
        or _belong_together(earlier, message)
    ]


def _belong_together(call: LLMMessage | None, results: LLMMessage | None) -> bool:
    if not isinstance(call, AssistantMessage) or isinstance(call.content, str):
        return False
    if not isinstance(results, FunctionExecutionResultMessage):
        return False
    return {one.id for one in call.content} == {result.call_id for result in results.content}


_INSTRUCTIONS = (
    "The answer is not given in plain words: it is a value that fits the JSON Schema below. When the task is solved, "
    "call final_answer(value) in the code with a value of dicts, lists, strings, numbers, booleans and None, or reply "
    "with nothing but the value as JSON.\n\n"
    "{}"
)
HOW_TO_ANSWER = (
    "Reply with nothing but the value as JSON, without other words, or call final_answer(value) in the code."
)
"""Remark for the model on a reply without code that is no answer."""

_MAX_PROBLEM = 2_000
_MAX_ERRORS = 3

_json_object = TypeAdapter(dict[str, JsonValue])


class Misfit(ValueError):
    """An answer does not fit the schema; the text tells the model why."""


def _as_schema(given: object) -> Mapping[str, JsonValue]:
    """The JSON Schema in a setting, or of a Pydantic model's class; a :class:`SettingError` if it gives none."""
    try:
        if isinstance(given, type) and issubclass(given, BaseModel):
            return given.model_json_schema()
        return _json_object.validate_python(given)
    except Exception as error:
        raise SettingError(
            "output_schema: a JSON Schema is expected, as a mapping, or the class of a Pydantic model: "
            f"{clean(str(error), _MAX_PROBLEM)}"
        ) from error


class OutputSchema:
    """The schema of an answer: a JSON Schema, or a Pydantic model, whose validators have to agree as well."""

    def __init__(self, given: Mapping[str, Any] | type[BaseModel]) -> None:
        self.schema: Mapping[str, JsonValue] = _as_schema(given)
        self._reader = ModelReader(given, name="answer") if isinstance(given, type) else None
        try:
            self._checker = SchemaChecker(self.schema, name="answer", schema_name="the schema")
        except ValueError as error:
            raise SettingError(f"output_schema: {error}") from error

    def describe(self) -> str:
        """Describe the schema for the model."""
        return _INSTRUCTIONS.format(json.dumps(self.schema, ensure_ascii=False))

    def of_code(self, result: SessionResult) -> str:
        """The JSON of the argument of ``final_answer``; a :class:`Misfit` if that does not fit."""
        text = result.answer or ""
        if not result.answer_is_json and result.answer_problem:
            raise Misfit(
                f"final_answer was called with a value that is not JSON: {_quoted(result.answer_problem)}"
            )
        try:
            # an interpreter may say what it likes
            value = json.loads(text) if result.answer_is_json else text
        except (ValueError, RecursionError):
            raise Misfit("final_answer was called with a value that is not JSON") from None
        return self._fitting(value)

    def of_words(self, text: str) -> str:
        """The JSON of a model's answer; a :class:`Misfit` if it is none, or does not fit."""
        try:
            return self._fitting(read_value(text))
        except UnreadableAnswer as error:
            raise Misfit(_quoted(str(error))) from None

    def _fitting(self, value: JsonValue) -> str:
        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False)
            self._checker.check(value)
            if self._reader is not None:
                self._reader.require_bounded(value)
                self._reader.model.model_validate_json(text)
        except ValidationError as error:
            raise Misfit(_described(error)) from None
        except (ValueError, RecursionError) as error:
            raise Misfit(_quoted(str(error))) from None
        # whoever reads it finds no code in it, and still the same value
        return make_json_inert(text)


def _described(error: ValidationError) -> str:
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    return _quoted(
        "; ".join(
            "".join(["answer", *(f"[{part!r}]" for part in item["loc"])]) + f": {item['msg']}"
            for item in errors[:_MAX_ERRORS]
        )
    )


def _quoted(text: str) -> str:
    return clean(text, _MAX_PROBLEM).rstrip(".")
