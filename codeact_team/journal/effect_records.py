"""Records of each effect in a journal, and of the blocks that made the state of a session."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from codeact_team.agents.codeact.attempts import Attempt, Fork
from codeact_team.core.effects import Effect
from codeact_team.core.execution import Outcome
from codeact_team.core.process_effects import ProcessJob, ProcessRun


class EffectState(Enum):
    """The state of an effect at the end of the journal."""

    UNDER_WAY = auto()
    """It had not ended when the run did, or was cancelled."""
    ANSWERED = auto()
    FAILED = auto()


@dataclass(slots=True)
class EffectRecord:
    """A recorded effect.

    Attributes:
        n: Its number.
        key: The key of its request.
        by: Its caller: the name of an agent, ``@``, and the place in the config of the component that was asked.
        kind: The kind of the effect.
        owner: The number of the block or the attempt that asked.
        attempt: The same, if it is an attempt.
        at: When it began, in seconds since the epoch.
        began: Where in the journal the entry of its begin is.
        state: How it has ended.
        ended: Where in the journal the entry of its end is.
        seconds: The wall-clock time that it took.
        went_on: Whether its caller asked for more after it had failed, before the run ended.
        is_taken: Whether it has answered a request of the resumed run.
        within: The number of the effect that asked.
        waits_for: The number of the question to a person that has to be answered before it begins; ``None`` once that is.
        is_given: Whether it was answered after the run had ended, and its caller does not have the answer yet.
        has_left_files: Whether it was interrupted, and the files that it left are recorded.
        was_stopped: Whether it had not ended, or was cancelled, when a person stopped the work, and the chat continued.
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
    was_stopped: bool = False

    @property
    def place(self) -> str:
        """The place in the config of the component that was asked."""
        return self.by.partition("@")[2]

    @property
    def attempt_or_n(self) -> int:
        """The number of the attempt that it is in, else its own: by that it is lost, or counts."""
        return self.n if self.attempt is None else self.attempt

    @property
    def is_settled(self) -> bool:
        """Whether its caller knew how it had ended, and continued."""
        return self.state is EffectState.ANSWERED or (self.state is EffectState.FAILED and self.went_on)

    @property
    def is_not_begun(self) -> bool:
        """Whether nothing of it has been done: it is, or waits for, a question that a person has not answered."""
        return self.state is EffectState.UNDER_WAY and (self.is_for_a_person or self.waits_for is not None)

    @property
    def is_for_a_person(self) -> bool:
        """Whether a person was asked."""
        return Effect.kinds.get(self.kind, Effect).asks_person

    @property
    def is_process(self) -> bool:
        """Whether a program has run a process."""
        return self.kind in (ProcessRun.kind, ProcessJob.kind)


CallerKey = tuple[str, str, int | None]
"""A caller, the kind of its effects, and the block or attempt in which it asks."""
ForkKey = tuple[str, int | None]
"""The place of an executor, and the number of the attempt that has a fork of its session; ``None`` for the session."""


@dataclass
class AttemptRecords:
    """The attempts of one fork.

    Attributes:
        numbers: The numbers of their effects, by their own numbers from 1.
        promotion: The number of the effect that chose one of them.
    """

    numbers: dict[int, int] = field(default_factory=dict[int, int])
    promotion: int | None = None


class RecordedForks:
    """The attempts of each fork of a session."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int | None], AttemptRecords] = {}
        """The attempts of the last fork, by caller and owner."""
        self._all: dict[int, AttemptRecords] = {}
        """The attempts of all forks, by the number of the fork, and of each attempt."""

    def begin(self, effect: EffectRecord, request: Any) -> None:
        """Take an effect that begins as a fork, an attempt of the last fork, or work on an attempt."""
        if effect.kind == Fork.kind:
            self._last[effect.by, effect.owner] = self._all[effect.n] = AttemptRecords()
        elif effect.kind == Attempt.kind:
            attempts = self._all[effect.n] = self._last[effect.by, effect.owner]
            attempts.numbers[request["attempt"]] = effect.n
        elif effect.attempt is not None:
            # it may continue after the work was over
            self._all[effect.attempt].promotion = None

    def choose(self, promotion: EffectRecord) -> AttemptRecords:
        """Note that an attempt was chosen. Returns the attempts of its fork."""
        attempts = self._last[promotion.by, promotion.owner]
        attempts.promotion = promotion.n
        return attempts

    def promotion(self, n: int) -> int | None:
        """The number of the effect that chose an attempt, given the number of the fork, or of an attempt; if one was chosen."""
        return self._all[n].promotion


@dataclass
class SandboxHistory:
    """The blocks that made the state of a session, or of a fork of it.

    Attributes:
        blocks: The blocks that have run since its interpreter started, in order.
        is_repeatable: Whether all of them came to their own end.
        lives_on: Whether its variables live on from one block to the next.
    """

    blocks: list[EffectRecord] = field(default_factory=list[EffectRecord])
    is_repeatable: bool = True
    lives_on: bool = False

    def adopt(self, chosen: SandboxHistory, attempts: AttemptRecords) -> None:
        """Append the blocks of the chosen attempt, and drop the blocks of the others."""
        others = {*attempts.numbers.values()}
        self.blocks = [block for block in self.blocks if block.attempt not in others] + chosen.blocks
        self.is_repeatable = self.is_repeatable and chosen.is_repeatable
        self.lives_on = True

    def add(self, block: EffectRecord, ran: Mapping[str, Any]) -> None:
        """Add a block that has ended."""
        outcome, state_lost = Outcome(ran["outcome"]), ran["state_lost"]
        self.lives_on = state_lost is not None
        if state_lost:
            self.forget()
        is_done = outcome is Outcome.COMPLETED
        if outcome not in (Outcome.DENIED, Outcome.NOT_RUN) and (is_done or not state_lost):
            self.blocks.append(block)
            self.is_repeatable = self.is_repeatable and is_done

    def copied(self) -> SandboxHistory:
        """A copy that stays as it is."""
        return SandboxHistory([*self.blocks], self.is_repeatable, self.lives_on)

    def forget(self, asked: Container[int] | None = None) -> None:
        """Note the loss of the interpreter, which had run the blocks with these numbers, or in attempts with them; or all."""
        self.blocks = (
            [] if asked is None else [block for block in self.blocks if block.attempt_or_n not in asked]
        )
        self.is_repeatable = self.is_repeatable or not self.blocks
