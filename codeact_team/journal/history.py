"""The history of a run, as its journal has it."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, cast

from pydantic import JsonValue

from codeact_team.agents.codeact.attempts import Promotion
from codeact_team.agents.tool_calls import ToolCall
from codeact_team.core.effects import Event
from codeact_team.core.events import OpenQuestion, RunEnded, RunParked, RunResumed, SandboxLost
from codeact_team.core.execution import Outcome
from codeact_team.errors import JournalError
from codeact_team.journal.blobs import Blobs
from codeact_team.journal.chat_input import RESET, UNDO, ChatInput
from codeact_team.journal.effect_records import EffectRecord, EffectState, RecordedForks, SandboxHistory
from codeact_team.journal.lines import EventReader
from codeact_team.journal.log import Chain, Entry, LogReader, entry_at, understood
from codeact_team.journal.recorded_effects import RecordedEffects
from codeact_team.journal.recorded_files import RecordedFiles
from codeact_team.journal.recorded_inputs import RecordedInputs, Sandboxes
from codeact_team.journal.result import RunEnding, RunResult
from codeact_team.journal.run_directory import RunDirectory
from codeact_team.tools.approvals import AskedQuestion


class History:
    """The recorded effects of a run, each of which answers one request. Reading blocks.

    Args:
        directory: The directory of the run.

    Attributes:
        blobs: The blobs of its journal.
        effects: The effects.
        files: The files of each workspace.
        inputs: The inputs of a chat.
        sandboxes: What code has left, by executor and fork.
        under_way: Blocks and processes that were running when the run ended, by their numbers.
        open: The questions for which the run was parked and that are not answered, by the numbers of their effects.
        last: The highest number of an effect, a turn or a run.
        chain: Authenticates the next entry; ``None`` where the run is not this user's, or was changed by somebody else.
        copies: Where files of the run were, or were to be, copied to.
        full_mib: How many MiB of the run were kept, where these were used up before its end.
        messages: The digests of the messages for models that it has.

    Raises:
        JournalError: If the journal cannot be read.
    """

    def __init__(self, directory: RunDirectory) -> None:
        self._lines = directory.lines
        self.blobs: Blobs = Blobs(directory.blobs)
        self.effects: RecordedEffects = RecordedEffects()
        self.files: RecordedFiles = RecordedFiles(self._lines, self.blobs)
        self.inputs: RecordedInputs = RecordedInputs()
        self.sandboxes: Sandboxes = defaultdict(SandboxHistory)
        self.under_way: dict[int, EffectRecord] = {}
        self.open: dict[int, OpenQuestion] = {}
        self.last: int = 0
        self.copies: list[str] = []
        self.full_mib: int | None = None
        self.messages: set[str] = set()
        self._forks = RecordedForks()
        self._last_asked = 0
        """The number of the last effect."""
        self._has_ended = False
        """Whether the work was over after that."""
        self._asked: set[int] = set()
        """The numbers of the effects that were asked for since the run began, or was resumed last."""
        self._failed: dict[tuple[str, int | None], EffectRecord] = {}
        """The last failed effect, by caller and attempt, until that asks for more."""
        self._cancelled: dict[int, Mapping[str, Any]] = {}
        """The results of cancelled blocks, by their numbers, until their agents ask for more."""
        with LogReader(self._lines, directory.chain()) as log:
            for entry in log.new():
                with understood(self._lines):
                    self.last = max(self.last, entry.get("span", 0))
                    self._read(log.offset, entry)
            self.chain: Chain | None = log.chain

    def resumed(self, record: str) -> RunResumed:
        """The event of resuming the run, which is kept in the directory ``record``."""
        answered = Counter(
            effect.kind
            for effect in self.effects
            if effect.state is EffectState.ANSWERED and not effect.is_taken
        )
        blocks = [
            block
            for (_, attempt), sandbox in self.sandboxes.items()
            if sandbox.lives_on and (attempt is None or self._forks.promotion(attempt) is None)
            for block in sandbox.blocks
        ]
        seconds = sum(block.seconds for block in blocks)
        return RunResumed(record=record, answered=dict(answered), repeated=len(blocks), seconds=seconds)

    @property
    def has_answers(self) -> bool:
        """Whether questions were answered since the run ended."""
        return any(effect.is_given for effect in self.effects)

    def is_decided(self, call: EffectRecord) -> bool:
        """Whether the question that a call waits for was answered since the run ended."""
        return call.waits_for is not None and self.effects[call.waits_for].is_given

    def is_chosen(self, fork: EffectRecord) -> bool:
        """Whether one of the attempts of a fork was chosen."""
        return self._forks.promotion(fork.n) is not None

    def may_continue(self, fork: EffectRecord) -> bool:
        """Whether the work was over with the attempts of a fork, so that they may continue under higher limits."""
        return self._has_ended and self._forks.promotion(fork.n) == self._last_asked

    def outcome(self, effect: EffectRecord, *, with_bytes: bool = True) -> JsonValue:
        """The outcome of an answered effect; ``with_bytes`` as of :meth:`Blobs.unpack`."""
        return self.blobs.unpack(self._entry(effect.ended)["outcome"], with_bytes=with_bytes)

    def error(self, effect: EffectRecord) -> JsonValue:
        """The error of a failed effect, as :func:`recorded_error` takes it."""
        return self.blobs.unpack(self._entry(effect.ended)["error"])

    def request(self, effect: EffectRecord) -> JsonValue:
        """The request for an effect."""
        return self.blobs.unpack(self._entry(effect.began)["request"])

    def calls_in(self, block: int, span: int) -> Iterator[Event]:
        """Yield the events of the calls of tools and the requests of a block, and of the questions about them, as parts of ``span``."""
        for effect in self.effects.calls_in(block):
            began, ended = self.events_of(effect)
            if ended is not None and effect.state is not EffectState.UNDER_WAY:
                for event in (began, ended):
                    event.parent = span if effect.within == block else effect.within
                    yield event

    def events_of(self, effect: EffectRecord) -> tuple[Event, Event | None]:
        """The event of an effect's begin, and that of its end, if it has one: an answer to a parked run has none."""
        reader = EventReader(self.blobs)
        began, ended = reader.event(self._entry(effect.began)), None
        assert began is not None, "each begin has an event"
        if effect.ended >= 0 and "end" in (end := self._entry(effect.ended)):
            # it may have got another number since it began
            ended = reader.event({**end, "span": effect.n})
        return began, ended

    def _entry(self, offset: int) -> Entry:
        return entry_at(self._lines, offset)

    def _read(self, offset: int, entry: Entry) -> None:
        if "begin" in entry:
            self._read_begin(offset, entry)
        elif "end" in entry:
            if "again" not in entry:
                self._read_end(self._effect(entry["span"]), offset, entry)
        elif "type" in entry:
            self._read_event(entry)
        elif (n := entry.get("given")) is not None:
            self._read_answer(self._effect(n), offset, entry)
        elif (mib := entry.get("full")) is not None:
            self.full_mib = int(mib)
        elif (n := entry.get("used")) is not None:
            self._use(self.effects[n])
        elif (copies := entry.get("copies")) is not None:
            self.copies += map(str, cast("list[Any]", self.blobs.unpack(copies)))
        elif "resumed" in entry:
            self._failed.clear()
            self._cancelled.clear()
            self._asked.clear()
            self.open.clear()
            self.inputs.note_resumption()
        else:
            self._read_files(offset, entry)

    def _read_event(self, event: Mapping[str, Any]) -> None:
        if event["type"] == RunEnded.type:
            self._has_ended = True
        elif event["type"] == RunResult.type:
            self.inputs.note_result(is_stopped=event["ending"] == RunEnding.STOPPED)
        elif event["type"] == RunParked.type:
            parked = EventReader(self.blobs).event(event)
            assert isinstance(parked, RunParked)
            self.open = {question.n: question for question in parked.questions}
        elif event["type"] == SandboxLost.type:
            # where a block is under way, its result reports the loss
            place = event.get("place", "")
            if all(effect.place != place or effect.is_process for effect in self.under_way.values()):
                self.sandboxes[place, None].forget(self._asked)

    def _read_files(self, offset: int, entry: Entry) -> None:
        if "rebuilding" in entry:
            for block in self.under_way.values():
                # it may run again from now on
                block.has_left_files = False
        elif (files := entry.get("files")) is not None:
            if (interrupted := self.under_way.get(files["block"])) is not None:
                interrupted.has_left_files = True
        self.files.read(offset, entry)

    def _read_begin(self, offset: int, begin: Entry) -> None:
        n = begin["span"]
        if (first := begin.get("again")) is not None:
            effect = self.effects.add_again(n, first)
            self._asked.add(effect.n)
            self._begin_in_chat(effect)
            return
        self.messages.update(begin.get("messages", ()))
        attempt, within = begin.get("attempt"), begin.get("within")
        owner = begin.get("block", attempt)
        # the same few, again and again
        by, kind = sys.intern(f"{begin['agent']}@{begin['place']}"), sys.intern(begin["begin"])
        effect = EffectRecord(n, begin["key"], by, kind, owner, attempt, begin["at"], offset, within=within)
        self.effects.add(effect)
        self._asked.add(n)
        self._begin_in_chat(effect)
        if (failed := self._failed.pop((by, attempt), None)) is not None:
            failed.went_on = True
        self._settle_cancelled(effect)
        self._last_asked, self._has_ended = n, False
        if kind == AskedQuestion.kind:
            self._let_call_wait(effect, begin)
        self._forks.begin(effect, begin["request"])
        if "block" in kind or kind == Promotion.kind or effect.is_process:
            self.under_way[n] = effect

    def _begin_in_chat(self, effect: EffectRecord) -> None:
        for ended in self.inputs.begin(effect):
            self._settle_for_chat(ended)

    def _read_input(self, effect: EffectRecord, text: object) -> None:
        """Take what a person has entered in a chat."""
        if text != UNDO:
            self.inputs.add(effect, self.sandboxes)
        elif (before := self.inputs.undo()) is not None:
            undone, self.sandboxes = before
            self._undo(range(undone.n, effect.n + 1))
        else:
            effect.is_taken = True
        if text == RESET:
            for sandbox in self.sandboxes.values():
                sandbox.forget()

    def _undo(self, numbers: range) -> None:
        """Leave effects out of the history."""
        for effect in self.effects:
            if effect.n in numbers:
                effect.is_taken = True
                self.under_way.pop(effect.n, None)
        self._failed = {caller: effect for caller, effect in self._failed.items() if effect.n not in numbers}
        self._cancelled = {n: ran for n, ran in self._cancelled.items() if n not in numbers}
        self.files.undo(numbers)

    def _settle_for_chat(self, effect: EffectRecord) -> None:
        """Take an effect for over, however it ended: the chat continued without it."""
        effect.went_on = effect.went_on or effect.state is EffectState.FAILED
        if effect.state is not EffectState.UNDER_WAY:
            return
        effect.was_stopped = True
        self.under_way.pop(effect.n, None)
        if (ran := self._cancelled.pop(effect.n, None)) is not None:
            effect.state = EffectState.ANSWERED
            self.sandboxes[effect.place, effect.attempt].add(effect, ran)
        elif "block" in effect.kind:
            # how far it got is unknown
            self.sandboxes[effect.place, effect.attempt].is_repeatable = False

    def _let_call_wait(self, question: EffectRecord, begin: Entry) -> None:
        """Let the call of a tool wait for its approval. Code of an agent that is a tool is approved in the same place."""
        call = self.effects.get(question.within)
        if call is not None and call.kind == ToolCall.kind:
            request: Any = self.blobs.unpack(begin["request"])
            if request["approval"]["kind"] == "tool":
                call.waits_for = question.n

    def _effect(self, n: int) -> EffectRecord:
        if (effect := self.effects.get(n)) is None:
            raise JournalError(
                f"{self._lines}: the end of an effect that has not begun: the journal is damaged"
            )
        return effect

    def _read_answer(self, question: EffectRecord, offset: int, entry: Entry) -> None:
        """Take an answer that was given after the run had ended."""
        asked = self.open.pop(question.n, None)
        if asked is None or asked.key != entry["key"]:
            raise JournalError(
                f"{self._lines}: an answer to a question that was not open: the journal is damaged"
            )
        question.state, question.ended, question.is_given = EffectState.ANSWERED, offset, True

    def _read_end(self, effect: EffectRecord, offset: int, end: Entry) -> None:
        ran = end.get("ran")
        is_cancelled = end.get("cancelled", False)
        if ran is not None and Outcome(ran["outcome"]) is Outcome.CANCELLED:
            # as if the run had been killed just then, unless the agent asks for more
            is_cancelled, self._cancelled[effect.n] = True, ran
        effect.ended, effect.seconds = offset, end["at"] - effect.at
        if is_cancelled:
            effect.state = EffectState.UNDER_WAY
            return
        self.under_way.pop(effect.n, None)
        if effect.is_for_a_person:
            self._use(effect)
        if "error" in end:
            effect.state = EffectState.FAILED
            self._failed[effect.by, effect.attempt] = effect
            return
        effect.state = EffectState.ANSWERED
        if effect.kind == ChatInput.kind:
            self._read_input(effect, end["outcome"])
        if effect.kind == Promotion.kind:
            self._choose(effect, is_lost=end["outcome"] is not None)
        if ran is not None:
            self.sandboxes[effect.place, effect.attempt].add(effect, ran)

    def _use(self, question: EffectRecord) -> None:
        """Note that the caller of a question has the answer, and may do anything from then on."""
        question.is_given = False
        call = self.effects.get(question.within)
        if call is not None and call.waits_for == question.n:
            call.waits_for = None

    def _choose(self, promotion: EffectRecord, *, is_lost: bool) -> None:
        """Note the choice of an attempt, whose fork is its session from then on unless it ``is_lost``."""
        attempts = self._forks.choose(promotion)
        if not is_lost:
            request: Any = self.request(promotion)
            chosen = self.sandboxes[promotion.place, attempts.numbers[request["attempt"]]]
            self.sandboxes[promotion.place, promotion.attempt].adopt(chosen, attempts)

    def _settle_cancelled(self, asking: EffectRecord) -> None:
        """Take cancelled blocks for ended whose agent, or one of its attempts, asks for more."""
        for block in [self.effects[n] for n in self._cancelled]:
            if _agent_of(block) == _agent_of(asking) and self._attempt_of(asking) in (None, block.attempt):
                block.state = EffectState.ANSWERED
                self.under_way.pop(block.n, None)
                self.sandboxes[block.place, block.attempt].add(block, self._cancelled.pop(block.n))

    def _attempt_of(self, effect: EffectRecord) -> int | None:
        """The attempt that has asked for an effect, by itself or by its code."""
        if effect.attempt is not None or effect.owner is None:
            return effect.attempt
        return self._attempt_of(self.effects[effect.owner])


def _agent_of(effect: EffectRecord) -> str:
    return effect.by.partition("@")[0]
