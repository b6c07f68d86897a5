"""A recorded run as a person tells it: what was said, the code that ran, and what came of it, in order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autogen_agentchat.messages import BaseAgentEvent, BaseChatMessage, CodeGenerationEvent

from codeact_team.agents.observations import ExecutionRecord
from codeact_team.core.effects import EffectEnded, Event
from codeact_team.core.events import (
    BlockBegan,
    BlockEnded,
    Code,
    Judged,
    MessageSent,
    RunBegan,
    SandboxStarted,
)
from codeact_team.core.execution import Outcome
from codeact_team.core.sandbox_description import without_note
from codeact_team.errors import JournalError
from codeact_team.journal.promoted import PromotedListener
from codeact_team.journal.recorded_run import RecordedRun
from codeact_team.journal.result import RunResult
from codeact_team.text.quoting import quoted
from codeact_team.text.visibility import visible

_FENCE_BEFORE = re.compile(r"(?:^|\n)[ \t]*(?:`{3,}|~{3,}|<\w+>|\[PYTHON\])[^\n]*\n\s*\Z")
_FENCE_BEHIND = re.compile(r"\s*\n[ \t]*(?:`{3,}|~{3,}|</\w+>|\[/PYTHON\])[ \t]*(?=\n|\Z)")
_MOST_TOLD = 50
"""Sentences about what a block has done beside; the rest is counted."""
_UNUSED = (Outcome.DENIED, Outcome.NOT_RUN)


@dataclass(frozen=True)
class Said:
    """What a person, or an agent, has said; hostile data.

    Attributes:
        speaker: The name of the agent; empty for the person.
        text: Markdown, without the code that has run.
    """

    speaker: str
    text: str


@dataclass(frozen=True)
class Ran:
    """Code blocks that an agent, or the person, has run.

    Attributes:
        blocks: The blocks.
        end: What came of them; ``None`` where that is not recorded.
        told: What they have done beside, such as a request, each in a sentence; hostile data.
        omitted: How many more there were.
    """

    blocks: Sequence[Code]
    end: BlockEnded | None = None
    told: Sequence[str] = ()
    omitted: int = 0

    @property
    def has_run(self) -> bool:
        """Whether they were allowed to run, and could."""
        return self.end is None or self.end.outcome not in _UNUSED


@dataclass(frozen=True)
class Happened:
    """What else a person has done, such as to give a file to the code, in a sentence."""

    text: str


@dataclass(frozen=True)
class Ended:
    """The work on a task has ended.

    Attributes:
        answer: Its answer, unless an agent has just said the same.
        problem: How the work has ended, and why, if the answer does not count, or there is none.
    """

    answer: str | None
    problem: str | None


class Story(PromotedListener):
    """A listener that keeps what is worth telling of a run.

    Attributes:
        items: What was said and run, and how it ended.
        sandboxes: Those that have started.
        began: When the first event was, in seconds since the epoch: of a resumed run, one after that.
        damage: Why there is no more of it; ``None`` if it is whole.
    """

    def __init__(self) -> None:
        super().__init__()
        self.items: list[Said | Ran | Happened | Ended] = []
        self.sandboxes: list[SandboxStarted] = []
        self.began: float | None = None
        self.damage: JournalError | None = None
        self._under_way: dict[int, int] = {}
        """The places of blocks that have not ended, by their spans."""
        self._task: str | None = None
        """The task that is worked on."""
        self._judged: str | None = None
        """The id of the message that repeats the last verdict."""

    @classmethod
    def of(cls, run: RecordedRun) -> Story:
        """The story of a run. Of a damaged one, it is what was before the damage. Blocks."""
        story = cls()
        try:
            for event in run.events():
                story(event)
        except JournalError as error:
            story.damage = error
        return story

    def hear(self, event: Event) -> None:
        """Keep what an event tells."""
        self.began = event.at if self.began is None else self.began
        match event:
            case RunBegan():
                self._task = event.task
                self._say("", event.task)
            case BlockBegan() | BlockEnded():
                self._hear_block(event)
            case MessageSent():
                self._hear_message(event.message)
            case Judged():
                self._judged = event.message_id
                if not event.accepted:
                    problems = [f"- {problem}" for problem in event.problems]
                    self._say(event.agent, "\n".join([*problems, *filter(None, ["", event.next_step])]))
            case EffectEnded(told=str() as told) if told:
                self._hear_told(event.parent, told)
            case SandboxStarted():
                self.sandboxes.append(event)
            case RunResult():
                self._end(event)
            case _:
                pass

    def _hear_block(self, event: BlockBegan | BlockEnded) -> None:
        if isinstance(event, BlockBegan):
            for block in event.blocks:
                self._take_code_off(block.code)
            self._under_way[event.span] = len(self.items)
            self.items.append(Ran(event.blocks))
        elif (place := self._under_way.pop(event.span, None)) is not None:
            ran = self.items[place]
            assert isinstance(ran, Ran)
            self.items[place] = replace(ran, end=event)

    def _hear_told(self, parent: int | None, told: str) -> None:
        place = self._under_way.get(parent or 0)
        if place is None:
            self.items.append(Happened(told))
            return
        ran = self.items[place]
        assert isinstance(ran, Ran)
        if len(ran.told) < _MOST_TOLD:
            self.items[place] = replace(ran, told=[*ran.told, told])
        else:
            self.items[place] = replace(ran, omitted=ran.omitted + 1)

    def _hear_message(self, message: BaseAgentEvent | BaseChatMessage) -> None:
        if message.id == self._judged:
            return
        if isinstance(message, CodeGenerationEvent):
            self._say(message.source, message.content)
        elif isinstance(message, BaseChatMessage):
            text = without_note(message).to_text()
            record = ExecutionRecord.from_metadata(message.metadata)
            if record is not None and record.remark is not None:
                # the output is below the code
                text = record.remark
            if text != self._task:
                self._say(message.source, text)

    def _say(self, speaker: str, text: str) -> None:
        if text.strip():
            self.items.append(Said(speaker, text.strip()))

    def _take_code_off(self, code: str) -> None:
        """Leave code that runs now out of the text that has it."""
        for place in range(len(self.items) - 1, -1, -1):
            said = self.items[place]
            if not isinstance(said, Said) or not said.speaker:
                return
            if (text := _without(said.text, code.strip())) is not None:
                self.items[place : place + 1] = [replace(said, text=text)] if text else []
                return

    def _end(self, result: RunResult) -> None:
        if self._task is None and self.items:
            # a chat that is left ends once more as its last task did
            return
        self._task = None
        last = self.items[-1] if self.items else None
        is_said = isinstance(last, Said) and last.text == (result.answer or "").strip()
        problem = None
        if not result.ending.is_success:
            problem = " · ".join(filter(None, [result.ending, result.problem]))
        self.items.append(Ended(None if is_said else result.answer, problem))


def told_in_markdown(item: Said | Happened | Ended) -> str:
    """What was said, what happened, or how the work ended; the words of a person are a quotation."""
    if isinstance(item, Happened):
        return f"*{visible(item.text)}*"
    if isinstance(item, Said):
        text = visible(item.text)
        return text if item.speaker else "\n".join(f"> {line}" for line in text.splitlines())
    problem = None if item.problem is None else f"*{visible(item.problem)}*"
    return "\n\n".join(filter(None, [visible(item.answer or "").strip(), problem]))


def told_of_code(ran: Ran) -> str:
    """What code has done beside its output, as a list in Markdown; empty if that is nothing."""
    lines = [f"- {quoted(visible(told))}" for told in ran.told]
    if ran.omitted:
        lines.append(f"- and {ran.omitted:,} more")
    return "\n".join(lines)


def _without(text: str, code: str) -> str | None:
    """Text without a fenced block of code; ``None`` if it has none such."""
    start = text.find(code)
    if not code or start < 0:
        return None
    before = _FENCE_BEFORE.search(text[:start])
    behind = _FENCE_BEHIND.match(text, start + len(code))
    if before is None or behind is None:
        return None
    return f"{text[: before.start()].rstrip()}\n\n{text[behind.end() :].lstrip()}".strip()
