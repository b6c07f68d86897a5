"""Finds out by trial what works on this machine and what a config lacks, and removes what killed runs have left.

A check is an asynchronous generator of :class:`Check`, which yields each finding at once. No value of the environment
is in one.
"""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

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
from codeact_team.core.autogen_internals import is_class_of_mcp
from codeact_team.core.notices import Notify
from codeact_team.core.providers import schema_of
from codeact_team.core.shipped import shipped_configs
from codeact_team.errors import CodeActTeamError, EngineError, SandboxError, SettingError
from codeact_team.executors.confined import ConfinedExecutorConfig
from codeact_team.executors.docker import DockerExecutorConfig
from codeact_team.executors.egress import Egress
from codeact_team.executors.packages.provision import Provision, interpreter_in
from codeact_team.executors.packages.requirements import Requested
from codeact_team.executors.settings import ExecutorConfig
from codeact_team.sandbox.base import Sandbox
from codeact_team.sandbox.confined.config import ConfinedSandboxConfig
from codeact_team.sandbox.confined.sandbox import REQUIRED, ConfinedSandbox, Enforced, remedy
from codeact_team.sandbox.docker.address import engine_url
from codeact_team.sandbox.docker.config import DockerSandboxConfig
from codeact_team.sandbox.docker.description import EngineDescription, describe, refusal
from codeact_team.sandbox.docker.engine import Client, connect, ensure_image
from codeact_team.sandbox.docker.leftovers import list_orphans, remove_orphan
from codeact_team.sandbox.docker.sandbox import DockerSandbox
from codeact_team.sandbox.leftovers import remove_leftovers
from codeact_team.sandbox.temporary import TemporaryDirectory, orphaned_directories, remove_orphaned
from codeact_team.session.processes import serving_alone
from codeact_team.text.redaction import without_user_info
from codeact_team.tools.sources import describe_error
from codeact_team.tools.toolbox import Toolbox

_ANSWER_TIMEOUT = 60
"""Seconds that the Python of an image gets to list its packages."""
_SHOWN_PACKAGES = 6
_SHOWN_ORPHANS = 3
QUICKSTART_NEEDS = "confinement"
"""The name of the check without which not even the quickstart runs."""

_Settings = TypeVar("_Settings", bound=BaseModel)


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
    """The finding and, if something does not work, the remedy."""
    packages: Mapping[str, str] | None = field(default=None, hash=False)
    """The Python packages that were found: version by name; ``None`` where none were looked for."""


async def examine(environ: Mapping[str, str] = os.environ) -> AsyncGenerator[Check]:
    """Look at everything that a team may need."""
    yield _host_python()
    yield await _confinement(ConfinedSandboxConfig(confinement="best_effort"))
    has_engine = True
    async for check in _engine([DockerSandboxConfig()], start=True):
        has_engine = has_engine and (check.name, check.state) != ("engine", State.MISSING)
        yield check
    if has_engine:
        try:
            names = [orphan.name for orphan in await list_orphans()]
            yield _left("containers", names, "killed runs have left none")
        except EngineError as error:
            yield Check("containers", State.MISSING, str(error))
    directories = list(map(str, orphaned_directories()))
    yield _left("directories", directories, "killed runs have left no temporary ones")
    if environ.get("OPENAI_API_KEY"):
        yield Check("key", State.WORKS, "OPENAI_API_KEY is set")
    else:
        advice = "the config `team` reads it; `local-model` needs no key, but `--model NAME` and a server"
        yield Check("key", State.MISSING, f"OPENAI_API_KEY is not set: {advice}")
    if shipped := ", ".join(shipped_configs()):
        yield Check("configs", State.WORKS, shipped)
    else:
        lost = "the shipped configs are not installed; install the package again"
        yield Check("configs", State.MISSING, lost)


async def examine_config(
    parts: Sequence[PlacedComponent], environ: Mapping[str, str] = os.environ
) -> AsyncGenerator[Check]:
    """Find out by trial whether a valid config with these components can run here: its MCP servers are started, too."""
    yield _host_python()
    for check in _clients(parts, environ):
        yield check
    for part in parts:
        if (tried := await _tried(part, environ)) is not None:
            yield tried
    confined = _settings(parts, ConfinedExecutorConfig)
    contained = _settings(parts, DockerExecutorConfig)
    for settings in confined:
        yield await _confinement(settings)
    if contained:
        async for check in _engine(contained, start=True):
            yield check
    for settings in (*confined, *contained):
        async for check in _executor(settings, environ):
            yield check


async def missing_for(
    parts: Sequence[PlacedComponent], environ: Mapping[str, str] = os.environ
) -> list[Check]:
    """Find what a config lacks here; nothing is started, but a container engine is asked for its images."""
    found = list(_clients(parts, environ))
    for settings in _settings(parts, ExecutorConfig):
        found += _credentials(settings, environ)
    if containers := _settings(parts, DockerExecutorConfig):
        found += [check async for check in _engine(containers, start=False)]
    return [check for check in found if check.state is not State.WORKS]


async def remove_left_behind(notify: Notify) -> None:
    """Remove what killed runs have left, the containers before the directories that they use."""
    # where no engine runs, the examination says so
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


def _host_python() -> Check:
    return Check("python", State.WORKS, f"{platform.python_version()} on {platform.platform()}")


def _left(name: str, orphans: Sequence[str], none: str) -> Check:
    if not orphans:
        return Check(name, State.WORKS, none)
    named = ", ".join(orphans[:_SHOWN_ORPHANS])
    if (more := len(orphans) - _SHOWN_ORPHANS) > 0:
        named += f" and {more} more"
    advice = "`codeact-team doctor --clean` removes them"
    return Check(name, State.LIMITED, f"{len(orphans)} left by runs that were killed: {named}; {advice}")


async def _confinement(config: ConfinedSandboxConfig) -> Check:
    """Check how a sandbox with these settings confines code."""
    name = QUICKSTART_NEEDS
    with TemporaryDirectory() as workspace:
        sandbox = ConfinedSandbox(config, workspace=workspace)
        try:
            await sandbox.start()
            view = sandbox.view
        except SandboxError as error:
            return Check(name, State.MISSING, str(error))
        finally:
            await sandbox.stop()
    if not sandbox.enforced >= REQUIRED:
        missing = ", ".join(each.value for each in Enforced if each not in sandbox.enforced)
        return Check(
            name,
            State.LIMITED,
            f"not enforced: {missing}; code that you do not trust needs Docker. {remedy()}",
        )
    enforced = ", ".join(each.value for each in Enforced if each in sandbox.enforced)
    group = "memory, processes and processor time are limited altogether, by a control group"
    if sandbox.ungrouped:
        reasons = ", ".join(f"{controller} ({reason})" for controller, reason in sandbox.ungrouped.items())
        group = (
            "memory, processes and processor time are not limited altogether, as no control group can be made: "
            f"{reasons}; with systemd, `systemd-run --user --scope codeact-team …` runs it where one can be made"
        )
    return Check(name, State.WORKS, f"{view}, the kernel enforces: {enforced}; {group}")


async def _engine(configs: Sequence[DockerSandboxConfig], *, start: bool) -> AsyncGenerator[Check]:
    """The engine, its limits, and the image of each container; ``start`` tries a container of each image."""
    try:
        url = engine_url()
        with closing(await asyncio.to_thread(connect, url)) as client:
            engine = await asyncio.to_thread(describe, client, url)
            yield Check("engine", State.WORKS, f"{engine} at {without_user_info(url)}, {engine.system}")
            yield _limits(engine, configs)
            for config in configs:
                yield await _image(client, config, start=start)
    except EngineError as error:
        advice = "the configs `team-confined` and `codeact-confined` need none"
        yield Check("engine", State.MISSING, f"{error}; {advice}")


def _limits(engine: EngineDescription, configs: Iterable[DockerSandboxConfig]) -> Check:
    for config in configs:
        if (refused := refusal(engine, config)) is not None:
            return Check("limits", State.MISSING, refused)
    if engine.unenforced:
        return Check(
            "limits", State.LIMITED, f"not enforced: {', '.join(engine.unenforced)}, as the config accepts"
        )
    if not engine.counts_swap:
        detail = "memory_mib, cpus and pids are enforced, but swap comes on top of memory_mib; boot with `swapaccount=1`"
        return Check("limits", State.LIMITED, detail)
    exception = (
        ", unless the engine belongs to a login session: then no container starts"
        if engine.may_start_outside
        else ""
    )
    return Check("limits", State.WORKS, f"memory_mib, cpus and pids are enforced{exception}")


async def _image(client: Client, config: DockerSandboxConfig, *, start: bool) -> Check:
    image = config.image
    try:
        await ensure_image(client, image, "never")
    except EngineError as error:
        if config.pull == "never":
            return Check("image", State.MISSING, f"{error}; the config says `pull: never`")
        advice = f"it is pulled on first use; `docker pull {image}` does it now"
        return Check("image", State.LIMITED, f"{image} is not here yet: {advice}")
    if not start:
        return Check("image", State.WORKS, f"{image} is here")
    try:
        async with _trial_container(config) as sandbox, asyncio.timeout(_ANSWER_TIMEOUT):
            try:
                async with serving_alone(sandbox) as processes:
                    python = await interpreter_in(processes)
            except SandboxError:
                return Check("image", State.WORKS, f"{image} is here, but its Python does not answer")
    except TimeoutError:
        late = f"{image} is here; its Python does not answer within {_ANSWER_TIMEOUT} s"
        return Check("image", State.LIMITED, late)
    except SandboxError as error:
        return Check("image", State.MISSING, f"{image} is here, but no container of it starts: {error}")
    packages = dict(python.packages)
    named = ", ".join(f"{name} {version}" for name, version in [*packages.items()][:_SHOWN_PACKAGES])
    more = f" and {len(packages) - _SHOWN_PACKAGES} more" if len(packages) > _SHOWN_PACKAGES else ""
    listed = f"packages: {named}{more}" if packages else "no packages"
    return Check("image", State.WORKS, f"{image} is here: {python}; {listed}", packages)


def _trial_container(config: DockerSandboxConfig) -> DockerSandbox:
    """A container with these settings, except for those with effects."""
    harmless = {"pull": "never", "init_command": None, "auto_remove": True, "stop_container": True}
    return DockerSandbox(config.model_copy(update=harmless))


async def _executor(
    config: ConfinedExecutorConfig | DockerExecutorConfig, environ: Mapping[str, str]
) -> AsyncGenerator[Check]:
    """What an executor needs beside its sandbox."""
    if (packages := await _packages(config)) is not None:
        yield packages
    for check in _credentials(config, environ):
        yield check
    if config.egress is not None:
        yield await _egress(config)


async def _packages(config: ConfinedExecutorConfig | DockerExecutorConfig) -> Check | None:
    """Whether the packages of an executor are on this machine; none is installed. ``None`` if it asks for none."""

    def make_sandbox(workspace: Path) -> Sandbox:
        if isinstance(config, DockerExecutorConfig):
            return _trial_container(config)
        return ConfinedSandbox(config, workspace=workspace)

    file = config.packages_file
    try:
        requested = Requested(tuple(config.packages), None if file is None else Path(file))
        layer = await Provision(requested, make_sandbox).found() if requested else None
    except EngineError:
        # the engine has a finding of its own
        return None
    except (SandboxError, SettingError) as error:
        return Check("packages", State.MISSING, str(error))
    if not requested:
        return None
    if layer is None:
        later = "they are downloaded on first use, which needs a package index"
        return Check("packages", State.LIMITED, f"{requested}: {later}")
    return Check("packages", State.WORKS, f"{requested}: here, with what they need", layer.packages)


def _credentials(config: ExecutorConfig, environ: Mapping[str, str]) -> Iterator[Check]:
    """Whether the variables with the keys of an executor are set."""
    for one in config.credentials:
        if environ.get(one.name):
            yield Check("credentials", State.WORKS, f"{one.name} is set, for {', '.join(one.hosts)}")
        else:
            lacks = f"the credential {one.name} is a variable that is not set: set it to your key"
            yield Check("credentials", State.MISSING, lacks)


async def _egress(config: ConfinedExecutorConfig | DockerExecutorConfig) -> Check:
    """Whether the sandbox of an executor can have a way out. Nothing is sent."""
    # whether keys are there is another check
    egress = Egress(config.model_copy(update={"credentials": []}))
    with TemporaryDirectory() as workspace:
        sandbox: Sandbox = (
            _trial_container(config)
            if isinstance(config, DockerExecutorConfig)
            else ConfinedSandbox(config, workspace=workspace)
        )
        try:
            sandbox.way_out = await egress.open()
            await sandbox.start()
            async with serving_alone(sandbox):
                return Check("egress", State.WORKS, config.egress_rules().in_words())
        except (SandboxError, SettingError) as error:
            return Check("egress", State.MISSING, str(error))
        finally:
            await sandbox.stop()
            await egress.close()


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
            found |= dict.fromkeys([*_model(part, environ), *_key(part, environ)])
    # models before keys, each once
    return iter(sorted(found, key=lambda check: check.name, reverse=True))


def _model(part: PlacedComponent, environ: Mapping[str, str]) -> Iterator[Check]:
    model, at = part.config.get("model"), ""
    if asks_no_model(part.component):
        yield Check("model", State.WORKS, "none is asked: the answers are recorded")
        return
    if not isinstance(model, str):
        # a client that only wraps another one
        return
    if (server := server_of(part.component, part.config, environ)) is not None:
        if (url := without_credentials(server)) is None:
            yield Check("model", State.MISSING, f"{model} has no server: {NO_URL}")
            return
        at = f" at {url}"
    info = part.config.get("model_info") or listed_info(part.component, part.config)
    able = f", with {abilities(info) or 'text alone'}" if info else ""
    yield Check("model", State.WORKS, f"{model}{at}{able}")


async def _tried(part: PlacedComponent, environ: Mapping[str, str]) -> Check | None:
    """Make a model client, or start a server, and report its failure; ``None`` if other checks say as much."""
    if issubclass(part.component, ChatCompletionClient):
        if missing_key(part.component, part.config, environ) or asks_no_model(part.component):
            return None
        try:
            client: ChatCompletionClient = await asyncio.to_thread(_made, part)
        except Exception as error:  # whatever a client raises, such as an ImportError
            return Check("client", State.MISSING, f"the model client cannot be made: {describe_error(error)}")
        await client.close()
        return None
    if not is_class_of_mcp(part.component):
        return None
    # it needs the package for MCP, which is there
    from codeact_team.tools.mcp import label_of

    workbench = _made(part)
    toolbox = Toolbox(workbenches=[workbench])
    try:
        tools = (await toolbox.offer()).tools
    except CodeActTeamError as error:
        return Check("tools", State.MISSING, str(error))
    finally:
        await toolbox.stop()
    number = "1 tool" if len(tools) == 1 else f"{len(tools):,} tools"
    return Check("tools", State.WORKS, f"MCP server {label_of(workbench.server_params)!r} has {number}")


def _made(part: PlacedComponent) -> Any:
    provider = f"{part.component.__module__}.{part.component.__qualname__}"
    return part.component.load_component({"provider": provider, "config": part.config})


def _key(part: PlacedComponent, environ: Mapping[str, str]) -> Iterator[Check]:
    variables = key_variables(part.component.__name__, part.config)
    if missing := missing_key(part.component, part.config, environ):
        yield Check("key", State.MISSING, missing)
    elif given := part.config.get("api_key"):
        yield Check("key", State.WORKS, "none is sent" if given == NO_KEY else "the config gives it")
    elif variables:
        yield Check("key", State.WORKS, f"{next(name for name in variables if environ.get(name))} is set")
