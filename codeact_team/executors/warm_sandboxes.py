"""Sandboxes that were started ahead, as many as fit into memory."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from codeact_team.core.aio import to_the_end
from codeact_team.core.scope import Startable
from codeact_team.errors import SettingError
from codeact_team.executors.base import SandboxedCodeExecutor
from codeact_team.executors.lifecycle import context_of
from codeact_team.executors.running import Setup
from codeact_team.sandbox.base import STARTS_AT_ONCE
from codeact_team.session.protocol import MIB

_KIB = 1024
_AVAILABLE = re.compile(r"^MemAvailable:\s+(\d+) kB", re.MULTILINE)
_GIVEN_BACK = re.compile(r"^(?:total_)?inactive_file (\d+)", re.MULTILINE)
"""Memory of caches that the kernel takes when it is needed."""


def available(root: Path = Path("/")) -> int | None:
    """Bytes of memory that are left for new processes; ``None`` if the system does not say.

    ``root`` is the directory with ``/proc`` and ``/sys``.
    """
    with suppress(OSError):
        found = _AVAILABLE.search((root / "proc/meminfo").read_text())
        if found is not None:
            return min([int(found[1]) * _KIB, *_left_in_groups(root)])
    return None


def _left_in_groups(root: Path) -> Iterator[int]:
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            yield from _left(root / "sys/fs/cgroup", path, "memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            names = "memory.limit_in_bytes", "memory.usage_in_bytes"
            yield from _left(root / "sys/fs/cgroup/memory", path, *names)


def _left(mount: Path, path: str, limit: str, usage: str) -> Iterator[int]:
    """The bytes that a control group and those above it have left, if they have a limit."""
    group = mount / path.lstrip("/")
    if not group.is_dir():
        # in a container: the mount is its group
        group = mount
    while group.is_relative_to(mount):
        # the topmost has no such files, and no limit is "max"
        with suppress(OSError, ValueError):
            most = int((group / limit).read_text())
            given_back = sum(map(int, _GIVEN_BACK.findall((group / "memory.stat").read_text())[-1:]))
            yield most - int((group / usage).read_text()) + given_back
        group = group.parent


@dataclass(frozen=True)
class PoolKey:
    """All settings of a sandbox, and the setup that has run there. Sandboxes with equal keys can be exchanged."""

    make: type[SandboxedCodeExecutor]
    settings: str = field(repr=False)
    """All settings but the data, as JSON."""
    setup: tuple[Setup, ...] = field(repr=False)
    """The pieces of the setup that have run."""
    directory: str
    """The current directory, for relative paths."""
    memory_mib: int = field(compare=False)
    """Memory that the code may use."""

    @classmethod
    def of(cls, executor: SandboxedCodeExecutor) -> Self:
        """The key of an executor. Raises a ``SettingError`` if its sandbox cannot be started ahead."""
        if (reason := why_not_warm(executor)) is not None:
            raise SettingError(reason)
        life = executor.life
        return cls(
            make=type(executor),
            settings=life.settings,
            setup=tuple(life.early_setup),
            directory=os.getcwd(),
            memory_mib=life.environment.memory_mib,
        )

    def make_executor(self) -> SandboxedCodeExecutor:
        """A new executor that is not started, made in an empty context."""
        return Context().run(self._make_executor)

    def _make_executor(self) -> SandboxedCodeExecutor:
        config = self.make.component_config_schema.model_validate_json(self.settings)
        executor = self.make(**config.model_dump())
        executor.life.runner.setup[:] = self.setup
        return executor

    async def start(self) -> SandboxedCodeExecutor:
        """Make an executor, and start it until its sandbox is ready for the first block. Raises as the start."""
        executor = self.make_executor()
        try:
            await executor.life.warm_up()
        except BaseException:
            await to_the_end(executor.stop())
            raise
        return executor


def why_not_warm(executor: SandboxedCodeExecutor) -> str | None:
    """Return the reason for which the sandbox of an executor cannot be started ahead; ``None`` if it can."""
    if (setting := executor.life.environment.bound_to) is None:
        return None
    return f"with `{setting}`, sandboxes cannot be started ahead"


logger = logging.getLogger(__name__)

_REFILLS_AT_ONCE = max(1, STARTS_AT_ONCE // 2)
"""The other starts are left for executors that wait for theirs."""
ANSWER_SECONDS = 1.0
"""Seconds for a sandbox to answer; it takes a millisecond."""
_COURTESY_SECONDS = 0.005
"""Seconds before sandboxes are started or ended, so that an executor which has got one continues first."""


@dataclass(eq=False)
class WarmSandbox:
    """A sandbox that waits, started by an executor of its own.

    Attributes:
        born: The time of its start, in seconds of the event loop's clock.
        asking: Asks whether it is well.
    """

    key: PoolKey
    executor: SandboxedCodeExecutor
    born: float
    expiry: asyncio.TimerHandle | None = None
    asking: asyncio.Task[bool] | None = None

    @property
    def packages(self) -> Path | None:
        """The directory of its packages."""
        return self.executor.life.environment.packages.path

    async def is_well(self) -> bool:
        """Whether it answers."""
        # in an empty context: without dispatcher, scope and pool of the caller
        loop = asyncio.get_running_loop()
        self.asking = loop.create_task(self.executor.life.is_well(), context=Context())
        await asyncio.wait({self.asking}, timeout=ANSWER_SECONDS)
        if not self.asking.done():
            return False
        if (error := self.asking.exception()) is not None:
            logger.debug("a sandbox does not answer: %s", error)
            return False
        return self.asking.result()

    async def end(self) -> None:
        """Stop it, or its rest after a take-over."""
        try:
            await self.executor.stop()
        except Exception as error:
            logger.warning("a waiting sandbox may not have been removed: %s", error)
        finally:
            if self.asking is not None and not self.asking.done():
                self.asking.cancel()
                await asyncio.wait({self.asking})


class WarmSandboxes:
    """Starts sandboxes ahead and ends them, in the event loop in which it is used first.

    It is the warm source of its own executors, and has nothing for them: they start their own sandboxes.

    Args:
        size: How many sandboxes may wait or be starting.
        max_age: Seconds that one may wait.
        on_failure: Called with a key whose sandbox cannot start.
    """

    def __init__(self, size: int, max_age: float, on_failure: Callable[[PoolKey], None]) -> None:
        self.waiting: list[WarmSandbox] = []
        """The oldest first."""
        self.failure: Exception | None = None
        """The error of the last start, if it failed."""
        self.settled: asyncio.Event = asyncio.Event()
        """Set while none starts."""
        self.settled.set()
        self._size = size
        self._max_age = max_age
        self._on_failure = on_failure
        self._wanted: Counter[PoolKey] = Counter()
        self._starting: Counter[PoolKey] = Counter()
        self._starts: set[asyncio.Task[None]] = set()
        self._ends: set[asyncio.Task[None]] = set()
        self._is_short = False
        """Whether there was too little memory."""
        self._closed = False
        self._tending: asyncio.TimerHandle | None = None

    def want(self, wanted: Counter[PoolKey]) -> None:
        """From now on, keep so many sandboxes of each key ready, and no others."""
        self._wanted = wanted
        if self._tending is None and not self._closed:
            self.settled.clear()
            self._tending = asyncio.get_running_loop().call_later(_COURTESY_SECONDS, self._tend)

    def hand_out(self, key: PoolKey) -> WarmSandbox | None:
        """Hand out a sandbox of a key, if one waits. The caller has to :meth:`end` it."""
        found = next((one for one in self.waiting if one.key == key), None)
        if found is not None:
            self._remove(found)
        return found

    async def end(self, one: WarmSandbox) -> None:
        """End a sandbox that was taken; in the background until this is closed."""
        ending = self._begin(self._ends, one.end())
        if self._closed:
            await to_the_end(asyncio.wait({ending}))

    async def provide(self, executor: Startable) -> bool:
        """Hand out nothing: sandboxes started ahead are new ones."""
        return False

    def shares(self, executor: Startable) -> bool:
        return False

    async def take_back(self, executor: Startable) -> None:
        """Take nothing: sandboxes that fail are ended."""

    async def discard(self, layer: Path | None) -> None:
        """End all waiting sandboxes with these packages."""
        endings = [self._discard(one) for one in self.waiting.copy() if one.packages == layer]
        if endings:
            await asyncio.wait(endings)

    def put(self, key: PoolKey, executor: SandboxedCodeExecutor, born: float) -> None:
        """Keep the sandbox that an executor has just taken back."""
        self._starting[key] += 1
        # never cancelled: from the first moment on, a sandbox has to be ended
        self._begin(self._ends, self._keep(WarmSandbox(key, executor, born)))

    async def close(self) -> None:
        """End all sandboxes, and start no more. Idempotent."""
        self._closed = True
        self.settled.set()
        if self._tending is not None:
            self._tending.cancel()
        for start in self._starts:
            start.cancel()
        for one in self.waiting.copy():
            self._discard(one)
        while unfinished := self._starts | self._ends:
            await asyncio.wait(unfinished)

    def _tend(self) -> None:
        """Begin to start missing sandboxes, and to end superfluous ones."""
        if self._tending is not None:
            self._tending.cancel()
            self._tending = None
        if self._closed:
            return
        for key, count in Counter(one.key for one in self.waiting).items():
            surplus = count - self._wanted[key]
            for one in [one for one in self.waiting if one.key == key][: max(0, surplus)]:
                self._discard(one)
        while self._starting.total() < _REFILLS_AT_ONCE and (key := self._missing()) is not None:
            if not self._has_room(key):
                if self.waiting:
                    self._discard(self.waiting[0])
                break
            self._starting[key] += 1
            self._begin(self._starts, self._start(key))
        if not self._starting.total():
            self.settled.set()
        else:
            self.settled.clear()

    def _missing(self) -> PoolKey | None:
        """The key of the sandbox to start next."""
        there = Counter(one.key for one in self.waiting) + self._starting
        if there.total() >= self._size:
            return None
        missing = [key for key, count in self._wanted.items() if there[key] < count]
        return min(missing, key=lambda key: there[key] / self._wanted[key], default=None)

    def _has_room(self, key: PoolKey) -> bool:
        """Whether code of one more sandbox and of those that wait may use all their memory."""
        left = available()
        was_short, self._is_short = self._is_short, left is not None and left < key.memory_mib * MIB
        if self._is_short and not was_short:
            logger.warning(
                "fewer sandboxes are kept ready: %s MiB of memory are left, and the code of one may use %s",
                (left or 0) // MIB,
                key.memory_mib,
            )
        return not self._is_short

    async def _start(self, key: PoolKey) -> None:
        try:
            executor = await key.start()
            self._shelve(WarmSandbox(key, executor, asyncio.get_running_loop().time()))
            self.failure = None
        except Exception as error:
            if str(error) != str(self.failure):
                logger.warning("no sandbox can be started ahead; the next request tries again: %s", error)
                logger.debug("it failed there", exc_info=error)
            self.failure = error
            self._on_failure(key)
        finally:
            self._starting[key] -= 1
            self._tend()

    async def _keep(self, one: WarmSandbox) -> None:
        try:
            await one.executor.life.warm_up()
        except Exception as error:
            logger.debug("a sandbox does not come back: %s", error)
            await one.end()
        else:
            self._shelve(one)
        finally:
            self._starting[one.key] -= 1
            self._tend()

    def _shelve(self, one: WarmSandbox) -> None:
        if self._closed:
            self._begin(self._ends, one.end())
            return
        self.waiting.append(one)
        loop = asyncio.get_running_loop()
        one.expiry = loop.call_at(one.born + self._max_age, self._expire, one)

    def _expire(self, one: WarmSandbox) -> None:
        self._discard(one)
        self._tend()

    def _discard(self, one: WarmSandbox) -> asyncio.Task[None]:
        self._remove(one)
        return self._begin(self._ends, one.end())

    def _remove(self, one: WarmSandbox) -> None:
        self.waiting.remove(one)
        if one.expiry is not None:
            one.expiry.cancel()

    def _begin(self, tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, context=context_of(self))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task
