"""Check a value that may be anything, such as the arguments of a call, against a schema."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

import jsonschema_rs
from pydantic import JsonValue

from codeact_team.tools.error_texts import clean
from codeact_team.tools.schema_cost import Expansion
from codeact_team.tools.schema_documents import Schema, inside
from codeact_team.visibility import cut

MAX_DEPTH = 64
"""How deeply arguments may be nested."""

MAX_WORK = 20_000_000
"""How many checks of single values the arguments of one call may need; so many take about a second."""

_MAX_BACKTRACKING = 100_000
_MAX_TOLD_WORK = 100_000
"""Up to how many checks it is told what does not fit, which takes much longer than to know that it does not: about a
second where nothing fits."""
_MAX_PROBLEMS = 3
_MAX_PROBLEM = 600
_MAX_VALUE = 60
_MAX_PATH = 8
_MASK = "it"


class ValueChecker:
    """Checks values against a schema, in little time, and looks nothing up elsewhere.

    A ``ValueError`` says that the schema is broken, or refers to what it does not contain.

    Args:
        schema: A JSON Schema.
        name: What a value is called in errors, such as ``answer``.
        schema_name: What the schema is called there.
    """

    def __init__(self, schema: Schema, *, name: str, schema_name: str) -> None:
        self._name, self._schema_name = name, schema_name
        self._is, self._holds, self._does = (
            ("are", "hold", "do") if name.endswith("s") else ("is", "holds", "does")
        )
        if _measure(schema, 10 * MAX_DEPTH) is None:
            raise ValueError("it is nested too deeply")
        self._expansion = Expansion(schema)
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

    def check_value(self, value: JsonValue) -> None:
        """Check a value; a ``ValueError`` says what is wrong and where."""
        size = _measure(value, MAX_DEPTH)
        if size is None:
            raise ValueError(
                f"the {self._name} {self._is} nested too deeply; {MAX_DEPTH} levels are possible"
            )
        if size.values * self._expansion.checks > MAX_WORK:
            raise ValueError(
                f"the {self._name} {self._holds} {size.values:,} values, too many to be checked against "
                f"{self._schema_name}"
            )
        try:
            if self._validator.is_valid(value):
                return
        except (ValueError, jsonschema_rs.ValidationError) as error:
            # such as half a character
            raise ValueError(
                f"the {self._name} cannot be checked: {clean(str(error), _MAX_PROBLEM)}"
            ) from None
        # what says why, unlike what says whether, remembers nothing in a recursion
        levels = size.depth if self._expansion.is_recursive else 1
        if size.values * self._expansion.checks**levels > _MAX_TOLD_WORK:
            raise ValueError(f"the {self._name} {self._does} not fit {self._schema_name}")
        errors = islice(self._validator.iter_errors(value), _MAX_PROBLEMS)
        raise ValueError(
            "; ".join(f"{_where(error.instance_path, self._name)}: {_say(error)}" for error in errors)
        )


class ArgumentChecker(ValueChecker):
    """Checks the arguments of the calls of a tool against its schema, that of an object."""

    def __init__(self, schema: Schema) -> None:
        super().__init__(schema, name="arguments", schema_name="the tool's schema")

    def check(self, arguments: Mapping[str, JsonValue]) -> None:
        """Check the arguments of a call; a ``ValueError`` says what is wrong and where."""
        self.check_value(dict(arguments))


class _Size(NamedTuple):
    depth: int
    values: int


def _measure(value: JsonValue | Schema, most: int) -> _Size | None:
    """Measure a value; return ``None`` if it is nested more than ``most`` levels deep."""
    level: list[Any] = [value]
    values = 0
    for depth in range(1, most + 2):
        values += len(level)
        level = [inner for item in level for inner in inside(item)]
        if not level:
            return _Size(depth, values)
    return None


def _where(path: Iterable[Any], root: str) -> str:
    steps = list(path)
    text = "".join(f"[{cut(repr(step), _MAX_VALUE)}]" for step in steps[:_MAX_PATH])
    return f"{root}{text}" + ("..." if len(steps) > _MAX_PATH else "")


def _say(error: Any) -> str:
    said = clean(" or ".join(dict.fromkeys(_reasons(error))), _MAX_PROBLEM)
    return f"{said} ({_MASK} is {_short(error.instance)})"


def _reasons(error: Any) -> Iterator[str]:
    """Say why a value does not fit. Where it fits none of several schemas, say why for each."""
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
