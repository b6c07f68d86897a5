"""From a document to a living component."""

from __future__ import annotations

import copy
import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from autogen_core import ComponentBase, ComponentLoader
from pydantic import BaseModel, ValidationError

from codeact_team.config.document import Document, Path, Problem, read_document
from codeact_team.config.environment import resolve_references
from codeact_team.config.mended import mended_path
from codeact_team.config.overrides import apply_overrides
from codeact_team.config.validation import Part, check_document
from codeact_team.errors import ConfigError, NotAllowedError, SandboxError
from codeact_team.providers import NAMESPACES_VARIABLE, Policy, using


def validate_config(
    source: str | os.PathLike[str],
    *,
    overrides: Sequence[str] = (),
    policy: Policy | None = None,
    environ: Mapping[str, str] | None = None,
) -> None:
    """Check a config without any side effect but the import of allowed modules.

    Args:
        source: Path of a YAML or JSON file, or the name of a shipped config, such as ``quickstart``.
        overrides: Changes to single values, such as ``config.max_turns=3``.
        policy: What may be loaded; by default AutoGen's and our components, and what the environment adds.
        environ: Where ``${NAME}`` is looked up; by default this process's environment.

    Raises:
        ConfigError: If anything is wrong with it, all problems together.
        NotAllowedError: If it names something that may not be loaded.
    """
    _checked(source, overrides, _policy(policy, environ), environ)


def load_config(
    source: str | os.PathLike[str],
    *,
    overrides: Sequence[str] = (),
    policy: Policy | None = None,
    environ: Mapping[str, str] | None = None,
) -> ComponentBase[BaseModel]:
    """Load a team, an agent, or any other component from a config.

    Args:
        source: Path of a YAML or JSON file, or the name of a shipped config, such as ``quickstart``.
        overrides: Changes to single values, such as ``config.max_turns=3``.
        policy: What may be loaded; by default AutoGen's and our components, and what the environment adds.
        environ: Where ``${NAME}`` is looked up; by default this process's environment.

    Raises:
        ConfigError: If anything is wrong with it, all problems together; or a component refuses its settings.
        NotAllowedError: If it names something that may not be loaded.
        SandboxError: If a component needs what this machine does not have.
    """
    policy = _policy(policy, environ)
    document, parts = _checked(source, overrides, policy, environ)
    with using(policy), _trusted_by_autogen(policy):
        return _load(document, parts)


def _policy(policy: Policy | None, environ: Mapping[str, str] | None) -> Policy:
    return Policy.from_environment(environ=environ) if policy is None else policy


def _checked(
    source: str | os.PathLike[str],
    overrides: Sequence[str],
    policy: Policy,
    environ: Mapping[str, str] | None,
) -> tuple[Document, list[Part]]:
    document = apply_overrides(read_document(source), overrides)
    document, unresolved = resolve_references(document, os.environ if environ is None else environ)
    return document, check_document(document, policy, unresolved)


def _load(document: Document, parts: Sequence[Part]) -> ComponentBase[BaseModel]:
    data = copy.deepcopy(document.data)
    models = {part.path: _model(data, part) for part in parts}
    try:
        return _make(models[()])
    except SandboxError:
        raise
    except Exception as error:
        part, cause = _culprit(parts[0], error, parts, models)
        refused = isinstance(cause, NotAllowedError)
        problem = Problem(part.path, f"{part.component.__name__} cannot be made: {_reason(cause)}", refused)
        raise document.error([problem]) from cause


def _model(data: dict[str, Any], part: Part) -> dict[str, Any]:
    """What AutoGen is to load for ``part``: what the document says, and what AutoGen would not find out itself."""
    model: Any = data
    for step in part.path:
        model = model[step]
    model["config"] = copy.deepcopy(part.config)
    model["provider"] = mended_path(part.component) or model["provider"]
    # a team takes what does not say that it is a team for an agent
    model["component_type"] = part.component.component_type
    return model


def _make(model: dict[str, Any]) -> Any:
    return ComponentLoader.load_component(copy.deepcopy(model))


def _culprit(
    part: Part, error: Exception, parts: Sequence[Part], models: Mapping[Path, dict[str, Any]]
) -> tuple[Part, Exception]:
    """The innermost component that cannot be made, found by making each again, since no error of AutoGen's tells."""
    for inner in parts:
        if len(inner.path) > len(part.path) and inner.path[: len(part.path)] == part.path:
            try:
                _make(models[inner.path])
            except Exception as cause:
                return _culprit(inner, cause, parts, models)
    return part, error


def _reason(error: Exception) -> str:
    match error:
        case ConfigError():
            return error.message
        case ValidationError():
            return "; ".join(details["msg"] for details in error.errors(include_url=False))
        case ValueError() | TypeError() | NotImplementedError():
            return str(error)
        case _:
            return f"{type(error).__name__}: {error}"


@contextmanager
def _trusted_by_autogen(policy: Policy) -> Generator[None]:
    """Tell AutoGen, which after 0.7.5 has an allow-list of its own, what the policy allows."""
    before = os.environ.get(NAMESPACES_VARIABLE)
    os.environ[NAMESPACES_VARIABLE] = ",".join(sorted(policy.namespaces))
    try:
        yield
    finally:
        if before is None:
            del os.environ[NAMESPACES_VARIABLE]
        else:
            os.environ[NAMESPACES_VARIABLE] = before
