"""Checking the arguments of a call, which may be anything, against the schema of the tool."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import jsonschema_rs
from pydantic import JsonValue

from codeact_team.tools.schemas import Schema, inside
from codeact_team.tools.text import clean
from codeact_team.visibility import cut

MAX_DEPTH = 64
"""How deeply arguments may be nested."""

_MAX_BACKTRACKING = 100_000
_TOLD_DEPTH = 6
"""Up to which depth it is told what does not fit: to say why no alternative does takes time that doubles with each level,
and the interpreter has told an honest caller before."""
_MAX_PROBLEMS = 3
_MAX_PROBLEM = 600
_MAX_VALUE = 60
_MAX_PATH = 8
_MASK = "it"


class ArgumentChecker:
    """Checks arguments against one schema; in little time, whatever they are, and without looking anything up elsewhere.

    Args:
        schema: Of an object.

    Raises:
        ValueError: If the schema is broken, or refers to what it does not contain.
    """

    def __init__(self, schema: Schema) -> None:
        if not _is_within(schema, 10 * MAX_DEPTH):
            raise ValueError("it is nested too deeply")
        try:
            self._validator = jsonschema_rs.validator_for(
                dict(schema),
                offline=True,
                validate_formats=False,
                pattern_options=jsonschema_rs.FancyRegexOptions(backtrack_limit=_MAX_BACKTRACKING),
                mask=_MASK,
            )
        except jsonschema_rs.ValidationError as error:
            raise ValueError(f"{_where(error.instance_path, 'schema')}: {_say(error)}") from None
        except jsonschema_rs.ReferencingError as error:
            raise ValueError(clean(str(error), _MAX_PROBLEM)) from None

    def check(self, arguments: Mapping[str, JsonValue]) -> None:
        """Check the arguments of a call.

        Raises:
            ValueError: If they do not fit, with what is wrong and where.
        """
        if not _is_within(arguments, MAX_DEPTH):
            raise ValueError(f"the arguments are nested too deeply; {MAX_DEPTH} levels are possible")
        given = dict(arguments)
        try:
            if self._validator.is_valid(given):
                return
        except (ValueError, jsonschema_rs.ValidationError) as error:
            # such as half a character
            raise ValueError(f"the arguments cannot be checked: {clean(str(error), _MAX_PROBLEM)}") from None
        if not _is_within(arguments, _TOLD_DEPTH):
            raise ValueError("the arguments do not fit the tool's schema")
        errors = islice(self._validator.iter_errors(given), _MAX_PROBLEMS)
        raise ValueError("; ".join(f"{_where(error.instance_path)}: {_say(error)}" for error in errors))


def _is_within(value: JsonValue | Schema, depth: int) -> bool:
    """Whether a value is nested at most so deeply."""
    level: list[Any] = [value]
    for _ in range(depth + 1):
        level = [inner for item in level for inner in inside(item)]
        if not level:
            return True
    return False


def _where(path: Iterable[Any], root: str = "arguments") -> str:
    steps = list(path)
    text = "".join(f"[{cut(repr(step), _MAX_VALUE)}]" for step in steps[:_MAX_PATH])
    return f"{root}{text}" + ("..." if len(steps) > _MAX_PATH else "")


def _say(error: Any) -> str:
    said = clean(" or ".join(dict.fromkeys(_reasons(error))), _MAX_PROBLEM)
    return f"{said} ({_MASK} is {_short(error.instance)})"


def _reasons(error: Any) -> Iterator[str]:
    """Why a value does not fit; where it fits none of several schemas, why not."""
    alternatives: Any = getattr(error.kind, "context", None) or ()
    for errors in alternatives:
        for alternative in errors:
            yield from _reasons(alternative)
    if not alternatives:
        yield str(error.message)


def _short(value: JsonValue) -> str:
    if isinstance(value, str):
        return cut(json.dumps(value[:_MAX_VALUE], ensure_ascii=False), _MAX_VALUE)
    if isinstance(value, list | dict):
        return f"a {'list' if isinstance(value, list) else 'mapping'} of {len(value)}"
    return cut(repr(value), _MAX_VALUE)
