"""What works on this machine, found by trying it."""

from __future__ import annotations

import asyncio
import os
import platform
import tempfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from codeact_team.config.document import shipped_configs
from codeact_team.errors import EngineError, SandboxError
from codeact_team.sandboxes.confined import ConfinedSandbox
from codeact_team.sandboxes.confined.enforcement import REQUIRED, Enforced
from codeact_team.sandboxes.docker import DockerSandboxConfig
from codeact_team.sandboxes.docker.engine import Client, connect, engine_url, translated
from codeact_team.sandboxes.docker.image import ensure_image
from codeact_team.sandboxes.docker.strays import list_strays

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
    """How something stands on this machine."""

    WORKS = "works"
    LIMITED = "limited"
    MISSING = "missing"


@dataclass(frozen=True)
class Check:
    """Something that a team may need.

    Attributes:
        name: What.
        state: Whether it works.
        detail: What was found and, where it does not work, what to do.
    """

    name: str
    state: State
    detail: str


async def examine(environ: Mapping[str, str] = os.environ) -> AsyncGenerator[Check]:
    """Look at everything that a team may need, one after the other.

    Args:
        environ: Where API keys are looked for. No value of one is told.
    """
    yield Check("python", State.WORKS, f"{platform.python_version()} on {platform.platform()}")
    yield await _confinement()
    async for check in _docker():
        yield check
    yield _key(environ)
    yield _configs()


async def _confinement() -> Check:
    with tempfile.TemporaryDirectory(prefix="codeact-team-") as workspace:
        sandbox = ConfinedSandbox(workspace=Path(workspace), confinement="best_effort")
        try:
            await sandbox.start()
        except SandboxError as error:
            return Check(QUICKSTART_NEEDS, State.MISSING, str(error))
        finally:
            await sandbox.stop()
    enforced = [what.value for what in Enforced if what in sandbox.enforced]
    if sandbox.enforced >= REQUIRED:
        return Check(QUICKSTART_NEEDS, State.WORKS, f"the kernel enforces: {', '.join(enforced)}")
    missing = [what.value for what in Enforced if what not in sandbox.enforced]
    advice = "code that you do not trust needs Docker, or Linux 6.12 with Landlock"
    return Check(QUICKSTART_NEEDS, State.LIMITED, f"not enforced: {', '.join(missing)}; {advice}")


async def _docker() -> AsyncGenerator[Check]:
    try:
        url = engine_url()
        client = await asyncio.to_thread(connect, url)
        with closing(client):
            with translated(url):
                info: dict[str, Any] = await asyncio.to_thread(client.info)
            yield _engine(url, info)
            yield _limits(info)
            yield await _image(client)
            yield await _containers()
    except EngineError as error:
        yield Check("engine", State.MISSING, str(error))


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


async def _containers() -> Check:
    if strays := await list_strays():
        names = ", ".join(stray.name for stray in strays)
        advice = "`codeact-team doctor --clean` removes them"
        return Check("containers", State.LIMITED, f"left by runs that were killed: {names}; {advice}")
    return Check("containers", State.WORKS, "none is left by a run that was killed")


def _key(environ: Mapping[str, str]) -> Check:
    if environ.get("OPENAI_API_KEY"):
        return Check("key", State.WORKS, "OPENAI_API_KEY is set")
    advice = "the config `team` reads it, `local-model` needs none"
    return Check("key", State.MISSING, f"OPENAI_API_KEY is not set: {advice}")


def _configs() -> Check:
    if shipped := ", ".join(shipped_configs()):
        return Check("configs", State.WORKS, shipped)
    return Check("configs", State.MISSING, "the shipped configs are not installed; install the package again")
