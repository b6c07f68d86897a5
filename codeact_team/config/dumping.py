"""Configs as text: what a person has written, and what a component dumps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, cast

from autogen_core import ComponentBase
from pydantic import BaseModel, SecretBytes, SecretStr
from pydantic_core import PydanticSerializationError, to_jsonable_python

from codeact_team.config import yaml12
from codeact_team.config.components import Origins, is_component
from codeact_team.config.document import (
    MASK,
    Document,
    dotted,
    escape,
    last_key,
)
from codeact_team.config.yaml12 import Path
from codeact_team.core.redaction import (
    add_secrets,
    credentials_in,
    credentials_of_environment,
    holds_credential,
    is_credential_key,
)
from codeact_team.errors import ConfigError


def write_config(document: Document) -> str:
    """A document as YAML that loads back as the same, with its overrides, and with references where it had them.

    A credential that is in the document itself is in it, too.
    """
    return yaml12.write(_plain(document, document.data, ()))


def credentials_of(document: Document, environ: Mapping[str, str]) -> dict[str, str]:
    """The credentials in the environment and in a document, each by its variable or by its place."""
    found = credentials_of_environment(environ)
    for path, text in _texts(document.data, ()):
        add_secrets(found, dotted(path), credentials_in(last_key(path), text))
    return found


def _texts(value: Any, path: Path) -> Iterator[tuple[Path, str]]:
    match value:
        case str():
            yield path, value
        case SecretStr():
            yield path, value.get_secret_value()
        case dict():
            for key, item in cast(dict[str, Any], value).items():
                yield from _texts(item, (*path, key))
        case list():
            for index, item in enumerate(cast(list[Any], value)):
                yield from _texts(item, (*path, index))
        case _:
            pass


def _plain(document: Document, value: Any, path: Path) -> Any:
    match value:
        case str():
            return document.written(path) or escape(value)
        case SecretStr():
            return _plain(document, value.get_secret_value(), path)
        case dict():
            mapping = cast(dict[str, Any], value)
            return {key: _plain(document, item, (*path, key)) for key, item in mapping.items()}
        case list():
            items = cast(list[Any], value)
            return [_plain(document, item, (*path, index)) for index, item in enumerate(items)]
        case _:
            return value


_KEY_ORDER = ("provider", "component_type", "version", "component_version", "description", "label", "config")


def dump_config(component: ComponentBase[BaseModel]) -> str:
    """Write a component as YAML that :func:`load_config` loads back as the same.

    A value that came from ``${NAME}``, in the config that the component or a part of it was loaded from, is written as that
    reference.

    Raises:
        ConfigError: If something in it has no form in a config, or is a secret that came from no reference.
    """
    try:
        model = component.dump_component()
    except (NotImplementedError, TypeError, ValueError) as error:
        raise ConfigError(f"{type(component).__name__} cannot be dumped: {error}") from error
    writing = _Writing(Origins(component))
    return yaml12.write(writing.plain(model.model_dump(exclude_none=True), ()))


@dataclass(frozen=True)
class _Writing:
    origins: Origins

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
        return self.origins.find(path, value) or escape(value)

    def _secret(self, value: str | bytes, path: Path) -> str:
        reference = self.origins.find(path, value) if isinstance(value, str) else None
        if reference is None:
            raise _error(
                "a secret is not written in clear; leave it out, so that it is read from the environment where the "
                "component does that, or load it from a config that says ${NAME}",
                path,
            )
        return reference


def _as_json(value: object, path: Path) -> Any:
    """Paths, times, bytes, sets, ... as pydantic writes and reads them."""
    try:
        return to_jsonable_python(value)
    except PydanticSerializationError as error:
        raise _error(f"a {type(value).__name__} has no form in a config", path) from error


def _error(message: str, path: Path) -> ConfigError:
    return ConfigError(f"cannot be dumped: {message}", path=dotted(path))
