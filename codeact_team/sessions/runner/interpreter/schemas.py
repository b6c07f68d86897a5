"""A check of plain JSON values against a JSON schema, by the keywords that say what a value looks like."""

from __future__ import annotations

from codeact_team.sessions.runner.interpreter.frames import interruptible_module, library_first
from codeact_team.sessions.runner.interpreter.problems import Problem, nearest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

interruptible_module(__name__)

_type_of: Any = type

_MAX_STEPS = 1_000_000
_MAX_REFERENCES = 32
"""How many references may lead from one to the next."""
_MAX_CHOICES = 20
_MAX_SHOWN = 80

_TYPES: dict[object, tuple[str, tuple[object, ...]]] = {
    "string": ("str", (str,)),
    "integer": ("int", (int,)),
    "number": ("float", (int, float)),
    "boolean": ("bool", (bool,)),
    "array": ("list", (list,)),
    "object": ("dict", (dict,)),
    "null": ("None", (type(None),)),
}
"""What Python calls a type of JSON, and the types of its plain values."""
_SIZES = (
    (str, "minLength", "maxLength", "characters"),
    (list, "minItems", "maxItems", "items"),
    (dict, "minProperties", "maxProperties", "keys"),
)
_LIMITS: tuple[tuple[str, str, Callable[[Any, Any], bool]], ...] = (
    ("minimum", "at least", lambda value, limit: value >= limit),
    ("maximum", "at most", lambda value, limit: value <= limit),
    ("exclusiveMinimum", "more than", lambda value, limit: value > limit),
    ("exclusiveMaximum", "less than", lambda value, limit: value < limit),
)


def check(value: Any, schema: Any) -> None:
    """See whether a value is as the schema has it. What this cannot decide it lets pass: the host looks again.

    Args:
        value: Made of plain JSON values.
        schema: Any JSON schema.

    Raises:
        Problem: If it is not.
    """
    try:
        _Check(schema).check(value, schema)
    except _Undecided:
        pass


class _Undecided(Exception):
    """It would take too long."""


class _Check:
    """Checks values against a schema, or a part of it.

    Args:
        root: The whole schema, which references refer to.
    """

    def __init__(self, root: Any) -> None:
        self._root = root
        self._steps = 0

    def check(self, value: Any, schema: Any, references: int = 0) -> None:
        if _type_of(schema) is not dict:
            if schema is False:
                raise Problem(ValueError, "is not allowed")
            return
        self._steps += 1
        if self._steps > _MAX_STEPS or references > _MAX_REFERENCES:
            raise _Undecided
        if "$ref" in schema:
            self.check(value, self._referred(schema["$ref"]), references + 1)
        _check_type(value, schema)
        _check_choices(value, schema)
        kind = _type_of(value)
        if kind is dict:
            self._check_object(value, schema)
        elif kind is list:
            self._check_list(value, schema)
        elif kind is int or kind is float:
            _check_limits(value, schema)
        _check_size(value, schema)
        self._check_combinations(value, schema, references)

    def _check_object(self, value: dict[str, Any], schema: dict[str, Any]) -> None:
        properties: Any = schema.get("properties", {})
        for key in schema.get("required", ()):
            if key not in value:
                raise Problem(ValueError, f"must have the key {key!r}")
        # a pattern decides on what else is allowed, and is the host's to read
        others: Any = True if "patternProperties" in schema else schema.get("additionalProperties", True)
        for key, item in value.items():
            if key not in properties and others is False:
                meant = nearest(key, properties)
                raise Problem(
                    ValueError,
                    f"must not have the key {key!r}" + (f"; did you mean {meant!r}?" if meant else ""),
                )
            self._check_part(key, item, properties.get(key, others))

    def _check_list(self, value: list[Any], schema: dict[str, Any]) -> None:
        others: Any = schema.get("items", True)
        first: Any = schema.get("prefixItems", ())
        if _type_of(others) is list:
            # as drafts before 2020 have it
            first, others = others, schema.get("additionalItems", True)
        for index, item in enumerate(value):
            self._check_part(index, item, first[index] if index < len(first) else others)

    def _check_part(self, part: str | int, value: Any, schema: Any) -> None:
        if schema is not True:
            try:
                self.check(value, schema)
            except Problem as problem:
                raise problem.within(part) from None

    def _check_combinations(self, value: Any, schema: dict[str, Any], references: int) -> None:
        for part in schema.get("allOf", ()):
            self.check(value, part, references)
        # more than one of several may fit here where a keyword that this does not know tells them apart
        for keyword in ("anyOf", "oneOf"):
            parts = schema.get(keyword)
            if parts:
                problems = list(self._problems(value, parts, references))
                if len(problems) == len(parts):
                    raise self._summary(value, parts, problems)

    def _problems(self, value: Any, schemas: Iterable[Any], references: int) -> Iterable[Problem]:
        for schema in schemas:
            try:
                self.check(value, schema, references)
            except Problem as problem:
                yield problem

    def _summary(self, value: Any, schemas: Iterable[Any], problems: list[Problem]) -> Problem:
        deepest = max(problems, key=lambda problem: len(problem.path))
        fitting = [problem for problem in problems if problem.kind is not TypeError]
        if deepest.path or len(problems) == 1:
            # it fits that form at least on the outside
            return deepest
        if len(fitting) == 1:
            return fitting[0]
        kind = TypeError if all(problem.kind is TypeError for problem in problems) else ValueError
        forms = dict.fromkeys(self._expected(schema) for schema in schemas)
        return Problem(kind, f"must be {' or '.join(forms)}, not {_shown(value, kind)}")

    def _expected(self, schema: Any, references: int = 0) -> str:
        if _type_of(schema) is not dict or references > _MAX_REFERENCES:
            return "something else"
        if "$ref" in schema:
            return self._expected(self._referred(schema["$ref"]), references + 1)
        if "const" in schema:
            return repr(schema["const"])
        if "enum" in schema:
            return _choices(schema["enum"])
        if "type" in schema:
            return _types(schema["type"])
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                return " or ".join(self._expected(part, references + 1) for part in schema[keyword])
        return "something else"

    def _referred(self, reference: str) -> Any:
        if not reference.startswith("#"):
            return True
        if "%" in reference:
            with library_first():
                from urllib.parse import unquote
            reference = unquote(reference)
        found = self._root
        for step in reference.split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            try:
                found = found[int(step)] if _type_of(found) is list else found[step]
            except (LookupError, ValueError, TypeError):
                return True
        return found


def _check_type(value: Any, schema: dict[str, Any]) -> None:
    types: Any = schema.get("type")
    if types is None:
        return
    for name in [types] if _type_of(types) is str else types:
        if name not in _TYPES or _type_of(value) in _TYPES[name][1]:
            return
        if name == "integer" and _type_of(value) is float and value.is_integer():
            return
    raise Problem(TypeError, f"must be {_types(types)}, not {_shown(value, TypeError)}")


def _check_choices(value: Any, schema: dict[str, Any]) -> None:
    if "const" in schema and not _same(value, schema["const"]):
        raise Problem(ValueError, f"must be {schema['const']!r}, not {_shown(value, ValueError)}")
    if "enum" in schema and not any(_same(value, choice) for choice in schema["enum"]):
        raise Problem(ValueError, f"must be {_choices(schema['enum'])}, not {_shown(value, ValueError)}")


def _check_limits(value: float, schema: dict[str, Any]) -> None:
    for keyword, words, holds in _LIMITS:
        limit: Any = schema.get(keyword)
        # drafts before 6 have a bool here
        if _type_of(limit) in (int, float) and not holds(value, limit):
            raise Problem(ValueError, f"must be {words} {limit}, not {_shown(value, ValueError)}")


def _check_size(value: Any, schema: dict[str, Any]) -> None:
    for kind, least, most, unit in _SIZES:
        if _type_of(value) is kind:
            size = len(value)
            if size < schema.get(least, 0):
                raise Problem(ValueError, f"must have at least {schema[least]} {unit}, and has {size}")
            if most in schema and size > schema[most]:
                raise Problem(ValueError, f"must have at most {schema[most]} {unit}, and has {size}")


def _same(one: Any, other: Any) -> bool:
    """Whether two plain values are the same to JSON: a bool is no number, and an integer may be a float."""
    if _type_of(one) is bool or _type_of(other) is bool:
        return one is other
    if _type_of(one) is list and _type_of(other) is list:
        return len(one) == len(other) and all(map(_same, one, other))
    if _type_of(one) is dict and _type_of(other) is dict:
        return one.keys() == other.keys() and all(_same(item, other[key]) for key, item in one.items())
    return bool(one == other)


def _types(types: Any) -> str:
    names = [types] if _type_of(types) is str else types
    return " or ".join(_TYPES[name][0] if name in _TYPES else str(name) for name in names)


def _choices(choices: list[Any]) -> str:
    shown = [f"{choice!r:.{_MAX_SHOWN}}" for choice in choices[:_MAX_CHOICES]]
    if len(choices) > _MAX_CHOICES:
        shown.append("…")
    return shown[0] if len(shown) == 1 else f"one of {', '.join(shown)}"


def _shown(value: Any, kind: type[Exception]) -> str:
    if value is None:
        return "None"
    return type(value).__name__ if kind is TypeError else f"{value!r:.{_MAX_SHOWN}}"
