"""Texts about an execution for a model, a person and another agent, and the records in messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from mimetypes import guess_type

from autogen_core.code_executor import CodeResult
from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from codeact_team.core.execution import (
    Artifact,
    BoundName,
    CallOutcome,
    ExecutionResult,
    Outcome,
    SessionResult,
)
from codeact_team.models.verdicts import RetryDecision
from codeact_team.text.quoting import make_inert
from codeact_team.text.screen_text import condensed, settled
from codeact_team.tools.approvals import ApprovalRecord

EXECUTION_KEY = "codeact_team.execution"
"""The key of a message's metadata under which the record of an execution travels, as JSON."""

RESULT_KEY = "codeact_team.result"
"""The key of a message's metadata under which the whole of a result travels, as JSON: names and pictures as well."""

_ENDING_KEY = "codeact_team.ending"
"""The key of a message's metadata under which travels how the work on it ended."""


class Ending(StrEnum):
    """The end of an agent's work."""

    ANSWERED = "answered"
    """The model had an answer, or its code called ``final_answer``."""
    HANDED_OFF = "handed_off"
    """Another agent was handed the work."""
    NO_ANSWER = "no_answer"
    """The model said nothing."""
    REFUSED = "refused"
    """The model declined, or its provider stopped its answer."""
    CUT_OFF = "cut_off"
    """The model's replies were cut off, such as at its token limit; the answer is the best from what was there."""
    NO_SUCH_TOOL = "no_such_tool"
    """The model called tools that it was not offered; the answer is the best from what was there."""
    UNREADABLE_VERDICT = "unreadable_verdict"
    """A model's reply about the work could not be read as a verdict."""
    MAX_STEPS = "max_steps"
    """The steps were used up; the answer is the best from what was there, as where another limit ended the work."""
    MAX_SECONDS = "max_seconds"
    """The time was used up."""
    MAX_TOKENS = "max_tokens"
    """The tokens were used up."""
    STUCK = "stuck"
    """The same steps came again and again."""
    MAX_CALLS = "max_calls"
    """The calls of tools were used up."""
    GIVEN_UP = "given_up"
    """An error was not worth another attempt, or there had been too many in a row."""
    CANCELLED = "cancelled"
    """The caller stopped it."""

    @property
    def has_answer(self) -> bool:
        """Whether there is an answer, be it only the best from what was there."""
        return self not in (Ending.HANDED_OFF, Ending.NO_ANSWER, Ending.REFUSED, Ending.CANCELLED)

    @property
    def sentence(self) -> str:
        """The ending in a sentence, for a person."""
        return _SENTENCES[self]

    def to_metadata(self) -> dict[str, str]:
        """The ending as an entry for a message's metadata."""
        return {_ENDING_KEY: self.value}

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> Ending | None:
        """The ending in a message's metadata, or ``None`` where there is none that is known."""
        try:
            return cls(metadata[_ENDING_KEY])
        except (KeyError, ValueError):
            return None


_SENTENCES = {
    Ending.ANSWERED: "it has answered",
    Ending.HANDED_OFF: "it has handed the work over",
    Ending.NO_ANSWER: "the model gave no answer",
    Ending.REFUSED: "the model declined, or its provider stopped the answer",
    Ending.CUT_OFF: "the model's replies were cut off at its token limit",
    Ending.NO_SUCH_TOOL: "the model called tools that it was not offered",
    Ending.UNREADABLE_VERDICT: "the model's verdict could not be read",
    Ending.MAX_STEPS: "the steps are used up",
    Ending.MAX_SECONDS: "the time is used up",
    Ending.MAX_TOKENS: "the tokens are used up",
    Ending.STUCK: "the model repeated itself, and nothing new came of it",
    Ending.MAX_CALLS: "the calls of tools are used up",
    Ending.GIVEN_UP: "an error was not repaired",
    Ending.CANCELLED: "cancelled",
}


class CodeRecord(BaseModel):
    """A code block, as it ran."""

    language: str
    code: str


class ToolCallRecord(BaseModel):
    """A call that code made of a tool on the host."""

    name: str
    arguments: str
    """As JSON, cut in the middle."""
    outcome: CallOutcome
    error: str = ""
    """The error, if the call failed."""
    seconds: float
    """Wall-clock time until it was answered, the wait for approval included."""


class ExecutionRecord(BaseModel):
    """Record of an agent's code in one turn."""

    blocks: list[CodeRecord]
    """The blocks of the last execution."""
    exit_code: int
    """Exit code of the last block that ran; 0 for success."""
    outcome: Outcome
    """The outcome of the last execution."""
    output: str
    """As in the chat: cut, and with fences made inert."""
    limit: str | None = None
    """The limit that stopped the code, and the config field that sets it."""
    code_file: str | None = None
    """As :attr:`ExecutionResult.code_file`."""
    attempts: int = 1
    """The number of executions of code in the turn."""
    remark: str | None = None
    """Text that the message adds to the output if it passes that on; ``None`` if it has a text of its own."""
    answer: str | None = None
    """The argument of the last code's call of ``final_answer``, word for word, if that counts."""
    superseded: list[CodeRecord] = []
    """The blocks of the attempts before the last."""
    retry_decisions: list[RetryDecision] = []
    """The model's decision after each error."""
    tool_calls: list[ToolCallRecord] = []
    """The calls of tools that the code of the turn made, as they ended."""
    omitted_tool_calls: int = 0
    """The number of further calls."""
    approvals: list[ApprovalRecord] = []
    """The decisions on code and calls of tools, and who made them."""
    omitted_approvals: int = 0
    """The number of further decisions."""
    files: dict[str, int] = {}
    """The sizes in bytes of the files that the code of the turn has made or changed, by their paths; hostile data."""

    def to_metadata(self) -> dict[str, str]:
        """The record as an entry for a message's metadata."""
        return {EXECUTION_KEY: self.model_dump_json()}

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> ExecutionRecord | None:
        """The record in a message's metadata, or ``None`` where there is none that can be read."""
        try:
            return cls.model_validate_json(metadata[EXECUTION_KEY])
        except (KeyError, ValidationError):
            return None


class _Kept(BaseModel):
    """A result in JSON, bytes in base64."""

    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    session: SessionResult | None = None
    plain: ExecutionResult | None = None


def result_to_metadata(result: ExecutionResult) -> dict[str, str]:
    """A result as an entry for a message's metadata, without pictures in files.

    AutoGen's ``CodeExecutionEvent`` keeps exit code and output only, once it has been JSON.
    """
    return {RESULT_KEY: _kept(replace(result, saved_pictures=[])).model_dump_json(exclude_none=True)}


def result_from_metadata(metadata: Mapping[str, str]) -> ExecutionResult | None:
    """The result in a message's metadata, or ``None`` where there is none that can be read."""
    try:
        kept = _Kept.model_validate_json(metadata[RESULT_KEY])
    except (KeyError, ValidationError):
        return None
    return kept.session or kept.plain


def dump_result(result: ExecutionResult) -> JsonValue:
    """A result as JSON, bytes in base64."""
    return _kept(result).model_dump(mode="json", exclude_none=True)


def load_result(data: JsonValue) -> ExecutionResult:
    """The result that was dumped; a ``ValueError`` if it is none."""
    kept = _Kept.model_validate(data)
    if (result := kept.session or kept.plain) is None:
        raise ValueError("there is no result")
    return result


def _kept(result: ExecutionResult) -> _Kept:
    return _Kept(session=result) if isinstance(result, SessionResult) else _Kept(plain=result)


MAX_OBSERVATION_CHARS = 16_000
"""Characters of a result's output that are passed on: about four thousand tokens."""

_NO_OUTPUT = "(no output)"
"""Nothing to mend in a session: code may just bind names for the next block."""
_MAX_SUMMARY_CHARS = 2_000
_MAX_FORM_CHARS = 1_000
_WORDS = ("text/markdown", "text/latex", "application/json")
"""The forms of artifacts that a model reads as they are."""
_UNSEEN = "(only the user sees it; to see it yourself, draw it as PNG or print its data)"
_MAX_NAME_CHARS = 100
_MAX_FILES = 20


def encodable(text: str) -> str:
    """``text`` without lone surrogates, which JSON from a model can hold and no encoding can write."""
    return text.encode(errors="replace").decode()


def observe(result: CodeResult) -> ExecutionResult:
    """A result as it is passed on: in AutoGen's words, cut in the middle, and without a fence that would run again."""
    known = full_result(result)
    # for people it is as it was while it came
    output = make_inert(encodable(shorten(condensed(settled(known.output)))))
    if known.outcome in (Outcome.DENIED, Outcome.CANCELLED, Outcome.NOT_RUN):
        text = output
    elif not output.strip() and isinstance(known, SessionResult) and known.exit_code == 0:
        text = _NO_OUTPUT
    elif not output.strip():
        text = (
            f"The script ran but produced no output to console. The POSIX exit code was: {known.exit_code}. If you were "
            "expecting output, consider revising the script to ensure content is printed to stdout."
        )
    elif known.exit_code != 0:
        text = f"The script ran, then exited with an error (POSIX exit code: {known.exit_code})\nIts output was:\n{output}"
    else:
        text = output
    return replace(known, output=text)


def summarize(result: ExecutionResult) -> str:
    """In a line each, what a session's code has bound, and what it has made beside text; hostile data."""
    if not isinstance(result, SessionResult):
        return ""
    lines: list[str] = []
    if result.names:
        more = [f"{result.omitted_names} more"] if result.omitted_names else []
        lines.append("Bound: " + "; ".join([*map(_bound, result.names), *more]))
    if result.artifacts:
        lines.append("Made: " + "; ".join(map(_made, result.artifacts)))
        lines += filter(None, map(_words_of, result.artifacts))
    if result.files:
        lines.append(f"Files: {describe_files(result.files)}")
    return make_inert(encodable(shorten("\n".join(lines), _MAX_SUMMARY_CHARS)))


def _made(artifact: Artifact) -> str:
    made = f"{_line(artifact.mime_type)}, {len(artifact.data) / 1000:.1f} kB"
    is_seen = "image/png" in artifact.forms or _is_printed(artifact) or _words_of(artifact)
    return made if is_seen else f"{made} {_UNSEEN}"


def _words_of(artifact: Artifact) -> str | None:
    """The text of an artifact that has no picture, if printing it has not shown that."""
    if "image/png" in artifact.forms or _is_printed(artifact):
        return None
    kind = next((kind for kind in _WORDS if kind in artifact.forms), None)
    if kind is None:
        return None
    return f"{kind}: {shorten(artifact.forms[kind].decode(errors='replace'), _MAX_FORM_CHARS)}"


def _is_printed(artifact: Artifact) -> bool:
    """Whether what is printed of an artifact says what it is: more than its class and address."""
    plain = artifact.other_forms.get("text/plain", b"")
    return not (plain.startswith(b"<") or plain.endswith(b"...)"))


def describe_files(files: Mapping[str, int]) -> str:
    """Files by their paths, kinds and sizes, in one line."""
    each = [f"{_line(path)} ({_kind(path)}{size / 1000:,.1f} kB)" for path, size in files.items()]
    more = [f"{len(each) - _MAX_FILES} more"] if len(each) > _MAX_FILES else []
    return "; ".join([*each[:_MAX_FILES], *more])


def _kind(path: str) -> str:
    kind, _ = guess_type(path)
    return f"{kind}, " if kind else ""


def _bound(name: BoundName) -> str:
    said = " ".join(filter(None, (name.name, name.type, name.size)))
    return _line(said if name.preview is None else f"{said} = {name.preview}")


def _line(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= _MAX_NAME_CHARS else f"{words[:_MAX_NAME_CHARS]}..."


def shorten(text: str, limit: int = MAX_OBSERVATION_CHARS) -> str:
    """``text``, cut in the middle to ``limit`` characters, with the size of what is missing."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters omitted ...]\n{text[len(text) - half :]}"


def full_result(result: CodeResult) -> ExecutionResult:
    """Any executor's result as one of ours."""
    if isinstance(result, ExecutionResult):
        return result
    code_file: object = getattr(result, "code_file", None)
    return ExecutionResult(
        exit_code=result.exit_code,
        output=result.output,
        code_file=code_file if isinstance(code_file, str) else None,
    )
