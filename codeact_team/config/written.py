"""A checked config as it can be kept: with references to the environment instead of values, and what in it is a credential."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from pydantic import SecretStr

from codeact_team.config import yaml12
from codeact_team.config.credentials import credentials_in
from codeact_team.config.document import Document, Path, dotted, escape, last_key


def write_config(document: Document) -> str:
    """A document as YAML that loads back as the same, with its overrides, and with references where it had them.

    A credential that is in the document itself is in it, too.
    """
    return yaml12.write(_plain(document, document.data, ()))


def credentials_of(document: Document, environ: Mapping[str, str]) -> dict[str, str]:
    """The credentials in the environment and in a document, each by its variable or by its place."""
    found = credentials_of_environment(environ)
    for path, text in _texts(document.data, ()):
        _add(found, dotted(path), credentials_in(last_key(path), text))
    return found


def credentials_of_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The credentials in the environment, each by its variable."""
    found: dict[str, str] = {}
    for name, value in environ.items():
        _add(found, name, credentials_in(name, value))
    return found


def _add(found: dict[str, str], name: str, credentials: Iterator[str]) -> None:
    known = set(found.values())
    for number, each in enumerate(credentials):
        if each not in known:
            found[f"{name}.{number}" if number else name] = each


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
