"""Finds all mistakes of a document, each with its place.

The text is checked first, every provider against the allow-list: nothing is imported for a document that names anything
else. Then each component is imported, and its config is checked against its schema; unknown keys are refused.
"""

from __future__ import annotations

import copy
import json
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, cast

from autogen_core import ComponentModel
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from codeact_team.config.components import (
    PlacedComponent,
    described_components,
    is_component,
    kinds_at,
    unknown_participants,
)
from codeact_team.config.document import MASK, Document, Problem, at, in_words, last_key, walk
from codeact_team.config.models import abilities, assumed_info, needs_info
from codeact_team.config.schema import described_schema
from codeact_team.config.soundness import faults
from codeact_team.config.yaml12 import Path
from codeact_team.core.autogen_internals import ComponentClass, reads_past_versions
from codeact_team.core.providers import (
    ALLOW_UNSAFE_HINT,
    UNSAFE_TYPES,
    Policy,
    check,
    did_you_mean,
    resolve,
    schema_of,
)
from codeact_team.errors import ConfigError
from codeact_team.text.redaction import is_credential_key

# pydantic's error types that say "another kind of value", by their beginnings
_EXPECTED = {
    "int_": "a whole number",
    "float_": "a number",
    "decimal_": "a number",
    "bool_": "true or false",
    "string_type": "text",
    "string_sub_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "set_type": "a list",
    "iterable_type": "a list",
    "dict_type": "a mapping",
    "mapping_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "typed_dict_type": "a mapping",
    "dataclass_type": "a mapping",
    "none_required": "nothing (null)",
    "callable_type": "a Python function, which a config cannot hold",
    "is_instance_of": "a Python object, which a config cannot hold",
}

_SHOWN_CHARS = 40
_MOST_REPORTED = 100
"""Mistakes in one component that are reported, each with its suggestions; nobody reads more."""


def _problems_of(
    error: ValidationError, model: type[BaseModel], document: Document, path: Path
) -> list[Problem]:
    """The mistakes in the mapping at ``path`` of a document, one problem for each place in it."""
    data = at(document.data, path)
    by_place: dict[Path, list[ErrorDetails]] = {}
    for details in error.errors(include_url=False):
        by_place.setdefault(_place_of(details, data), []).append(details)
    # of a union, the alternative that fits better fails deeper inside; the others only fail at its top
    outer = {place[:length] for place in by_place for length in range(len(place))}
    for place, found in list(by_place.items()):
        if place in outer and all(_expected(details) for details in found):
            del by_place[place]
    problems = [
        _problem(found, model, place, document, (*path, *place))
        for place, found in islice(by_place.items(), _MOST_REPORTED)
    ]
    if (more := len(by_place) - len(problems)) > 0:
        problems.append(Problem(path, f"{more} more problems are in it"))
    return problems


def _place_of(details: ErrorDetails, data: Any) -> Path:
    """Where an error is in the data. Pydantic's own location also names the alternatives of unions."""
    place: list[str | int] = []
    *parents, last = details["loc"] or ("",)
    for step in (*parents, last):
        if isinstance(data, dict) and step in data:
            data = cast(dict[str, Any], data)[cast(str, step)]
        elif isinstance(data, list) and isinstance(step, int) and step < len(cast(list[Any], data)):
            data = cast(list[Any], data)[step]
        else:
            continue
        place.append(step)
    if details["type"] == "missing":
        place.append(last)
    return tuple(place)


def _problem(
    found: list[ErrorDetails], model: type[BaseModel], place: Path, document: Document, path: Path
) -> Problem:
    # of a union, the alternative fits better that takes this kind of value but refuses it for another reason
    first = next((details for details in found if not _expected(details)), found[0])
    shown = _shown(first["input"], document, path)
    expected = list(dict.fromkeys(words for details in found if (words := _expected(details))))
    if _expected(first):
        return Problem(path, f"expected {' or '.join(expected)}, got {shown}")
    match first["type"]:
        case "missing":
            return Problem(path, "is required")
        case "extra_forbidden":
            schema = described_schema(model)
            alternatives = _at(schema, place[:-1], schema.get("$defs", {}))
            known = [key for alternative in alternatives for key in alternative.get("properties", ())]
            near = did_you_mean(str(place[-1]), known) or (f" (known: {', '.join(known)})" if known else "")
            return Problem(path, f"unknown key{near}")
        case "literal_error" | "enum":
            allowed = str(first.get("ctx", {}).get("expected"))
            near = did_you_mean(str(first["input"]), re.findall(r"'([^']*)'", allowed))
            return Problem(path, f"expected {allowed}, got {shown}{near}")
        case kind:
            message = first["msg"].removeprefix("Value error, ").replace("Input should", "has to")
            return Problem(path, message, not_allowed=kind == "not_allowed")


def _expected(details: ErrorDetails) -> str | None:
    if details.get("ctx", {}).get("class_name") == ComponentModel.__name__:
        return "a component (a mapping with the keys 'provider' and 'config')"
    kind = details["type"]
    if kind == "literal_error" and isinstance(details["input"], list | dict):
        return str(details.get("ctx", {}).get("expected"))
    return next((words for prefix, words in _EXPECTED.items() if kind.startswith(prefix)), None)


def _shown(value: Any, document: Document, path: Path) -> str:
    if is_credential_key(last_key(path)) or not isinstance(value, bool | int | float | str):
        return in_words(value)
    if written := document.written(path):
        return written
    return json.dumps(value, ensure_ascii=False) if len(repr(value)) <= _SHOWN_CHARS else in_words(value)


def _at(
    schema: Mapping[str, Any], place: Path, definitions: Mapping[str, Any]
) -> Iterator[Mapping[str, Any]]:
    if (reference := schema.get("$ref")) is not None:
        yield from _at(definitions[str(reference).rpartition("/")[2]], place, definitions)
        return
    for keyword in ("anyOf", "oneOf", "allOf"):
        for alternative in schema.get(keyword, ()):
            yield from _at(alternative, place, definitions)
    if not place:
        yield schema
        return
    step, *rest = place
    inner = schema.get("items") if isinstance(step, int) else schema.get("properties", {}).get(step)
    inner = inner or schema.get("additionalProperties")
    if isinstance(inner, Mapping):
        yield from _at(cast(Mapping[str, Any], inner), tuple(rest), definitions)


logger = logging.getLogger(__name__)


def check_text(document: Document, policy: Policy) -> None:
    """Check a document by its text alone, without any import; unresolved references are reported later.

    Raises:
        NotAllowedError: If something in it is not allowed.
        ConfigError: If anything in it is wrong; all problems are reported together.
    """
    problems = document.all_problems(_text_problems(document, policy))
    if len(problems) > len(document.unresolved):
        raise document.error(problems)


def check_components(document: Document, policy: Policy) -> list[PlacedComponent]:
    """Check the components of a document whose text is checked; return them, outer before inner.

    Raises:
        NotAllowedError: If something in it is not allowed. Nothing outside the allow-list is imported.
        ConfigError: If anything is wrong, unresolved references included; all problems are reported together.
    """
    checking = _Checking(document, policy)
    for path, value in described_components(document.data):
        checking.add(path, value)
    checking.problems += unknown_participants(checking.parts)
    if problems := document.all_problems(checking.problems):
        raise document.error(problems)
    for assumption in checking.assumptions:
        logger.warning("%s", assumption)
    return checking.parts


def _wrapped(data: object) -> str | None:
    """Return advice if a document of AutoGen Studio only contains components; ``None`` otherwise."""
    if not isinstance(data, dict) or "provider" in data:
        return None
    told = cast("dict[str, Any]", data)
    inner: Any = told.get("component")
    if is_component(inner):
        return f"AutoGen Studio has wrapped this component in `component`: use what is in it, {inner['provider']}"
    gallery: Any = told.get("config", told)
    kinds = cast("dict[str, Any]", gallery).get("components") if isinstance(gallery, dict) else None
    if isinstance(kinds, dict):
        named = ", ".join(f"components.{kind}" for kind in islice(cast("dict[str, Any]", kinds), 5))
        return f"a gallery of AutoGen Studio: use one of its components ({named}), each in a file of its own"
    return None


def _text_problems(document: Document, policy: Policy) -> Iterator[Problem]:
    if (instead := _wrapped(document.data)) is not None:
        yield Problem((), instead)
        return
    try:
        ComponentModel.model_validate(document.data, extra="forbid")
    except ValidationError as error:
        yield from _problems_of(error, ComponentModel, document, ())
    for path, value in walk(document.data):
        if (path == () or is_component(value)) and isinstance(provider := value.get("provider"), str):
            try:
                check(provider, policy)
            except ConfigError as error:
                yield Problem.of((*path, "provider"), error)
        match value:
            case {"type": str(kind)} if kind in UNSAFE_TYPES and not policy.allow_unsafe:
                message = f"{kind!r} is refused: {UNSAFE_TYPES[kind]}; {ALLOW_UNSAFE_HINT}"
                yield Problem((*path, "type"), message, not_allowed=True)
            case str() if value == MASK:
                yield Problem(path, "this secret was masked in a dump; write ${NAME}, or leave it out")
            case _:  # pyright: ignore[reportUnknownVariableType]
                pass


@dataclass
class _Checking:
    document: Document
    policy: Policy
    parts: list[PlacedComponent] = field(default_factory=list[PlacedComponent])
    _by_place: dict[Path, ComponentClass] = field(default_factory=dict[Path, ComponentClass])
    problems: list[Problem] = field(default_factory=list[Problem])
    assumptions: dict[str, None] = field(default_factory=dict[str, None])

    def add(self, path: Path, data: dict[str, Any]) -> None:
        try:
            component = resolve(data["provider"], self.policy)
        except ConfigError as error:
            self.problems.append(Problem.of((*path, "provider"), error))
            return
        self._kind(path, component)
        given = data.get("component_type")
        if isinstance(given, str) and given != component.component_type:
            message = f"{component.__name__} is of the type {component.component_type!r}, not {given!r}; this key may be left out"
            self.problems.append(Problem((*path, "component_type"), message))
        config = cast(dict[str, Any], data["config"])
        # where it is no mapping, the schema of the component around it says so
        if type(config) is dict and self._version(path, component, data.get("component_version")):
            config = self._schema((*path, "config"), component, config)
        self.parts.append(PlacedComponent(path, component, config))
        self._by_place[path] = component

    def _kind(self, path: Path, component: ComponentClass) -> None:
        around = (self._by_place.get(path[:length]) for length in range(len(path) - 1, -1, -1))
        kinds = kinds_at(path, next(filter(None, around), None))
        if kinds and not issubclass(component, kinds):
            wanted = " or ".join(kind.__name__ for kind in kinds)
            message = f"expected a component of the kind {wanted}; {component.__name__} is not one"
            self.problems.append(Problem((*path, "provider"), message))

    def _version(self, path: Path, component: ComponentClass, given: object) -> bool:
        """Whether the config is of the version that the schema describes."""
        current = component.component_version
        if not isinstance(given, int) or given == current:
            return True
        if given > current or not reads_past_versions(component):
            message = f"version {given} of {component.__name__} is not the installed one, {current}"
            if given < current:
                message += f": write {current}; most such configs need no other change"
            self.problems.append(Problem((*path, "component_version"), message))
        return False

    def _schema(self, path: Path, component: ComponentClass, config: dict[str, Any]) -> dict[str, Any]:
        schema = schema_of(component)
        try:
            config = _with_nulls(schema, config)
            _validate(schema, config, self.policy)
        except ValidationError as error:
            self.problems += _problems_of(error, schema, self.document, path)
            return config
        except Exception as error:  # of a validator that does not expect this kind of value
            place = (*path, *self._unreadable(schema, config))
            self.problems.append(Problem(place, f"expected another kind of value ({error})"))
            return config
        self.problems += [Problem((*path, *place), message) for place, message in faults(component, config)]
        return self._model_info(path, component, config)

    def _unreadable(self, schema: type[BaseModel], config: Mapping[str, Any]) -> Path:
        """The key whose value a validator fails on."""
        for key in config:
            try:
                _validate(schema, {key: config[key]}, self.policy)
            except ValidationError:
                continue
            except Exception:  # as above
                return (key,)
        return ()

    def _model_info(self, path: Path, component: ComponentClass, config: dict[str, Any]) -> dict[str, Any]:
        if not needs_info(component, config):
            return config
        place = (*path, "model")
        unknown = f"AutoGen does not know the model {config['model']!r}"
        info = assumed_info(component, config)
        if info is None:
            message = f"{unknown}: say what it can do by model_info, or where it is by base_url"
            self.problems.append(Problem(place, message))
            return config
        assumed = f"{unknown}: it is taken for one with {abilities(info)}; model_info says otherwise"
        self.assumptions[self.document.shown(assumed, place)] = None
        return {**config, "model_info": info}


def _validate(schema: type[BaseModel], config: dict[str, Any], context: object = None) -> None:
    # validators may change what they are given
    schema.model_validate(copy.deepcopy(config), extra="forbid", context=context)


def _with_nulls(schema: type[BaseModel], config: dict[str, Any]) -> dict[str, Any]:
    """Set each required key that is missing and may be null to null, as AutoGen's dumps leave these out.

    ``TokenUsageTermination(max_total_token=1000)`` is dumped without its two other limits, and its schema refuses that.
    """
    missing = {place for place, kind in _refused(schema, config) if kind == "missing"}
    if not missing:
        return config
    config = copy.deepcopy(config)
    for *parent, key in missing:
        at(config, tuple(parent))[key] = None
    for *parent, key in missing & {place for place, _ in _refused(schema, config)}:
        del at(config, tuple(parent))[key]
    return config


def _refused(schema: type[BaseModel], config: dict[str, Any]) -> list[tuple[Path, str]]:
    try:
        _validate(schema, config)
    except ValidationError as error:
        return [(_place_of(details, config), details["type"]) for details in error.errors(include_url=False)]
    return []
