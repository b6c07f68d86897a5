"""From start to stop: what code runs in, what of it was lost, and who is told."""

from __future__ import annotations

import logging

from codeact_team import scope
from codeact_team.aio import Turns, to_the_end
from codeact_team.effects import current_door, tell
from codeact_team.events import SandboxLost, SandboxPreparing, SandboxStarted, SandboxStarting, SandboxStopped
from codeact_team.executors.code_runner import AnyRunner
from codeact_team.executors.place import Place
from codeact_team.executors.supply import Supply, current_supply
from codeact_team.executors.users import Users
from codeact_team.places import place_of
from codeact_team.sandboxes.base import STOPPED

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
