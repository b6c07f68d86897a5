"""Loads components from a config: it is read, checked, and then made, or only tried without any effect."""

from __future__ import annotations

import copy
import logging
import os
import traceback
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import Context
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from autogen_agentchat.agents import UserProxyAgent
from autogen_agentchat.base import ChatAgent, Team
from autogen_core import Component, ComponentBase, ComponentLoader
from autogen_core.code_executor import CodeExecutor
from autogen_core.memory import Memory
from autogen_core.models import ChatCompletionClient
from autogen_core.tools import BaseTool, Workbench
from pydantic import BaseModel, JsonValue, ValidationError

from codeact_team.agents.ledger import BudgetTermination
from codeact_team.config.components import PlacedComponent
from codeact_team.config.document import (
    ConfigSource,
    Document,
    Problem,
    at,
    dotted,
    is_in,
    read_document,
    with_references,
)
from codeact_team.config.dumping import credentials_of, remember_references, write_config
from codeact_team.config.models import EVERYTHING, listed_info, missing_key
from codeact_team.config.overrides import ForEvery, apply_for_every, apply_overrides, resolve_references
from codeact_team.config.validation import check_components, check_text
from codeact_team.config.yaml12 import Path
from codeact_team.core import places, scope
from codeact_team.core.autogen_internals import ComponentClass, repaired
from codeact_team.core.effects import Dispatcher, current_dispatcher, remembered
from codeact_team.core.executor_interface import StreamingCodeExecutor
from codeact_team.core.providers import NAMESPACES_VARIABLE, Policy, missing_package, unsafe_reason, using
from codeact_team.errors import ConfigError, NotAllowedError, SandboxError, SettingError
from codeact_team.models.clients import wrap_client
from codeact_team.tools.autogen_parts import wrap

logger = logging.getLogger(__name__)


def load_config(
    source: ConfigSource,
    *,
    overrides: Sequence[str | ForEvery] = (),
    policy: Policy | None = None,
    environ: Mapping[str, str] | None = None,
) -> ComponentBase[BaseModel]:
    """Load a team, an agent, or any other component from a config.

    The effects of the agents in it go through the current :class:`Dispatcher`, if there is one. A client, a tool or a
    ``UserProxyAgent`` that is loaded alone keeps its class and is not wrapped; :func:`wrap` does that.

    Args:
        source: Path of a YAML or JSON file, the name of a shipped config, such as ``quickstart``, the text of a config, a
            mapping, or a ``ComponentModel``. In the last, ``${NAME}`` is plain text.
        overrides: Changes to single values, such as ``config.max_turns=3``, and to a setting of all components of a kind,
            such as the model of all model clients: :class:`ForEvery`.
        policy: What may be loaded. Default: AutoGen's and our components, and what the environment adds.
        environ: Where ``${NAME}`` is looked up. Default: this process's environment.

    Raises:
        ConfigError: If anything is wrong with it, all problems together; or a component refuses its settings.
        NotAllowedError: If it names something that may not be loaded.
        SandboxError: If a component needs what this machine does not have.
    """
    return read_config(source, overrides=overrides, policy=policy, environ=environ).make()


def validate_config(
    source: ConfigSource,
    *,
    overrides: Sequence[str | ForEvery] = (),
    policy: Policy | None = None,
    environ: Mapping[str, str] | None = None,
) -> None:
    """Check a config without any side effect except the import of allowed modules.

    Of model clients, which need keys, only the packages are looked for that AutoGen's own need. A component whose constructor does
    more than take its settings is not made.

    It has the arguments of :func:`load_config`.

    Raises:
        ConfigError: If anything is wrong with it, all problems together.
        NotAllowedError: If it names something that may not be loaded.
    """
    read_config(source, overrides=overrides, policy=policy, environ=environ).tried()


def read_config(
    source: ConfigSource | Document,
    *,
    overrides: Sequence[str | ForEvery] = (),
    fields: Mapping[str, JsonValue] | None = None,
    policy: Policy | None = None,
    environ: Mapping[str, str] | None = None,
) -> CheckedConfig:
    """Read, unless that is done, and check a config. Arguments as :func:`load_config`; ``fields`` as :func:`apply_overrides`.

    Raises:
        ConfigError: If anything is wrong with it, all problems together.
        NotAllowedError: If it names something that may not be loaded.
    """
    if isinstance(overrides, str):
        raise SettingError(f"overrides: a list is expected, such as [{overrides!r}]")
    if not isinstance(policy, Policy | None):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SettingError(f"policy: a Policy is expected, such as Policy(allow_unsafe=True), not {policy!r}")
    policy = policy or Policy.from_environment(environ=environ)
    changes = [each for each in overrides if isinstance(each, str)]
    read = source if isinstance(source, Document) else read_document(source)
    document = apply_overrides(read, changes, fields)
    document = resolve_references(document, os.environ if environ is None else environ)
    check_text(document, policy)
    # the kind of a component is known when its class is imported, which is only allowed now
    for_every = [each for each in overrides if isinstance(each, ForEvery)]
    return CheckedConfig.of(apply_for_every(document, for_every, policy), policy)


@dataclass(frozen=True)
class CheckedConfig:
    """A config without any mistake that can be found before a component is made.

    Attributes:
        document: Its data, with all overrides and the values of the environment.
        parts: Its components, outer before inner.
        policy: What may be loaded.
    """

    document: Document
    parts: Sequence[PlacedComponent]
    policy: Policy

    @classmethod
    def of(cls, document: Document, policy: Policy) -> CheckedConfig:
        """Check the components of a document; a :class:`ConfigError` reports all problems."""
        return cls(document, check_components(document, policy), policy)

    @property
    def credentials(self) -> Mapping[str, str]:
        """The credentials in it and in the environment, by their names."""
        return credentials_of(self.document, os.environ)

    @cached_property
    def written(self) -> str:
        """Its text, as :func:`write_config` has it."""
        return write_config(self.document)

    def with_settings(
        self, change: Callable[[ComponentClass, dict[str, Any]], None], kind: type = object
    ) -> CheckedConfig:
        """The config with other settings in its components of a kind, such as all executors.

        ``change`` receives the class and the settings of each, and changes the settings; a :class:`ConfigError` if a component
        does not take them.
        """
        data = copy.deepcopy(self.document.data)
        for part in self.parts:
            if issubclass(part.component, kind):
                change(part.component, at(data, (*part.path, "config")))
        return CheckedConfig.of(replace(self.document, data=data), self.policy)

    def only(self, part: PlacedComponent) -> CheckedConfig:
        """The config of one of its components."""
        return CheckedConfig.of(Document(self.document.name, at(self.document.data, part.path)), self.policy)

    def tried(self) -> CheckedConfig:
        """Itself, if each component accepts its settings, which is tried without effect; else a :class:`ConfigError`."""
        self._refuse_mistakes(_failures_in_trial(self))
        return self

    def make(self) -> ComponentBase[BaseModel]:
        """Make the component that it describes.

        Raises:
            ConfigError: If a component refuses its settings.
            SandboxError: If a component needs what this machine does not have.
        """
        wrapped = {part.path for part in _to_be_wrapped(self.parts)}
        # a budget counts the effects of a dispatcher
        counts = any(issubclass(part.component, BudgetTermination) for part in self.parts)
        with remembered(Dispatcher()) if counts and current_dispatcher() is None else nullcontext():
            component, failures = _make(self.parts, _models(self), self.policy, wrapped=wrapped)
        self._refuse_mistakes(failures)
        for _, error in failures:
            raise error
        remember_references(component, self.document.references)
        return component

    def make_again(self, paths: Collection[Path]) -> Mapping[Path, Any]:
        """Make only the components at these paths, with all in them, and without wrappers; raises as :meth:`make`."""
        models = _models(self)
        parts = [part for part in self.parts if any(is_in(part.path, path) for path in paths)]
        _, failures = _make(parts, models, self.policy)
        self._refuse_mistakes(failures)
        for _, error in failures:
            raise error
        made = {path: models[path]["config"]["part"] for path in paths}
        for component in made.values():
            remember_references(component, self.document.references)
        return made

    def _refuse_mistakes(self, failures: Sequence[_Failure]) -> None:
        # something that this machine lacks is no mistake in the config
        mistakes = [(part, error) for part, error in failures if not isinstance(error, SandboxError)]
        if not mistakes:
            return
        problems = [
            Problem(
                part.path,
                f"{part.component.__name__} cannot be made: {_reason(part, error)}",
                isinstance(error, NotAllowedError),
            )
            for part, error in mistakes
        ]
        combined = self.document.error(problems)
        trace = "".join(traceback.format_exception(cause := mistakes[0][1]))
        # a traceback may show the value of a reference
        if len(mistakes) == 1 and with_references(trace, self.document.values) == trace:
            combined.__cause__ = cause
        raise combined


def _reason(part: PlacedComponent, error: Exception) -> str:
    match error:
        case ConfigError():
            return error.message
        case ValidationError():
            return "; ".join(details["msg"] for details in error.errors(include_url=False))
        case ModuleNotFoundError(name=str(name)):
            return f"it needs {missing_package(name)}"
        case ValueError() | TypeError() | NotImplementedError():
            return str(error)
        case _:
            # clients read their keys in this process's environment, wherever references are looked up
            missing = missing_key(part.component, part.config, os.environ)
            return missing or f"{type(error).__name__}: {error}"


_Failure = tuple[PlacedComponent, Exception]
"""A component that cannot be made although all of its parts can, and why."""

_Models = Mapping[Path, dict[str, Any]]
"""The data that AutoGen loads, by the place of each component."""

_HARMLESS = (
    "autogen_agentchat.",
    "autogen_core.",
    "autogen_ext.tools.code_execution.",
    "autogen_ext.tools.mcp.",
    "codeact_team.",
)
"""Modules whose components, except the unsafe ones, have no effect when they are made."""

_CLIENTS = ("autogen_ext.models.azure.", "autogen_ext.models.openai.")
"""Modules of clients that import some of their packages when they are made, which has no other effect."""

_READY = f"{__name__}.ReadyPart"
_REPLAY = "autogen_ext.models.replay.ReplayChatCompletionClient"

_WRAPPED_KINDS: Any = (ChatCompletionClient, (BaseTool, Workbench, CodeExecutor), Memory, UserProxyAgent)
"""Each of these kinds is wrapped by itself, also inside of another kind."""


class ReadyPartConfig(BaseModel):
    """Holds the part itself."""

    part: Any


class ReadyPart(ComponentBase[BaseModel], Component[ReadyPartConfig]):
    """Stands for a part that is made already in the config of the component around it. It is in no dump."""

    component_type = "ready"
    component_config_schema = ReadyPartConfig
    component_provider_override = _READY

    @classmethod
    def _from_config(cls, config: ReadyPartConfig) -> Any:
        return config.part

    def _to_config(self) -> ReadyPartConfig:
        raise NotImplementedError


def _failures_in_trial(config: CheckedConfig) -> list[_Failure]:
    """Find the components that could not be made, without any effect.

    Stand-ins replace model clients, which need keys, and agents and executors whose constructors may have an effect. Any
    other component with a possible effect, and what holds it, is not tried.
    """
    models = _models(config)
    tried: list[PlacedComponent] = []
    untried: list[Path] = []
    replaced: list[Path] = []
    lacking: list[_Failure] = []
    for part in config.parts:
        if any(is_in(part.path, outer) for outer in replaced):
            continue
        if (error := _lacking(part, models[part.path])) is not None:
            lacking.append((part, error))
        if (stand_in := _stand_in(part)) is not None:
            models[part.path].update(stand_in)
            replaced.append(part.path)
        elif _is_harmless(part.component):
            tried.append(part)
        else:
            untried.append(part.path)
    # in a context of its own, since executors register with the open scope
    return [*lacking, *Context().run(_make, tried, models, config.policy, without=untried)[1]]


def _lacking(part: PlacedComponent, model: dict[str, Any]) -> ModuleNotFoundError | None:
    """The error of a client of AutoGen's whose package is not installed, which only its constructor finds out."""
    if not (
        issubclass(part.component, ChatCompletionClient) and part.component.__module__.startswith(_CLIENTS)
    ):
        return None
    try:
        ComponentLoader.load_component(copy.deepcopy(model))
    except ModuleNotFoundError as error:
        return error
    except Exception as error:  # such as a key that is missing, which others tell
        logger.debug("%s is not made without a key: %s", part.component.__name__, type(error).__name__)
    return None


def _make(
    parts: Sequence[PlacedComponent],
    models: _Models,
    policy: Policy,
    *,
    wrapped: Collection[Path] = (),
    without: Sequence[Path] = (),
) -> tuple[Any, list[_Failure]]:
    """Make each of ``parts`` once, inner before outer, except those that hold a missing one."""
    made: Any = None
    failures: list[_Failure] = []
    missing = list(without)
    with _in_force(policy):
        for part in sorted(parts, key=lambda part: -len(part.path)):
            if any(is_in(path, part.path) for path in missing):
                continue
            try:
                made = repaired(ComponentLoader.load_component(models[part.path]))
            except Exception as error:  # whatever a component raises
                missing.append(part.path)
                failures.append((part, error))
                continue
            places.put(made, dotted(part.path))
            if part.path in wrapped:
                made = _wrapped(made, [inner for inner in parts if is_in(inner.path, part.path)])
            models[part.path].update(_loading(_READY, part=made))
    return made, failures


def _wrapped(made: Any, parts: Sequence[PlacedComponent]) -> Any:
    """Wrap a component; ``parts`` describe it and all in it."""
    if not isinstance(made, ChatCompletionClient):
        return wrap(made)
    scope.at_end(made.close)
    # of a cache, the client in it has the model's name
    models = (part.config.get("model") for part in sorted(parts, key=lambda part: len(part.path)))
    return wrap_client(made, next((model for model in models if isinstance(model, str)), None))


def _to_be_wrapped(parts: Sequence[PlacedComponent]) -> Iterator[PlacedComponent]:
    """The parts that need a wrapper: of nested ones of one kind, the outermost; never the root, which was loaded alone."""
    agents = [part for part in parts if issubclass(part.component, ChatAgent | Team)]
    for kinds in _WRAPPED_KINDS:
        wrapped: list[Path] = []
        for part in parts:
            if not (part.path and issubclass(part.component, kinds)):
                continue
            if any(is_in(part.path, outer) for outer in wrapped):
                continue
            if issubclass(part.component, Memory | ChatCompletionClient) or _is_of_autogen_agent(
                part, agents
            ):
                wrapped.append(part.path)
                yield part


def _is_of_autogen_agent(part: PlacedComponent, agents: Sequence[PlacedComponent]) -> bool:
    """Whether a part belongs to one of AutoGen's agents, and is not itself a tool around an agent."""
    if part not in agents and any(is_in(agent.path, part.path) for agent in agents):
        return False
    users = [agent.component for agent in agents if is_in(part.path, agent.path)]
    return not (users and users[-1].__module__.startswith("codeact_team."))


def _stand_in(part: PlacedComponent) -> dict[str, Any] | None:
    kind, config = part.component, part.config
    if issubclass(kind, ChatCompletionClient):
        info = config.get("model_info") or listed_info(kind, config) or EVERYTHING
        return _loading(_REPLAY, chat_completions=(), model_info=info)
    if _is_harmless(kind):
        return None
    if issubclass(kind, CodeExecutor) and not issubclass(kind, StreamingCodeExecutor):
        return _loading("codeact_team.DockerCommandLineCodeExecutor")
    if issubclass(kind, ChatAgent) and isinstance(config.get("name"), str):
        return _loading("autogen_agentchat.agents.UserProxyAgent", name=config["name"])
    return None


def _loading(provider: str, **config: object) -> dict[str, Any]:
    return {"provider": provider, "component_version": None, "config": config}


def _is_harmless(component: ComponentClass) -> bool:
    return component.__module__.startswith(_HARMLESS) and unsafe_reason(component) is None


def _models(config: CheckedConfig) -> _Models:
    """The data that AutoGen loads: the document's, with what AutoGen would not find out itself."""
    data = copy.deepcopy(config.document.data)
    models: dict[Path, dict[str, Any]] = {}
    for part in config.parts:
        # outer ones come first, and bring along what is in them
        models[part.path] = model = at(data, part.path)
        model["config"] = copy.deepcopy(part.config)
        # a team takes a component without a type for an agent
        model["component_type"] = part.component.component_type
    return models


@contextmanager
def _in_force(policy: Policy) -> Generator[None]:
    """Let ``policy`` decide what is loaded, also by AutoGen, which after 0.7.5 has an allow-list of its own."""
    before = os.environ.get(NAMESPACES_VARIABLE)
    os.environ[NAMESPACES_VARIABLE] = ",".join(sorted(policy.namespaces))
    try:
        with using(policy):
            yield
    finally:
        if before is None:
            del os.environ[NAMESPACES_VARIABLE]
        else:
            os.environ[NAMESPACES_VARIABLE] = before
