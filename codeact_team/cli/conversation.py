"""A run on the screen, step by step."""

from __future__ import annotations

import re
from collections.abc import Iterator

from autogen_agentchat.messages import (
    BaseAgentEvent,
    BaseChatMessage,
    CodeExecutionEvent,
    CodeGenerationEvent,
    ThoughtEvent,
    UserInputRequestedEvent,
)

from codeact_team.agents.observations import Ending, ExecutionRecord
from codeact_team.cli.screen import LiveText, Screen
from codeact_team.core.effects import Event
from codeact_team.core.events import (
    ArtifactKept,
    AttemptEnded,
    BlockBegan,
    BlockEnded,
    BlocksRepeated,
    FilesPutBack,
    MessageSent,
    ModelCallBegan,
    Opened,
    Output,
    RunBegan,
    RunParked,
    RunResumed,
    SandboxPreparing,
    ToolCallBegan,
    ToolCallEnded,
    Words,
)
from codeact_team.core.execution import CallOutcome, ExecutionResult, Outcome, advice
from codeact_team.core.sandbox_description import without_note
from codeact_team.core.visibility import edged, readable, visible
from codeact_team.models.verdicts import Verdict
from codeact_team.runs.result import RunEnding, RunFile, RunResult, ToolUse
from codeact_team.runs.summary import PromotedListener

_MAX_LINES = 20
_UNITS = (("kB", 10**3), ("MB", 10**6), ("GB", 10**9))


def file_lines(result: RunResult) -> Iterator[str]:
    """What a run has made or changed."""
    width = max((len(file.change) for file in result.files), default=0)
    for file in result.files[:_MAX_LINES]:
        yield f"{file.change:{width}} {_where(file)} · {size_of(file.size)}"
    if (more := len(result.files) - _MAX_LINES) > 0:
        yield f"and {more:,} more"
    yield from result.file_notes


def artifact_line(kept: ArtifactKept) -> str:
    """Where a picture or a table is that was just shown."""
    return f"{kept.artifact.mime_type}: {kept.path or kept.file} · {size_of(kept.artifact.size)}"


def size_of(size: int) -> str:
    """A number of bytes for a person."""
    if size < 1000:
        return f"{size} byte{'' if size == 1 else 's'}"
    unit, power = next(((unit, power) for unit, power in _UNITS if size < 1000 * power), _UNITS[-1])
    return f"{size / power:,.1f} {unit}"


def _where(file: RunFile) -> str:
    return file.path if file.found_at is None else file.found_at


_MAX_CALLS = 20
"""How many calls are told of a block; the rest is counted."""
_MAX_TEXT = 60
"""Characters of a call's arguments, or of its error."""


class ToolCallLines:
    """Finds the lines for the calls that code makes; a tool that AutoGen's own agents call has messages of AutoGen's."""

    def __init__(self) -> None:
        self._blocks: dict[int, int] = {}
        """How many calls each block has made that is running."""
        self._calls: set[int] = set()
        """Spans of the calls under way that are told."""

    def line(self, event: BlockBegan | BlockEnded | ToolCallBegan | ToolCallEnded) -> tuple[str, str] | None:
        """What to print of an event, and in which style; ``None`` for nothing."""
        match event:
            case BlockBegan():
                self._blocks[event.span] = 0
            case BlockEnded():
                if (more := self._blocks.pop(event.span, 0) - _MAX_CALLS) > 0:
                    return f"[... {more} more calls are not shown ...]", "dim"
            case ToolCallBegan():
                if event.parent not in self._blocks:
                    return None
                self._blocks[event.parent] += 1
                if self._blocks[event.parent] <= _MAX_CALLS:
                    self._calls.add(event.span)
                    return f"→ tools.{event.name} {_short(event.arguments)}", "dim"
            case ToolCallEnded():
                if event.span in self._calls:
                    self._calls.remove(event.span)
                    return _ended(event)
        return None


def _ended(event: ToolCallEnded) -> tuple[str, str]:
    if event.outcome is CallOutcome.OK:
        return f"✓ tools.{event.name} · {event.seconds:.1f} s", "dim"
    how = event.outcome.value.replace("_", " ")
    why = f": {_short(event.error)}" if event.error else ""
    return f"✗ tools.{event.name} · {how}{why} · {event.seconds:.1f} s", "dim red"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_TEXT else f"{line[:_MAX_TEXT]}..."


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
            for relaxation in event.relaxations:
                # in the words of executors when they start, so that it is told once
                screen.notice("warning", f"the sandbox is looser than its default: {relaxation}")
            for workspace in event.workspaces if places else ():
                screen.notice("note", f"the workspace is {workspace}")
        case RunParked():
            screen.notice("note", _parked(event), again=True)
        case (
            RunBegan(record=str(), bypassing_parts=[_, *_]) | RunResumed() | FilesPutBack() | BlocksRepeated()
        ):
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
            named = ", ".join(event.bypassing_parts)
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


_CORRECTION = re.compile(r"Attempt number: (\d+)\nProposed correction: (.*)", re.DOTALL)

_NOT_ACCEPTED = "best answer so far, not accepted"


class Conversation(PromotedListener):
    """A listener that prints who says what, and what happens meanwhile.

    Args:
        screen: Where to print.
        echo: Whether the task is shown; somebody may just have typed it.
        answer_last: Whether the answer is kept for the end of the run, instead of shown where it comes.
    """

    def __init__(self, screen: Screen, *, echo: bool = True, answer_last: bool = False) -> None:
        super().__init__()
        self._screen = screen
        self._echo = echo
        self._answer_last = answer_last
        self._kept: str | None = None
        """An answer that is shown as soon as anything follows it but the end."""
        self._begun = False
        # a header stands off from what is above it, where something is
        self._speaker: str | None = None if echo else ""
        self._live: LiveText | None = None
        self._executed = False
        """Whether the result of the speaker's last execution is shown."""
        self._pieces_shown: set[str | None] = set()
        """Ids of the messages that are shown piece by piece."""
        self._aloud: set[str] = set()
        """Agents whose model's last answer came piece by piece, its thoughts included."""
        self._calls = ToolCallLines()

    def hear(self, event: Event) -> None:
        """Print an event."""
        match event:
            case RunBegan():
                self._begun = False
            case ModelCallBegan():
                self._aloud.discard(event.agent)
            case Words() | Output():
                self._piece(event)
            case BlockBegan() | BlockEnded() | ToolCallBegan() | ToolCallEnded():
                self._aside(event.agent, self._calls.line(event))
            case ArtifactKept():
                self._aside(event.agent, (artifact_line(event), "dim"))
            case AttemptEnded():
                self._aside(event.agent, (_attempt(event), "dim"))
            case MessageSent():
                self._message(event.message)
            case RunResult():
                self._result(event)
            case _:
                pass
        if tell_beside(self._screen, event, places=True):
            self._screen.wait()

    def _message(self, message: BaseAgentEvent | BaseChatMessage) -> None:
        is_first, self._begun = not self._begun, True
        if isinstance(message, UserInputRequestedEvent) or (is_first and not self._echo):
            return
        live = self._end_live()
        # pieces of no message in particular belong to the next one
        was_shown = message.id in self._pieces_shown or (
            live is not None and live.message_id is None and live.source == message.source
        )
        self._header(message.source)
        match message:
            case CodeGenerationEvent():
                # what the model thought before it wrote has been told
                self._aloud.discard(message.source)
                self._generation(message, was_shown)
            case CodeExecutionEvent():
                self._execution(message, was_shown)
            case ThoughtEvent():
                if not was_shown and message.source not in self._aloud:
                    self._screen.text(message.content, "dim italic")
            case BaseChatMessage():
                self._chat(message, was_shown)
            case _:
                self._screen.text(message.to_text(), "dim")
        self._screen.wait()

    def _result(self, result: RunResult) -> None:
        self._end_live()
        self._screen.close()
        self._speaker, self._executed, self._kept = "", False, None
        if result.ending is RunEnding.FAILED and not result.messages:
            return
        style = "bold yellow"
        if result.ending is RunEnding.ACCEPTED:
            style = "bold green"
        elif result.ending is RunEnding.NOT_ACCEPTED and result.objection is None:
            style = "bold red"
        self._screen.text("")
        self._screen.text(f"── {result.ending.value} ", style, end="")
        self._screen.text(f"· {_summary(result)}", "dim")
        for tool in result.tools:
            self._screen.text(f"   {_tool_summary(tool)}", "dim")
        for line in file_lines(result):
            self._screen.text(f"   {line}", "dim")
        if self._answer_last and result.answer is not None:
            self._answer(result.answer, is_accepted=result.ending is RunEnding.ACCEPTED)

    def _answer(self, answer: str, *, is_accepted: bool) -> None:
        label, style = ("answer", "bold green") if is_accepted else (_NOT_ACCEPTED, "bold yellow")
        self._screen.text("")
        self._screen.text(f"── {label}", style)
        self._screen.prose(answer)

    def _header(self, source: str) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            self._screen.prose(kept)
        if source == self._speaker:
            return
        if self._speaker is not None:
            self._screen.text("")
        self._screen.text(f"── {source}", "bold cyan")
        self._speaker, self._executed = source, False

    def _piece(self, piece: Words | Output) -> None:
        if isinstance(piece, Words):
            self._aloud.add(piece.agent)
        live, source, message_id = self._live, piece.agent, piece.message_id
        if live is None or (live.source, live.message_id) != (source, message_id):
            self._end_live()
            self._header(source)
            self._live = live = LiveText(source, message_id)
            self._pieces_shown.add(message_id)
        self._screen.text(live.take(piece.text), end="")
        if live.at_line_start:
            self._screen.wait()

    def _end_live(self) -> LiveText | None:
        """End the text that comes in pieces, if there is one, and return it."""
        live, self._live = self._live, None
        if live is not None:
            self._screen.begin_line()
            if live.left_out:
                self._screen.text(f"[... {live.left_out} more characters are not shown ...]", "dim")
        return live

    def _aside(self, agent: str, line: tuple[str, str] | None) -> None:
        """Print a line, if there is one, between those of a text that comes in pieces."""
        if line is None:
            return
        self._header(agent)
        self._screen.begin_line()
        if self._live is not None:
            self._live.at_line_start = True
        self._screen.text(*line)
        self._screen.wait()

    def _generation(self, message: CodeGenerationEvent, was_shown: bool) -> None:
        correction = None if message.code_blocks else _CORRECTION.fullmatch(message.content)
        if correction is not None:
            self._screen.text(f"↻ Proposed correction (attempt {correction[1]}): ", "bold yellow", end="")
            self._screen.text(correction[2])
        elif not was_shown:
            self._screen.prose(message.content)

    def _execution(self, message: CodeExecutionEvent, was_shown: bool) -> None:
        result = message.result
        if not was_shown:
            self._screen.text(result.output.removesuffix("\n"))
        outcome = result.outcome if isinstance(result, ExecutionResult) else Outcome.COMPLETED
        self._status(result.exit_code, outcome)
        self._executed = True

    def _chat(self, message: BaseChatMessage, was_shown: bool) -> None:
        executed, self._executed = self._executed, False
        record = ExecutionRecord.from_metadata(message.metadata)
        verdict = Verdict.from_metadata(message.metadata)
        ending = Ending.from_metadata(message.metadata)
        is_answer = ending is not None
        if record is not None and record.remark is not None:
            # the result itself is the answer, and only what was added to it is new
            output = "" if was_shown or executed else record.output
            text = "\n".join(filter(None, [output.removesuffix("\n"), record.remark]))
        elif verdict is not None and not is_answer:
            self._verdict(verdict)
            return
        else:
            # what is noted is for models
            text = "" if was_shown else without_note(message).to_text()
        if text and ending is not None and ending.has_answer and self._answer_last:
            self._kept = text
        elif text:
            self._screen.prose(text)
        if record is not None and not (executed or is_answer):
            self._status(record.exit_code, record.outcome)

    def _verdict(self, verdict: Verdict) -> None:
        headline, _, rest = verdict.to_text().partition("\n")
        mark, style = ("✓", "bold green") if verdict.accepted else ("✗", "bold red")
        self._screen.text(f"{mark} {headline}", style)
        if rest:
            self._screen.prose(rest)
        if verdict.accepted and verdict.answer and not self._answer_last:
            self._screen.prose(f"\n{verdict.answer}")

    def _status(self, exit_code: int, outcome: Outcome) -> None:
        mark, style = ("✓", "green") if exit_code == 0 else ("✗", "red")
        how = "" if outcome is Outcome.COMPLETED else f" ({outcome.value.replace('_', ' ')})"
        self._screen.text(f"{mark} exit code {exit_code}{how}", style)


def _attempt(event: AttemptEnded) -> str:
    came_to = event.error if event.ending is None else event.ending.replace("_", " ")
    return f"attempt {event.attempt} of {event.attempts}: {came_to}"


def reasons_of(result: RunResult) -> list[str]:
    """Why a run ended as it did, each in a line."""
    reasons = dict.fromkeys(reason for reason in (result.stop_reason, result.objection) if reason)
    return [" ".join(reason.split()) for reason in reasons]


def _tool_summary(tool: ToolUse) -> str:
    calls = sum(tool.outcomes.values())
    ways = ", ".join(
        f"{count} {outcome.value.replace('_', ' ')}"
        for outcome, count in tool.outcomes.items()
        if outcome is not CallOutcome.OK
    )
    told = f"tools.{tool.name}: {calls} call{'' if calls == 1 else 's'}, {tool.seconds:.1f} s"
    return f"{told}, {ways}" if ways else told


def _summary(result: RunResult) -> str:
    parts = [f"{result.messages} message{'' if result.messages == 1 else 's'}"]
    if tokens := result.usage.prompt_tokens + result.usage.completion_tokens:
        parts.append(
            f"{tokens:,} tokens ({result.usage.prompt_tokens:,} in, {result.usage.completion_tokens:,} out)"
        )
    if result.cost is not None:
        parts.append(result.cost.to_text())
    parts.append(f"{result.seconds:.1f} s")
    return " · ".join([*parts, *reasons_of(result)])


class AnswerOnly:
    """A listener that prints the answer of a run; what is to be known beside it is told as notices."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def __call__(self, event: Event) -> None:
        """Print an event, if it is the last one."""
        tell_beside(self._screen, event)
        if isinstance(event, RunResult):
            self._result(event)

    def _result(self, result: RunResult) -> None:
        if result.answer is not None:
            self._screen.prose(result.answer)
            label = "best answer so far, not accepted"
        elif result.error is None and result.signal is None:
            label = "there is no answer"
        else:
            # what went wrong is told by an error
            return
        if result.answer is None or result.ending is not RunEnding.ACCEPTED:
            self._screen.notice("warning", " · ".join([label, *reasons_of(result)]))
