"""A pool that hands out sandboxes which were started ahead."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from itertools import cycle, islice
from pathlib import Path
from typing import Self
from weakref import WeakKeyDictionary

from codeact_team.core.aio import to_the_end
from codeact_team.core.scope import Startable
from codeact_team.core.settings import suggests
from codeact_team.errors import SettingError
from codeact_team.executors.base import SandboxedCodeExecutor
from codeact_team.executors.lifecycle import using_source
from codeact_team.executors.warm_sandboxes import PoolKey, WarmSandbox, WarmSandboxes, why_not_warm

logger = logging.getLogger(__name__)

_REMEMBERED = 100
"""Keys of sandboxes that executors asked for."""


class SandboxPool:
    """Keeps sandboxes ready for executors that start: with the interpreter started, and its setup done.

    An executor that starts within the pool, or within :meth:`used`, gets a sandbox equivalent to its own: with the same
    settings, packages and setup. Each sandbox is used by one executor, and never again. If none is ready that still
    answers, the executor starts its own; also if its sandbox cannot be started ahead, for which :meth:`why_not` gives the
    reason.

    Data may differ: it is copied when the sandbox is handed out, and `setup` runs after that. `modules` are imported
    before, unless the data may be modules itself.

    The pool keeps sandboxes ready like those that the last executors asked for, except for those asked for only once.
    Examples announce them. No sandbox is started ahead while less memory is left, in this machine or in a control group
    around this process, than the code of one sandbox may use.

    A context manager that can be entered once. It belongs to the event loop in which it is entered.

    Args:
        examples: Executors like those that will ask, each equally often. They are not started.
        size: How many sandboxes may wait.
        max_age: Seconds after which a fresh sandbox replaces one that waits.
        max_idle: Seconds after which no more sandboxes are kept ready for executors of a kind that no longer ask.
        shared: Whether an executor may get the sandbox of another one that has stopped, with the files, variables and
            processes left there. Not if there was data. Agents with other tools are refused there.

    Raises:
        SettingError: If a number is out of range, or the sandbox of an example cannot be started ahead.
    """

    @suggests
    def __init__(
        self,
        *examples: SandboxedCodeExecutor,
        size: int = 2,
        max_age: float = 3600.0,
        max_idle: float = 600.0,
        shared: bool = False,
    ) -> None:
        for name, number in {"size": size, "max_age": max_age, "max_idle": max_idle}.items():
            if not isinstance(number, int | float):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise SettingError(f"{name}: a number is expected, not {number!r}")
            if not number > 0:
                raise SettingError(f"{name}: {number} is not above 0")
        for example in examples:
            if not isinstance(example, SandboxedCodeExecutor):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise SettingError(
                    f"examples: an executor is expected, not {example!r}; give the number of sandboxes as size=…"
                )
        self._examples = [PoolKey.of(example) for example in examples]
        self._size = size
        self._max_idle = max_idle
        self._shared = shared
        self._sandboxes = WarmSandboxes(size, max_age, self._give_up)
        self._wanted: deque[PoolKey] = deque(maxlen=size)
        """The keys asked for last, except for the first time."""
        self._known: deque[PoolKey] = deque(maxlen=_REMEMBERED)
        """All keys asked for."""
        self._idle: dict[PoolKey, asyncio.TimerHandle] = {}
        self._lent: WeakKeyDictionary[Startable, WarmSandbox] = WeakKeyDictionary()
        """The executors whose sandbox is to come back."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop in which it is open."""
        self._within = ExitStack()

    @property
    def ready(self) -> int:
        """The number of sandboxes that wait."""
        return len(self._sandboxes.waiting)

    def why_not(self, executor: SandboxedCodeExecutor) -> str | None:
        """Return the reason for which the sandbox of an executor cannot be started ahead; ``None`` if it can."""
        return why_not_warm(executor)

    def expect(self, *examples: SandboxedCodeExecutor) -> None:
        """Keep sandboxes ready for executors like these, and no others until an executor asks for them.

        Args:
            examples: Each counts equally often. They are not started.

        Raises:
            SettingError: If the sandbox of one cannot be started ahead.
        """
        self._expect([PoolKey.of(example) for example in examples])

    async def filled(self) -> None:
        """Wait until the sandboxes are ready, as many as fit into memory.

        Raises:
            SandboxError: If the last one could not start.
            SettingError: If its setup failed.
        """
        await self._sandboxes.settled.wait()
        if self._sandboxes.failure is not None:
            raise self._sandboxes.failure

    def used(self) -> AbstractContextManager[None]:
        """A context manager in which executors use this pool. For tasks that were not begun within the pool."""
        return using_source(self)

    async def aclose(self) -> None:
        """End all waiting sandboxes, even if cancelled. Idempotent. Those handed out keep running."""
        self._loop = None
        for timer in self._idle.values():
            timer.cancel()
        await to_the_end(self._sandboxes.close())

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._within.enter_context(self.used())
        self._expect(self._examples)
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            self._within.close()
        finally:
            await self.aclose()

    async def provide(self, executor: Startable) -> bool:
        """Hand an executor that starts an equivalent sandbox. Returns whether there was one. Executors call this."""
        if not self._is_open or not isinstance(executor, SandboxedCodeExecutor):
            return False
        if (reason := self.why_not(executor)) is not None:
            logger.debug("%s", reason)
            return False
        key = PoolKey.of(executor)
        try:
            return await self._hand_out(key, executor)
        finally:
            self._wish_for(key)

    def shares(self, executor: Startable) -> bool:
        """Whether others may have the sandbox of an executor after it, as it is then. Executors call this."""
        return executor in self._lent

    async def take_back(self, executor: Startable) -> None:
        """Take the sandbox of an executor that stops, if others may have it. Executors call this."""
        lent = self._lent.pop(executor, None)
        if lent is None or not self._is_open or not isinstance(executor, SandboxedCodeExecutor):
            return
        if executor.life.is_idle:
            back = lent.key.make_executor()
            back.life.take_over(executor.life)
            self._sandboxes.put(lent.key, back, lent.born)
        self._keep_wanted()

    async def discard(self, layer: Path | None) -> None:
        """End all waiting sandboxes with these packages, which have been changed. Executors call this."""
        if self._is_open:
            await self._sandboxes.discard(layer)

    @property
    def _is_open(self) -> bool:
        return self._loop is asyncio.get_running_loop()

    async def _hand_out(self, key: PoolKey, executor: SandboxedCodeExecutor) -> bool:
        while (found := self._sandboxes.hand_out(key)) is not None:
            is_taken = False
            try:
                if found.packages == executor.life.environment.packages.path and await found.is_well():
                    executor.life.take_over(found.executor.life)
                    is_taken = True
            finally:
                await self._sandboxes.end(found)
            if is_taken:
                if self._shared and not executor.life.has_data:
                    self._lent[executor] = found
                return True
            logger.debug("a waiting sandbox cannot be used any more")
        return False

    def _expect(self, keys: Iterable[PoolKey]) -> None:
        keys = list(keys)
        self._known.extend(keys)
        self._wanted.extend(islice(cycle(keys), self._size))
        self._keep_wanted()
        for key in keys:
            self._begin_idling(key)

    def _wish_for(self, key: PoolKey) -> None:
        if not self._is_open:
            return
        if key in self._known:
            self._wanted.append(key)
            self._begin_idling(key)
        else:
            # a key that differs from task to task never comes again
            self._known.append(key)
        self._keep_wanted()

    def _begin_idling(self, key: PoolKey) -> None:
        if (before := self._idle.pop(key, None)) is not None:
            before.cancel()
        if key in self._wanted and self._loop is not None:
            self._idle[key] = self._loop.call_later(self._max_idle, self._give_up, key)

    def _give_up(self, key: PoolKey) -> None:
        """Keep no sandbox of a key ready until somebody asks for it again."""
        self._wanted = deque((one for one in self._wanted if one != key), self._size)
        self._keep_wanted()

    def _keep_wanted(self) -> None:
        for key in self._idle.keys() - set(self._wanted):
            self._idle.pop(key).cancel()
        if self._loop is not None:
            self._sandboxes.want(Counter(self._wanted) - Counter(lent.key for lent in self._lent.values()))
