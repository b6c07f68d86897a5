"""Parks a run whose questions no person is there to answer: it ends, and is resumed with the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from typing import Any

from codeact_team.agents.codeact.attempts import Attempt
from codeact_team.core.component_effects import CodeRun
from codeact_team.core.effects import Effect, Perform
from codeact_team.core.events import OpenQuestion, RunParked
from codeact_team.core.executor_interface import StreamingCodeExecutor
from codeact_team.runs.journal.recorder import Recorder
from codeact_team.runs.journal.requests import current_caller
from codeact_team.tools.approvals import AskedQuestion
from codeact_team.tools.autogen_parts import PersonInput

_SETTLING = 1.0
"""Seconds without a new effect after which a run is parked: parallel calls of code begin one after the other, and between two
effects an agent has none under way."""

_path: ContextVar[tuple[int, ...]] = ContextVar("codeact_team_parking_path", default=())
"""The current effects, from the outermost to the innermost."""


class Parking:
    """Parks a run when all its effects wait for answers that no person is there to give.

    Args:
        recorder: Records the run.
        park: Ends the run.
    """

    def __init__(self, recorder: Recorder, park: Callable[[RunParked], None]) -> None:
        self._recorder = recorder
        self._park = park
        self._numbers = count()
        self._under_way: dict[int, Effect[Any]] = {}
        self._waiting: dict[tuple[int, ...], OpenQuestion] = {}
        """The questions without an answer, by their paths."""
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def watching(self, effect: Effect[Any]) -> Generator[None]:
        """Within it, an effect is under way, be it answered from a history or performed."""
        path = (*_path.get(), next(self._numbers))
        token = _path.set(path)
        self._under_way[path[-1]] = effect
        self._consider()
        try:
            yield
        finally:
            del self._under_way[path[-1]]
            _path.reset(token)
            self._consider()

    async def intercept(self, effect: Effect[Any], do: Perform) -> Any:
        """An interceptor inside of the recorder: a question that no person answers never returns."""
        if isinstance(effect, PersonInput):
            try:
                return await do()
            except EOFError:
                # nobody is at the keyboard
                pass
        else:
            outcome = await do()
            if outcome is not None or not (isinstance(effect, AskedQuestion) and effect.parks):
                return outcome
        self._waiting[_path.get()] = await self._question(effect)
        self._consider()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            del self._waiting[_path.get()]
            self._consider()

    async def _question(self, effect: AskedQuestion | PersonInput) -> OpenQuestion:
        n = current_caller().within
        assert n is not None, "it is recorded"
        key = (await self._recorder.request_of(effect)).key
        above = [self._under_way[number] for number in _path.get()[:-1]]
        if isinstance(effect, AskedQuestion) and effect.question.kind == "tool" and above:
            # the call is not made before it is approved
            above.pop()
        is_lost = not all(map(_runs_again, above))
        text = effect.to_text()
        if isinstance(effect, PersonInput):
            text = f"{effect.source} is asked: {text}"
        return OpenQuestion(n, key, effect.source, effect.kind, text, is_lost)

    def _consider(self) -> None:
        """If all effects wait, park the run in a while, unless something happens until then."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting and not self._under_way.keys() - {n for path in self._waiting for n in path}:
            self._timer = asyncio.get_running_loop().call_later(_SETTLING, self._park_now)

    def _park_now(self) -> None:
        # before the run ends: code must not do anything more meanwhile
        self._recorder.is_stopping = True
        questions: Sequence[OpenQuestion] = sorted(self._waiting.values(), key=lambda question: question.n)
        self._park(RunParked(record=str(self._recorder.directory.path), questions=questions))


def _runs_again(effect: Effect[Any]) -> bool:
    """Whether it is done again when the run is resumed, and so asks again."""
    executor = effect.part
    return isinstance(effect, Attempt) or (
        isinstance(effect, CodeRun) and isinstance(executor, StreamingCodeExecutor) and executor.is_contained
    )
