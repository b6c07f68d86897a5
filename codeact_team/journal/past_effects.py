"""What is known of what a run has asked before."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from codeact_team.approval.asked_question import AskedQuestion
from codeact_team.autogen_parts.part_effects import PersonInput


class State(Enum):
    """What is known of an effect."""

    UNDER_WAY = auto()
    """It had begun when the run ended, or it was cancelled."""
    ANSWERED = auto()
    FAILED = auto()


@dataclass(slots=True)
class PastEffect:
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
    state: State = State.UNDER_WAY
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
        return self.state is State.ANSWERED or (self.state is State.FAILED and self.went_on)

    @property
    def is_not_begun(self) -> bool:
        """Whether nothing of it has been done: a person was asked first, or is what it asks, and has not answered."""
        return self.state is State.UNDER_WAY and (self.is_for_a_person or self.waits_for is not None)

    @property
    def is_for_a_person(self) -> bool:
        """Whether a person was asked."""
        return self.kind in (AskedQuestion.kind, PersonInput.kind)


Asker = tuple[str, str, int | None]
"""Who asked, for what sort of effect, and in which block or attempt."""
Branch = tuple[str, int | None]
"""The place of an executor, and the number of the attempt that has a branch of its session."""


@dataclass
class Attempts:
    """Attempts that an agent made side by side.

    Attributes:
        numbers: Those of the attempts, counted from 1, with those of their effects.
        promotion: That of the effect by which one of them is gone on with, and the others are dropped; ``None`` if none is.
    """

    numbers: dict[int, int] = field(default_factory=dict[int, int])
    promotion: int | None = None


@dataclass
class Sandbox:
    """What code has left behind in one executor.

    Attributes:
        blocks: Those that have run since its interpreter has started, in order.
        is_repeatable: Whether all of them came to their own end.
        lives_on: Whether variables live on from one to the next.
    """

    blocks: list[PastEffect] = field(default_factory=list[PastEffect])
    is_repeatable: bool = True
    lives_on: bool = False

    def go_on_from(self, branch: Sandbox, attempts: Attempts) -> None:
        """A branch of it has taken its place, that of one of some attempts, and none of another of them."""
        others = {*attempts.numbers.values()}
        self.blocks = [block for block in self.blocks if block.attempt not in others] + branch.blocks
        self.is_repeatable = self.is_repeatable and branch.is_repeatable
        self.lives_on = True

    def forget(self) -> None:
        """The interpreter is gone."""
        self.blocks.clear()
        self.is_repeatable = True
