"""References to environment variables in a document's text: ``${NAME}`` and ``${NAME:-default}``.

``$${`` stands for a literal ``${``. What a reference resolves to is not searched for further ones. What each text was
made from stays with the document, so that a dump writes the reference and never the value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from codeact_team.config.document import Document, Path, Problem, Resolved

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
        if not isinstance(value, str):
            return value
        try:
            resolved = resolve_text(value, environ)
        except UnresolvedError as error:
            problems.append(Problem(path, str(error)))
            return value
        if resolved.written is not None:
            references[path] = resolved
        return resolved.text

    data = resolve(document.data, ())
    return replace(document, data=data, references=references), problems
