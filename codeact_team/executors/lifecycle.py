"""From start to stop: what code runs in, what of it was lost, who uses it, and what is kept warm."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import Context, ContextVar
from itertools import takewhile
from pathlib import Path
from typing import Protocol
from weakref import WeakKeyDictionary

from autogen_core import CancellationToken

from codeact_team.core import scope
from codeact_team.core.aio import Turns, to_the_end
from codeact_team.core.effects import current_door, tell
from codeact_team.core.events import (
    SandboxLost,
    SandboxPreparing,
    SandboxStarted,
    SandboxStarting,
    SandboxStopped,
)
from codeact_team.core.places import place_of
from codeact_team.core.scope import Startable
from codeact_team.errors import SettingError
from codeact_team.executors.place import Place
from codeact_team.executors.running import AnyRunner, Call, Setup
from codeact_team.executors.settings import ExecutorConfig
from codeact_team.sandbox.base import STOPPED

_current: ContextVar[Supply | None] = ContextVar("codeact_team_supply", default=None)


class Supply(Protocol):
    """Has sandboxes for executors."""

    async def provide(self, executor: Startable) -> bool:
        """Let an executor take over a sandbox that is ready, if there is one that is as its own would be; whether it has."""
        ...

    async def take_back(self, executor: Startable) -> None:
        """Take over the sandbox of an executor that stops, if others may have it."""
        ...

    async def discard(self, layer: Path | None) -> None:
        """End all sandboxes with these packages, which were changed since they were made."""
        ...


def current_supply() -> Supply | None:
    """What supplies whoever starts here; threads and runtimes may not inherit the context."""
    return _current.get()


@contextmanager
def supplied_by(supply: Supply) -> Generator[None]:
    """Within it, executors that are made or start look there."""
    token = _current.set(supply)
    try:
        yield
    finally:
        _current.reset(token)


def context_of(supply: Supply) -> Context:
    """A context in which there is nothing but this: no door, no scope, and nothing of whoever is at work."""
    context = Context()
    context.run(_current.set, supply)
    return context


_UNCLAIMED = object()


class Generation:
    """What one block leaves behind for the next, until it is replaced: an interpreter, or only a sandbox.

    Attributes:
        interpreter: The interpreter's number; ``None`` until it is known.
        loss: Why it was replaced, once it is.
        setup_done: How many pieces of the setup have run in it.
    """

    def __init__(self) -> None:
        self.interpreter: int | None = None
        self.loss = ""
        self.setup_done = 0
        self._rights: object = _UNCLAIMED

    def forked(self, interpreter: int) -> Generation:
        """A copy of it, which goes its own way."""
        other = Generation()
        other.interpreter, other.setup_done, other._rights = interpreter, self.setup_done, self._rights
        return other

    def claim(self, rights: object) -> None:
        """Let code with these rights to call the host run here, and from now on no other; they are compared by ``==``.

        Raises:
            SettingError: If code with other rights runs here.
        """
        if self._rights is _UNCLAIMED:
            self._rights = rights
        if self._rights != rights:
            raise SettingError(
                "this session has run code of an agent with other tools, or other limits or approvals for them. What "
                "that code left running could call the tools of this agent. Give each agent an executor of its own, "
                "or restart() the executor in between"
            )


class Users:
    """Which generation each user's code has run in last.

    A user is an object that lives as long as it needs the executor. The owner is whoever does not say who they are.
    """

    def __init__(self, owner: object) -> None:
        self._owner = owner
        self._last: WeakKeyDictionary[object, Generation] = WeakKeyDictionary()
        self.generation = Generation()

    @property
    def in_use(self) -> bool:
        """Whether code of a user other than the owner has run in the present generation."""
        return any(last is self.generation and user is not self._owner for user, last in self._last.items())

    def note(self, user: object) -> tuple[bool, str | None]:
        """Note that the user's code runs in the present generation.

        Returns:
            Whether none has before; and why another generation is gone, if it has run in that last.
        """
        last = self._last.get(user)
        if last is self.generation:
            return False, None
        self._last[user] = self.generation
        return True, None if last is None else last.loss

    def forget(self, user: object) -> None:
        """The user counts on nothing any more."""
        self._last.pop(user, None)

    def take_over(self, other: Users) -> None:
        """What blocks have left behind for others is from now on what they have left behind there, and nothing is there."""
        self.generation, other.generation = other.generation, Generation()
        # it has to be told yet that it has started
        self.generation.interpreter = None

    def replace(self, loss: str, *, told: object = None, by: Generation | None = None) -> None:
        """Begin a new generation, as the present one is gone for the reason ``loss``, which the user ``told`` knows.

        Args:
            loss: Why.
            told: Who knows it.
            by: The new one; by default nothing of it is there yet.
        """
        self.generation.loss = loss
        self.generation = by or Generation()
        if told is not None:
            self.forget(told)


logger = logging.getLogger(__name__)

RESTARTED = "it was restarted"


class Lifecycle:
    """Starts, replaces and stops what code runs in. Its owner, the executor, is what scopes own and events name."""

    def __init__(self, owner: scope.Startable, place: Place, runner: AnyRunner) -> None:
        self.users = Users(owner)
        self._owner = owner
        self._place = place
        self._runner = runner
        self._turns = Turns()
        self._name = type(owner).__name__
        self._door = current_door()
        self._supply = current_supply()
        self._supplied_by: Supply | None = None
        scope.register(owner)

    @property
    def ready(self) -> bool:
        """Whether the next block can run as it is, without a start or a setup."""
        generation, runner = self.users.generation, self._runner
        return (
            generation.interpreter == runner.interpreter is not None
            and generation.setup_done == len(runner.setup)
            and self._place.running
            and self._place.is_checked
            and not self._place.workspace.is_gone
        )

    async def prepare(self) -> None:
        """Get what has to be there before a start.

        Raises:
            SandboxError: If it cannot be had.
        """
        async with self._turns:
            await self._place.prepare(self._tell_preparing)

    async def start(self, *, for_use: bool = False) -> None:
        """Start what does not run. Idempotent.

        Args:
            for_use: Whether code runs or files are written next, which waits until the packages are known to be sound.

        Raises:
            SandboxError: If it cannot start.
        """
        async with self._turns:
            is_new = self._place.sandbox is None
            try:
                await self._open()
                while for_use and not await self._place.is_sound():
                    self.lose("its packages were changed")
                    if (supply := current_supply() or self._supply) is not None:
                        await supply.discard(self._place.layer)
                    await self._place.discard()
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

    def take_over(self, other: Lifecycle) -> None:
        """Have all that another one has started, which has nothing afterwards; a start does what is left to do.

        Args:
            other: That of an executor with the same settings but for data, and the same packages.
        """
        self._place.take_over(other._place)
        self._runner.take_over(other._runner)
        self.users.take_over(other.users)

    async def renew(self, *, in_use: bool = False) -> None:
        """Replace what the blocks have left behind, if anything is there.

        Where it is ``in_use``, a block may run; whoever reads its output learns of it when they read on.
        """
        async with self._turns:
            if self._place.sandbox is None or self._runner.interpreter is None:
                return
            self.lose(RESTARTED)
            await self._runner.renew(self._place, in_use=in_use)
            if not (in_use and self._place.running):
                await self._open()

    def lose(self, reason: str, *, told: object = None) -> None:
        """Take note that what the blocks have left behind is gone, and tell it, unless that is known."""
        was_there = self.users.generation.interpreter is not None
        self.users.replace(reason, told=told)
        if was_there:
            tell(SandboxLost(sandbox=self._name, reason=reason, place=place_of(self._owner)), self._door)

    async def _open(self) -> None:
        """Start what does not run, and take note of what was lost since somebody has looked."""
        place, runner, users = self._place, self._runner, self.users
        if not place.running or runner.interpreter is None:
            if (lost := await to_the_end(runner.close())) is not None:
                self.lose(lost)
        elif users.generation.interpreter not in (None, runner.interpreter):
            self.lose(runner.interpreter_loss)
        if place.sandbox is not None and place.workspace.is_gone:
            # the sandbox has the removed one, for ever
            logger.warning("%s was removed: a fresh sandbox gets a new workspace", place.workspace.path)
            self.lose("its work_dir was removed")
            await to_the_end(self._clear())
        if not place.running:
            # made outside a scope and started inside it, it belongs to it all the same
            scope.register(self._owner)
            self.lose("it ended while no code ran")
        if not place.running or runner.interpreter is None:
            tell(SandboxStarting(sandbox=self._name), self._door)
            if place.sandbox is None and (supply := current_supply() or self._supply) is not None:
                await place.provide(self._tell_preparing)
                self._supplied_by = supply if await supply.provide(self._owner) else None
            await place.start(self._tell_preparing)
            await runner.open(place)
        if users.generation.interpreter is None:
            users.generation.interpreter = runner.interpreter
            started = SandboxStarted(
                sandbox=self._name,
                packages=place.packages,
                image=place.image,
                python=place.python_version,
                place=place_of(self._owner),
            )
            tell(started, self._door)

    def _tell_preparing(self, doing: str) -> None:
        tell(SandboxPreparing(sandbox=self._name, doing=doing), self._door)

    async def _dismiss(self) -> None:
        is_started = self._place.sandbox is not None
        supply, self._supplied_by = self._supplied_by, None
        if is_started and supply is not None:
            await supply.take_back(self._owner)
        self.users.replace(STOPPED, told=self._owner)
        await self._clear()
        if is_started:
            tell(SandboxStopped(sandbox=self._name), self._door)

    async def _clear(self) -> None:
        try:
            await self._place.stop()
        finally:
            await self._runner.close()


_OF_MODULES = ("", ".py", ".pyc", ".so")
"""What the names of files end in that importing a module may read, such as matplotlibrc."""


class Warmth:
    """An executor, as a pool sees it.

    Args:
        config: Its settings.
        place: Where its code runs.
        runner: How it runs there.
        life: Starts and stops that.
        turns: Who runs code has them.
        get_ready: Does what comes before the first block.
    """

    def __init__(
        self,
        config: ExecutorConfig,
        place: Place,
        runner: AnyRunner,
        life: Lifecycle,
        turns: Turns,
        get_ready: Callable[[Call], Awaitable[None]],
    ) -> None:
        self._config = config
        self._place = place
        self._runner = runner
        self._life = life
        self._turns = turns
        self._get_ready = get_ready

    @property
    def bound_to(self) -> str | None:
        """See :attr:`Place.bound_to`."""
        return self._place.bound_to

    @property
    def settings(self) -> str:
        """All settings but the data, as JSON."""
        return self._config.model_copy(update={"data": []}).model_dump_json()

    @property
    def has_data(self) -> bool:
        """Whether there is something to put into the workspace before the first block."""
        return bool(self._config.data)

    @property
    def early_setup(self) -> Sequence[Setup]:
        """What of the setup can run before the data are there, at the beginning of it."""
        if any(map(_may_change_imports, self._config.data)):
            return ()
        return tuple(takewhile(lambda step: not (self.has_data and step.may_read_data), self._runner.setup))

    def set_up_by(self, setup: Sequence[Setup]) -> None:
        """Let this be all that runs before the first block."""
        self._runner.setup[:] = setup

    @property
    def memory_mib(self) -> int:
        """How much memory the code may use."""
        return self._place.memory_mib

    @property
    def layer(self) -> Path | None:
        """See :attr:`Place.layer`."""
        return self._place.layer

    @property
    def is_idle(self) -> bool:
        """Whether it is ready for the next block, and runs none."""
        return self._life.ready and not self._turns.taken

    async def warm_up(self) -> None:
        """Start the sandbox, and do all that comes before the first block.

        Raises:
            SandboxError: If it cannot start.
            SettingError: If its setup fails.
        """
        async with self._turns, self._calling() as call:
            await self._get_ready(call)

    async def is_well(self) -> bool:
        """Whether the sandbox, in which no block has run since the setup, answers.

        Raises:
            SandboxError: If it does not.
        """
        if not self.is_idle:
            return False
        async with self._calling() as call:
            call.begin_block(self._config.timeout)
            return await self._runner.is_well(self._place, call)

    def take_over(self, other: Warmth) -> None:
        """Have all that another executor has started, which has nothing afterwards; a start does what is left to do.

        Args:
            other: One with the same settings but for data, and the same packages.
        """
        self._life.take_over(other._life)

    @asynccontextmanager
    async def _calling(self) -> AsyncGenerator[Call]:
        call = Call(CancellationToken(), self, None, self._place)
        try:
            yield call
        finally:
            call.stop.cancel()
            await call.end()


def _may_change_imports(data: str | os.PathLike[str]) -> bool:
    return Path(data).suffix in _OF_MODULES or Path(data).is_dir()
