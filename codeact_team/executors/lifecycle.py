"""From start to stop of an executor: what was lost, who uses it, and what a pool may do with it."""

from __future__ import annotations

import errno
import logging
import resource
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import Context, ContextVar
from itertools import takewhile
from pathlib import Path
from typing import Protocol
from weakref import WeakKeyDictionary

from autogen_core import CancellationToken

from codeact_team.core import scope
from codeact_team.core.aio import FairLock, to_the_end
from codeact_team.core.effects import current_dispatcher, emit
from codeact_team.core.events import (
    SandboxLost,
    SandboxPreparing,
    SandboxStarted,
    SandboxStarting,
    SandboxStopped,
)
from codeact_team.core.places import place_of
from codeact_team.core.scope import Startable
from codeact_team.errors import SandboxError, SettingError
from codeact_team.executors.environment import Environment
from codeact_team.executors.running import AnyRunner, Call, Setup
from codeact_team.executors.settings import ExecutorConfig
from codeact_team.sandbox.base import STOPPED

_current: ContextVar[WarmSource | None] = ContextVar("codeact_team_warm_source", default=None)
"""The source for executors that start here. Threads and runtimes may not inherit the context."""


class WarmSource(Protocol):
    """Has sandboxes that were started ahead."""

    async def provide(self, executor: Startable) -> bool:
        """Hand the executor an equivalent warm sandbox. Returns whether there was one."""
        ...

    def shares(self, executor: Startable) -> bool:
        """Whether what the code of an executor leaves is for others, too."""
        ...

    async def take_back(self, executor: Startable) -> None:
        """Take the sandbox of an executor that stops, if others may have it."""
        ...

    async def discard(self, layer: Path | None) -> None:
        """End all sandboxes with these packages, which have been changed."""
        ...


@contextmanager
def using_source(source: WarmSource) -> Generator[None]:
    """Executors that are made or start in this context use the source."""
    token = _current.set(source)
    try:
        yield
    finally:
        _current.reset(token)


def context_of(source: WarmSource) -> Context:
    """A context with this source and nothing else: no dispatcher, no scope, nothing of the caller's."""
    context = Context()
    context.run(_current.set, source)
    return context


_UNCLAIMED = object()


class Generation:
    """The state that blocks share until it is lost: an interpreter, or only a sandbox.

    Attributes:
        interpreter: The interpreter's number; ``None`` until the start.
        loss: Why it was lost, once it is.
        setup_done: How many pieces of the setup have run.
    """

    def __init__(self) -> None:
        self.interpreter: int | None = None
        self.loss = ""
        self.setup_done = 0
        self._rights: object = _UNCLAIMED

    def forked(self, interpreter: int) -> Generation:
        """A copy for a fork of the interpreter."""
        other = Generation()
        other.interpreter, other.setup_done, other._rights = interpreter, self.setup_done, self._rights
        return other

    def claim(self, rights: object) -> None:
        """Bind the generation to these rights to call the host. Other rights raise a ``SettingError`` from then on."""
        if self._rights is _UNCLAIMED:
            self._rights = rights
        if self._rights != rights:
            raise SettingError(
                "this session has run code of an agent with other tools, or other limits or approvals for them. What "
                "that code has left running could call the tools of this agent. Give each agent an executor of its own, "
                "or restart() the executor in between"
            )


logger = logging.getLogger(__name__)


_OF_MODULES = ("", ".py", ".pyc", ".so")
"""Endings of files that the import of a module may read, such as matplotlibrc."""


class Lifecycle:
    """Starts, replaces and stops an executor's environment, and knows in which generation the code of each user ran last.

    Args:
        owner: The executor, which scopes own and events name. It is also the user of code without a user.
        config: Its settings.
        environment: Where its code runs.
        runner: How it runs there.
        turns: Held while code runs.
        set_up: Starts the sandbox, and does what comes before the first block.
    """

    def __init__(
        self,
        owner: Startable,
        config: ExecutorConfig,
        environment: Environment,
        runner: AnyRunner,
        turns: FairLock,
        set_up: Callable[[Call], Awaitable[None]],
    ) -> None:
        self.environment = environment
        self.generation: Generation = Generation()
        """The present state of the blocks."""
        self.restarts: int = 0
        """The number of times that the state was discarded, also if there was none."""
        self._owner = owner
        self._config = config
        self.runner = runner
        self._blocks = turns
        self._set_up = set_up
        self._last: WeakKeyDictionary[object, Generation] = WeakKeyDictionary()
        """By user, the generation in which their code ran last."""
        self._turns = FairLock()
        """Held while something starts or stops."""
        self._name = type(owner).__name__
        self._dispatcher = current_dispatcher()
        self._source = _current.get()
        self._provided_by: WarmSource | None = None
        scope.register(owner)

    @property
    def in_use(self) -> bool:
        """Whether code of a user other than the owner has run in the present generation."""
        return any(last is self.generation and user is not self._owner for user, last in self._last.items())

    def note(self, user: object) -> tuple[bool, str | None]:
        """Note that code of a user runs now.

        Returns whether it is the first in this generation, and why the generation of the user's last code was lost, if it was.
        """
        last = self._last.get(user)
        if last is self.generation:
            return False, None
        self._last[user] = self.generation
        return True, None if last is None else last.loss

    def forget(self, user: object) -> None:
        """Forget a user, who needs no state any more."""
        self._last.pop(user, None)

    def replace(self, loss: str, *, known_to: object = None, by: Generation | None = None) -> None:
        """Begin another generation, an empty one by default. The user to whom the loss is known gets no remark on it."""
        self.generation.loss = loss
        self.generation = by or Generation()
        if known_to is None:
            return
        if by is None:
            self.forget(known_to)
        else:
            # its loss would be one of this user's
            self._last[known_to] = by

    @property
    def ready(self) -> bool:
        """Whether the next block can run at once, without a start or a setup."""
        generation, runner = self.generation, self.runner
        return (
            generation.interpreter == runner.interpreter is not None
            and generation.setup_done == len(runner.setup)
            and self.environment.running
            and self.environment.packages.is_checked
            and not self.environment.directory.is_gone
        )

    async def prepare(self) -> None:
        async with self._turns:
            await self.environment.prepare(self.report_preparing)

    async def start(self, *, for_use: bool = False) -> None:
        """Start what does not run. Idempotent. Raises a ``SandboxError``.

        ``for_use``, as before code runs or files are written, it waits until the packages are known to be sound.
        """
        async with self._turns:
            is_new = self.environment.sandbox is None
            try:
                await self._open()
                while for_use and not await self.environment.packages.is_whole():
                    self.lose("its packages were changed")
                    if (source := _current.get() or self._source) is not None:
                        await source.discard(self.environment.packages.path)
                    await self.environment.discard()
                    await self._open()
            except BaseException:
                if is_new:
                    # nothing has run yet, so a temporary workspace holds nothing
                    await to_the_end(self._dismiss())
                raise

    async def stop(self) -> None:
        """Stop everything. Idempotent."""
        async with self._turns:
            await to_the_end(self._dismiss())

    async def finish(self) -> Sequence[str]:
        """Have the interpreter, if there is one and nobody else goes on with it, end in order. Between two blocks."""
        async with self._turns:
            if self._provided_by is not None and self._provided_by.shares(self._owner):
                return ()
            return await self.runner.finish()

    def take_over(self, other: Lifecycle) -> None:
        """Take all that another executor with the same packages and settings, except for data, has started.

        A start does the rest. The other has nothing afterwards.
        """
        self.environment.take_over(other.environment)
        self.runner.take_over(other.runner)
        self.generation, other.generation = other.generation, Generation()
        # that it has started is yet to be reported
        self.generation.interpreter = None

    async def renew(self, *, in_use: bool = False) -> None:
        """Replace the state of the blocks, if any.

        ``in_use``, while a block may run, the reader of its output learns of it when it reads on.
        """
        async with self._turns:
            self.restarts += 1
            if self.environment.sandbox is None or self.runner.interpreter is None:
                return
            self.lose("it was restarted")
            await self.runner.renew(self.environment, in_use=in_use)
            if not (in_use and self.environment.running):
                await self._open()

    def lose(self, reason: str, *, known_to: object = None) -> None:
        """Mark the state of the blocks as lost, and emit ``SandboxLost`` once."""
        was_there = self.generation.interpreter is not None
        self.replace(reason, known_to=known_to)
        if was_there:
            emit(
                SandboxLost(sandbox=self._name, reason=reason, place=place_of(self._owner)), self._dispatcher
            )

    async def _open(self) -> None:
        """Start what does not run, and notice what was lost since the last block."""
        try:
            await self._start_all()
        except (OSError, SandboxError) as error:
            cause = error.__cause__ if isinstance(error, SandboxError) else error
            if not isinstance(cause, OSError) or cause.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            raise SandboxError(
                f"no sandbox can start: this process has reached its limit of {limit:,} open files and connections. Raise it, such "
                "as by `ulimit -n 4096`, or open fewer sandboxes at a time"
            ) from error

    async def _start_all(self) -> None:
        environment, runner = self.environment, self.runner
        if not environment.running or runner.interpreter is None:
            if (lost := await to_the_end(runner.close())) is not None:
                self.lose(lost)
        elif self.generation.interpreter not in (None, runner.interpreter):
            self.lose(runner.interpreter_loss)
        if environment.sandbox is not None and environment.directory.is_gone:
            # the sandbox keeps the removed one
            logger.warning("%s was removed: a fresh sandbox gets a new workspace", environment.directory.path)
            self.lose("its work_dir was removed")
            await to_the_end(self._clear())
        if not environment.running:
            # made outside a scope and started inside it, it belongs to it all the same
            scope.register(self._owner)
            self.lose("it ended while no code ran")
        if not environment.running or runner.interpreter is None:
            emit(SandboxStarting(sandbox=self._name), self._dispatcher)
            source = _current.get() or self._source
            if environment.sandbox is None and source is not None:
                await environment.provide(self.report_preparing)
                self._provided_by = source if await source.provide(self._owner) else None
            await environment.start(self.report_preparing)
            await runner.open(environment)
        if self.generation.interpreter is None:
            self.generation.interpreter = runner.interpreter
            started = SandboxStarted(
                sandbox=self._name,
                packages=environment.packages.versions,
                image=None if environment.sandbox is None else environment.sandbox.image,
                python=None if environment.sandbox is None else environment.sandbox.python_version,
                view=None if environment.sandbox is None else environment.sandbox.view,
                place=place_of(self._owner),
            )
            emit(started, self._dispatcher)

    def report_preparing(self, doing: str) -> None:
        """Report what takes its time, such as a copy of much data."""
        # in the words of the event, so that a screen prints it once
        logger.info("%s", doing)
        emit(SandboxPreparing(sandbox=self._name, doing=doing), self._dispatcher)

    async def _dismiss(self) -> None:
        is_started = self.environment.sandbox is not None
        source, self._provided_by = self._provided_by, None
        if is_started and source is not None:
            await source.take_back(self._owner)
        if not self._blocks.taken:
            # nothing where the pool has taken it, with its state
            await self.runner.finish()
        self.replace(STOPPED, known_to=self._owner)
        await self._clear()
        if is_started:
            emit(SandboxStopped(sandbox=self._name), self._dispatcher)

    async def _clear(self) -> None:
        try:
            await self.environment.stop()
        finally:
            await self.runner.close()

    async def set_up(self) -> None:
        """Start the sandbox, and do what comes before the first block. For the holder of the executor's turns."""
        async with self._calling() as call:
            await self._set_up(call)

    # for a pool

    @property
    def settings(self) -> str:
        """All settings but the data, as JSON, with the packages that read it."""
        packages = [*self._config.packages, *self.environment.readers]
        return self._config.model_copy(update={"data": [], "packages": packages}).model_dump_json()

    @property
    def has_data(self) -> bool:
        """Whether data is copied before the first block."""
        return bool(self._config.data)

    @property
    def early_setup(self) -> Sequence[Setup]:
        """The first pieces of the setup that can run before the data is there."""
        data = [Path(path) for path in self._config.data]
        if any(path.suffix in _OF_MODULES or path.is_dir() for path in data):
            return ()
        return tuple(takewhile(lambda step: not (data and step.may_read_data), self.runner.setup))

    @property
    def is_idle(self) -> bool:
        """Whether it is ready for the next block, and runs none."""
        return self.ready and not self._blocks.taken

    async def warm_up(self) -> None:
        """Like :meth:`set_up`, for others."""
        async with self._blocks:
            await self.set_up()

    async def is_well(self) -> bool:
        """Whether the sandbox answers. No block has run there since the setup. Raises a ``SandboxError`` if it has ended."""
        if not self.is_idle:
            return False
        async with self._calling() as call:
            call.begin_block(self._config.timeout)
            return await self.runner.is_well(self.environment, call)

    @asynccontextmanager
    async def _calling(self) -> AsyncGenerator[Call]:
        call = Call(CancellationToken(), self._owner, None, self.environment)
        try:
            yield call
        finally:
            call.stop.cancel()
            await call.end()
