"""Loads a component from a document, or checks whether it could be loaded."""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from autogen_core import ComponentBase
from pydantic import BaseModel, JsonValue, ValidationError

from codeact_team.config.components import PlacedComponent, remember
from codeact_team.config.document import ConfigSource, Document, Problem, read_document, with_references
from codeact_team.config.dumping import write_config
from codeact_team.config.for_every import ForEvery, apply_for_every
from codeact_team.config.making import Failure, failures_in_trial, make
from codeact_team.config.models import missing_key
from codeact_team.config.overrides import apply_overrides, resolve_references
from codeact_team.config.validation import check_components, check_text
from codeact_team.core.providers import Policy, missing_package
from codeact_team.errors import ConfigError, NotAllowedError, SandboxError


def validate_config(
    source: ConfigSource,
    *,
    overrides: Sequence[str | ForEvery] = (),
    policy: Policy | None = None,
    environ: Mapping[str, str] | None = None,
) -> None:
    """Check a config without any side effect but the import of allowed modules.

    Model clients are not made, which want keys, nor is anything that does more than to take its settings.

    Its arguments are those of :func:`load_config`.

    Raises:
        ConfigError: If anything is wrong with it, all problems together.
        NotAllowedError: If it names something that may not be loaded.
    """
    check_config(source, overrides=overrides, policy=policy, environ=environ)


def check_config(
    source: ConfigSource,
    *,
    overrides: Sequence[str | ForEvery] = (),
    policy: Policy | None = None,
    environ: Mapping[str, str] | None = None,
) -> Sequence[PlacedComponent]:
    """Do what :func:`validate_config` does, and return the components of the config, outer before inner."""
    config = read_config(source, overrides=overrides, policy=policy, environ=environ)
    _refuse_mistakes(config.document, failures_in_trial(config.document, config.parts, config.policy))
    return config.parts


@dataclass(frozen=True)
class CheckedConfig:
    """A config without a mistake that can be found before anything is made.

    Attributes:
        document: What it says, with all overrides and the values of the environment.
        parts: Its components, outer before inner.
        policy: What may be loaded.
    """

    document: Document
    parts: Sequence[PlacedComponent]
    policy: Policy

    @cached_property
    def written(self) -> str:
        """Its text, as :func:`write_config` has it."""
        return write_config(self.document)

    def make(self) -> ComponentBase[BaseModel]:
        """Make what it describes.

        Raises:
            ConfigError: If a component refuses its settings.
            SandboxError: If a component needs what this machine does not have.
        """
        component, failures = make(self.document, self.parts, self.policy)
        _refuse_mistakes(self.document, failures)
        for _, error in failures:
            raise error
        remember(component, self.document.references)
        return component


def read_config(
    source: ConfigSource,
    *,
    overrides: Sequence[str | ForEvery] = (),
    fields: Mapping[str, JsonValue] | None = None,
    policy: Policy | None = None,
    environ: Mapping[str, str] | None = None,
) -> CheckedConfig:
    """Read and check a config. Its arguments are those of :func:`load_config`, and ``fields`` of :func:`apply_overrides`.

    Raises:
        ConfigError: If anything is wrong with it, all problems together.
        NotAllowedError: If it names something that may not be loaded.
    """
    policy = policy or Policy.from_environment(environ=environ)
    changes = [each for each in overrides if isinstance(each, str)]
    document = apply_overrides(read_document(source), changes, fields)
    document, unresolved = resolve_references(document, os.environ if environ is None else environ)
    check_text(document, policy, unresolved)
    # of which kind something is, is known when its class is imported, which only now may be done
    for_every = [each for each in overrides if isinstance(each, ForEvery)]
    document, unresolved = apply_for_every(document, unresolved, for_every, policy)
    return CheckedConfig(document, check_components(document, policy, unresolved), policy)


def load_config(
    source: ConfigSource,
    *,
    overrides: Sequence[str | ForEvery] = (),
    policy: Policy | None = None,
    environ: Mapping[str, str] | None = None,
) -> ComponentBase[BaseModel]:
    """Load a team, an agent, or any other component from a config.

    What the agents in it use passes the current :class:`Door`, if there is one. What is loaded itself stays of its class:
    a client, a tool or a ``UserProxyAgent`` that is loaded alone is not wrapped, but :func:`wrap` does that.

    Args:
        source: Path of a YAML or JSON file, the name of a shipped config, such as ``quickstart``, the text of a config, a
            mapping, or a ``ComponentModel``. The text of the last stands for itself: ``${NAME}`` is no reference there.
        overrides: Changes to single values, such as ``config.max_turns=3``, and settings :class:`ForEvery` component of
            a kind, such as the model of all model clients.
        policy: What may be loaded; by default AutoGen's and our components, and what the environment adds.
        environ: Where ``${NAME}`` is looked up; by default this process's environment.

    Raises:
        ConfigError: If anything is wrong with it, all problems together; or a component refuses its settings.
        NotAllowedError: If it names something that may not be loaded.
        SandboxError: If a component needs what this machine does not have.
    """
    return read_config(source, overrides=overrides, policy=policy, environ=environ).make()


def _refuse_mistakes(document: Document, failures: Sequence[Failure]) -> None:
    # what this machine lacks is no fault of the config
    mistakes = [(part, error) for part, error in failures if not isinstance(error, SandboxError)]
    if not mistakes:
        return
    told = document.error([_problem(part, error) for part, error in mistakes])
    if len(mistakes) == 1 and not _quotes(document, cause := mistakes[0][1]):
        told.__cause__ = cause
    raise told


def _problem(part: PlacedComponent, error: Exception) -> Problem:
    message = f"{part.component.__name__} cannot be made: {_reason(part, error)}"
    return Problem(part.path, message, isinstance(error, NotAllowedError))


def _quotes(document: Document, error: Exception) -> bool:
    """Whether a traceback of ``error`` would show what a reference stands for."""
    trace = "".join(traceback.format_exception(error))
    return with_references(trace, document.values) != trace


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
            # clients read their keys in this process's environment, whatever references are looked up in
            missing = missing_key(part.component, part.config, os.environ)
            return missing or f"{type(error).__name__}: {error}"
