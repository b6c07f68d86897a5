"""What the parts of a config need, and whether it is there. No model is asked."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from autogen_core.models import ChatCompletionClient
from pydantic import BaseModel

from codeact_team.config.components import PlacedComponent
from codeact_team.config.model_access import (
    NO_KEY,
    NO_URL,
    asks_no_model,
    key_variables,
    missing_key,
    server_of,
    without_credentials,
)
from codeact_team.config.model_info import abilities, listed_info
from codeact_team.doctor.checks import Check, Report, State
from codeact_team.doctor.confinement import examine_confinement
from codeact_team.doctor.engine import examine_engine, trial_container
from codeact_team.doctor.machine import host_python
from codeact_team.doctor.packages import examine_packages
from codeact_team.executors.confined import ConfinedExecutorConfig
from codeact_team.executors.docker import DockerExecutorConfig
from codeact_team.providers import schema_of
from codeact_team.sandboxes.base import Sandbox
from codeact_team.sandboxes.confined import ConfinedSandbox

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
            found |= dict.fromkeys([*_model(part, environ), *_key(part, environ)])
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


def _key(part: PlacedComponent, environ: Mapping[str, str]) -> Iterator[Check]:
    variables = key_variables(part.component, part.config)
    if missing := missing_key(part.component, part.config, environ):
        yield Check("key", State.MISSING, missing)
    elif given := part.config.get("api_key"):
        yield Check("key", State.WORKS, "none is sent" if given == NO_KEY else "the config gives it")
    elif variables:
        yield Check("key", State.WORKS, f"{next(name for name in variables if environ.get(name))} is set")
