"""Containers of ours whose owner has ended, and their removal."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docker.errors import NotFound

from codeact_team.errors import EngineError
from codeact_team.sandbox.docker.container import LABEL, NAMESPACE_LABEL, process_namespace
from codeact_team.sandbox.docker.engine import Client, at_engine, translated
from codeact_team.sandbox.system.kernel import is_running

logger = logging.getLogger(__name__)

_CLOCK_SKEW = 60
"""Seconds by which the clocks of engine and host may differ."""


@dataclass(frozen=True)
class Orphan:
    """A container of ours, running or stopped, whose owner on this host has ended."""

    id: str
    name: str
    owner: str
    """Who made it, as ``host:process``."""
    image: str
    state: str
    """As the engine calls it, such as ``running`` or ``exited``."""


async def list_orphans() -> list[Orphan]:
    """The orphans of this host on the current engine, or an EngineError. Those of other hosts are not ours to judge."""
    return await asyncio.to_thread(at_engine, _orphans)


async def remove_orphan(orphan: Orphan) -> None:
    """Remove an orphan with what runs inside, or raise an EngineError. One that is gone already is no error."""

    def remove(client: Client, url: str) -> None:
        with translated(url), suppress(NotFound):
            client.remove_container(orphan.id, force=True, v=True)

    await asyncio.to_thread(at_engine, remove)


def remove_unstarted(client: Client, url: str) -> None:
    """Remove the orphans that were never started, as where their owner was killed at the wrong moment. Blocks.

    Nothing of them has ever run, so nothing is lost. One that cannot be removed is no error.
    """
    for orphan in _orphans(client, url, status="created"):
        try:
            with translated(url):
                # not by force: should it start after all, it is not ours to remove
                client.remove_container(orphan.id, v=True)
        except EngineError as error:
            # others that start remove them, too
            logger.debug("container %s, which never started, is not removed: %s", orphan.name, error)


def _orphans(client: Client, url: str, **filters: str) -> list[Orphan]:
    with translated(url):
        found: list[dict[str, Any]] = client.containers(all=True, filters={"label": LABEL, **filters})
    return [
        Orphan(
            id=container["Id"],
            name=container["Names"][0].lstrip("/"),
            owner=container["Labels"][LABEL],
            image=container["Image"],
            state=container["State"],
        )
        for container in found
        if _owner_has_ended(container["Labels"], container["Created"])
    ]


def _owner_has_ended(labels: Mapping[str, str], created: float) -> bool:
    host, _, process = labels[LABEL].rpartition(":")
    here = process_namespace()
    # in another namespace the same number is another process
    if host != platform.node() or labels.get(NAMESPACE_LABEL, here) != here or not process.isdecimal():
        return False
    # a number is given again, after a restart of the machine very soon
    return not is_running(int(process)) or (
        sys.platform == "linux" and _start_of(process) > created + _CLOCK_SKEW
    )


def _start_of(process: str) -> float:
    """When a process started, in seconds since the epoch; 0 where it has just ended."""
    try:
        ticks = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
        boot = Path("/proc/stat").read_text().partition("btime ")[2].split()[0]
    except OSError:
        return 0
    return int(boot) + int(ticks) / os.sysconf("SC_CLK_TCK")
