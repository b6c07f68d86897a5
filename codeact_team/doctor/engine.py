"""The container engine of this machine, and the images that it has."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import Any

from codeact_team.doctor.checks import Check, Report, State
from codeact_team.errors import EngineError, SandboxError
from codeact_team.packages import interpreter_in
from codeact_team.sandboxes.docker import DockerSandbox, DockerSandboxConfig
from codeact_team.sandboxes.docker.engine import Client, connect, engine_url, translated
from codeact_team.sandboxes.docker.image import ensure_image

_LIMITS = {
    "MemoryLimit": "memory_mib",
    "SwapLimit": "swap, which counts as memory",
    "CpuCfsQuota": "cpus",
    "PidsLimit": "pids",
}
"""What an engine says of its limits, and what they are for."""
_ANSWER_TIMEOUT = 60
"""Seconds that the Python of an image gets to say which packages it has."""
_SHOWN_PACKAGES = 6


async def examine_engine(report: Report, configs: Iterable[DockerSandboxConfig], *, start: bool) -> bool:
    """Report what the engine is, and for each of the containers whether it can be started.

    Args:
        report: Gets each finding.
        configs: The containers that may be wanted.
        start: Whether to start a container of each image, and ask its Python what packages it has.

    Returns:
        Whether there is an engine.
    """
    try:
        url = engine_url()
        with closing(await asyncio.to_thread(connect, url)) as client:
            with translated(url):
                info: dict[str, Any] = await asyncio.to_thread(client.info)
            report(_engine(url, info))
            report(_limits(info))
            for config in configs:
                report(await _image(client, config, start=start))
    except EngineError as error:
        advice = "the configs `team-confined` and `codeact-confined` need none"
        report(Check("engine", State.MISSING, f"{error}; {advice}"))
        return False
    return True


def trial_container(config: DockerSandboxConfig) -> DockerSandbox:
    """A container with these settings, but for what has effects."""
    harmless = {"pull": "never", "init_command": None, "auto_remove": True, "stop_container": True}
    return DockerSandbox(config.model_copy(update=harmless))


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


async def _image(client: Client, config: DockerSandboxConfig, *, start: bool) -> Check:
    image = config.image
    try:
        await ensure_image(client, image, "never")
    except EngineError as error:
        if config.pull == "never":
            return Check("image", State.MISSING, f"{error}; the config says `pull: never`")
        advice = f"it is pulled on first use; `docker pull {image}` does it now"
        return Check("image", State.LIMITED, f"{image} is not here yet: {advice}")
    return await _inside(config) if start else Check("image", State.WORKS, f"{image} is here")


async def _inside(config: DockerSandboxConfig) -> Check:
    """Start a container with these settings, and look what its Python has."""
    sandbox = trial_container(config)
    try:
        async with sandbox, asyncio.timeout(_ANSWER_TIMEOUT):
            try:
                python = await interpreter_in(sandbox)
            except SandboxError:
                return Check("image", State.WORKS, f"{config.image} is here; it has no Python that answers")
    except TimeoutError:
        told = f"{config.image} is here; its Python does not answer within {_ANSWER_TIMEOUT} s"
        return Check("image", State.LIMITED, told)
    except SandboxError as error:
        return Check(
            "image", State.MISSING, f"{config.image} is here, but no container of it starts: {error}"
        )
    packages = dict(python.packages)
    return Check("image", State.WORKS, f"{config.image} is here: {python}; {_listed(packages)}", packages)


def _listed(packages: Mapping[str, str]) -> str:
    named = ", ".join(f"{name} {version}" for name, version in [*packages.items()][:_SHOWN_PACKAGES])
    more = len(packages) - _SHOWN_PACKAGES
    if more > 0:
        return f"packages: {named} and {more} more"
    return f"packages: {named}" if packages else "no packages"
