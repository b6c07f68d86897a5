"""References to environment variables in a document's text: ``${NAME}`` and ``${NAME:-default}``.

``$${`` stands for a literal ``${``. What a reference resolves to is not searched for further ones, nor is data that is put
into a text. What each text was made from stays with the document, so that a dump writes the reference and never the value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from codeact_team.config.document import Document, Path, Problem, Resolved, TextWithData, escape

_REFERENCE = re.compile(
    r"(?P<escape>\$\$\{)|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}|(?P<malformed>\$\{[^}\n]{0,40}\}?)"
)


class UnresolvedError(Exception):
    """A reference that cannot be resolved; its text says which, and what to do."""


def resolve_text(written: str, environ: Mapping[str, str]) -> Resolved:
    """Resolve the references in a text.

    Raises:
        UnresolvedError: If a variable without a default is not set, or a reference is malformed.
    """
    values: dict[str, str] = {}
    referred = False

    def value_of(match: re.Match[str]) -> str:
        nonlocal referred
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
            values[match["name"]] = value
            return value
        if match["default"] is None:
            raise UnresolvedError(
                f"the environment variable {match['name']} is not set; set it, "
                f"or give a default: ${{{match['name']}:-default}}"
            )
        return match["default"]

    return Resolved(_REFERENCE.sub(value_of, written), written if referred else None, values)


def _resolve_with_data(text: TextWithData, environ: Mapping[str, str]) -> Resolved:
    """Resolve the references in what a person wrote of a text, and then put in the data, where nothing is resolved."""
    parts = [
        Resolved(part, None, {}) if number % 2 else resolve_text(part, environ)
        for number, part in enumerate(text.parts)
    ]
    whole = "".join(part.text for part in parts)
    if all(part.written is None for part in parts):
        return Resolved(whole, None, {})
    written = "".join(part.written or escape(part.text) for part in parts)
    # a config is kept as it is written, and has to say the same when it is read again
    if not _stands_for(written, whole, environ):
        raise UnresolvedError("a field that says $ cannot stand beside a reference to the environment")
    values = {name: value for part in parts for name, value in part.values.items()}
    return Resolved(whole, written, values)


def _stands_for(written: str, text: str, environ: Mapping[str, str]) -> bool:
    try:
        return resolve_text(written, environ).text == text
    except UnresolvedError:
        return False


def resolve_references(document: Document, environ: Mapping[str, str]) -> tuple[Document, list[Problem]]:
    """The document with the references in all its text resolved, and what could not be."""
    references: dict[Path, Resolved] = {}
    problems: list[Problem] = []

    def resolve(value: Any, path: Path) -> Any:
        if isinstance(value, dict):
            mapping = cast(dict[str, Any], value)
            return {key: resolve(item, (*path, key)) for key, item in mapping.items()}
        if isinstance(value, list):
            return [resolve(item, (*path, index)) for index, item in enumerate(cast(list[Any], value))]
        try:
            if isinstance(value, TextWithData):
                resolved = _resolve_with_data(value, environ)
            elif isinstance(value, str):
                resolved = resolve_text(value, environ)
            else:
                return value
        except UnresolvedError as error:
            problems.append(Problem(path, str(error)))
            return value if isinstance(value, str) else "".join(value.parts)
        if resolved.written is not None:
            references[path] = resolved
        return resolved.text

    data = resolve(document.data, ())
    return replace(document, data=data, references=references), problems
