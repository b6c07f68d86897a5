"""What a journal says of a run so far."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, cast

from pydantic import JsonValue

from codeact_team.agents.codeact.attempts import Attempt, Fork, Promotion
from codeact_team.agents.tool_calls import ToolCall
from codeact_team.core.events import OpenQuestion, RunEnded, RunParked, RunResumed, SandboxLost
from codeact_team.core.execution import Outcome
from codeact_team.errors import JournalError
from codeact_team.runs.journal.blobs import Blobs
from codeact_team.runs.journal.lines import EventReader, repeated_of
from codeact_team.runs.journal.log import Entry, LogReader, entry_at, understood
from codeact_team.runs.journal.requests import Request
from codeact_team.runs.journal.run_directory import RunDirectory
from codeact_team.tools.approvals import AskedQuestion
from codeact_team.tools.autogen_parts import PersonInput


class EffectState(Enum):
    """What is known of an effect."""

    UNDER_WAY = auto()
    """It had begun when the run ended, or it was cancelled."""
    ANSWERED = auto()
    FAILED = auto()


@dataclass(slots=True)
class EffectRecord:
    """An effect of the run before.

    Attributes:
        n: The number of its entry.
        key: A digest of who asked what, and in which block or attempt.
        by: Who asked: the name of an agent, ``@``, and the place in the config of the part that was asked.
        kind: What sort of effect it is.
        owner: The number of the block, or of the attempt, that asked.
        attempt: The same, if it is an attempt.
        within: The number of the effect that asked.
        at: When it began, in seconds since the epoch.
        began: Where in the journal its entry is.
        state: What is known of it.
        ended: Where that of its end is.
        seconds: Wall-clock time that it has taken.
        went_on: Whether whoever asked has asked for more since, in the same life of the run: a failure was not the end.
        is_taken: Whether it has been given to whoever asks for it now.
        waits_for: The number of the question to a person without whose answer nothing of it is done; ``None`` once it had one.
        is_given: Whether it was answered after the run had ended, and nobody has got this answer yet.
        has_left_files: Whether it was interrupted, and the files that it has left are known.
    """

    n: int
    key: str
    by: str
    kind: str
    owner: int | None
    attempt: int | None
    at: float
    began: int
    state: EffectState = EffectState.UNDER_WAY
    ended: int = -1
    seconds: float = 0.0
    went_on: bool = False
    is_taken: bool = False
    within: int | None = None
    waits_for: int | None = None
    is_given: bool = False
    has_left_files: bool = False

    @property
    def place(self) -> str:
        """Where the part that was asked is in the config."""
        return self.by.partition("@")[2]

    @property
    def is_settled(self) -> bool:
        """Whether the run knew what had become of it, and went on."""
        return self.state is EffectState.ANSWERED or (self.state is EffectState.FAILED and self.went_on)

    @property
    def is_not_begun(self) -> bool:
        """Whether nothing of it has been done: a person was asked first, or is what it asks, and has not answered."""
        return self.state is EffectState.UNDER_WAY and (self.is_for_a_person or self.waits_for is not None)

    @property
    def is_for_a_person(self) -> bool:
        """Whether a person was asked."""
        return self.kind in (AskedQuestion.kind, PersonInput.kind)


CallerKey = tuple[str, str, int | None]
"""Who asked, for what sort of effect, and in which block or attempt."""
ForkKey = tuple[str, int | None]
"""The place of an executor, and the number of the attempt that has a branch of its session."""


@dataclass
class AttemptRecords:
    """Attempts that an agent made side by side.

    Attributes:
        numbers: Those of the attempts, counted from 1, with those of their effects.
        promotion: That of the effect by which one of them is gone on with, and the others are dropped; ``None`` if none is.
    """

    numbers: dict[int, int] = field(default_factory=dict[int, int])
    promotion: int | None = None


@dataclass
class SandboxHistory:
    """What code has left behind in one executor.

    Attributes:
        blocks: Those that have run since its interpreter has started, in order.
        is_repeatable: Whether all of them came to their own end.
        lives_on: Whether variables live on from one to the next.
    """

    blocks: list[EffectRecord] = field(default_factory=list[EffectRecord])
    is_repeatable: bool = True
    lives_on: bool = False

    def go_on_from(self, branch: SandboxHistory, attempts: AttemptRecords) -> None:
        """A branch of it has taken its place, that of one of some attempts, and none of another of them."""
        others = {*attempts.numbers.values()}
        self.blocks = [block for block in self.blocks if block.attempt not in others] + branch.blocks
        self.is_repeatable = self.is_repeatable and branch.is_repeatable
        self.lives_on = True

    def forget(self) -> None:
        """The interpreter is gone."""
        self.blocks.clear()
        self.is_repeatable = True


class History:
    """The past of a run, which is asked for each effect in turn. Blocks.

    Args:
        directory: Where the run is kept.

    Attributes:
        blobs: What is kept beside its journal.
        last: The highest number of an effect, a turn or a run.
        sandboxes: By the place of the executor in the config, and the attempt that has a branch there.
        workspaces: By its name, where in the journal its entries are, each with the number of the block that it belongs to.
        rebuilding: The names of workspaces that were on the way back when the run ended once more.
        under_way: Blocks that were running when the run ended, by the numbers of their entries.
        chain: What authenticates the next entry; ``None`` where the run is not this user's, or was changed by somebody else.
        copies: Where files of the run were copied to so far, or were to be.
        open: The questions for which the run was parked, and that nobody has answered, by the numbers of their entries.

    Raises:
        JournalError: If the journal cannot be read.
    """

    def __init__(self, directory: RunDirectory) -> None:
        self._lines = directory.lines
        self.blobs = Blobs(directory.blobs, entry_at=self._entry)
        self.last = 0
        self.sandboxes: dict[ForkKey, SandboxHistory] = defaultdict(SandboxHistory)
        self.workspaces: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self.rebuilding: set[str] = set()
        self.under_way: dict[int, EffectRecord] = {}
        self.copies: list[str] = []
        self.open: dict[int, OpenQuestion] = {}
        # nearly all have one, and a list of one takes a tenth of the memory of a queue
        self._by_key: dict[str, list[EffectRecord]] = defaultdict(list)
        self._by_caller: dict[CallerKey, list[EffectRecord]] = defaultdict(list)
        self._attempts: dict[tuple[str, int | None], AttemptRecords] = {}
        """By who made them, those that were made last."""
        self._forks: dict[int, AttemptRecords] = {}
        """All of them, by the numbers of their forks, and of each attempt."""
        self._last_asked = 0
        """The number of the last effect."""
        self._has_ended = False
        """Whether the work was over then."""
        self._failed: dict[tuple[str, int | None], EffectRecord] = {}
        """By who asked, and in which attempt, what has failed last."""
        self._cancelled: dict[int, Mapping[str, Any]] = {}
        """By the numbers of blocks that were cancelled, how they ran, as long as their agents have asked for nothing since."""
        self._effects: dict[int, EffectRecord] = {}
        self._files: dict[str, tuple[int, dict[str, Any]]] = {}
        """What was in each workspace after so many of its entries, as was asked last."""
        self.full_mib: int | None = None
        """How many MiB of the run were kept, where these were used up before it had ended."""
        with LogReader(self._lines, directory.chain()) as log:
            for entry in log.new():
                with understood(self._lines):
                    self.last = max(self.last, entry.get("span", 0))
                    self._take(log.offset, entry)
            self.chain = log.chain

    def told(self, record: str) -> RunResumed:
        """What a person may want to know before the run goes on."""
        answered = Counter(
            effect.kind for effect in self._effects.values() if effect.state is EffectState.ANSWERED
        )
        sandboxes = [
            sandbox
            for (_, attempt), sandbox in self.sandboxes.items()
            if sandbox.lives_on and (attempt is None or self._forks[attempt].promotion is None)
        ]
        blocks = [block for sandbox in sandboxes for block in sandbox.blocks]
        seconds = sum(block.seconds for block in blocks)
        return RunResumed(record=record, answered=dict(answered), repeated=len(blocks), seconds=seconds)

    @property
    def has_answers(self) -> bool:
        """Whether questions were answered since the run had ended."""
        return any(effect.is_given for effect in self._effects.values())

    def is_decided(self, call: EffectRecord) -> bool:
        """Whether the question that a call waits for was answered since the run had ended."""
        return call.waits_for is not None and self._effects[call.waits_for].is_given

    def next(self, key: str, within: int | None) -> EffectRecord | None:
        """Take the first effect with this key that is there; ``None`` if there is no more.

        Args:
            key: Of what is asked.
            within: The number of the effect that asks. What a person is asked in another one is another question.
        """
        waiting = self._by_key.get(key)
        if waiting and waiting[0].is_for_a_person:
            waiting = [each for each in waiting if each.within == within]
        return _first_of(waiting)

    def next_settled(self, request: Request) -> EffectRecord | None:
        """Take what was asked then where this is asked now: the same if it was asked, or else what is next of this asker.

        Of what code asks for, only the same.

        Args:
            request: What is asked.
        """
        of_caller = None if request.kind == "tool_call" else self._by_caller.get(_caller_of(request))
        for waiting in (self._by_key.get(request.key), of_caller):
            while (effect := _first_of(waiting)) is not None:
                if effect.is_settled:
                    return effect
        return None

    def has_more(self, request: Request) -> bool:
        """Whether this caller has asked for more of this kind than what was taken."""
        waiting = self._by_caller.get(_caller_of(request), ())
        return any(effect.is_settled and not effect.is_taken for effect in waiting)

    @property
    def order(self) -> Sequence[int]:
        """The numbers of the effects that were asked outside of others, in the order in which they had ended."""
        settled = [effect for effect in self._effects.values() if effect.is_settled and effect.within is None]
        return [effect.n for effect in sorted(settled, key=lambda effect: effect.ended)]

    def is_promoted(self, fork: EffectRecord) -> bool:
        """Whether one of the branches that a fork has made is gone on with."""
        return self._forks[fork.n].promotion is not None

    def may_go_on(self, fork: EffectRecord) -> bool:
        """Whether the work was over with the attempts that a fork was made for: with higher limits, they may go on."""
        return self._has_ended and self._forks[fork.n].promotion == self._last_asked

    def left_in(self, block: int | None) -> Sequence[EffectRecord]:
        """What was asked in a block, or outside of all, and was not taken."""
        return [
            effect
            for (*_, where), waiting in self._by_caller.items()
            if where == block
            for effect in waiting
            if effect.is_settled and not effect.is_taken
        ]

    def outcome(self, effect: EffectRecord) -> JsonValue:
        """What came of an effect that was answered."""
        entry = self._entry(effect.ended)
        # what a person has answered later has no event
        return self.blobs.unpack(entry.get("end", entry)["outcome"])

    def error(self, effect: EffectRecord) -> JsonValue:
        """What an effect that has failed has raised, as :func:`recorded_error` takes it."""
        return self.blobs.unpack(self._entry(effect.ended)["end"]["error"])

    def request(self, effect: EffectRecord) -> JsonValue:
        """What was asked."""
        return self.blobs.unpack(self._entry(effect.began)["ask"]["request"])

    def files(self, workspace: str, before: int) -> dict[str, Any]:
        """What was in a workspace when a block began: by path, digest, size and whether it is executable.

        Args:
            workspace: Its name.
            before: The number of the block.
        """
        entries = self.workspaces[workspace]
        taken, found = self._files.get(workspace, (0, {}))
        if taken and entries[taken - 1][0] >= before:
            taken, found = 0, {}
        while taken < len(entries) and entries[taken][0] < before:
            entry: Any = self.blobs.unpack(self._entry(entries[taken][1])["files"])
            gone = set(entry["gone"])
            found = {path: file for path, file in (found | entry["changed"]).items() if path not in gone}
            taken += 1
        # whoever asks next asks for a later time, as a rule
        self._files[workspace] = taken, found
        return found

    def _entry(self, offset: int) -> Entry:
        return entry_at(self._lines, offset)

    def _take(self, offset: int, entry: Entry) -> None:
        if (ask := entry.get("ask")) is not None:
            self._ask(offset, entry, ask)
        elif (end := entry.get("end")) is not None:
            self._take_end(offset, entry, end)
        elif "type" in entry:
            self._take_event(entry)
        elif (n := entry.get("given")) is not None:
            self._end(n, offset, EffectState.ANSWERED, entry)
        elif (mib := entry.get("full")) is not None:
            self.full_mib = int(mib)
        elif (n := entry.get("used")) is not None:
            self._go_on(self._effects[n])
        elif (copies := entry.get("copies")) is not None:
            self.copies += map(str, cast("list[Any]", self.blobs.unpack(copies)))
        elif "resumed" in entry:
            self._failed.clear()
            self._cancelled.clear()
            self.open.clear()
        else:
            self._take_files(offset, entry)

    def _take_end(self, offset: int, entry: Entry, end: Mapping[str, Any]) -> None:
        if "outcome" in end:
            self._end(entry["span"], offset, EffectState.ANSWERED, entry, end.get("ran"))
        elif "error" in end:
            state = EffectState.UNDER_WAY if end.get("cancelled") else EffectState.FAILED
            self._end(entry["span"], offset, state, entry)

    def _take_event(self, event: Mapping[str, Any]) -> None:
        if event["type"] == RunEnded.type:
            self._has_ended = True
        elif event["type"] == RunParked.type:
            parked = EventReader(self.blobs).event(event)
            assert isinstance(parked, RunParked)
            self.open = {question.n: question for question in parked.questions}
        elif event["type"] == SandboxLost.type:
            # where a block is under way, its result says what was lost
            place = event.get("place", "")
            if all(effect.place != place for effect in self.under_way.values()):
                self.sandboxes[place, None].forget()

    def _take_files(self, offset: int, entry: Entry) -> None:
        if (workspace := entry.get("rebuilding")) is not None:
            self.rebuilding.add(workspace)
            for block in self.under_way.values():
                # it may run again from now on
                block.has_left_files = False
        elif (workspace := entry.get("rebuilt")) is not None:
            self.rebuilding.discard(workspace)
        elif (files := entry.get("files")) is not None:
            if (interrupted := self.under_way.get(files["block"])) is not None:
                interrupted.has_left_files = True
            kept = self.workspaces[files["workspace"]]
            if kept and kept[-1][0] == files["block"]:
                # it was interrupted, and has run again from where it began
                kept.pop()
            kept.append((files["block"], offset))

    def _ask(self, offset: int, entry: Entry, ask: Mapping[str, Any]) -> None:
        n = entry["span"]
        if (repeated := repeated_of(ask)) is not None:
            self._effects[n] = self._effects[repeated.span]
            return
        key, owner, within = ask["key"], ask.get("block", ask.get("attempt")), ask.get("within")
        # the same few, again and again
        by, kind = sys.intern(ask["by"]), sys.intern(ask["kind"])
        attempt = ask.get("attempt")
        effect = EffectRecord(n, key, by, kind, owner, attempt, entry["at"], offset, within=within)
        self._effects[n] = effect
        self._by_key[key].append(effect)
        if effect.is_for_a_person and (call := self._call_of(effect, ask)) is not None:
            call.waits_for = n
        if within == owner:
            # what is within another effect, such as a team that is a tool, is known when that is
            self._by_caller[by, kind, owner].append(effect)
        if (failed := self._failed.pop((by, attempt), None)) is not None:
            failed.went_on = True
        self._settle_cancelled(effect)
        self._last_asked, self._has_ended = n, False
        if kind == Fork.kind:
            self._attempts[by, owner] = self._forks[n] = AttemptRecords()
        elif kind == Attempt.kind:
            attempts = self._forks[n] = self._attempts[by, owner]
            attempts.numbers[ask["request"]["attempt"]] = n
        elif attempt is not None:
            # where the work was over, it may have gone on
            self._forks[attempt].promotion = None
        if "block" in kind or kind == Promotion.kind:
            self.under_way[n] = effect

    def _call_of(self, question: EffectRecord, ask: Mapping[str, Any]) -> EffectRecord | None:
        """The call of a tool that a question is about, if it is about one: it is made when that is approved."""
        call = None if question.within is None else self._effects.get(question.within)
        if question.kind != AskedQuestion.kind or call is None or call.kind != ToolCall.kind:
            return None
        # code of an agent that is a tool may be asked about in the same place
        request: Any = self.blobs.unpack(ask["request"])
        return call if request["approval"]["kind"] == "tool" else None

    def _take_answer(self, effect: EffectRecord, key: str) -> None:
        """An answer that was given after the run had ended."""
        question = self.open.pop(effect.n, None)
        if question is None or question.key != key:
            raise JournalError(
                f"{self._lines}: an answer to a question that was not open: the journal is damaged"
            )
        effect.is_given = True

    def _go_on(self, question: EffectRecord) -> None:
        """Whoever has asked a question knows the answer: from now on it may do anything."""
        question.is_given = False
        call = None if question.within is None else self._effects.get(question.within)
        if call is not None and call.waits_for == question.n:
            call.waits_for = None

    def _end(
        self, n: int, offset: int, state: EffectState, entry: Entry, ran: Mapping[str, Any] | None = None
    ) -> None:
        if (effect := self._effects.get(n)) is None:
            raise JournalError(
                f"{self._lines}: the end of an effect that has not begun: the journal is damaged"
            )
        if ran is not None and Outcome(ran["outcome"]) is Outcome.CANCELLED:
            # as the run was stopped; unless its agent has gone on from there, it is as if it had been killed just then
            state, self._cancelled[effect.n] = EffectState.UNDER_WAY, ran
        effect.state, effect.ended, effect.seconds = state, offset, entry["at"] - effect.at
        if (key := entry.get("key")) is not None:
            self._take_answer(effect, key)
        elif state is not EffectState.UNDER_WAY and effect.is_for_a_person:
            self._go_on(effect)
        if state is not EffectState.UNDER_WAY:
            self.under_way.pop(effect.n, None)
        if state is EffectState.FAILED:
            self._failed[effect.by, effect.attempt] = effect
        if state is EffectState.ANSWERED and effect.kind == Promotion.kind:
            self._promote(effect, is_lost=entry["end"]["outcome"] is not None)
        if ran is not None and effect.n not in self._cancelled:
            self._ran(effect, ran)

    def _promote(self, promotion: EffectRecord, *, is_lost: bool) -> None:
        """A branch has taken the place of its session, unless it ``is_lost``; the others have ended."""
        attempts = self._attempts[promotion.by, promotion.owner]
        attempts.promotion = promotion.n
        if not is_lost:
            request: Any = self.request(promotion)
            branch = self.sandboxes[promotion.place, attempts.numbers[request["attempt"]]]
            self.sandboxes[promotion.place, promotion.attempt].go_on_from(branch, attempts)

    def _settle_cancelled(self, asking: EffectRecord) -> None:
        """An agent asks for something: what it has run before has ended for it, also where that was cancelled."""
        for n in [n for n in self._cancelled if self._goes_on(self._effects[n], asking)]:
            self._effects[n].state = EffectState.ANSWERED
            self._ran(self._effects[n], self._cancelled.pop(n))

    def _goes_on(self, before: EffectRecord, now: EffectRecord) -> bool:
        """Whether whoever has asked for something before asks now: an agent, or one of its attempts."""
        is_the_same = self._attempt_of(now) in (None, before.attempt)
        return is_the_same and before.by.partition("@")[0] == now.by.partition("@")[0]

    def _attempt_of(self, effect: EffectRecord) -> int | None:
        """The attempt to which something belongs that it, or its code, has asked for."""
        if effect.attempt is not None or effect.owner is None:
            return effect.attempt
        return self._attempt_of(self._effects[effect.owner])

    def _ran(self, effect: EffectRecord, ran: Mapping[str, Any]) -> None:
        self.under_way.pop(effect.n, None)
        self._block(effect, Outcome(ran["outcome"]), state_lost=ran["state_lost"])
        self.sandboxes[effect.place, effect.attempt].lives_on = ran["state_lost"] is not None

    def _block(self, effect: EffectRecord, outcome: Outcome, *, state_lost: bool | None) -> None:
        sandbox = self.sandboxes[effect.place, effect.attempt]
        if state_lost:
            sandbox.forget()
            if outcome is not Outcome.COMPLETED:
                return
        if outcome in (Outcome.DENIED, Outcome.NOT_RUN):
            return
        sandbox.blocks.append(effect)
        sandbox.is_repeatable = sandbox.is_repeatable and outcome is Outcome.COMPLETED


def _caller_of(request: Request) -> CallerKey:
    return request.by, request.kind, request.owner


def _first_of(waiting: list[EffectRecord] | None) -> EffectRecord | None:
    while waiting:
        if not (effect := waiting.pop(0)).is_taken:
            effect.is_taken = True
            return effect
    return None
