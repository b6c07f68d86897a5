"""What a model, a person and another agent get to read of an execution, and the record that programs read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from autogen_core.code_executor import CodeResult
from pydantic import BaseModel, ValidationError

from codeact_team.execution import ExecutionResult, Outcome
from codeact_team.parsing import make_inert
from codeact_team.retry import RetryDecision

EXECUTION_KEY = "codeact_team.execution"
"""The key of a message's metadata under which the record of an execution travels, as JSON."""

MAX_OBSERVATION_CHARS = 16_000
"""How much of a result's output is passed on: about four thousand tokens."""

_END_OF_DATA = re.compile(r"<(?=\s*/\s*output)", re.IGNORECASE)


class CodeRecord(BaseModel):
    """A code block, as it ran."""

    language: str
    code: str


class ExecutionRecord(BaseModel):
    """What an agent did with code in one turn."""

    blocks: list[CodeRecord]
    """The blocks of the last execution."""
    exit_code: int
    outcome: Outcome
    output: str
    """As in the chat: cut, and with fences made inert."""
    limit: str | None = None
    code_file: str | None = None
    attempts: int = 1
    """How often in the turn there was code to run."""
    superseded: list[CodeRecord] = []
    """The blocks of the attempts before the last."""
    retry_decisions: list[RetryDecision] = []

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


def encodable(text: str) -> str:
    """``text`` without lone surrogates, which JSON from a model can hold and no encoding can write."""
    return text.encode(errors="replace").decode()


def observe(result: CodeResult) -> ExecutionResult:
    """A result as it is passed on: in AutoGen's words, cut in the middle, and without a fence that would run again."""
    known = result if isinstance(result, ExecutionResult) else _from_plain(result)
    output = make_inert(encodable(shorten(known.output)))
    if known.outcome in (Outcome.DENIED, Outcome.CANCELLED, Outcome.NOT_RUN):
        text = output
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


def as_data(output: str) -> str:
    """Output for a model's context: delimited, so that it is read as data and not as somebody's words."""
    inert = _END_OF_DATA.sub("<\u200b", output)
    return f"<output>\n{inert}\n</output>"


def shorten(text: str, limit: int = MAX_OBSERVATION_CHARS) -> str:
    """``text``, cut in the middle to ``limit`` characters, with the size of what is missing."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters omitted ...]\n{text[len(text) - half :]}"


def _from_plain(result: CodeResult) -> ExecutionResult:
    code_file: object = getattr(result, "code_file", None)
    return ExecutionResult(
        exit_code=result.exit_code,
        output=result.output,
        code_file=code_file if isinstance(code_file, str) else None,
    )
