"""What a model, a person and another agent get to read of an execution."""

from __future__ import annotations

from dataclasses import replace

from autogen_core.code_executor import CodeResult

from codeact_team.execution import Artifact, BoundName, ExecutionResult, Outcome, SessionResult

# what programs read was here first
from codeact_team.execution_records import ENDING_KEY as ENDING_KEY
from codeact_team.execution_records import EXECUTION_KEY as EXECUTION_KEY
from codeact_team.execution_records import RESULT_KEY as RESULT_KEY
from codeact_team.execution_records import CodeRecord as CodeRecord
from codeact_team.execution_records import Ending as Ending
from codeact_team.execution_records import ExecutionRecord as ExecutionRecord
from codeact_team.execution_records import ToolCallRecord as ToolCallRecord
from codeact_team.execution_records import result_from_metadata as result_from_metadata
from codeact_team.execution_records import result_to_metadata as result_to_metadata
from codeact_team.parsing import as_data as as_data
from codeact_team.parsing import make_inert

MAX_OBSERVATION_CHARS = 16_000
"""How much of a result's output is passed on: about four thousand tokens."""

_NO_OUTPUT = "(no output)"
"""Nothing to mend in a session: code may just bind names for the next block."""
_MAX_SUMMARY_CHARS = 2_000
_MAX_NAME_CHARS = 100


def encodable(text: str) -> str:
    """``text`` without lone surrogates, which JSON from a model can hold and no encoding can write."""
    return text.encode(errors="replace").decode()


def observe(result: CodeResult) -> ExecutionResult:
    """A result as it is passed on: in AutoGen's words, cut in the middle, and without a fence that would run again."""
    known = full_result(result)
    output = make_inert(encodable(shorten(known.output)))
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
    return make_inert(encodable(shorten("\n".join(lines), _MAX_SUMMARY_CHARS)))


def _bound(name: BoundName) -> str:
    said = " ".join(part for part in (name.name, name.type, name.size) if part)
    return _line(said if name.preview is None else f"{said} = {name.preview}")


def _made(artifact: Artifact) -> str:
    return f"{_line(artifact.mime_type)}, {len(artifact.data) / 1000:.1f} kB"


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
