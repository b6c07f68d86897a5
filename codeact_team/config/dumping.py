"""Configs as text: a document is written with its references, and a component with those it was loaded from."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from enum import Enum
from typing import Any, cast

from autogen_core import ComponentBase
from pydantic import BaseModel, SecretBytes, SecretStr
from pydantic_core import PydanticSerializationError, to_jsonable_python

from codeact_team.config import yaml12
from codeact_team.config.components import is_component
from codeact_team.config.document import MASK, Document, Resolved, dotted, escape, last_key, mapped, walk
from codeact_team.config.yaml12 import Path
from codeact_team.core.autogen_internals import components_in
from codeact_team.errors import ConfigError
from codeact_team.text.redaction import (
    add_secrets,
    credentials_in,
    credentials_of_environment,
    holds_credential,
    is_credential_key,
)


def write_config(document: Document) -> str:
    """Write a document as YAML that loads back as the same document, credentials in it included."""

    def write(path: Path, value: Any) -> Any:
        text = _revealed(value)
        return (document.written(path) or escape(text)) if isinstance(text, str) else text

    return yaml12.write(mapped(document.data, write))


def credentials_of(document: Document, environ: Mapping[str, str]) -> dict[str, str]:
    """The credentials in the environment and in a document, each by its variable or by its place."""
    found = credentials_of_environment(environ)
    for path, value in walk(document.data):
        if isinstance(text := _revealed(value), str):
            add_secrets(found, dotted(path), credentials_in(last_key(path), text))
    return found


def _revealed(value: Any) -> Any:
    return value.get_secret_value() if isinstance(value, SecretStr) else value


_LONG = 8
"""Characters of a value that is not likely to be equal to an unrelated text."""

_KEY_ORDER = ("provider", "component_type", "version", "component_version", "description", "label", "config")
_References = Mapping[Path, Resolved]

_loaded: dict[int, _References] = {}
"""The references of the document that a component was loaded from, by the component's id, as long as it lives."""


def remember_references(root: ComponentBase[BaseModel], references: _References) -> None:
    """Have ``root``, and each component in it, dumped with the references of its document."""
    if references:
        for part in components_in(root):
            # shared parts, such as AutoGen's defaults, may have been loaded before
            if id(part) not in _loaded:
                weakref.finalize(part, _loaded.pop, id(part))
            _loaded[id(part)] = references


class _Dump:
    """Writes a component with the references that the text in it, and in all its parts, may have come from."""

    def __init__(self, root: ComponentBase[BaseModel]) -> None:
        self._by_place: dict[tuple[Path, str], str] = {}
        self._by_key: dict[tuple[str, str], str] = {}
        self._by_value: dict[str, str] = {}
        documents = {id(found): found for part in components_in(root) if (found := _loaded.get(id(part)))}
        for references in documents.values():
            for path, resolved in references.items():
                self._add(path, resolved)

    def _add(self, path: Path, resolved: Resolved) -> None:
        text, written = resolved.text, resolved.written or ""
        self._by_place.setdefault((path, text), written)
        self._by_key.setdefault((last_key(path), text), written)
        if resolved.values and len(text) >= _LONG:
            self._by_value.setdefault(text, written)

    def _find(self, path: Path, text: str) -> str | None:
        """The text with ``${...}`` that ``text`` at ``path`` of a dump came from, if it did.

        A value under the key that it was loaded under counts as the loaded one: writing the reference changes nothing. A long
        value counts under any key, as a component may store a secret elsewhere. A short value, or a default, does not:
        unrelated text such as "1" would become a reference.
        """
        return (
            self._by_place.get((path, text))
            or self._by_key.get((last_key(path), text))
            or self._by_value.get(text)
        )

    def plain(self, value: Any, path: Path) -> Any:
        match value:
            case SecretStr() | SecretBytes():
                return self._secret(value.get_secret_value(), path)
            case Enum():
                return self.plain(value.value, path)
            case str():
                return self._text(value, path)
            case None | bool() | int() | float():
                return value
            case Mapping():
                return self._mapping(cast(Mapping[Any, Any], value), path)
            case list() | tuple():
                items = cast(list[Any], value)
                return [self.plain(item, (*path, index)) for index, item in enumerate(items)]
            case _:
                return self.plain(_as_json(value, path), path)

    def _mapping(self, value: Mapping[Any, Any], path: Path) -> dict[str, Any]:
        plain: dict[str, Any] = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise _error(f"the key {key!r} is not text", path)
            plain[key] = self.plain(item, (*path, key))
        if not is_component(plain):
            return plain
        ordered = {key: plain[key] for key in _KEY_ORDER if key in plain}
        return ordered | plain

    def _text(self, value: str, path: Path) -> str:
        if (value and is_credential_key(last_key(path))) or holds_credential(value) or value == MASK:
            return self._secret(value, path)
        return self._find(path, value) or escape(value)

    def _secret(self, value: str | bytes, path: Path) -> str:
        reference = self._find(path, value) if isinstance(value, str) else None
        if reference is None:
            raise _error(
                "a secret is not written in clear text; leave it out if the component reads it from the "
                "environment, or load it from a config that says ${NAME}",
                path,
            )
        return reference


def dump_config(component: ComponentBase[BaseModel]) -> str:
    """Write a component as YAML from which :func:`load_config` loads an equal component.

    A value that was loaded from a reference ``${NAME}`` is written as that reference.

    Raises:
        ConfigError: If something in it cannot be written to a config, or is a secret that was not loaded from a reference.
    """
    try:
        model = component.dump_component()
    except (NotImplementedError, TypeError, ValueError) as error:
        raise ConfigError(f"{type(component).__name__} cannot be dumped: {error}") from error
    return yaml12.write(_Dump(component).plain(model.model_dump(exclude_none=True), ()))


def _as_json(value: object, path: Path) -> Any:
    """Paths, times, bytes, sets, ... as pydantic writes and reads them."""
    try:
        return to_jsonable_python(value)
    except PydanticSerializationError as error:
        raise _error(f"a {type(value).__name__} cannot be written to a config", path) from error


def _error(message: str, path: Path) -> ConfigError:
    return ConfigError(f"cannot be dumped: {message}", path=dotted(path))
