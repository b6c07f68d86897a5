"""Sandboxes that are ready, by kind, within a bound of memory."""

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

_KIB = 1024
_AVAILABLE = re.compile(r"^MemAvailable:\s+(\d+) kB", re.MULTILINE)
_GIVEN_BACK = re.compile(r"^(?:total_)?inactive_file (\d+)", re.MULTILINE)
"""What the kernel takes from caches when it is needed."""


def available(root: Path = Path("/")) -> int | None:
    """Bytes that can be used without harm to what runs; ``None`` where the system does not say.

    Args:
        root: Where ``/proc`` and ``/sys`` are.
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
    """What a group and those above it have left, as far as they have a limit."""
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
class Kind:
    """All that a sandbox is made from, and what has run there before the first block. Equal ones can be exchanged."""

    make: type[SandboxedCodeExecutor]
    settings: str = field(repr=False)
    """All but the data, as JSON."""
    code: tuple[tuple[str, str], ...] = field(repr=False)
    """What of the setup has run: language and text of each piece."""
    directory: str
    """From which relative paths lead."""
    setup: tuple[Setup, ...] = field(compare=False, repr=False)
    memory_mib: int = field(compare=False)
    """How much the code may use."""

    @classmethod
    def of(cls, executor: SandboxedCodeExecutor) -> Self:
        """What an executor needs.

        Raises:
            SettingError: If no sandbox that was started ahead will do.
        """
        if (reason := why_not_ahead(executor)) is not None:
            raise SettingError(reason)
        warmth = executor.warmth
        setup = tuple(warmth.early_setup)
        return cls(
            make=type(executor),
            settings=warmth.settings,
            code=tuple((each.block.language, each.block.code) for each in setup),
            directory=os.getcwd(),
            setup=setup,
            memory_mib=warmth.memory_mib,
        )

    def make_executor(self) -> SandboxedCodeExecutor:
        """A new executor, which has started nothing yet, and knows nothing of whoever asks for it."""
        return Context().run(self._make_executor)

    def _make_executor(self) -> SandboxedCodeExecutor:
        config = self.make.component_config_schema.model_validate_json(self.settings)
        executor = self.make(**config.model_dump())
        executor.warmth.set_up_by(self.setup)
        return executor

    async def start(self) -> SandboxedCodeExecutor:
        """A new executor whose sandbox is ready for the first block.

        Raises:
            SandboxError: If it cannot start.
            SettingError: If its setup fails.
        """
        executor = self.make_executor()
        try:
            await executor.warmth.warm_up()
        except BaseException:
            await to_the_end(executor.stop())
            raise
        return executor


def why_not_ahead(executor: SandboxedCodeExecutor) -> str | None:
    """Why no sandbox that was started ahead will do for an executor; ``None`` if one will."""
    if (setting := executor.warmth.bound_to) is None:
        return None
    return f"with `{setting}`, no sandbox can be started ahead"


logger = logging.getLogger(__name__)

_REFILLS_AT_ONCE = max(1, STARTS_AT_ONCE // 2)
"""The other starts are for those who wait for theirs."""
ANSWER_SECONDS = 1.0
"""In which a sandbox has to answer; it takes a millisecond."""
_COURTESY_SECONDS = 0.005
"""Between a wish and what is done about it, in which whoever has got a sandbox can go on."""
_MIB = 1 << 20


@dataclass(eq=False)
class Waiting:
    """A sandbox that nobody has yet, started by an executor of its own.

    Attributes:
        born: When that was, in seconds of the event loop's clock.
        asking: Asks if it is well, once somebody wants to know.
    """

    kind: Kind
    executor: SandboxedCodeExecutor
    born: float
    expiry: asyncio.TimerHandle | None = None
    asking: asyncio.Task[bool] | None = None

    async def is_well(self) -> bool:
        """Whether it answers."""
        # as all that concerns it: nothing of whoever asks is there, no door, no scope and no pool
        loop = asyncio.get_running_loop()
        self.asking = loop.create_task(self.executor.warmth.is_well(), context=Context())
        await asyncio.wait({self.asking}, timeout=ANSWER_SECONDS)
        if not self.asking.done():
            return False
        if (error := self.asking.exception()) is not None:
            logger.debug("a sandbox does not answer: %s", error)
            return False
        return self.asking.result()

    async def end(self) -> None:
        """Stop it, or what is left of it where another executor has taken it over."""
        try:
            await self.executor.stop()
        except Exception as error:
            logger.warning("a sandbox that has waited may be left: %s", error)
        finally:
            if self.asking is not None and not self.asking.done():
                self.asking.cancel()
                await asyncio.wait({self.asking})


class Stock:
    """For the event loop in which it is used first. What is started ahead is supplied by it: with nothing.

    Args:
        size: How many may wait or be started ahead.
        max_age: Seconds that one may wait.
        on_failure: Is told of a kind that cannot be started.
    """

    def __init__(self, size: int, max_age: float, on_failure: Callable[[Kind], None]) -> None:
        self.waiting: list[Waiting] = []
        """The oldest first."""
        self.failure: Exception | None = None
        """Why the last start failed, if it did."""
        self.settled = asyncio.Event()
        """Set while none starts."""
        self.settled.set()
        self._size = size
        self._max_age = max_age
        self._on_failure = on_failure
        self._wanted: Counter[Kind] = Counter()
        self._starting: Counter[Kind] = Counter()
        self._starts: set[asyncio.Task[None]] = set()
        self._ends: set[asyncio.Task[None]] = set()
        self._is_short = False
        """Whether there was too little memory."""
        self._closed = False
        self._tending: asyncio.TimerHandle | None = None

    def want(self, wanted: Counter[Kind]) -> None:
        """From now on keep as many ready of each kind, and nothing else."""
        self._wanted = wanted
        if self._tending is None and not self._closed:
            self.settled.clear()
            self._tending = asyncio.get_running_loop().call_later(_COURTESY_SECONDS, self._tend)

    def take(self, kind: Kind) -> Waiting | None:
        """One of the kind, if there is one, which from now on is the caller's to end."""
        found = next((one for one in self.waiting if one.kind == kind), None)
        if found is not None:
            self._remove(found)
        return found

    async def end(self, one: Waiting) -> None:
        """End one that is the caller's; while this is open, in the background."""
        ending = self._begin(self._ends, one.end())
        if self._closed:
            await to_the_end(asyncio.wait({ending}))

    async def provide(self, executor: Startable) -> bool:
        """What is started ahead is started anew."""
        return False

    async def take_back(self, executor: Startable) -> None:
        """What is started ahead and fails is ended."""

    async def discard(self, layer: Path | None) -> None:
        """End all that waits with packages that were changed since they were made."""
        endings = [self._discard(one) for one in self.waiting.copy() if one.executor.warmth.layer == layer]
        if endings:
            await asyncio.wait(endings)

    def put(self, kind: Kind, executor: SandboxedCodeExecutor, born: float) -> None:
        """Keep what an executor has just taken over from one that it had been handed out to."""
        self._starting[kind] += 1
        # never cancelled: there is something to end from the first moment on
        self._begin(self._ends, self._keep(Waiting(kind, executor, born)))

    async def close(self) -> None:
        """End all, and keep nothing any more. Idempotent."""
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
        """Begin to start what is missing, and to end what is too much."""
        if self._tending is not None:
            self._tending.cancel()
            self._tending = None
        if self._closed:
            return
        for kind, count in Counter(one.kind for one in self.waiting).items():
            surplus = count - self._wanted[kind]
            for one in [one for one in self.waiting if one.kind == kind][: max(0, surplus)]:
                self._discard(one)
        while self._starting.total() < _REFILLS_AT_ONCE and (kind := self._missing()) is not None:
            if not self._has_room(kind):
                if self.waiting:
                    self._discard(self.waiting[0])
                break
            self._starting[kind] += 1
            self._begin(self._starts, self._start(kind))
        if not self._starting.total():
            self.settled.set()
        else:
            self.settled.clear()

    def _missing(self) -> Kind | None:
        """What to start next."""
        there = Counter(one.kind for one in self.waiting) + self._starting
        if there.total() >= self._size:
            return None
        missing = [kind for kind, count in self._wanted.items() if there[kind] < count]
        return min(missing, key=lambda kind: there[kind] / self._wanted[kind], default=None)

    def _has_room(self, kind: Kind) -> bool:
        """Whether there is enough memory for code to use all that it may, whatever waits already."""
        left = available()
        was_short, self._is_short = self._is_short, left is not None and left < kind.memory_mib * _MIB
        if self._is_short and not was_short:
            logger.warning(
                "fewer sandboxes are kept ready: %s MiB of memory are left, and code of one may use %s",
                (left or 0) // _MIB,
                kind.memory_mib,
            )
        return not self._is_short

    async def _start(self, kind: Kind) -> None:
        try:
            executor = await kind.start()
            self._shelve(Waiting(kind, executor, asyncio.get_running_loop().time()))
            self.failure = None
        except Exception as error:
            if str(error) != str(self.failure):
                logger.warning(
                    "no sandbox can be started ahead, which is tried again when one is asked for: %s", error
                )
                logger.debug("it failed there", exc_info=error)
            self.failure = error
            self._on_failure(kind)
        finally:
            self._starting[kind] -= 1
            self._tend()

    async def _keep(self, one: Waiting) -> None:
        try:
            await one.executor.warmth.warm_up()
        except Exception as error:
            logger.debug("a sandbox does not come back: %s", error)
            await one.end()
        else:
            self._shelve(one)
        finally:
            self._starting[one.kind] -= 1
            self._tend()

    def _shelve(self, one: Waiting) -> None:
        if self._closed:
            self._begin(self._ends, one.end())
            return
        self.waiting.append(one)
        loop = asyncio.get_running_loop()
        one.expiry = loop.call_at(one.born + self._max_age, self._expire, one)

    def _expire(self, one: Waiting) -> None:
        self._discard(one)
        self._tend()

    def _discard(self, one: Waiting) -> asyncio.Task[None]:
        self._remove(one)
        return self._begin(self._ends, one.end())

    def _remove(self, one: Waiting) -> None:
        self.waiting.remove(one)
        if one.expiry is not None:
            one.expiry.cancel()

    def _begin(self, tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, context=context_of(self))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task
