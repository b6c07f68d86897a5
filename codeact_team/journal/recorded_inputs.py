"""The inputs of a chat, as a journal has them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from codeact_team.journal.chat_input import ChatInput
from codeact_team.journal.effect_records import EffectRecord, EffectState, ForkKey, SandboxHistory

Sandboxes = defaultdict[ForkKey, SandboxHistory]
"""What code has left, by executor and fork."""


class RecordedInputs:
    """How the work on each input of a chat ended, and what an input can be undone to."""

    def __init__(self) -> None:
        self._last: int | None = None
        """The number of the last input, since the run was resumed."""
        self._of_last: list[EffectRecord] = []
        """The effects of the work on it."""
        self._is_stopped = False
        """Whether that was stopped."""
        self._stopped: set[int] = set()
        self._ended: set[int] = set()
        self._before: list[tuple[EffectRecord, Sandboxes]] = []
        """The inputs that are not undone, each with the blocks before it."""

    def begin(self, effect: EffectRecord) -> Sequence[EffectRecord]:
        """Take an effect that begins as one of the last input, or, if it is an input, as the end of the work on that.

        Returns the effects of the work that has ended.
        """
        if effect.kind != ChatInput.kind:
            self._of_last.append(effect)
            return ()
        ended, self._of_last = self._of_last, []
        if self._last is not None:
            self._ended.add(self._last)
            # a time limit of the chat stops the work, too
            if self._is_stopped or any(each.state is EffectState.UNDER_WAY for each in ended):
                self._stopped.add(self._last)
        self._last, self._is_stopped = effect.n, False
        return ended

    def note_result(self, *, is_stopped: bool) -> None:
        """Note the result of the run so far."""
        self._is_stopped = is_stopped

    def note_resumption(self) -> None:
        """Note that the run was resumed, which asks for the last input again."""
        self._last, self._is_stopped = None, False
        self._of_last.clear()

    def add(self, entered: EffectRecord, sandboxes: Mapping[ForkKey, SandboxHistory]) -> None:
        """Add an input that was entered, with the blocks before it."""
        copied = {place: sandbox.copied() for place, sandbox in sandboxes.items()}
        self._before.append((entered, defaultdict(SandboxHistory, copied)))

    @property
    def last(self) -> EffectRecord | None:
        """The last input that is not undone."""
        return self._before[-1][0] if self._before else None

    def undo(self) -> tuple[EffectRecord, Sandboxes] | None:
        """Remove the last input. Returns it, and the blocks before it; ``None`` if there is none."""
        return self._before.pop() if self._before else None

    def has_ended(self, chat_input: int | None) -> bool:
        """Whether the work on an input had ended."""
        return chat_input in self._ended

    def was_stopped(self, chat_input: int | None) -> bool:
        """Whether a person has stopped the work on an input, after which the chat continued."""
        return chat_input in self._stopped
