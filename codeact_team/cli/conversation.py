"""A run, told to a person as it happens."""

from __future__ import annotations

import re
from collections.abc import Sequence

from autogen_agentchat.messages import (
    BaseAgentEvent,
    BaseChatMessage,
    CodeExecutionEvent,
    CodeGenerationEvent,
    ModelClientStreamingChunkEvent,
    ThoughtEvent,
    UserInputRequestedEvent,
)

from codeact_team.cli.screen import Screen
from codeact_team.execution import CallOutcome, ExecutionResult, Outcome
from codeact_team.observations import Ending as AgentEnding
from codeact_team.observations import ExecutionRecord
from codeact_team.reflection import Verdict
from codeact_team.runs import Ending, RunResult, ToolUse

LOOSENED = "the sandbox is looser than its default: {}"
"""As executors say it when they start, so that it is told once."""

_CORRECTION = re.compile(r"Attempt number: (\d+)\nProposed correction: (.*)", re.DOTALL)
_MAX_LIVE_CHARS = 100_000
"""How much of a text that comes in pieces is shown; the rest is counted."""


class Conversation:
    """An :class:`~codeact_team.runs.EventSink` that prints who says what.

    Args:
        screen: Where to.
        echo: Whether to print the task, too; somebody who has just entered it has it on the screen.
    """

    def __init__(self, screen: Screen, *, echo: bool = True) -> None:
        self._screen = screen
        self._echo = echo
        self._begun = False
        # a header stands off from what is above it, where something is
        self._speaker: str | None = None if echo else ""
        self._live: _Live | None = None
        self._executed: str | None = None
        """The output that the speaker's last execution was shown with."""
        self._words = ""
        """What the speaker has last been shown to say piece by piece."""

    def opened(self, loosenings: Sequence[str]) -> None:
        for loosening in loosenings:
            self._screen.notice("warning", LOOSENED.format(loosening))
        self._screen.wait()

    def message(self, message: BaseAgentEvent | BaseChatMessage) -> None:
        is_first, self._begun = not self._begun, True
        if isinstance(message, UserInputRequestedEvent) or (is_first and not self._echo):
            return
        if isinstance(message, ModelClientStreamingChunkEvent):
            self._chunk(message)
            return
        was_shown = self._end_live() == message.source
        self._header(message.source)
        match message:
            case CodeGenerationEvent():
                self._generation(message, was_shown)
            case CodeExecutionEvent():
                self._execution(message, was_shown)
            case ThoughtEvent():
                self._screen.text(message.content, "dim italic")
            case BaseChatMessage():
                self._chat(message, was_shown)
            case _:
                self._screen.text(message.to_text(), "dim")
        self._screen.wait()

    def ended(self, result: RunResult) -> None:
        self._end_live()
        self._screen.close()
        self._begun, self._speaker, self._executed = False, "", None
        if result.ending is Ending.FAILED and not result.messages:
            return
        match result.ending:
            case Ending.ACCEPTED:
                style = "bold green"
            case Ending.NOT_ACCEPTED:
                style = "bold red"
            case _:
                style = "bold yellow"
        self._screen.text("")
        self._screen.text(f"── {result.ending.value} ", style, end="")
        self._screen.text(f"· {_summary(result)}", "dim")
        for tool in result.tools:
            self._screen.text(f"   {_tool_summary(tool)}", "dim")

    def _header(self, source: str) -> None:
        if source == self._speaker:
            return
        if self._speaker is not None:
            self._screen.text("")
        self._screen.text(f"── {source}", "bold cyan")
        self._speaker, self._executed, self._words = source, None, ""

    def _chunk(self, message: ModelClientStreamingChunkEvent) -> None:
        if self._live is None or self._live.source != message.source:
            self._end_live()
            self._header(message.source)
            self._live = _Live(message.source)
        self._screen.text(self._live.take(message.content), end="")
        if self._live.at_line_start:
            self._screen.wait()

    def _end_live(self) -> str | None:
        """Whose text has been shown piece by piece until now, if anybody's."""
        live, self._live = self._live, None
        if live is None:
            return None
        if not live.at_line_start:
            self._screen.text("")
        if live.left_out:
            self._screen.text(f"[... {live.left_out} more characters are not shown ...]", "dim")
        self._words = live.shown
        return live.source

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
        # what came in pieces before this was output, and not words
        self._executed, self._words = result.output, ""

    def _chat(self, message: BaseChatMessage, was_shown: bool) -> None:
        executed, self._executed = self._executed, None
        if AgentEnding.from_metadata(message.metadata) is not None:
            # an answer in words of its own, which may have been shown as they came, before a reflection on it
            if message.to_text() != executed and message.to_text().strip() != self._words.strip():
                self._screen.prose(message.to_text())
            return
        if (verdict := Verdict.from_metadata(message.metadata)) is not None:
            self._verdict(verdict)
            return
        text, record = message.to_text(), ExecutionRecord.from_metadata(message.metadata)
        shown = record.output if was_shown and record is not None else executed
        if shown is not None and text.startswith(shown):
            # the result itself is the answer, and only what was added to it is new
            text = text.removeprefix(shown).strip()
        elif was_shown:
            text = ""
        if text:
            self._screen.prose(text)
        if record is not None and executed is None:
            self._status(record.exit_code, record.outcome)

    def _verdict(self, verdict: Verdict) -> None:
        headline, _, rest = verdict.to_text().partition("\n")
        mark, style = ("✓", "bold green") if verdict.accepted else ("✗", "bold red")
        self._screen.text(f"{mark} {headline}", style)
        if rest:
            self._screen.prose(rest)

    def _status(self, exit_code: int, outcome: Outcome) -> None:
        mark, style = ("✓", "green") if exit_code == 0 else ("✗", "red")
        how = "" if outcome is Outcome.COMPLETED else f" ({outcome.value.replace('_', ' ')})"
        self._screen.text(f"{mark} exit code {exit_code}{how}", style)


class _Live:
    """A text that comes in pieces.

    Args:
        source: Whose it is.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self.at_line_start = True
        self.left_out = 0
        self._pieces: list[str] = []
        self._room = _MAX_LIVE_CHARS
        self._after_return = False

    @property
    def shown(self) -> str:
        """What was shown of it."""
        return "".join(self._pieces)

    def take(self, chunk: str) -> str:
        """What of ``chunk`` to show."""
        if self._after_return and chunk.startswith("\n"):
            # the second half of a line break, whose first half has ended the line already
            chunk = chunk[1:]
        self._after_return = chunk.endswith("\r")
        shown = chunk[: self._room]
        self._room -= len(shown)
        self.left_out += len(chunk) - len(shown)
        self._pieces.append(shown)
        if shown:
            self.at_line_start = shown.endswith(("\n", "\r"))
        return shown


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
    parts.append(f"{result.seconds:.1f} s")
    if result.stop_reason:
        parts.append(" ".join(result.stop_reason.split()))
    return " · ".join(parts)
