"""The recorded effects of a run, found by what is asked again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from codeact_team.agents.tool_calls import ToolCall
from codeact_team.core.effects import Effect
from codeact_team.core.process_effects import ProcessJob, ProcessRun
from codeact_team.journal.effect_records import CallerKey, EffectRecord, EffectState
from codeact_team.journal.requests import Request
from codeact_team.network.requests import NetworkRequest
from codeact_team.tools.approvals import AskedQuestion

_OF_CODE = (ToolCall.kind, NetworkRequest.kind, AskedQuestion.kind)
"""Kinds of effects that code asks for while it runs."""


class RecordedEffects:
    """The effects of a run, each of which answers one request."""

    def __init__(self) -> None:
        self._by_number: dict[int, EffectRecord] = {}
        # nearly all have one, and a list of one takes a tenth of the memory of a queue
        self._by_key: defaultdict[str, list[EffectRecord]] = defaultdict(list)
        self._calls: defaultdict[int, list[EffectRecord]] = defaultdict(list)
        """The calls of tools, the requests to the network, and the questions about them, by the block that asked."""
        self._by_caller: defaultdict[CallerKey, list[EffectRecord]] = defaultdict(list)

    def add(self, effect: EffectRecord) -> None:
        """Add an effect that was asked for the first time."""
        self._by_number[effect.n] = effect
        self._by_key[effect.key].append(effect)
        if effect.owner is not None and effect.kind in _OF_CODE:
            self._calls[effect.owner].append(effect)
        if effect.within == effect.owner:
            # what is within another effect, such as a team that is a tool, is answered with that
            self._by_caller[effect.by, effect.kind, effect.owner].append(effect)

    def add_again(self, n: int, first: int) -> EffectRecord:
        """Give an effect that was asked again when the run was resumed another number; returns it."""
        effect = self._by_number[n] = self._by_number[first]
        return effect

    def calls_in(self, block: int) -> Sequence[EffectRecord]:
        """The calls of tools and the requests that a block has made, and the questions about them."""
        return self._calls.get(block, ())

    def __getitem__(self, n: int) -> EffectRecord:
        return self._by_number[n]

    def get(self, n: int | None) -> EffectRecord | None:
        """The effect with this number, if there is one."""
        return None if n is None else self._by_number.get(n)

    def __iter__(self) -> Iterator[EffectRecord]:
        """Each effect once: those that were asked again have several numbers."""
        return (effect for n, effect in self._by_number.items() if n == effect.n)

    def next(self, request: Request) -> EffectRecord | None:
        """Take the next recorded effect for this request; ``None`` if there is none left."""
        waiting = self._by_key.get(request.key, [])
        if waiting and waiting[0].is_for_a_person:
            # what a person is asked within another effect is another question
            waiting = [each for each in waiting if each.within == request.call.within]
        return _first_of(waiting)

    def next_settled(self, request: Request) -> EffectRecord | None:
        """Take the recorded effect for this request, or else the next of the same caller, unless code calls a tool, or sends a request."""
        of_caller: list[EffectRecord] = []
        if request.kind not in (ToolCall.kind, NetworkRequest.kind):
            of_caller = self._by_caller.get(_caller_of(request), of_caller)
        while (found := self.next(request) or _first_of(of_caller)) is not None:
            if found.is_settled:
                return found
        return None

    def has_more(self, request: Request) -> bool:
        """Whether more effects of this caller and kind are recorded than were taken."""
        return any(map(_is_left, self._by_caller.get(_caller_of(request), ())))

    def count_left_in(self, block: int) -> int:
        """Return the number of a block's recorded effects that have answered no request yet."""
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
            for effect in self
            if (effect.is_settled or _is_run_under_way(effect))
            and effect.within is None
            and effect.kind != ProcessJob.kind
            # of another version, and so asked by nobody
            and effect.kind in Effect.kinds
            and not effect.is_taken
        ]
        return [effect.n for effect in sorted(ended, key=_end_of)]


def _is_run_under_way(effect: EffectRecord) -> bool:
    return effect.kind == ProcessRun.kind and effect.state is EffectState.UNDER_WAY


def _end_of(effect: EffectRecord) -> tuple[bool, int, int]:
    return effect.ended < 0, effect.ended, effect.n


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
