"""Finds out by trial what works on this machine, and removes what killed runs have left on it."""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Literal

from codeact_team.doctor import confinement
from codeact_team.doctor.checks import Check, Report, State
from codeact_team.doctor.confinement import examine_confinement
from codeact_team.doctor.engine import examine_engine
from codeact_team.errors import EngineError
from codeact_team.sandboxes.confined import ConfinedSandboxConfig
from codeact_team.sandboxes.docker import DockerSandboxConfig
from codeact_team.sandboxes.docker.orphans import list_orphans, remove_orphan
from codeact_team.sandboxes.leftovers import remove_leftovers
from codeact_team.sandboxes.temporary import orphaned_directories, remove_orphaned
from codeact_team.shipped import shipped_configs

QUICKSTART_NEEDS = confinement.NAME
"""The check without which not even the quickstart runs."""


async def examine(report: Report, environ: Mapping[str, str] = os.environ) -> None:
    """Look at everything that a team may need, and report each finding at once. No value of ``environ`` is told."""
    report(host_python())
    report(await examine_confinement(ConfinedSandboxConfig(confinement="best_effort")))
    if await examine_engine(report, [DockerSandboxConfig()], start=True):
        report(await _containers())
    directories = list(map(str, orphaned_directories()))
    report(_left("directories", directories, "no temporary one is left by a run that was killed"))
    report(_key(environ))
    report(_configs())


async def clean(notify: Callable[[Literal["note", "warning"], str], object]) -> None:
    """Remove what killed runs have left, the containers before the directories that they use."""
    # where there is no engine, the examination says so
    with suppress(EngineError):
        for orphan in await list_orphans():
            await remove_orphan(orphan)
            notify(
                "note", f"removed {orphan.name} ({orphan.image}, {orphan.state}), which {orphan.owner} left"
            )
    for directory in orphaned_directories():
        try:
            await asyncio.to_thread(remove_orphaned, directory)
        except OSError as error:
            notify("warning", f"{directory} cannot be removed: {error.strerror}")
        else:
            notify("note", f"removed {directory}")
    await remove_leftovers()


def host_python() -> Check:
    """The Python that runs this, and the machine."""
    return Check("python", State.WORKS, f"{platform.python_version()} on {platform.platform()}")


async def _containers() -> Check:
    try:
        names = [orphan.name for orphan in await list_orphans()]
    except EngineError as error:
        return Check("containers", State.MISSING, str(error))
    return _left("containers", names, "none is left by a run that was killed")


def _left(what: str, orphans: Sequence[str], none: str) -> Check:
    if not orphans:
        return Check(what, State.WORKS, none)
    advice = "`codeact-team doctor --clean` removes them"
    return Check(what, State.LIMITED, f"left by runs that were killed: {', '.join(orphans)}; {advice}")


def _key(environ: Mapping[str, str]) -> Check:
    if environ.get("OPENAI_API_KEY"):
        return Check("key", State.WORKS, "OPENAI_API_KEY is set")
    advice = "the config `team` reads it, `local-model` needs none"
    return Check("key", State.MISSING, f"OPENAI_API_KEY is not set: {advice}")


def _configs() -> Check:
    if shipped := ", ".join(shipped_configs()):
        return Check("configs", State.WORKS, shipped)
    return Check("configs", State.MISSING, "the shipped configs are not installed; install the package again")
