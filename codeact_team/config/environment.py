"""References to environment variables in a document's text: ``${NAME}`` and ``${NAME:-default}``.

``$${`` stands for a literal ``${``. What a reference resolves to is not searched for further ones. What each text was
made from is remembered, so that a dump writes the reference and never the value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from codeact_team.config.document import Document, Path, Problem

_REFERENCE = re.compile(
    r"(?P<escape>\$\$\{)|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}|(?P<malformed>\$\{[^}\n]{0,40}\}?)"
)

_LONG = 8


class UnresolvedError(Exception):
    """A reference that cannot be resolved; its text says which, and what to do."""


@dataclass(frozen=True)
class Resolved:
    """A text after its references were resolved.

    Attributes:
        text: The text.
        referred: Whether there was a reference.
        from_environment: Whether some of the text comes from a variable that is set, not from a default.
    """

    text: str
    referred: bool
    from_environment: bool


def resolve_text(text: str, environ: Mapping[str, str]) -> Resolved:
    """Resolve the references in ``text``.

    Raises:
        UnresolvedError: If a variable without a default is not set, or a reference is malformed.
    """
    referred = from_environment = False

    def value_of(match: re.Match[str]) -> str:
        nonlocal referred, from_environment
        if match["escape"]:
            return "${"
        if match["malformed"]:
            raise UnresolvedError(
                f"{match[0]!r} is no reference: write ${{NAME}} or ${{NAME:-default}}, and $${{ for a literal ${{"
            )
        referred = True
        value = environ.get(match["name"])
        # as in a shell, a default also stands in for an empty value
        if value or (value is not None and match["default"] is None):
            from_environment = True
            return value
        if match["default"] is None:
            raise UnresolvedError(
                f"the environment variable {match['name']} is not set; set it, "
                f"or give a default: ${{{match['name']}:-default}}"
            )
        return match["default"]

    resolved = _REFERENCE.sub(value_of, text)
    return Resolved(resolved, referred, from_environment)


def escape(text: str) -> str:
    """Write ``text`` so that :func:`resolve_text` gives it back."""
    return text.replace("${", "$${")


def resolve_references(document: Document, environ: Mapping[str, str]) -> tuple[Document, list[Problem]]:
    """The document with the references in all its text resolved and remembered, and what could not be."""
    resolving = _Resolving(environ, {}, [])
    data = resolving.data(document.data, ())
    return replace(document, data=data, references=resolving.references), resolving.problems


@dataclass
class _Resolving:
    environ: Mapping[str, str]
    references: dict[Path, str]
    problems: list[Problem]

    def data(self, value: Any, path: Path) -> Any:
        if isinstance(value, str):
            return self._text(value, path)
        if isinstance(value, dict):
            mapping = cast(dict[str, Any], value)
            return {key: self.data(item, (*path, key)) for key, item in mapping.items()}
        if isinstance(value, list):
            items = cast(list[Any], value)
            return [self.data(item, (*path, index)) for index, item in enumerate(items)]
        return value

    def _text(self, text: str, path: Path) -> str:
        try:
            resolved = resolve_text(text, self.environ)
        except UnresolvedError as error:
            self.problems.append(Problem(path, str(error)))
            return text
        if resolved.referred:
            self.references[path] = text
            _memory.remember(_key(path), resolved, text)
        return resolved.text


def reference_for(path: Path, value: str) -> str | None:
    """The text with ``${...}`` that ``value`` at ``path`` of a dump was made from, if it was."""
    return _memory.recall(_key(path), value)


def _key(path: Path) -> str:
    return next((part for part in reversed(path) if isinstance(part, str)), "")


class _Memory:
    """Which reference a value came from, for the life of the process.

    Components keep values, not where these came from, so a dump has nothing but the value to go by. A value under the
    key that it was loaded under is the loaded one for all purposes: writing the reference changes nothing. A long value
    of a variable is also recognized under any other key, since it may be a secret that a component stores elsewhere;
    a short one, or a default (which the config itself shows), would turn unrelated equal text such as "1" into
    references.
    """

    def __init__(self) -> None:
        self._by_key: dict[tuple[str, str], str] = {}
        self._by_value: dict[str, str] = {}

    def remember(self, key: str, resolved: Resolved, text: str) -> None:
        self._by_key[key, resolved.text] = text
        if resolved.from_environment and len(resolved.text) >= _LONG:
            self._by_value[resolved.text] = text

    def recall(self, key: str, value: str) -> str | None:
        return self._by_key.get((key, value)) or self._by_value.get(value)


_memory = _Memory()
