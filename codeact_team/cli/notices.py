"""Notices about a run that a person gets however little else is shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from codeact_team.cli.screen import Screen
from codeact_team.core.effects import Event
from codeact_team.core.events import (
    BlockEnded,
    BlocksRepeated,
    FilesPutBack,
    ModelCallPutOff,
    Opened,
    RunBegan,
    RunResumed,
    SandboxPreparing,
)
from codeact_team.core.execution import advice
from codeact_team.core.notices import Level
from codeact_team.journal.result import RunResult
from codeact_team.text.visibility import edged, readable, visible

_TOOLS = ("tool_call", "part_call")
"""Kinds of effects that are calls of tools."""
_MAX_FILES = 10
"""Files named in a notice that they could not be copied, or were put back."""


def print_notices(screen: Screen, event: Event, *, places: bool = False) -> bool:
    """Print the notices of an event, with ``places`` also where the code works; returns whether it has any."""
    again = isinstance(event, RunResult | ModelCallPutOff)
    has_any = False
    for level, text in _notices(screen, event, places):
        screen.notice(level, text, again=again)
        has_any = True
    return has_any


def _notices(screen: Screen, event: Event, places: bool) -> Iterator[tuple[Level, str]]:
    match event:
        case SandboxPreparing():
            yield "note", event.doing
        case Opened():
            for relaxation in event.relaxations:
                # in the words of executors when they start, so that it is printed once
                yield "warning", f"the sandbox is looser than its default: {relaxation}"
            for workspace in event.workspaces if places else ():
                yield "note", f"the workspace is {workspace}"
        case BlocksRepeated() if event.differing:
            differing = f"of {event.blocks} blocks that ran again, {event.differing} printed something else than before"
            shown = "" if event.difference is None else f":\n{edged(visible(event.difference), screen.width)}"
            yield "warning", f"{differing}; the agents keep to the earlier output{shown}"
        case RunResult():
            for problem in _uncopied(event):
                yield "warning", problem
            if event.missing_hosts:
                yield "note", missing_in_words(event.missing_hosts)
        case _:
            if (note := _note(event)) is not None:
                yield "note", note


def _note(event: Event) -> str | None:
    match event:
        case RunBegan(record=str(), bypassing_parts=[_, *_]):
            named = ", ".join(event.bypassing_parts)
            return f"this run cannot be resumed, as these bypass its journal: {named}"
        case RunResumed():
            return _resumed(event)
        case ModelCallPutOff():
            # without what a person could do, who need not do anything yet
            reason = (event.reason.rpartition("; ")[0] or event.reason).removesuffix(": try again")
            return f"{reason}; asked again in {event.seconds:.1f} s"
        case FilesPutBack():
            named = ", ".join(map(readable, event.files[:_MAX_FILES]))
            more = f" and {len(event.files) - _MAX_FILES:,} more" if event.files[_MAX_FILES:] else ""
            return (
                f"restored to what they were before the interrupted code, in {event.workspace}: {named}{more}"
            )
        case BlockEnded(missing_module=str() as module):
            return f"the code lacks the module {module!r}; to add it: {advice(module)}"
        case _:
            return None


def missing_in_words(entries: Sequence[str]) -> str:
    """Name hosts that code was denied, by the entries of ``egress`` that would allow them."""
    lines = "".join(f"\n  - {entry}" for entry in entries)
    return f"the code asked for hosts that no rule is for. What would allow them, in `egress` of the config or by --egress HOST:{lines}"


def _uncopied(result: RunResult) -> list[str]:
    problems = [f"{file.path} is not copied: {file.problem}" for file in result.files if file.problem]
    if (more := len(problems) - _MAX_FILES) > 0:
        problems[_MAX_FILES:] = [f"{more:,} more files are not copied"]
    return problems


def _resumed(event: RunResumed) -> str:
    models, tools = event.answered.get("model_call", 0), sum(event.answered.get(kind, 0) for kind in _TOOLS)
    known = [
        f"{number} {one if number == 1 else many}"
        for number, one, many in (
            (models, "answer of a model", "answers of models"),
            (tools, "result of a tool", "results of tools"),
        )
        if number
    ]
    verb = "is" if models + tools == 1 else "are"
    begins = (
        f"{' and '.join(known)} {verb} known from {event.record}" if known else f"{event.record} continues"
    )
    if not event.repeated:
        return begins
    again = "1 block runs" if event.repeated == 1 else f"{event.repeated} blocks run"
    return f"{begins}; before other code runs, {again} again, which took {event.seconds:.1f} s"
