"""Where the workers of a batch run."""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import Protocol, Self

from codeact_team.batch.host import Host
from codeact_team.batch.job_configs import WorkerSettings
from codeact_team.batch.links import Link, LocalLink
from codeact_team.batch.processes import ProcessLink

_TASKS_A_WORKER = 4
"""Fewer are not worth the start of a process, which imports for a second or two."""


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


def _processors() -> int:
    # those that this process may use
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
