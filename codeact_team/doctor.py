"""Finds out by trial what works on this machine, and removes what killed runs have left on it."""

from __future__ import annotations

import asyncio
import os
import platform
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from codeact_team.errors import EngineError, SandboxError
from codeact_team.sandboxes.confined import ConfinedSandbox, ConfinedSandboxConfig
from codeact_team.sandboxes.confined.enforcement import REQUIRED, Enforced
from codeact_team.sandboxes.docker import DockerSandboxConfig
from codeact_team.sandboxes.docker.engine import Client, connect, engine_url, translated
from codeact_team.sandboxes.docker.image import ensure_image
from codeact_team.sandboxes.docker.orphans import list_orphans, remove_orphan
from codeact_team.sandboxes.temporary import orphaned_directories, remove_orphaned
from codeact_team.shipped import shipped_configs

QUICKSTART_NEEDS = "confinement"
"""The check without which not even the quickstart runs."""

_LIMITS = {
    "MemoryLimit": "memory_mib",
    "SwapLimit": "swap, which counts as memory",
    "CpuCfsQuota": "cpus",
    "PidsLimit": "pids",
}
"""What an engine says of its limits, and what they are for."""


class State(StrEnum):
    """Whether something works on this machine."""

    WORKS = "works"
    LIMITED = "limited"
    MISSING = "missing"


@dataclass(frozen=True)
class Check:
    """Something that a team may need."""

    name: str
    state: State
    detail: str
    """What was found and, where it does not work, what to do."""


Report = Callable[[Check], object]


async def examine(report: Report, environ: Mapping[str, str] = os.environ) -> None:
    """Look at everything that a team may need, and report each finding at once. No value of ``environ`` is told."""
    report(Check("python", State.WORKS, f"{platform.python_version()} on {platform.platform()}"))
    report(await _confinement())
    await _docker(report)
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


async def _confinement() -> Check:
    with tempfile.TemporaryDirectory(prefix="codeact-team-") as workspace:
        sandbox = ConfinedSandbox(ConfinedSandboxConfig(confinement="best_effort"), workspace=Path(workspace))
        try:
            await sandbox.start()
        except SandboxError as error:
            return Check(QUICKSTART_NEEDS, State.MISSING, str(error))
        finally:
            await sandbox.stop()
    enforced = [what.value for what in Enforced if what in sandbox.enforced]
    if sandbox.enforced >= REQUIRED:
        return Check(
            QUICKSTART_NEEDS,
            State.WORKS,
            f"the kernel enforces: {', '.join(enforced)}; {_group(sandbox.ungrouped)}",
        )
    missing = [what.value for what in Enforced if what not in sandbox.enforced]
    advice = "code that you do not trust needs Docker, or Linux 6.12 with Landlock"
    return Check(QUICKSTART_NEEDS, State.LIMITED, f"not enforced: {', '.join(missing)}; {advice}")


def _group(ungrouped: Mapping[str, str]) -> str:
    if not ungrouped:
        return "memory, processes and processor time are limited altogether, by a control group"
    reasons = ", ".join(f"{controller} ({reason})" for controller, reason in ungrouped.items())
    return (
        f"not limited altogether, as no control group can be made for it: {reasons}; on a machine with systemd, "
        "`systemd-run --user --scope codeact-team …` runs where it can"
    )


async def _docker(report: Report) -> None:
    try:
        url = engine_url()
        with closing(await asyncio.to_thread(connect, url)) as client:
            with translated(url):
                info: dict[str, Any] = await asyncio.to_thread(client.info)
            report(_engine(url, info))
            report(_limits(info))
            report(await _image(client))
            names = [orphan.name for orphan in await list_orphans()]
            report(_left("containers", names, "none is left by a run that was killed"))
    except EngineError as error:
        report(
            Check(
                "engine",
                State.MISSING,
                f"{error}; the configs `team-confined` and `codeact-confined` need none",
            )
        )


def _engine(url: str, info: Mapping[str, Any]) -> Check:
    options: list[str] = info.get("SecurityOptions") or []
    kind = "rootless" if any(option.startswith("name=rootless") for option in options) else "not rootless"
    version, system = info.get("ServerVersion"), info.get("OperatingSystem")
    return Check("engine", State.WORKS, f"{version} at {url}, {kind}, {system}")


def _limits(info: Mapping[str, Any]) -> Check:
    version = f"cgroup version {info.get('CgroupVersion', 'unknown')}"
    missing = [what for key, what in _LIMITS.items() if not info.get(key)]
    if not missing:
        return Check("limits", State.WORKS, f"memory, processors and processes ({version})")
    advice = "enable these cgroup controllers, or delegate them to the user of a rootless engine"
    return Check(
        "limits", State.LIMITED, f"the engine cannot limit: {', '.join(missing)} ({version}); {advice}"
    )


async def _image(client: Client) -> Check:
    image: str = DockerSandboxConfig.model_fields["image"].default
    try:
        await ensure_image(client, image, "never")
    except EngineError:
        advice = f"it is pulled on first use; `docker pull {image}` does it now"
        return Check("image", State.LIMITED, f"{image} is not here yet: {advice}")
    return Check("image", State.WORKS, f"{image} is here")


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
