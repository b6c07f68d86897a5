"""Where the workers of a batch run."""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import Literal, Protocol, Self, get_args

from codeact_team.batch.host import Host
from codeact_team.batch.job_configs import WorkerSettings
from codeact_team.batch.links import Link, LocalLink
from codeact_team.batch.on_ray.engine import RayEngine
from codeact_team.batch.processes import ProcessLink
from codeact_team.errors import SettingError

_TASKS_A_WORKER = 4
"""Fewer are not worth the start of a process, which imports for a second or two."""


EngineName = Literal["local", "ray"]


class Engine(Protocol):
    """Starts workers. An asynchronous context manager, within which they live."""

    def workers(self, jobs: int) -> int:
        """How many are there if nobody says.

        Args:
            jobs: How many jobs are to be run.
        """
        ...

    async def start(self, settings: WorkerSettings, host: Host, *, is_only: bool) -> Link:
        """Start one.

        Args:
            settings: What it gets.
            host: The driver.
            is_only: Whether there is to be no other.

        Raises:
            WorkerLostError: If it has died before it was ready.
            CodeActTeamError: If none can run there.
        """
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class LocalEngine:
    """Workers on this machine: the only one in this process, several in processes of their own."""

    def workers(self, jobs: int) -> int:
        return min(_processors(), -(-jobs // _TASKS_A_WORKER) or 1)

    async def start(self, settings: WorkerSettings, host: Host, *, is_only: bool) -> Link:
        if is_only:
            return await LocalLink.start(settings, host)
        return await ProcessLink.start(settings, host)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


def engine_of(name: EngineName, address: str | None) -> Engine:
    """An engine by its name.

    Raises:
        SettingError: If there is none of that name, it is not installed, or it has no address.
    """
    match name:
        case "local":
            if address is not None:
                raise SettingError("an address is that of a Ray cluster: say --engine ray, too")
            return LocalEngine()
        case "ray":
            return RayEngine(address)
        case _:
            raise SettingError(f"engine: {name!r} is none of {', '.join(get_args(EngineName))}")


def _processors() -> int:
    # those that this process may use
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
