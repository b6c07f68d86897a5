"""What is told of a run beside its output, to whoever does not read JSON."""

from __future__ import annotations

from codeact_team.cli.screen import Screen
from codeact_team.effects import Event
from codeact_team.events import (
    BlockEnded,
    BlocksRepeated,
    FilesPutBack,
    Opened,
    RunBegan,
    RunParked,
    RunResumed,
    SandboxPreparing,
)
from codeact_team.files.saving import readable
from codeact_team.missing_modules import advice
from codeact_team.runs import RunResult
from codeact_team.visibility import edged, visible

_TOOLS = ("tool_call", "part_call")
"""Kinds of effects that are calls of tools."""
_LOST = "\n(what asks it is stopped half-way, and not done twice: no answer reaches it. Resume the run on a terminal)"
_MAX_PROBLEMS = 10
"""How many files are named that could not be copied."""


def tell_beside(screen: Screen, event: Event, *, places: bool = False) -> bool:
    """Tell what a person has to know of an event, whatever else is shown of it; returns whether there was anything.

    Args:
        screen: Where.
        event: What happens.
        places: Whether that includes where the code works.
    """
    match event:
        case SandboxPreparing():
            screen.notice("note", event.doing)
        case Opened():
            for loosening in event.loosenings:
                # in the words of executors when they start, so that it is told once
                screen.notice("warning", f"the sandbox is looser than its default: {loosening}")
            for workspace in event.workspaces if places else ():
                screen.notice("note", f"the workspace is {workspace}")
        case RunParked():
            screen.notice("note", _parked(event), again=True)
        case RunBegan(record=str(), past_the_door=[_, *_]) | RunResumed() | FilesPutBack() | BlocksRepeated():
            _tell_resumption(screen, event)
        case RunResult():
            for problem in _problems(event):
                screen.notice("warning", problem, again=True)
        case BlockEnded(missing_module=str() as module):
            screen.notice("note", f"the code lacks the module {module!r}; to add it: {advice(module)}")
        case _:
            return False
    return True


def _problems(result: RunResult) -> list[str]:
    problems = [f"{file.path} is not copied: {file.problem}" for file in result.files if file.problem]
    if (more := len(problems) - _MAX_PROBLEMS) > 0:
        problems[_MAX_PROBLEMS:] = [f"{more:,} more files are not copied"]
    return problems


def _tell_resumption(screen: Screen, event: RunBegan | RunResumed | FilesPutBack | BlocksRepeated) -> None:
    match event:
        case RunBegan():
            named = ", ".join(event.past_the_door)
            screen.notice("note", f"this run cannot be resumed, as these act past what is recorded: {named}")
        case RunResumed():
            screen.notice("note", _resumed(event))
        case FilesPutBack():
            screen.notice("note", _put_back(event))
        case BlocksRepeated() if event.differing:
            screen.notice("warning", _repeated(event, screen.width))
        case _:
            pass


def _repeated(event: BlocksRepeated, width: int) -> str:
    said = f"of {event.blocks} blocks that ran again, {event.differing} wrote something else than before"
    shown = "" if event.difference is None else f":\n{edged(visible(event.difference), width)}"
    return f"{said}; the agents go by what was written before{shown}"


def _parked(event: RunParked) -> str:
    asked = "\n".join(
        f"question {question.n}: {question.text}{_LOST if question.is_lost else ''}"
        for question in event.questions
    )
    which = " --question N" if event.questions[1:] else ""
    lines = [f"the run is parked, as nobody is there to answer:\n{asked}"]
    if not all(question.is_lost for question in event.questions):
        lines.append(f"to answer: codeact-team answer {event.record}{which} ANSWER")
    return "\n".join([*lines, f"to go on: codeact-team resume {event.record}"])


def _put_back(event: FilesPutBack) -> str:
    more = len(event.files) - _MAX_PROBLEMS
    named = ", ".join(map(readable, event.files[:_MAX_PROBLEMS])) + (
        f" and {more:,} more" if more > 0 else ""
    )
    return f"as before the code that was interrupted, in {event.workspace}: {named}"


def _resumed(event: RunResumed) -> str:
    models, tools = event.answered.get("model_call", 0), sum(event.answered.get(kind, 0) for kind in _TOOLS)
    said = f"{models} answers of models and {tools} results of tools are known from {event.record}"
    if event.repeated:
        said += (
            f"; before other code runs, {event.repeated} blocks run again, which took {event.seconds:.1f} s"
        )
    return said
