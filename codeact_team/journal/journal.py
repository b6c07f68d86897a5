"""The interceptor by which a run has a journal: effects are recorded, answered from what is recorded, or wait for a person."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from codeact_team.agents.codeact.attempts import Attempt
from codeact_team.core.component_effects import CodeRun
from codeact_team.core.effects import Effect, Perform
from codeact_team.core.events import OpenQuestion
from codeact_team.core.executor_interface import StreamingCodeExecutor
from codeact_team.journal.calls import CallFrame, calling
from codeact_team.journal.requests import Request, Requests, is_recorded
from codeact_team.tools.approvals import AskedQuestion
from codeact_team.tools.autogen_parts import PersonInput

_SETTLING = 1.0
"""Seconds without a new effect after which a run is parked: parallel calls of code begin one after the other, and between two
effects an agent has none under way."""

Park = Callable[[Sequence[OpenQuestion]], None]
"""Ends a run that waits for answers to these questions."""


class JournalPolicy(ABC):
    """The policy of a journal for effects: a new run, a resumed one and a replay have one each."""

    @abstractmethod
    async def perform(self, effect: Effect[Any], request: Request, do: Perform) -> Any:
        """Perform an effect, or answer it.

        Args:
            effect: The effect.
            request: The request of the effect.
            do: Performs it.

        Raises:
            RecordedError: If it has failed before, and is not to be done again.
            JournalError: If the journal cannot be read or written, or a workspace or the run is not as it was recorded.
        """


class Journal:
    """An interceptor that performs effects by a policy.

    Args:
        policy: The policy.
        requests: Makes the requests for effects.
        park: Called when all effects wait for answers that no person is there to give; ``None`` where nobody is waited for.
    """

    def __init__(self, policy: JournalPolicy, requests: Requests, park: Park | None = None) -> None:
        self._policy = policy
        self._requests = requests
        self._park = park
        self._under_way: set[CallFrame] = set()
        self._asked: dict[CallFrame, tuple[AskedQuestion | PersonInput, Request]] = {}
        """The questions to persons that have no answer yet."""
        self._waiting: set[CallFrame] = set()
        """Those of them that nobody is there to answer."""
        self._timer: asyncio.TimerHandle | None = None

    async def intercept(self, effect: Effect[Any], do: Perform) -> Any:
        """Perform an effect, or answer it; raises as :meth:`JournalPolicy.perform`."""
        with calling(effect) as call, self._watched(call):
            if not is_recorded(call):
                return await do()
            request = await self._requests.of(effect, call)
            return await self._policy.perform(effect, request, partial(self._ask, effect, request, do))

    @contextmanager
    def _watched(self, call: CallFrame) -> Generator[None]:
        self._under_way.add(call)
        self._consider()
        try:
            yield
        finally:
            self._under_way.remove(call)
            self._consider()

    async def _ask(self, effect: Effect[Any], request: Request, do: Perform) -> Any:
        """Perform an effect; a question that no person answers never returns."""
        if self._park is None or not isinstance(effect, PersonInput | AskedQuestion):
            return await do()
        self._asked[request.call] = effect, request
        try:
            return await self._answered(effect, request.call, do)
        finally:
            del self._asked[request.call]

    async def _answered(self, effect: AskedQuestion | PersonInput, call: CallFrame, do: Perform) -> Any:
        try:
            outcome = await do()
            if outcome is not None or not (isinstance(effect, AskedQuestion) and effect.parks):
                return outcome
        except EOFError:
            # nobody is at the keyboard
            if not isinstance(effect, PersonInput):
                raise
        self._waiting.add(call)
        self._consider()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._waiting.remove(call)
            self._consider()

    def leave(self) -> bool:
        """Park the run, as the person who is being asked leaves; returns whether it waits for a person at all."""
        if self._park is None or not self._asked:
            return False
        self._park_now()
        return True

    def _consider(self) -> None:
        """If all effects wait, park the run in a while, unless something happens until then."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting = {one for call in self._waiting for one in (call, *call.callers)}
        if waiting and not self._under_way - waiting:
            self._timer = asyncio.get_running_loop().call_later(_SETTLING, self._park_now)

    def _park_now(self) -> None:
        assert self._park is not None, "only then something waits"
        questions = [_question(effect, request) for effect, request in self._asked.values()]
        self._park(sorted(questions, key=lambda question: question.n))


def _question(effect: AskedQuestion | PersonInput, request: Request) -> OpenQuestion:
    assert request.call.n is not None, "it is recorded"
    above = [caller.effect for caller in request.call.callers if caller.effect is not None]
    text = effect.to_text()
    if isinstance(effect, PersonInput):
        text = f"{effect.source} is asked: {text}"
    elif effect.question.kind == "tool":
        # the call is not made before it is approved
        above = above[1:]
    # what is said of a host holds from then on, whatever becomes of the code that has asked for it
    is_about_host = isinstance(effect, AskedQuestion) and effect.question.kind == "host"
    is_lost = not is_about_host and not all(map(_runs_again, above))
    return OpenQuestion(request.call.n, request.key, effect.source, effect.kind, text, is_lost)


def _runs_again(effect: Effect[Any]) -> bool:
    """Whether it is done again when the run is resumed, and so asks again."""
    executor = effect.part
    return isinstance(effect, Attempt) or (
        isinstance(effect, CodeRun) and isinstance(executor, StreamingCodeExecutor) and executor.is_contained
    )
