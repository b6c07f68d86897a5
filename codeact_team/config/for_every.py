"""Overrides for every component of a kind, wherever a config has them: the model of all clients, the files of all executors.

They are applied to what the document says once its references are resolved, before anything is checked against a schema.
"""

from __future__ import annotations

import copy
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from autogen_core.code_executor import CodeExecutor
from autogen_core.models import ChatCompletionClient

from codeact_team.config.components import PlacedComponent, is_component, walk
from codeact_team.config.document import Document, Problem, Resolved, at, dotted, is_in
from codeact_team.config.models import change_client, field_of_client, objection_of_client
from codeact_team.config.yaml12 import Path
from codeact_team.core.autogen_internals import ComponentClass
from codeact_team.core.providers import Policy, resolve, schema_of
from codeact_team.errors import ConfigError

_WORDS: Mapping[type, str] = {ChatCompletionClient: "model client", CodeExecutor: "code executor"}


@dataclass(frozen=True)
class ForEvery:
    """An override of one setting in every component of a kind, such as ``ForEvery(ChatCompletionClient, "model", "o3")``.

    What another override says of one component goes before it. A component without that setting that only wraps another
    one of the kind, such as a cache around a client, is left as it is; any other is an error.

    Attributes:
        kind: Components of this class and of those below it.
        setting: The field of their configs. For a model client, ``base_url`` stands for what its class calls it.
        value: As in a config; ``${NAME}`` is no reference in it.
        origin: What errors call this, such as ``--model``.
    """

    kind: type
    setting: str
    value: Any
    origin: str = ""

    @property
    def name(self) -> str:
        """What errors call this."""
        return self.origin or f"{self.setting} of every {_words(self.kind)}"


def apply_for_every(
    document: Document, unresolved: Sequence[Problem], overrides: Sequence[ForEvery], policy: Policy
) -> tuple[Document, list[Problem]]:
    """The document with each of ``overrides`` applied in turn, and which of the ``unresolved`` references are left.

    Every provider of the document has to be one that ``policy`` allows.

    Raises:
        ConfigError: If there is no such component, or one does not take the setting.
    """
    if not overrides:
        return document, list(unresolved)
    data = copy.deepcopy(document.data)
    try:
        parts = _parts(data, policy)
    except ConfigError:
        # checking the document tells it, with all that is wrong beside it
        return document, list(unresolved)
    origins: dict[Path, str] = {}
    references: dict[Path, Resolved] = {}
    for override in overrides:
        for part, setting in _taking(override, parts, document):
            place_of = (*part.path, "config")
            said = {key for key in part.config if _is_said((*place_of, key), [*document.overrides, *origins])}
            for key, reference in _set(part, setting, override, said).items():
                place = (*place_of, key)
                origins[place] = override.name
                if reference is not None:
                    references[place] = reference

    def stays(path: Path) -> bool:
        return not any(path[:length] in origins for length in range(len(path) + 1))

    document = replace(
        document,
        data=data,
        overrides={path: origin for path, origin in document.overrides.items() if stays(path)} | origins,
        references={path: text for path, text in document.references.items() if stays(path)} | references,
    )
    return document, [problem for problem in unresolved if stays(problem.path)]


def _is_said(path: Path, places: Iterable[Path]) -> bool:
    """Whether an override is about what is at ``path``, or a part of that."""
    return any(is_in(path, place) or is_in(place, path) for place in places)


def _set(
    part: PlacedComponent, setting: str, override: ForEvery, said: Container[str]
) -> Mapping[str, Resolved | None]:
    """Change a config, but for keys that were ``said``.

    Returns:
        The keys that are not as before, each with the reference that it stands for, if any.
    """
    part.config[setting] = copy.deepcopy(override.value)
    if issubclass(part.component, ChatCompletionClient):
        return {setting: None, **change_client(part.component, part.config, override.setting, said)}
    return {setting: None}


def _parts(data: dict[str, Any], policy: Policy) -> list[PlacedComponent]:
    """The components in ``data``, whose configs are those in it."""
    return [
        PlacedComponent(path, resolve(value["provider"], policy), cast(dict[str, Any], value["config"]))
        for path, value in walk(data)
        if is_component(value) and type(value["config"]) is dict
    ]


def _taking(
    override: ForEvery, parts: Sequence[PlacedComponent], document: Document
) -> list[tuple[PlacedComponent, str]]:
    """The components that an override is for, each with its name of the setting."""
    meant = [part for part in parts if issubclass(part.component, override.kind)]
    if not meant:
        raise ConfigError(f"there is no {_words(override.kind)} in {document.name}", file=override.name)
    taking: list[tuple[PlacedComponent, str]] = []
    for part in meant:
        setting = _field(part.component, override.setting)
        if setting is None and any(other is not part and is_in(other.path, part.path) for other in meant):
            continue
        if _goes_before(part, setting, document):
            continue
        if (objection := _objection(part, override)) or setting is None:
            provider = at(document.data, (*part.path, "provider"))
            reason = objection or f"it has no setting {override.setting!r}"
            message = f"{provider} does not take this: {reason}"
            raise ConfigError(message, file=override.name, path=dotted(part.path) or None)
        taking.append((part, setting))
    return taking


def _goes_before(part: PlacedComponent, setting: str | None, document: Document) -> bool:
    """Whether another override says the setting, by itself or within what it sets."""
    if setting is not None and setting not in part.config:
        return False
    return any(is_in((*part.path, "config", setting or ""), said) for said in document.overrides)


def _field(component: ComponentClass, setting: str) -> str | None:
    fields = schema_of(component).model_fields
    if issubclass(component, ChatCompletionClient):
        return field_of_client(fields, setting)
    return setting if setting in fields else None


def _objection(part: PlacedComponent, override: ForEvery) -> str | None:
    if issubclass(part.component, ChatCompletionClient):
        return objection_of_client(part.component, part.config, override.setting, override.value)
    return None


def _words(kind: type) -> str:
    return _WORDS.get(kind, kind.__name__)
