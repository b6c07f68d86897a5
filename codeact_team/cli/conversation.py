"""A run, told to a person as it happens."""

from __future__ import annotations

import re

from autogen_agentchat.messages import (
    BaseAgentEvent,
    BaseChatMessage,
    CodeExecutionEvent,
    CodeGenerationEvent,
    ModelClientStreamingChunkEvent,
    ThoughtEvent,
    UserInputRequestedEvent,
)

from codeact_team.cli.file_lines import artifact_line, file_lines
from codeact_team.cli.live_text import LiveText
from codeact_team.cli.notices import tell_beside
from codeact_team.cli.screen import Screen
from codeact_team.cli.tool_call_lines import ToolCallLines
from codeact_team.effects import Event
from codeact_team.events import (
    ArtifactKept,
    AttemptEnded,
    BlockBegan,
    BlockEnded,
    MessageSent,
    ModelCallBegan,
    Output,
    RunBegan,
    Said,
    ToolCallBegan,
    ToolCallEnded,
    Words,
)
from codeact_team.execution import CallOutcome, ExecutionResult, Outcome
from codeact_team.execution_records import Ending, ExecutionRecord
from codeact_team.promoted import PromotedListener
from codeact_team.reflection import Verdict
from codeact_team.runs import RunEnding, RunResult, ToolUse
from codeact_team.sandbox_description import without_note

_CORRECTION = re.compile(r"Attempt number: (\d+)\nProposed correction: (.*)", re.DOTALL)

_NOT_ACCEPTED = "best answer so far, not accepted"


class Conversation(PromotedListener):
    """A listener that prints who says what, and what happens meanwhile.

    What an agent says comes twice: when it is said, and when its message comes out of the team. The ids of messages tell
    that it is the same.

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
        self._told: set[str] = set()
        """Ids of the messages that have come."""
        self._pieces_told: set[str | None] = set()
        """Ids of those whose pieces come as events; AutoGen's chunks repeat them."""
        self._pieces_shown: set[str | None] = set()
        """Ids of those that are shown piece by piece."""
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
                self._told_piece(event)
            case BlockBegan() | BlockEnded() | ToolCallBegan() | ToolCallEnded():
                self._aside(event.agent, self._calls.line(event))
            case ArtifactKept():
                self._aside(event.agent, (artifact_line(event), "dim"))
            case AttemptEnded():
                self._aside(event.agent, (_attempt(event), "dim"))
            case MessageSent() | Said():
                self._message(event.message)
            case RunResult():
                self._result(event)
            case _:
                pass
        if tell_beside(self._screen, event, places=True):
            self._screen.wait()

    def _message(self, message: BaseAgentEvent | BaseChatMessage) -> None:
        if isinstance(message, ModelClientStreamingChunkEvent):
            if message.full_message_id is None or message.full_message_id not in self._pieces_told:
                self._piece(message.source, message.content, message.full_message_id)
            return
        if message.id in self._told:
            return
        self._told.add(message.id)
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

    def _told_piece(self, event: Words | Output) -> None:
        if isinstance(event, Words):
            self._aloud.add(event.agent)
            if event.message_id is None:
                # AutoGen's agents tell of their model's words by chunks, or not at all
                return
        self._pieces_told.add(event.message_id)
        self._piece(event.agent, event.text, event.message_id)

    def _piece(self, source: str, text: str, message_id: str | None) -> None:
        live = self._live
        if live is None or (live.source, live.message_id) != (source, message_id):
            self._end_live()
            self._header(source)
            self._live = live = LiveText(source, message_id)
            self._pieces_shown.add(message_id)
        self._screen.text(live.take(text), end="")
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
