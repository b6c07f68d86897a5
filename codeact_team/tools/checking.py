"""Checking the arguments of a call, which may be anything, against a schema, which may be nearly anything."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from itertools import islice
from typing import Any, cast

from jsonschema import FormatChecker, validators
from jsonschema.exceptions import SchemaError, ValidationError
from pydantic import JsonValue
from referencing import Registry
from referencing.exceptions import Unresolvable

from codeact_team.tools.loosening import loosen
from codeact_team.tools.schemas import Schema, inside
from codeact_team.tools.taming import tamed
from codeact_team.tools.text import clean, cut

MAX_DEPTH = 64
"""How deeply arguments may be nested."""
MAX_SECONDS = 2.0
"""How much of a processor's time the check of one call may take; a megabyte of small rows takes one second."""

_MAX_PROBLEMS = 3
_MAX_PROBLEM = 600
_MAX_VALUE = 60
_MAX_ALTERNATIVES = 4
_MAX_PATH = 8
_STEPS_BETWEEN_LOOKS = 64
_ITEMS_A_STEP = 4
_ANNOTATIONS = frozenset({"deprecated", "readOnly", "writeOnly"})

# Neither jsonschema's keywords nor its validators are typed.
Keyword = Callable[[Any, Any, Any, Any], Iterable[ValidationError] | None]

_budget: ContextVar[_Budget] = ContextVar("codeact_team_schema_budget")


class _TooMuch(Exception):
    """The check takes too long."""


class _Budget:
    """The time of one check."""

    def __init__(self) -> None:
        # not by the clock: other threads may be busy
        self._end = time.thread_time() + MAX_SECONDS
        self._steps = 0

    def spend(self, steps: int) -> None:
        """Take so many steps.

        Raises:
            _TooMuch: If there was no time for them.
        """
        self._steps += steps
        if self._steps >= _STEPS_BETWEEN_LOOKS:
            self._steps = 0
            if time.thread_time() > self._end:
                raise _TooMuch


class ArgumentChecker:
    """Checks arguments against one schema.

    Args:
        schema: Of an object.

    Raises:
        ValueError: If the schema is broken, or refers to what it does not contain.
    """

    def __init__(self, schema: Schema) -> None:
        checker: Any = _CHECKERS.get(validators.validator_for(schema, default=_DEFAULT), _CHECKERS[_DEFAULT])
        try:
            # no formats: whether a pattern compiles is of no interest
            checker.check_schema(schema, format_checker=FormatChecker(formats=()))
            self._validator = checker(loosen(schema), registry=_NOTHING_ELSE)
            _check_references(self._validator, self._validator.schema)
        except SchemaError as error:
            raise ValueError(f"{_where(error, 'schema')}: {_brief(error)}") from None
        except RecursionError:
            raise ValueError("it is nested too deeply") from None

    def check(self, arguments: Mapping[str, JsonValue]) -> None:
        """Check the arguments of a call.

        The time it takes is bounded, see :data:`MAX_SECONDS`; where a call is large, do it in a thread.

        Raises:
            ValueError: If they do not fit, with what is wrong and where.
        """
        if (problem := self._problem(arguments)) is not None:
            raise ValueError(problem)

    def _problem(self, arguments: Mapping[str, JsonValue]) -> str | None:
        token = _budget.set(_Budget())
        try:
            tame = tamed(dict(arguments), MAX_DEPTH)
            found: list[Any] = list(islice(self._validator.iter_errors(tame), _MAX_PROBLEMS))
        except _TooMuch:
            return "there is too much in the arguments to check; pass less in one call"
        except RecursionError:
            return f"the arguments are nested too deeply; {MAX_DEPTH} levels are possible"
        except Exception:  # whatever jsonschema stumbles over where a reference leads to what is no schema
            return "the tool's own schema is broken, so nothing fits it"
        finally:
            _budget.reset(token)
        return "; ".join(f"{_where(error)}: {_brief(error)}" for error in found) or None


def _check_references(validator: Any, value: JsonValue) -> None:
    """Look up all references.

    Raises:
        ValueError: If one leads nowhere, or elsewhere.
    """
    if isinstance(value, dict):
        for keyword in ("$ref", "$dynamicRef"):
            reference = value.get(keyword)
            if isinstance(reference, str) and not _leads_somewhere(validator, reference):
                raise ValueError(
                    f"it refers to {cut(repr(reference), _MAX_VALUE)}, which it does not contain"
                )
        value = {keyword: part for keyword, part in value.items() if keyword not in ("const", "enum")}
    for item in inside(value):
        _check_references(validator, item)


def _leads_somewhere(validator: Any, reference: str) -> bool:
    if not reference.startswith("#"):
        return False
    try:
        # jsonschema has no public way to look up without a value
        found = validator._resolver.lookup(reference).contents
    except Unresolvable:
        return False
    return isinstance(found, bool | dict)


def _where(error: Any, root: str = "arguments") -> str:
    path = list(error.absolute_path)
    text = "".join(f"[{cut(repr(key), _MAX_VALUE)}]" for key in path[:_MAX_PATH])
    return f"{root}{text}" + ("..." if len(path) > _MAX_PATH else "")


def _brief(error: Any) -> str:
    """What jsonschema says, without the whole of a value in it."""
    if alternatives := list(islice(error.context or (), _MAX_ALTERNATIVES)):
        said = dict.fromkeys(_brief(alternative) for alternative in alternatives)
        return clean(" or ".join(said), _MAX_PROBLEM)
    value = repr(error.instance)
    message = str(error.message)
    if message.startswith(value):
        message = cut(value, _MAX_VALUE) + message[len(value) :]
    return clean(message, _MAX_PROBLEM)


def _timed(keyword: Keyword) -> Keyword:
    def check(validator: Any, value: Any, instance: Any, schema: Any) -> Iterable[ValidationError] | None:
        # a container may be looked at item by item
        size = len(cast("list[Any]", instance)) if isinstance(instance, list | dict) else 0
        _budget.get().spend(1 + size // _ITEMS_A_STEP)
        return keyword(validator, value, instance, schema)

    return check


def _unique_items(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    # jsonschema compares each with each where they cannot be sorted
    if wanted and isinstance(instance, list):
        items = cast("list[JsonValue]", instance)
        if len({_canonical(item) for item in items}) < len(items):
            yield ValidationError("has items that are the same")


def _canonical(value: JsonValue) -> str:
    return json.dumps(_with_equal_numbers(value), sort_keys=True)


def _with_equal_numbers(value: JsonValue) -> JsonValue:
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, dict):
        return {key: _with_equal_numbers(item) for key, item in value.items()}
    return [_with_equal_numbers(item) for item in value] if isinstance(value, list) else value


def _multiple_of(original: Keyword) -> Keyword:
    def check(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        try:
            yield from original(validator, value, instance, schema) or ()
        except (ArithmeticError, ValueError):
            yield ValidationError(f"{instance!r} is not a multiple of {value!r}")

    return check


def _items(original: Keyword) -> Keyword:
    """Many values of a plain type, checked ten times as fast."""

    def check(validator: Any, value: Any, instance: Any, schema: Any) -> Iterable[ValidationError] | None:
        kind = _plain_type(value)
        if kind is not None and isinstance(instance, list) and "prefixItems" not in schema:
            if all(validator.is_type(item, kind) for item in cast("list[Any]", instance)):
                return None
        return original(validator, value, instance, schema)

    return check


def _plain_type(schema: Any) -> str | None:
    """The type of values of which nothing else is said."""
    if not isinstance(schema, dict) or {"type"} != schema.keys() - _ANNOTATIONS:
        return None
    kind: object = cast("dict[str, Any]", schema)["type"]
    return kind if isinstance(kind, str) else None


def _nothing(validator: Any, value: Any, instance: Any, schema: Any) -> None:
    """In place of a keyword that is not checked."""


def _bounded(standard: Any) -> Any:
    """A validator that takes bounded time and looks nothing up elsewhere."""
    keywords = dict(standard.VALIDATORS)
    keywords["items"] = _items(keywords["items"])
    keywords["multipleOf"] = _multiple_of(keywords["multipleOf"])
    keywords["uniqueItems"] = _unique_items
    # a looser schema has none of them, unless in a part that only a reference leads to
    skipped = ("format", "pattern", "patternProperties", "unevaluatedItems", "unevaluatedProperties")
    keywords |= dict.fromkeys(skipped, _nothing)
    timed = {name: _timed(keyword) for name, keyword in keywords.items()}
    return cast("Any", validators).extend(standard, timed)


_NOTHING_ELSE: Any = Registry[Any]()
_DEFAULT: Any = validators.Draft202012Validator
_CHECKERS: dict[Any, Any] = {
    standard: _bounded(standard)
    for standard in (
        validators.Draft4Validator,
        validators.Draft6Validator,
        validators.Draft7Validator,
        validators.Draft201909Validator,
        validators.Draft202012Validator,
    )
}
