"""A pool of sandboxes: what it hands out, and what it is asked for."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from itertools import cycle, islice
from pathlib import Path
from types import TracebackType
from typing import Self
from weakref import WeakKeyDictionary

from codeact_team.core.aio import to_the_end
from codeact_team.core.scope import Startable
from codeact_team.errors import SettingError
from codeact_team.executors.base import SandboxedCodeExecutor
from codeact_team.executors.lifecycle import supplied_by
from codeact_team.executors.stock import Kind, Stock, Waiting, why_not_ahead

logger = logging.getLogger(__name__)

_REMEMBERED = 100
"""Kinds of sandboxes that were asked for."""


class SandboxPool:
    """Keeps sandboxes ready for executors that start: with the interpreter started, and its setup done.

    An executor that starts within the pool, or within :meth:`used`, gets a sandbox that is as its own would be: of the same
    settings, with the same packages and the same setup. Each sandbox is used by one executor, and never again. Where
    none is ready that still answers, the executor starts its own. So it does where its sandbox cannot be started ahead:
    :meth:`why_not` says why.

    Data may differ: they are put there when the sandbox is handed out, and `setup` runs after that. `modules` are imported
    before, unless the data may be modules themselves.

    The pool keeps ready what the last executors have asked for, as many as there is room for, but not what was asked for
    only once. Examples say it before anybody asks. Nothing is started ahead while there is less memory left, in this machine
    or in a control group around this process, than the code of one sandbox may use.

    A context manager that is entered once; it belongs to the event loop in which that is.

    Args:
        examples: Executors like those that will ask, each kind equally often. They are not started.
        size: How many sandboxes may wait.
        max_age: Seconds after which a fresh sandbox takes the place of one that waits.
        max_idle: Seconds after which a kind of sandbox is kept ready no more, if nobody has asked for it.
        shared: Whether an executor may get the sandbox of another one that has stopped, with the files, variables and
            processes that were left there. Not where there were data. Agents with other tools are refused there.

    Raises:
        SettingError: If a number is out of range, or nothing can be started ahead for an example.
    """

    def __init__(
        self,
        *examples: SandboxedCodeExecutor,
        size: int = 2,
        max_age: float = 3600.0,
        max_idle: float = 600.0,
        shared: bool = False,
    ) -> None:
        for name, number in {"size": size, "max_age": max_age, "max_idle": max_idle}.items():
            if not number > 0:
                raise SettingError(f"{name}: {number} is not above 0")
        self._examples = [Kind.of(example) for example in examples]
        self._size = size
        self._max_idle = max_idle
        self._shared = shared
        self._stock = Stock(size, max_age, self._give_up)
        self._wanted: deque[Kind] = deque(maxlen=size)
        """What was asked for last, but for the first time."""
        self._known: deque[Kind] = deque(maxlen=_REMEMBERED)
        """What was asked for at all."""
        self._idle: dict[Kind, asyncio.TimerHandle] = {}
        self._lent: WeakKeyDictionary[Startable, Waiting] = WeakKeyDictionary()
        """Who has what is to come back."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """Where it is open."""
        self._within = ExitStack()

    @property
    def ready(self) -> int:
        """How many sandboxes wait."""
        return len(self._stock.waiting)

    def why_not(self, executor: SandboxedCodeExecutor) -> str | None:
        """Why nothing can be started ahead for an executor; ``None`` if it can."""
        return why_not_ahead(executor)

    def expect(self, *examples: SandboxedCodeExecutor) -> None:
        """Keep ready what executors like these need, and nothing else until that is asked for.

        Args:
            examples: Each kind equally often. They are not started.

        Raises:
            SettingError: If nothing can be started ahead for one.
        """
        self._expect([Kind.of(example) for example in examples])

    async def filled(self) -> None:
        """Wait until nothing is being started: all is ready for which there is memory.

        Raises:
            SandboxError: If the last that was tried could not start.
            SettingError: If its setup failed.
        """
        await self._stock.settled.wait()
        if self._stock.failure is not None:
            raise self._stock.failure

    def used(self) -> AbstractContextManager[None]:
        """Within it, executors that are made or start ask this pool. For tasks that were not begun within the pool."""
        return supplied_by(self)

    async def aclose(self) -> None:
        """End all that waits, even if cancelled meanwhile. Idempotent. What was handed out goes on."""
        self._loop = None
        for timer in self._idle.values():
            timer.cancel()
        await to_the_end(self._stock.close())

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._within.enter_context(self.used())
        self._expect(self._examples)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._within.close()
        finally:
            await self.aclose()

    async def provide(self, executor: Startable) -> bool:
        """Let an executor that starts take over a sandbox, if one is ready for it; whether it has. Executors call this."""
        if not self._is_open or not isinstance(executor, SandboxedCodeExecutor):
            return False
        if (reason := self.why_not(executor)) is not None:
            logger.debug("%s", reason)
            return False
        kind = Kind.of(executor)
        try:
            return await self._hand_out(kind, executor)
        finally:
            self._wish_for(kind)

    async def take_back(self, executor: Startable) -> None:
        """Take over the sandbox of an executor that stops, if others may have it. Executors call this."""
        lent = self._lent.pop(executor, None)
        if lent is None or not self._is_open or not isinstance(executor, SandboxedCodeExecutor):
            return
        if executor.warmth.is_idle:
            back = lent.kind.make_executor()
            back.warmth.take_over(executor.warmth)
            self._stock.put(lent.kind, back, lent.born)
        self._keep_wanted()

    async def discard(self, layer: Path | None) -> None:
        """End all that waits with packages that were changed since they were made. Executors call this."""
        if self._is_open:
            await self._stock.discard(layer)

    @property
    def _is_open(self) -> bool:
        return self._loop is asyncio.get_running_loop()

    async def _hand_out(self, kind: Kind, executor: SandboxedCodeExecutor) -> bool:
        while (found := self._stock.take(kind)) is not None:
            is_taken = False
            try:
                same_packages = found.executor.warmth.layer == executor.warmth.layer
                if same_packages and await found.is_well():
                    executor.warmth.take_over(found.executor.warmth)
                    is_taken = True
            finally:
                await self._stock.end(found)
            if is_taken:
                if self._shared and not executor.warmth.has_data:
                    self._lent[executor] = found
                return True
            logger.debug("a sandbox that has waited cannot be used any more")
        return False

    def _expect(self, kinds: Iterable[Kind]) -> None:
        kinds = list(kinds)
        self._known.extend(kinds)
        self._wanted.extend(islice(cycle(kinds), self._size))
        self._keep_wanted()
        for kind in kinds:
            self._begin_idling(kind)

    def _wish_for(self, kind: Kind) -> None:
        if not self._is_open:
            return
        if kind in self._known:
            self._wanted.append(kind)
            self._begin_idling(kind)
        else:
            # what differs from task to task is never asked for again
            self._known.append(kind)
        self._keep_wanted()

    def _begin_idling(self, kind: Kind) -> None:
        if (before := self._idle.pop(kind, None)) is not None:
            before.cancel()
        if kind in self._wanted and self._loop is not None:
            self._idle[kind] = self._loop.call_later(self._max_idle, self._give_up, kind)

    def _give_up(self, kind: Kind) -> None:
        """Keep nothing ready of a kind until it is asked for again."""
        self._wanted = deque((one for one in self._wanted if one != kind), self._size)
        self._keep_wanted()

    def _keep_wanted(self) -> None:
        for kind in self._idle.keys() - set(self._wanted):
            self._idle.pop(kind).cancel()
        if self._loop is not None:
            self._stock.want(Counter(self._wanted) - Counter(lent.kind for lent in self._lent.values()))
