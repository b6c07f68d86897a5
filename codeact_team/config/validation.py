"""Checks a whole document before anything in it is made.

First by its text: every provider against the allow-list, so that nothing is imported for a document that names
something else. Then each component is imported and its config checked against its schema, unknown keys refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from autogen_core import ComponentModel
from autogen_core._component_config import ComponentFromConfig
from pydantic import ValidationError

from codeact_team.config.credentials import MASK
from codeact_team.config.document import Document, Path, Problem
from codeact_team.config.nulls import validate, with_nulls
from codeact_team.config.parts import is_component, kinds_at, walk
from codeact_team.config.schema_errors import problems_of
from codeact_team.errors import ConfigError, NotAllowedError
from codeact_team.providers import (
    ALLOW_UNSAFE_HINT,
    UNSAFE_TYPES,
    ComponentClass,
    Policy,
    check,
    resolve,
    schema_of,
)


@dataclass(frozen=True)
class Part:
    """A component of a document.

    Attributes:
        path: Where it is.
        component: Its class.
        config: Its config, as its schema takes it.
    """

    path: Path
    component: ComponentClass
    config: dict[str, Any]


def check_document(document: Document, policy: Policy, unresolved: Sequence[Problem] = ()) -> list[Part]:
    """Check a document without making anything of it.

    Args:
        document: The document, after overrides and environment references.
        policy: What may be loaded.
        unresolved: The references that could not be resolved, to be told with the rest.

    Returns:
        Its components, outer before inner.

    Raises:
        NotAllowedError: If something in it is not allowed. Nothing outside the allow-list is imported.
        ConfigError: If anything in it is wrong; all problems of the document are told together.
    """
    by_text = _without(unresolved, _text_problems(document, policy))
    if by_text:
        raise document.error([*unresolved, *by_text])
    checking = _Checking(document, policy, [], [])
    checking.components()
    if problems := [*unresolved, *_without(unresolved, checking.problems)]:
        raise document.error(problems)
    return checking.parts


def _without(unresolved: Sequence[Problem], problems: Iterable[Problem]) -> list[Problem]:
    # an unresolved reference fits nowhere; it is told once
    places = {problem.path for problem in unresolved}
    return [problem for problem in problems if problem.path not in places]


def _text_problems(document: Document, policy: Policy) -> Iterator[Problem]:
    try:
        ComponentModel.model_validate(document.data, extra="forbid")
    except ValidationError as error:
        yield from problems_of(error, ComponentModel, document, ())
    for path, value in walk(document.data):
        if path == () or is_component(value):
            yield from _refusal((*path, "provider"), value.get("provider"), policy)
        match value:
            case {"type": str(kind)} if kind in UNSAFE_TYPES and not policy.allow_unsafe:
                message = f"{kind!r} is refused: {UNSAFE_TYPES[kind]}; {ALLOW_UNSAFE_HINT}"
                yield Problem((*path, "type"), message, not_allowed=True)
            case str() if value == MASK:
                yield Problem(path, "this secret was masked in a dump; write ${NAME}, or leave it out")
            case _:  # pyright: ignore[reportUnknownVariableType]
                pass


def _refusal(path: Path, provider: object, policy: Policy) -> Iterator[Problem]:
    if isinstance(provider, str):
        try:
            check(provider, policy)
        except ConfigError as error:
            yield Problem(path, error.message, isinstance(error, NotAllowedError))


def _reads_past_versions(component: ComponentClass) -> bool:
    name = "_from_config_past_version"
    return getattr(component, name).__func__ is not getattr(ComponentFromConfig, name).__func__


@dataclass
class _Checking:
    document: Document
    policy: Policy
    parts: list[Part]
    problems: list[Problem]

    def components(self) -> None:
        for path, value in walk(self.document.data):
            if is_component(value):
                self._component(path, value)

    def _component(self, path: Path, data: dict[str, Any]) -> None:
        try:
            component = resolve(data["provider"], self.policy)
        except ConfigError as error:
            refused = isinstance(error, NotAllowedError)
            self.problems.append(Problem((*path, "provider"), error.message, refused))
            return
        self._kind(path, component)
        self._type(path, component, data.get("component_type"))
        config = cast(dict[str, Any], data["config"])
        # where it is no mapping, the schema of what holds it says so
        if type(config) is dict and self._version(path, component, data.get("component_version")):
            config = self._schema((*path, "config"), component, config)
        self.parts.append(Part(path, component, config))

    def _kind(self, path: Path, component: ComponentClass) -> None:
        parent = next((p.component for p in reversed(self.parts) if p.path == path[: len(p.path)]), None)
        kinds = kinds_at(path, parent)
        if kinds and not issubclass(component, kinds):
            wanted = " or ".join(kind.__name__ for kind in kinds)
            message = f"expected a component of the kind {wanted}; {component.__name__} is none"
            self.problems.append(Problem((*path, "provider"), message))

    def _type(self, path: Path, component: ComponentClass, given: object) -> None:
        if isinstance(given, str) and given != component.component_type:
            message = f"{component.__name__} is of the type {component.component_type!r}, not {given!r}; this key may be left out"
            self.problems.append(Problem((*path, "component_type"), message))

    def _version(self, path: Path, component: ComponentClass, given: object) -> bool:
        """Whether the config is of the version that the schema describes."""
        current = component.component_version
        if not isinstance(given, int) or given == current:
            return True
        if given > current or not _reads_past_versions(component):
            message = f"version {given} of {component.__name__} is not the installed one, {current}"
            self.problems.append(Problem((*path, "component_version"), message))
        return False

    def _schema(self, path: Path, component: ComponentClass, config: dict[str, Any]) -> dict[str, Any]:
        schema = schema_of(component)
        config = with_nulls(schema, config)
        try:
            validate(schema, config, self.policy)
        except ValidationError as error:
            self.problems += problems_of(error, schema, self.document, path)
        return config
