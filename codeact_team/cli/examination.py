"""Finds out by trial what works on this machine and what a config lacks, and removes what killed runs have left."""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, TypeVar

from autogen_core.models import ChatCompletionClient
from pydantic import BaseModel

from codeact_team.config.components import PlacedComponent
from codeact_team.config.models import (
    NO_KEY,
    NO_URL,
    abilities,
    asks_no_model,
    key_variables,
    listed_info,
    missing_key,
    server_of,
    without_credentials,
)
from codeact_team.core.providers import schema_of
from codeact_team.core.shipped import shipped_configs
from codeact_team.errors import EngineError, SandboxError, SettingError
from codeact_team.executors.confined import ConfinedExecutorConfig
from codeact_team.executors.docker import DockerExecutorConfig
from codeact_team.executors.packages.provision import Provision, interpreter_in
from codeact_team.executors.packages.requirements import Requested
from codeact_team.executors.settings import ExecutorConfig
from codeact_team.sandbox.base import Sandbox
from codeact_team.sandbox.confined.config import ConfinedSandboxConfig
from codeact_team.sandbox.confined.sandbox import REQUIRED, ConfinedSandbox, Enforced
from codeact_team.sandbox.docker.config import DockerSandboxConfig
from codeact_team.sandbox.docker.engine import Client, connect, engine_url, ensure_image, translated
from codeact_team.sandbox.docker.leftovers import list_orphans, remove_orphan
from codeact_team.sandbox.docker.sandbox import DockerSandbox
from codeact_team.sandbox.leftovers import remove_leftovers
from codeact_team.sandbox.temporary import TemporaryDirectory, orphaned_directories, remove_orphaned


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
    packages: Mapping[str, str] | None = field(default=None, hash=False)
    """The Python packages that were found: version by name; ``None`` where nobody looked for any."""


Report = Callable[[Check], object]

NAME = "confinement"


async def examine_confinement(config: ConfinedSandboxConfig) -> Check:
    """Find out what is enforced where code runs with these settings."""
    with TemporaryDirectory() as workspace:
        sandbox = ConfinedSandbox(config, workspace=workspace)
        try:
            await sandbox.start()
        except SandboxError as error:
            return Check(NAME, State.MISSING, str(error))
        finally:
            await sandbox.stop()
    enforced = [what.value for what in Enforced if what in sandbox.enforced]
    if sandbox.enforced >= REQUIRED:
        return Check(
            NAME,
            State.WORKS,
            f"the kernel enforces: {', '.join(enforced)}; {_group(sandbox.ungrouped)}",
        )
    missing = [what.value for what in Enforced if what not in sandbox.enforced]
    advice = "code that you do not trust needs Docker, or Linux 6.12 with Landlock"
    return Check(NAME, State.LIMITED, f"not enforced: {', '.join(missing)}; {advice}")


def _group(ungrouped: Mapping[str, str]) -> str:
    if not ungrouped:
        return "memory, processes and processor time are limited altogether, by a control group"
    reasons = ", ".join(f"{controller} ({reason})" for controller, reason in ungrouped.items())
    return (
        f"not limited altogether, as no control group can be made for it: {reasons}; on a machine with systemd, "
        "`systemd-run --user --scope codeact-team …` runs where it can"
    )


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


async def examine_packages(config: ExecutorConfig, make_sandbox: Callable[[Path], Sandbox]) -> Check | None:
    """Find out whether the packages of an executor are on this machine; nothing is got. ``None`` if it asks for none.

    Args:
        config: The executor's settings.
        make_sandbox: Makes its sandbox, which may use the given directory as its workspace.
    """
    file = config.packages_file
    try:
        requested = Requested(tuple(config.packages), None if file is None else Path(file))
        layer = await Provision(requested, make_sandbox).found() if requested else None
    except EngineError:
        # of which the engine's own findings tell
        return None
    except (SandboxError, SettingError) as error:
        return Check("packages", State.MISSING, str(error))
    if not requested:
        return None
    if layer is None:
        told = "this machine gets them on first use, for which it needs a package index"
        return Check("packages", State.LIMITED, f"{requested}: {told}")
    return Check("packages", State.WORKS, f"{requested}: here, with what they need", layer.packages)


QUICKSTART_NEEDS = NAME
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


_Settings = TypeVar("_Settings", bound=BaseModel)


async def examine_config(
    parts: Sequence[PlacedComponent], report: Report, environ: Mapping[str, str] = os.environ
) -> None:
    """Find out by trial whether a config can run here, and report each finding at once.

    Args:
        parts: The components of the config, which is valid.
        report: Gets each finding. No value of ``environ`` is told.
        environ: Where keys are looked for.
    """
    report(host_python())
    for check in _clients(parts, environ):
        report(check)
    confined = _settings(parts, ConfinedExecutorConfig)
    contained = _settings(parts, DockerExecutorConfig)
    for settings in confined:
        report(await examine_confinement(settings))
    if contained:
        await examine_engine(report, contained, start=True)
    for settings in (*confined, *contained):
        if (packages := await examine_packages(settings, _trial(settings))) is not None:
            report(packages)


def _trial(settings: ConfinedExecutorConfig | DockerExecutorConfig) -> Callable[[Path], Sandbox]:
    """What makes a sandbox with these settings, to look what its Python is."""
    if isinstance(settings, DockerExecutorConfig):
        return lambda _: trial_container(settings)
    return lambda workspace: ConfinedSandbox(settings, workspace=workspace)


async def missing_for(
    parts: Sequence[PlacedComponent], environ: Mapping[str, str] = os.environ
) -> list[Check]:
    """Find what a config lacks here; nothing is started, but a container engine is asked for its images."""
    found = list(_clients(parts, environ))
    if containers := _settings(parts, DockerExecutorConfig):
        await examine_engine(found.append, containers, start=False)
    return [check for check in found if check.state is not State.WORKS]


def _settings(parts: Sequence[PlacedComponent], kind: type[_Settings]) -> list[_Settings]:
    """The different settings of all components that have settings of this kind."""
    found: list[_Settings] = []
    for part in parts:
        schema = schema_of(part.component)
        if issubclass(schema, kind) and (settings := schema.model_validate(part.config)) not in found:
            found.append(settings)
    return found


def _clients(parts: Sequence[PlacedComponent], environ: Mapping[str, str]) -> Iterator[Check]:
    found: dict[Check, None] = {}
    for part in parts:
        if issubclass(part.component, ChatCompletionClient):
            found |= dict.fromkeys([*_model(part, environ), *_missing_key(part, environ)])
    # models before keys, each once
    return iter(sorted(found, key=lambda check: check.name, reverse=True))


def _model(part: PlacedComponent, environ: Mapping[str, str]) -> Iterator[Check]:
    if asks_no_model(part.component):
        yield Check("model", State.WORKS, "none is asked: the answers are recorded")
    # what only wraps another client has none
    elif isinstance(model := part.config.get("model"), str):
        yield _named_model(model, part, environ)


def _named_model(model: str, part: PlacedComponent, environ: Mapping[str, str]) -> Check:
    at = ""
    if (server := server_of(part.component, part.config, environ)) is not None:
        if (url := without_credentials(server)) is None:
            return Check("model", State.MISSING, f"{model} has no server: {NO_URL}")
        at = f" at {url}"
    info = part.config.get("model_info") or listed_info(part.component, part.config)
    able = f", with {abilities(info) or 'text alone'}" if info else ""
    return Check("model", State.WORKS, f"{model}{at}{able}")


def _missing_key(part: PlacedComponent, environ: Mapping[str, str]) -> Iterator[Check]:
    variables = key_variables(part.component.__name__, part.config)
    if missing := missing_key(part.component, part.config, environ):
        yield Check("key", State.MISSING, missing)
    elif given := part.config.get("api_key"):
        yield Check("key", State.WORKS, "none is sent" if given == NO_KEY else "the config gives it")
    elif variables:
        yield Check("key", State.WORKS, f"{next(name for name in variables if environ.get(name))} is set")
