"""The history of a run, as its journal has it."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from pydantic import JsonValue

from codeact_team.agents.codeact.attempts import Attempt, Fork, Promotion
from codeact_team.agents.tool_calls import ToolCall
from codeact_team.core.events import OpenQuestion, RunEnded, RunParked, RunResumed, SandboxLost
from codeact_team.core.execution import Outcome
from codeact_team.core.process_effects import ProcessJob, ProcessRun
from codeact_team.errors import JournalError
from codeact_team.runs.journal.blobs import Blobs
from codeact_team.runs.journal.chat_input import RESET, UNDO, ChatInput
from codeact_team.runs.journal.effect_records import (
    AttemptRecords,
    CallerKey,
    EffectRecord,
    EffectState,
    ForkKey,
    SandboxHistory,
)
from codeact_team.runs.journal.lines import EventReader, repeated_of
from codeact_team.runs.journal.log import Entry, LogReader, entry_at, understood
from codeact_team.runs.journal.requests import Request
from codeact_team.runs.journal.run_directory import RunDirectory
from codeact_team.runs.result import RunEnding, RunResult
from codeact_team.tools.approvals import AskedQuestion


class History:
    """The recorded effects of a run, each of which answers one request. Reading blocks.

    Args:
        directory: The directory of the run.

    Attributes:
        blobs: The blobs of its journal.
        last: The highest number of an effect, a turn or a run.
        sandboxes: What code has left, by executor and fork.
        workspaces: The entries of the files of each workspace: the number of the block, and where in the journal it is.
        rebuilding: The names of workspaces that were being restored when the run ended once more.
        under_way: Blocks and processes that were running when the run ended, by their numbers.
        chain: Authenticates the next entry; ``None`` where the run is not this user's, or was changed by somebody else.
        copies: Where files of the run were, or were to be, copied to.
        open: The questions for which the run was parked and that are not answered, by the numbers of their effects.
        full_mib: How many MiB of the run were kept, where these were used up before its end.

    Raises:
        JournalError: If the journal cannot be read.
    """

    def __init__(self, directory: RunDirectory) -> None:
        self._lines = directory.lines
        self.blobs = Blobs(directory.blobs, entry_at=self._entry)
        self.last = 0
        self.sandboxes: defaultdict[ForkKey, SandboxHistory] = defaultdict(SandboxHistory)
        self.workspaces: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self.rebuilding: set[str] = set()
        self.under_way: dict[int, EffectRecord] = {}
        self.copies: list[str] = []
        self.open: dict[int, OpenQuestion] = {}
        self.full_mib: int | None = None
        self._effects: dict[int, EffectRecord] = {}
        # nearly all have one, and a list of one takes a tenth of the memory of a queue
        self._by_key: dict[str, list[EffectRecord]] = defaultdict(list)
        self._by_caller: dict[CallerKey, list[EffectRecord]] = defaultdict(list)
        self._attempts: dict[tuple[str, int | None], AttemptRecords] = {}
        """The attempts of the last fork, by caller and owner."""
        self._forks: dict[int, AttemptRecords] = {}
        """The attempts of all forks, by the number of the fork, and of each attempt."""
        self._last_asked = 0
        """The number of the last effect."""
        self._has_ended = False
        """Whether the work was over after that."""
        self._asked: set[int] = set()
        """The numbers of the effects that were asked for since the run began, or was resumed last."""
        self._failed: dict[tuple[str, int | None], EffectRecord] = {}
        """The last failed effect, by caller and attempt, until that asks for more."""
        self._cancelled: dict[int, Mapping[str, Any]] = {}
        """How cancelled blocks ran, by their numbers, until their agents ask for more."""
        self._input: int | None = None
        """The number of the last input of a chat."""
        self._is_stopped = False
        """Whether the work on it was stopped."""
        self._stopped: set[int] = set()
        """Inputs on which a person has stopped the work, after which the chat continued."""
        self._inputs: list[tuple[EffectRecord, defaultdict[ForkKey, SandboxHistory]]] = []
        """The inputs of a chat that are not undone, each with what code had left before it."""
        self._undone: dict[str, list[tuple[int, int]]] = defaultdict(list)
        """The entries of the files that undone blocks have left in each workspace, until code runs there again."""
        self._ended: set[int] = set()
        """Inputs the work on which had ended."""
        self._of_input: list[EffectRecord] = []
        """The effects of the work on the last input."""
        self._files: dict[str, tuple[int, dict[str, Any]]] = {}
        """The files of each workspace after so many of its entries, as returned last."""
        with LogReader(self._lines, directory.chain()) as log:
            for entry in log.new():
                with understood(self._lines):
                    self.last = max(self.last, entry.get("span", 0))
                    self._take(log.offset, entry)
            self.chain = log.chain

    def resumed(self, record: str) -> RunResumed:
        """The event of resuming the run, which is kept in the directory ``record``."""
        answered = Counter(
            effect.kind
            for effect in self._each_effect
            if effect.state is EffectState.ANSWERED and not effect.is_taken
        )
        blocks = [
            block
            for (_, attempt), sandbox in self.sandboxes.items()
            if sandbox.lives_on and (attempt is None or self._forks[attempt].promotion is None)
            for block in sandbox.blocks
        ]
        seconds = sum(block.seconds for block in blocks)
        return RunResumed(record=record, answered=dict(answered), repeated=len(blocks), seconds=seconds)

    @property
    def _each_effect(self) -> Iterator[EffectRecord]:
        """Each effect once: those that were asked again when the run was resumed have several numbers."""
        return (effect for n, effect in self._effects.items() if n == effect.n)

    @property
    def has_answers(self) -> bool:
        """Whether questions were answered since the run ended."""
        return any(effect.is_given for effect in self._effects.values())

    def is_decided(self, call: EffectRecord) -> bool:
        """Whether the question that a call waits for was answered since the run ended."""
        return call.waits_for is not None and self._effects[call.waits_for].is_given

    def next(self, request: Request) -> EffectRecord | None:
        """Take the next recorded effect for this request; ``None`` if there is none left."""
        waiting = self._by_key.get(request.key, [])
        if waiting and waiting[0].is_for_a_person:
            # what a person is asked within another effect is another question
            waiting = [each for each in waiting if each.within == request.caller.within]
        return _first_of(waiting)

    def next_settled(self, request: Request) -> EffectRecord | None:
        """Take the recorded effect for this request, or else the next of the same caller, unless code asks for a tool."""
        of_caller: list[EffectRecord] = []
        if request.kind != ToolCall.kind:
            of_caller = self._by_caller.get(_caller_of(request), of_caller)
        while (found := self.next(request) or _first_of(of_caller)) is not None:
            if found.is_settled:
                return found
        return None

    def has_more(self, request: Request) -> bool:
        """Whether more effects of this caller and kind are recorded than were taken."""
        return any(map(_is_left, self._by_caller.get(_caller_of(request), ())))

    def count_left_in(self, block: int) -> int:
        """How many effects that a block has asked for were not taken."""
        return sum(
            sum(map(_is_left, waiting)) for (*_, owner), waiting in self._by_caller.items() if owner == block
        )

    @property
    def order(self) -> Sequence[int]:
        """The numbers of the effects that are not within others, in the order of their ends.

        A process that was under way comes last, so that parallel effects are answered before its program reacts. Jobs are not
        among them: a program gets its job first, and then asks for the effects that end while it runs.
        """
        ended = [
            effect
            for effect in self._each_effect
            if (effect.is_settled or _is_run_under_way(effect))
            and effect.within is None
            and effect.kind != ProcessJob.kind
            and not effect.is_taken
        ]
        return [effect.n for effect in sorted(ended, key=_end_of)]

    def is_chosen(self, fork: EffectRecord) -> bool:
        """Whether one of the attempts of a fork was chosen."""
        return self._forks[fork.n].promotion is not None

    def has_ended(self, chat_input: int | None) -> bool:
        """Whether the work on an input of a chat had ended."""
        return chat_input in self._ended

    def was_stopped(self, chat_input: int | None) -> bool:
        """Whether a person has stopped the work on an input of a chat, which then continued."""
        return chat_input in self._stopped

    def may_continue(self, fork: EffectRecord) -> bool:
        """Whether the work was over with the attempts of a fork, so that they may continue under higher limits."""
        return self._has_ended and self._forks[fork.n].promotion == self._last_asked

    def outcome(self, effect: EffectRecord) -> JsonValue:
        """The outcome of an answered effect."""
        entry = self._entry(effect.ended)
        # an answer that a person has given later has no event
        return self.blobs.unpack(entry.get("end", entry)["outcome"])

    def error(self, effect: EffectRecord) -> JsonValue:
        """The error of a failed effect, as :func:`recorded_error` takes it."""
        return self.blobs.unpack(self._entry(effect.ended)["end"]["error"])

    def request(self, effect: EffectRecord) -> JsonValue:
        """The request for an effect."""
        return self.blobs.unpack(self._entry(effect.began)["ask"]["request"])

    def files(self, workspace: str, before: int) -> dict[str, Any]:
        """The files of a workspace when a block began: by path, their digest, size and whether they are executable.

        Args:
            workspace: Its name.
            before: The number of the block.
        """
        entries = self.workspaces[workspace]
        taken, found = self._files.get(workspace, (0, {}))
        if taken and entries[taken - 1][0] >= before:
            taken, found = 0, {}
        while taken < len(entries) and entries[taken][0] < before:
            found = self._changed(found, entries[taken][1])
            taken += 1
        # the next caller asks for a later time, as a rule
        self._files[workspace] = taken, found
        return found

    def files_left(self, workspace: str) -> dict[str, Any]:
        """The files that code has left in a workspace, be it undone or not; as of :meth:`files`."""
        found = self.files(workspace, sys.maxsize)
        for _, offset in self._undone[workspace]:
            found = self._changed(found, offset)
        return found

    def _changed(self, files: Mapping[str, Any], offset: int) -> dict[str, Any]:
        """Files after the changes of an entry."""
        entry: Any = self.blobs.unpack(self._entry(offset)["files"])
        gone = set(entry["gone"])
        return {path: file for path, file in {**files, **entry["changed"]}.items() if path not in gone}

    def _entry(self, offset: int) -> Entry:
        return entry_at(self._lines, offset)

    def _take(self, offset: int, entry: Entry) -> None:
        if (ask := entry.get("ask")) is not None:
            self._take_ask(offset, entry, ask)
        elif (end := entry.get("end")) is not None:
            # the end of an effect that was answered from the history has neither
            if "outcome" in end or "error" in end:
                self._take_end(self._effect(entry["span"]), offset, entry["at"], end)
        elif "type" in entry:
            self._take_event(entry)
        elif (n := entry.get("given")) is not None:
            self._take_answer(self._effect(n), offset, entry)
        elif (mib := entry.get("full")) is not None:
            self.full_mib = int(mib)
        elif (n := entry.get("used")) is not None:
            self._use(self._effects[n])
        elif (copies := entry.get("copies")) is not None:
            self.copies += map(str, cast("list[Any]", self.blobs.unpack(copies)))
        elif "resumed" in entry:
            self._failed.clear()
            self._cancelled.clear()
            self._asked.clear()
            self.open.clear()
            self._input, self._is_stopped = None, False
            self._of_input.clear()
        else:
            self._take_files(offset, entry)

    def _take_event(self, event: Mapping[str, Any]) -> None:
        if event["type"] == RunEnded.type:
            self._has_ended = True
        elif event["type"] == RunResult.type:
            self._is_stopped = event["ending"] == RunEnding.STOPPED
        elif event["type"] == RunParked.type:
            parked = EventReader(self.blobs).event(event)
            assert isinstance(parked, RunParked)
            self.open = {question.n: question for question in parked.questions}
        elif event["type"] == SandboxLost.type:
            # where a block is under way, its result reports the loss
            place = event.get("place", "")
            if all(effect.place != place or effect.is_process for effect in self.under_way.values()):
                self.sandboxes[place, None].forget(self._asked)

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
            self._undone[files["workspace"]].clear()
            kept = self.workspaces[files["workspace"]]
            if kept and kept[-1][0] == files["block"]:
                # it was interrupted, and has run again from where it began
                kept.pop()
            kept.append((files["block"], offset))

    def _take_ask(self, offset: int, entry: Entry, ask: Mapping[str, Any]) -> None:
        n = entry["span"]
        if (repeated := repeated_of(ask)) is not None:
            effect = self._effects[n] = self._effects[repeated.span]
            self._asked.add(effect.n)
            self._take_next_of_chat(effect)
            return
        owner, within, attempt = ask.get("block", ask.get("attempt")), ask.get("within"), ask.get("attempt")
        # the same few, again and again
        by, kind = sys.intern(ask["by"]), sys.intern(ask["kind"])
        effect = EffectRecord(n, ask["key"], by, kind, owner, attempt, entry["at"], offset, within=within)
        self._effects[n] = effect
        self._asked.add(n)
        self._take_next_of_chat(effect)
        self._by_key[effect.key].append(effect)
        if within == owner:
            # what is within another effect, such as a team that is a tool, is answered with that
            self._by_caller[by, kind, owner].append(effect)
        if (failed := self._failed.pop((by, attempt), None)) is not None:
            failed.went_on = True
        self._settle_cancelled(effect)
        self._last_asked, self._has_ended = n, False
        if kind == AskedQuestion.kind:
            self._let_call_wait(effect, ask)
        if kind == Fork.kind:
            self._attempts[by, owner] = self._forks[n] = AttemptRecords()
        elif kind == Attempt.kind:
            attempts = self._forks[n] = self._attempts[by, owner]
            attempts.numbers[ask["request"]["attempt"]] = n
        elif attempt is not None:
            # it may continue after the work was over
            self._forks[attempt].promotion = None
        if "block" in kind or kind == Promotion.kind or effect.is_process:
            self.under_way[n] = effect

    def _take_next_of_chat(self, effect: EffectRecord) -> None:
        """Take an effect that begins as one of the last input of a chat, or as the end of the work on that."""
        if effect.kind != ChatInput.kind:
            self._of_input.append(effect)
            return
        # a time limit of the chat stops the work, too
        is_cut_off = any(each.state is EffectState.UNDER_WAY for each in self._of_input)
        if self._input is not None and (self._is_stopped or is_cut_off):
            self._stopped.add(self._input)
        if self._input is not None:
            self._ended.add(self._input)
        for ended in self._of_input:
            self._settle_for_chat(ended)
        self._input, self._is_stopped = effect.n, False
        self._of_input.clear()

    def _take_input(self, effect: EffectRecord, text: object) -> None:
        """Take what a person has entered in a chat."""
        if text != UNDO:
            copied = {place: sandbox.copied() for place, sandbox in self.sandboxes.items()}
            self._inputs.append((effect, defaultdict(SandboxHistory, copied)))
        elif self._inputs:
            undone, self.sandboxes = self._inputs.pop()
            self._undo(range(undone.n, effect.n + 1))
        else:
            effect.is_taken = True
        if text == RESET:
            for sandbox in self.sandboxes.values():
                sandbox.forget()

    def _undo(self, numbers: range) -> None:
        """Leave effects out of the history."""
        for effect in self._each_effect:
            if effect.n in numbers:
                effect.is_taken = True
                self.under_way.pop(effect.n, None)
        self._failed = {caller: effect for caller, effect in self._failed.items() if effect.n not in numbers}
        self._cancelled = {n: ran for n, ran in self._cancelled.items() if n not in numbers}
        for workspace, entries in self.workspaces.items():
            self._undone[workspace] += [entry for entry in entries if entry[0] in numbers]
            entries[:] = [entry for entry in entries if entry[0] not in numbers]

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

    def _let_call_wait(self, question: EffectRecord, ask: Mapping[str, Any]) -> None:
        """Let the call of a tool wait for its approval. Code of an agent that is a tool is approved in the same place."""
        call = None if question.within is None else self._effects.get(question.within)
        if call is not None and call.kind == ToolCall.kind:
            request: Any = self.blobs.unpack(ask["request"])
            if request["approval"]["kind"] == "tool":
                call.waits_for = question.n

    def _effect(self, n: int) -> EffectRecord:
        if (effect := self._effects.get(n)) is None:
            raise JournalError(
                f"{self._lines}: the end of an effect that has not begun: the journal is damaged"
            )
        return effect

    def _take_answer(self, question: EffectRecord, offset: int, entry: Entry) -> None:
        """Take an answer that was given after the run had ended."""
        asked = self.open.pop(question.n, None)
        if asked is None or asked.key != entry["key"]:
            raise JournalError(
                f"{self._lines}: an answer to a question that was not open: the journal is damaged"
            )
        question.state, question.ended, question.is_given = EffectState.ANSWERED, offset, True

    def _take_end(self, effect: EffectRecord, offset: int, at: float, end: Mapping[str, Any]) -> None:
        ran = end.get("ran")
        is_cancelled = end.get("cancelled", False)
        if ran is not None and Outcome(ran["outcome"]) is Outcome.CANCELLED:
            # as if the run had been killed just then, unless the agent asks for more
            is_cancelled, self._cancelled[effect.n] = True, ran
        effect.ended, effect.seconds = offset, at - effect.at
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
            self._take_input(effect, end["outcome"])
        if effect.kind == Promotion.kind:
            self._choose(effect, is_lost=end["outcome"] is not None)
        if ran is not None:
            self.sandboxes[effect.place, effect.attempt].add(effect, ran)

    def _use(self, question: EffectRecord) -> None:
        """Note that the caller of a question has the answer, and may do anything from then on."""
        question.is_given = False
        call = None if question.within is None else self._effects.get(question.within)
        if call is not None and call.waits_for == question.n:
            call.waits_for = None

    def _choose(self, promotion: EffectRecord, *, is_lost: bool) -> None:
        """Note the choice of an attempt, whose fork is its session from then on unless it ``is_lost``."""
        attempts = self._attempts[promotion.by, promotion.owner]
        attempts.promotion = promotion.n
        if not is_lost:
            request: Any = self.request(promotion)
            chosen = self.sandboxes[promotion.place, attempts.numbers[request["attempt"]]]
            self.sandboxes[promotion.place, promotion.attempt].adopt(chosen, attempts)

    def _settle_cancelled(self, asking: EffectRecord) -> None:
        """Take cancelled blocks for ended whose agent, or one of its attempts, asks for more."""
        for block in [self._effects[n] for n in self._cancelled]:
            if _agent_of(block) == _agent_of(asking) and self._attempt_of(asking) in (None, block.attempt):
                block.state = EffectState.ANSWERED
                self.under_way.pop(block.n, None)
                self.sandboxes[block.place, block.attempt].add(block, self._cancelled.pop(block.n))

    def _attempt_of(self, effect: EffectRecord) -> int | None:
        """The attempt that has asked for an effect, by itself or by its code."""
        if effect.attempt is not None or effect.owner is None:
            return effect.attempt
        return self._attempt_of(self._effects[effect.owner])


def _is_run_under_way(effect: EffectRecord) -> bool:
    return effect.kind == ProcessRun.kind and effect.state is EffectState.UNDER_WAY


def _end_of(effect: EffectRecord) -> tuple[bool, int, int]:
    return effect.ended < 0, effect.ended, effect.n


def _agent_of(effect: EffectRecord) -> str:
    return effect.by.partition("@")[0]


def _caller_of(request: Request) -> CallerKey:
    return request.by, request.kind, request.owner


def _is_left(effect: EffectRecord) -> bool:
    return effect.is_settled and not effect.is_taken


def _first_of(waiting: list[EffectRecord]) -> EffectRecord | None:
    while waiting:
        if not (effect := waiting.pop(0)).is_taken:
            effect.is_taken = True
            return effect
    return None
