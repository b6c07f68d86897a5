"""A run on the screen, step by step."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable

from autogen_agentchat.messages import (
    BaseAgentEvent,
    BaseChatMessage,
    CodeExecutionEvent,
    CodeGenerationEvent,
    ThoughtEvent,
    UserInputRequestedEvent,
)

from codeact_team.agents.observations import Ending, ExecutionRecord
from codeact_team.cli.activity import Activity
from codeact_team.cli.in_words import file_lines, shortened, summary, tool_lines, totals
from codeact_team.cli.json_lines import JsonLines
from codeact_team.cli.notices import print_notices
from codeact_team.cli.screen import Prose, Screen
from codeact_team.core.effects import Event, Listener, OtherEffectBegan, OtherEffectEnded, OtherEvent
from codeact_team.core.events import (
    ArtifactKept,
    AttemptEnded,
    BlockBegan,
    BlockEnded,
    MessageSent,
    ModelCallBegan,
    ModelCallPutOff,
    Output,
    ProcessBegan,
    ProcessEnded,
    RequestDenied,
    RequestEnded,
    RunBegan,
    ToolCallBegan,
    ToolCallEnded,
    Words,
)
from codeact_team.core.execution import CallOutcome, ExecutionResult, Outcome
from codeact_team.core.sandbox_description import without_note
from codeact_team.journal.promoted import PromotedListener
from codeact_team.journal.result import RunEnding, RunResult
from codeact_team.models.verdicts import Verdict
from codeact_team.text.amounts import size_of

_MAX_CALLS = 20
"""Calls and requests of a block that are shown; the rest is counted."""
_MAX_CHARS = 100_000
"""Characters that are shown of output that comes in pieces; the rest is counted."""
_OfCode = BlockBegan | BlockEnded | ToolCallBegan | ToolCallEnded | RequestEnded | RequestDenied
_CORRECTION = re.compile(r"Attempt number: (\d+)\nProposed correction: (.*)", re.DOTALL)


def listener_of(screen: Screen, *, as_json: bool, answer_last: bool = False, echo: bool = True) -> Listener:
    """The listener that prints a run, as :class:`JsonLines` or :class:`Conversation` does."""
    return JsonLines() if as_json else Conversation(screen, answer_last=answer_last, echo=echo)


class _LiveText:
    """A text that comes in pieces; the message of that id, if it is known, will have all of it.

    Of a model's ``words`` all are shown, as they may be the answer, unless they ``repeat`` what is shown above.
    """

    def __init__(self, source: str, message_id: str | None, *, words: bool, repeat: str = "") -> None:
        self.source, self.message_id = source, message_id
        self._repeat, self._held = repeat, ""
        self.at_line_start = True
        self.left_out = 0
        self._room = sys.maxsize if words else _MAX_CHARS
        self._after_return = False

    def hold(self, piece: str) -> str:
        """Return what is known to be new with ``piece``: nothing as long as the text may be the same as the one above."""
        self._held += piece
        if self._repeat and self._repeat.startswith(self._held):
            return ""
        self._repeat = ""
        return self.held()

    def held(self) -> str:
        """Return what was held back, unless it is the whole text above."""
        held, self._held = self._held, ""
        return "" if held == self._repeat else held

    def clip(self, piece: str) -> str:
        """Return the part of ``piece`` to show."""
        if self._after_return and piece.startswith("\n"):
            # the second half of a line break, whose first half has ended the line already
            piece = piece[1:]
        self._after_return = piece.endswith("\r")
        shown = piece[: self._room]
        self._room -= len(shown)
        self.left_out += len(piece) - len(shown)
        if shown:
            self.at_line_start = shown.endswith(("\n", "\r"))
        return shown


class Conversation(PromotedListener):
    """A listener that prints messages, and what happens between them.

    Args:
        screen: Where to print.
        echo: Whether the task is shown; a person may just have typed it.
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
        self._is_at_work: bool | None = None
        """Whether a task has begun and not ended; ``None`` before the first."""
        # an empty line precedes a header that is not the first output
        self._speaker: str | None = None if echo else ""
        self._live: _LiveText | None = None
        self._prose: Prose | None = None
        """Prints that text, if a model writes it."""
        self._said: str | None = None
        """The text of an agent that was shown last, with nothing after it but its acceptance."""
        self._activity = Activity()
        screen.say_while_waiting(self._activity.describe)
        self._executed = False
        """Whether the result of the speaker's last execution is shown."""
        self._pieces_shown: set[str | None] = set()
        """Ids of the messages that are shown piece by piece."""
        self._aloud: set[str] = set()
        """Agents whose model's last answer came piece by piece, its thoughts included."""
        self._of_program: set[int] = set()
        """Spans of the blocks under way that a program runs in its sandbox."""
        self._calls: dict[int, int] = {}
        """The number of calls and requests of each block, and process, that runs."""
        self._calls_shown: set[int] = set()
        """Spans of the calls under way that are shown."""
        self._processes: dict[int, ProcessBegan | OtherEffectBegan] = {}
        """Processes that a program runs, and effects of other kinds, that are under way, by their spans."""
        self._others: set[tuple[str, ...]] = set()
        """What of another version is shown, by its name and fields: each is shown once."""

    def __call__(self, event: Event) -> None:
        # also of attempts, which are not shown
        self._activity(event)
        super().__call__(event)

    def hear(self, event: Event) -> None:
        """Print an event."""
        match event:
            case RunBegan():
                self._begun, self._is_at_work = False, True
            case ModelCallBegan():
                self._aloud.discard(event.agent)
            case ModelCallPutOff():
                # the model begins its answer again
                self._end_live()
            case Words() | Output():
                self._piece(event)
            case _ if isinstance(event, _OfCode):
                self._code(event)
            case ArtifactKept() | AttemptEnded():
                self._aside(event.agent, _aside_on(event))
            case MessageSent():
                self._message(event.message)
            case RunResult():
                self._result(event)
            case _:
                self._process(event)
        if print_notices(self._screen, event, places=True):
            self._screen.wait()

    def _message(self, message: BaseAgentEvent | BaseChatMessage) -> None:
        is_first, self._begun = not self._begun, True
        if isinstance(message, UserInputRequestedEvent) or (is_first and not self._echo):
            return
        live = self._end_live()
        is_same_speaker = message.source == self._speaker
        # pieces without a message's id belong to the next one
        was_shown = message.id in self._pieces_shown or (
            live is not None and live.message_id is None and live.source == message.source
        )
        is_whole = not was_shown or (live is not None and not live.left_out)
        self._header(message.source)
        said, self._said = self._said, None
        above = said if is_same_speaker else None
        match message:
            case CodeGenerationEvent():
                # the model's thoughts before the code have been shown
                self._aloud.discard(message.source)
                correction = None if message.code_blocks else _CORRECTION.fullmatch(message.content)
                if correction is not None:
                    headline = f"↻ Proposed correction (attempt {correction[1]}): "
                    self._screen.text(headline, "bold yellow", end="")
                    self._screen.text(correction[2])
                else:
                    if not was_shown and message.content != above:
                        self._screen.prose(message.content)
                    self._said = message.content if is_whole else None
            case CodeExecutionEvent():
                result = message.result
                if not was_shown:
                    self._screen.text(result.output.removesuffix("\n"))
                outcome = result.outcome if isinstance(result, ExecutionResult) else Outcome.COMPLETED
                self._status(result.exit_code, outcome)
                self._executed = True
            case ThoughtEvent():
                if not was_shown and message.source not in self._aloud:
                    self._screen.text(message.content, "dim italic")
            case BaseChatMessage():
                last = self._chat(message, was_shown, said, above)
                self._said = last if is_whole else None
            case _:
                self._screen.text(message.to_text(), "dim")
        self._screen.wait()

    def _chat(
        self, message: BaseChatMessage, was_shown: bool, said: str | None, above: str | None
    ) -> str | None:
        """Print a message for agents, unless it is what the same agent has said ``above``.

        Returns the text that was shown last then, ``said`` if it has nothing new.
        """
        executed, self._executed = self._executed, False
        record = ExecutionRecord.from_metadata(message.metadata)
        verdict = Verdict.from_metadata(message.metadata)
        shown: str | None = None
        ending = Ending.from_metadata(message.metadata)
        if record is not None and record.remark is not None:
            # the result itself is the answer, and only what was added to it is new
            output = "" if was_shown or executed else record.output
            text = "\n".join(filter(None, [output.removesuffix("\n"), record.remark]))
        elif verdict is not None and ending is None:
            self._verdict(verdict)
            return said if verdict.accepted and not verdict.problems else None
        else:
            # notes are for models
            shown = without_note(message).to_text()
            text = "" if was_shown or shown == above else shown
        if text and ending is not None and ending.has_answer and self._answer_last:
            self._kept, shown = text, None
        elif text:
            self._screen.prose(text)
        if record is not None and not executed and ending is None:
            self._status(record.exit_code, record.outcome)
            return None
        return shown

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

    def _result(self, result: RunResult) -> None:
        self._end_live()
        self._screen.close()
        said, self._said = self._said, None
        self._speaker, self._executed, self._kept = "", False, None
        is_told, self._is_at_work = self._is_at_work is False, False
        if is_told:
            # a chat has ended, each of whose tasks has a result of its own
            self._screen.text("")
            self._screen.line(("── in all ", "bold"), (f"· {totals(result)}", "dim"))
            return
        if result.ending is RunEnding.FAILED and not result.messages:
            return
        counts, style = result.ending.is_success, "bold yellow"
        if counts:
            style = "bold green"
        elif result.ending is RunEnding.NOT_ACCEPTED and result.objection is None:
            style = "bold red"
        self._screen.text("")
        self._screen.line((f"── {result.ending.value} ", style), (f"· {summary(result)}", "dim"))
        for line in (*tool_lines(result), *file_lines(result.files), *result.file_notes):
            self._screen.line((f"   {line}", "dim"), indent=6)
        if result.answer is None:
            return
        if self._answer_last:
            label, style = result.answer_label, "bold green" if counts else "bold yellow"
            self._screen.text("")
            # the last line of a pipe is the answer, whatever stands before
            if self._screen.renders and result.answer.strip() == (said or "").strip():
                self._screen.line((f"── {label} ", style), ("· as shown above", "dim"))
            else:
                self._screen.text(f"── {label}", style)
                self._screen.prose(result.answer)
        if result.renamed:
            self._screen.text(f"\n{result.renamed}")

    def _header(self, source: str) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            self._screen.prose(kept)
            self._said = kept
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
            is_same_speaker = source == self._speaker
            self._header(source)
            is_words = isinstance(piece, Words)
            repeat = self._said or "" if is_words and is_same_speaker else ""
            self._live = live = _LiveText(source, message_id, words=is_words, repeat=repeat)
            self._prose = Prose(self._screen) if is_words else None
            self._pieces_shown.add(message_id)
        if text := live.hold(piece.text):
            self._show_piece(live, text)

    def _show_piece(self, live: _LiveText, text: str) -> None:
        self._said = None
        shown = live.clip(text)
        if self._prose is not None:
            self._prose.add(shown)
            self._activity.tail = self._prose.unfinished
        else:
            self._screen.text(shown, end="")
        if live.at_line_start or self._activity.tail:
            self._screen.wait(anew=False)

    def _end_live(self) -> _LiveText | None:
        """End the text that comes in pieces, if there is one, and return it."""
        live, self._live = self._live, None
        if live is not None and (held := live.held()):
            self._show_piece(live, held)
        self._flush()
        if live is not None:
            self._screen.begin_line()
            if live.left_out:
                self._screen.text(f"[... {live.left_out} more characters are not shown ...]", "dim")
        return live

    def _flush(self) -> None:
        """Print what a model has written so far, though it is not known how its block ends."""
        if self._prose is not None:
            self._prose.end()
            self._activity.tail = ""

    def _code(self, event: _OfCode) -> None:
        """Print what code does."""
        match event:
            case BlockBegan() | BlockEnded():
                self._block(event)
            case ToolCallBegan() | ToolCallEnded():
                self._call(event)
            case RequestEnded() | RequestDenied():
                self._request(event)

    def _block(self, event: BlockBegan | BlockEnded) -> None:
        """Count the calls of code, and print what a program runs in its sandbox: agents send messages for theirs."""
        if isinstance(event, BlockBegan):
            self._calls[event.span] = 0
            if event.of_program:
                self._of_program.add(event.span)
                for block in event.blocks:
                    self._of_sandbox(event.agent, block.code, block.language)
            if any(block.runs_shell for block in event.blocks):
                self._aside(event.agent, "runs a shell")
            return
        self._end_calls(event)
        if event.span in self._of_program:
            self._of_program.remove(event.span)
            self._of_sandbox(
                event.agent, event.output.removesuffix("\n") if event.error is None else event.error
            )
            if event.exit_code is not None:
                self._status(event.exit_code, event.outcome or Outcome.COMPLETED)

    def _call(self, event: ToolCallBegan | ToolCallEnded) -> None:
        """Print a call of a tool by code. AutoGen's own agents send messages for their calls."""
        match event:
            case ToolCallBegan():
                if event.parent not in self._calls:
                    return
                if self._is_shown(event.parent):
                    self._calls_shown.add(event.span)
                    self._aside(event.agent, f"→ tools.{event.name} {shortened(event.arguments)}")
            case ToolCallEnded():
                if event.span not in self._calls_shown:
                    return
                self._calls_shown.remove(event.span)
                if event.outcome is CallOutcome.OK:
                    self._aside(event.agent, f"✓ tools.{event.name} · {event.seconds:.1f} s")
                    return
                why = f": {shortened(event.error)}" if event.error else ""
                how = event.outcome.value.replace("_", " ")
                self._aside(
                    event.agent, f"✗ tools.{event.name} · {how}{why} · {event.seconds:.1f} s", "dim red"
                )

    def _is_shown(self, span: int | None) -> bool:
        """Count a call or a request. Whether it is one of the first of the block, or process, that makes it."""
        if span not in self._calls:
            return True
        self._calls[span] += 1
        return self._calls[span] <= _MAX_CALLS

    def _end_calls(self, event: BlockEnded | ProcessEnded) -> None:
        if (more := self._calls.pop(event.span, 0) - _MAX_CALLS) > 0:
            self._aside(event.agent, f"[... {more} more calls are not shown ...]")

    def _request(self, event: RequestEnded | RequestDenied) -> None:
        if not self._is_shown(event.parent):
            return
        if isinstance(event, RequestDenied):
            self._aside(event.agent, f"✗ {event.told}", "dim red")
        else:
            self._aside(event.agent, f"⇄ {event.told}", "dim red" if event.has_failed else "dim")

    def _of_sandbox(self, fork: str, text: str, language: str | None = None) -> None:
        """Print code that a program runs in its sandbox, or a fork of that, or without a language its output."""
        self._end_live()
        self._header(fork or "sandbox")
        if language is not None:
            self._screen.quote(text, language)
        elif text:
            self._screen.text(text)

    def _process(self, event: Event) -> None:
        """Print a process that a program has run, or what is of any other kind, once it has ended."""
        if isinstance(event, OtherEvent) and (known := (event.name, *event.data)) not in self._others:
            self._others.add(known)
            told = json.dumps(event.data, ensure_ascii=False)
            self._aside("", f"of another version: {shortened(event.name)} {shortened(told)}")
        if isinstance(event, ProcessBegan | OtherEffectBegan):
            self._processes[event.span] = event
        if isinstance(event, ProcessBegan):
            self._calls[event.span] = 0
        if isinstance(event, ProcessEnded):
            self._end_calls(event)
        if not isinstance(event, ProcessEnded | OtherEffectEnded):
            return
        match self._processes.pop(event.span, None), event:
            case ProcessBegan() as began, ProcessEnded():
                how = f"exit code {event.returncode}" if event.error is None else shortened(event.error)
                what, is_well = f"$ {shortened(shlex.join(began.argv))}", event.returncode == 0
            case OtherEffectBegan(), OtherEffectEnded(told=str() as told):
                if told and event.error is None:
                    self._aside(event.agent, told)
                # else whoever prints the errors of runs prints this one, too
                return
            case OtherEffectBegan() as began, OtherEffectEnded():
                how = "done" if event.error is None else shortened(event.error)
                asked = json.dumps(began.request, ensure_ascii=False)
                what, is_well = f"{shortened(event.kind)} {shortened(asked)}", event.error is None
            case _:
                return
        line = f"{what} · {how} · {event.at - began.at:.1f} s"
        self._aside(event.agent, line, "dim" if is_well else "dim red")

    def _aside(self, agent: str, line: str, style: str = "dim") -> None:
        """Print a line while a text comes in pieces. A line without an agent is the program's."""
        if agent:
            self._header(agent)
        self._said = None
        self._flush()
        self._screen.begin_line()
        if self._live is not None:
            self._live.at_line_start = True
        self._screen.line((line, style))
        self._screen.wait()


def _aside_on(event: ArtifactKept | AttemptEnded) -> str:
    if isinstance(event, ArtifactKept):
        artifact = event.artifact
        return f"{artifact.mime_type}: {event.path or event.file} · {size_of(artifact.size)}"
    came_to = event.error if event.ending is None else event.ending.replace("_", " ")
    return f"attempt {event.attempt} of {event.attempts}: {came_to}"


class AnswerOnly:
    """A listener that prints the answer of a run, and notices; of a chat, not the answers that the person ``knows``."""

    def __init__(self, screen: Screen, knows: Callable[[], bool] = lambda: False) -> None:
        self._screen = screen
        self._knows = knows
        self._activity = Activity()
        screen.say_while_waiting(self._activity.describe)

    def __call__(self, event: Event) -> None:
        """Print an event, if it is the last one."""
        self._activity(event)
        print_notices(self._screen, event)
        if self._knows():
            return
        if isinstance(event, OtherEffectEnded) and event.told and event.error is None:
            self._screen.notice("note", event.told, again=True)
        if not isinstance(event, RunResult):
            return
        if event.answer is not None:
            self._screen.prose(event.delivered_answer or event.answer)
            if event.renamed and event.delivered_answer == event.answer:
                # a program reads it
                self._screen.notice("note", event.renamed)
        elif event.error is not None or event.signal is not None:
            # an error says what went wrong
            return
        if event.answer is None or not event.ending.is_success:
            self._screen.notice("warning", " · ".join([event.ending, event.answer_label, *event.reasons]))
