"""What an executor needs of a sandbox, and how one executor takes over what another one has started."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import takewhile
from pathlib import Path

from autogen_core import CancellationToken

from codeact_team.aio import Turns
from codeact_team.executors.code_runner import AnyRunner, Setup
from codeact_team.executors.lifecycle import Lifecycle
from codeact_team.executors.place import Place
from codeact_team.executors.settings import ExecutorConfig
from codeact_team.executors.stopping import Call

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
