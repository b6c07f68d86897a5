"""Containers that nobody owns any more, for whoever cleans up."""

from __future__ import annotations

import asyncio
import os
import platform
import sys
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docker.errors import NotFound

from codeact_team.errors import EngineError
from codeact_team.sandboxes.docker.container import LABEL
from codeact_team.sandboxes.docker.engine import connect, engine_url, translated

_CLOCK_SKEW = 60
"""Seconds by which the clocks of engine and host may differ."""


@dataclass(frozen=True)
class Stray:
    """A container of ours, running or stopped, whose owner on this host has ended.

    Attributes:
        id: Its id.
        name: Its name.
        owner: Who made it, as ``host:process``.
        image: Its image.
        state: Such as ``running`` or ``exited``.
    """

    id: str
    name: str
    owner: str
    image: str
    state: str


async def list_strays() -> list[Stray]:
    """The strays of this host on the current engine. Those of other hosts are not ours to judge.

    Raises:
        EngineError: If no engine answers.
    """
    return await asyncio.to_thread(_list)


async def remove(strays: Iterable[Stray]) -> None:
    """Remove ``strays`` with what runs inside. One that is gone already is no error.

    Raises:
        EngineError: If the engine refuses, or no engine answers.
    """
    await asyncio.to_thread(_remove, tuple(strays))


def _list() -> list[Stray]:
    url = engine_url()
    with closing(connect(url)) as client, translated(url):
        found: list[dict[str, Any]] = client.containers(all=True, filters={"label": LABEL})
    return [
        Stray(
            id=container["Id"],
            name=container["Names"][0].lstrip("/"),
            owner=container["Labels"][LABEL],
            image=container["Image"],
            state=container["State"],
        )
        for container in found
        if _owner_has_ended(container["Labels"][LABEL], container["Created"])
    ]


def _remove(strays: tuple[Stray, ...]) -> None:
    url = engine_url()
    with closing(connect(url)) as client:
        for stray in strays:
            try:
                with translated(url):
                    client.remove_container(stray.id, force=True, v=True)
            except EngineError as error:
                if not isinstance(error.__cause__, NotFound):
                    raise


def _owner_has_ended(owner: str, created: float) -> bool:
    host, _, process = owner.rpartition(":")
    if host != platform.node() or not process.isdecimal():
        return False
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        # it runs, as another user
        pass
    # a number is given again, after a restart of the machine very soon
    return sys.platform == "linux" and _start_of(process) > created + _CLOCK_SKEW


def _start_of(process: str) -> float:
    """When a process started, in seconds since the epoch; 0 where it has just ended."""
    try:
        ticks = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
        boot = Path("/proc/stat").read_text().partition("btime ")[2].split()[0]
    except OSError:
        return 0
    return int(boot) + int(ticks) / os.sysconf("SC_CLK_TCK")
