"""Values from elsewhere: the environment, the command line, the fields of a task.

References: ``${NAME}`` and ``${NAME:-default}`` stand for variables of the environment, and ``$${`` for a literal ``${``. A
value is not searched for further references, nor is data that is put into a text. The document keeps what each text was
written as, so that a dump writes the reference and never the value.

Overrides: ``config.participants.executor.config.max_retries_on_error=3`` changes one value. A step of the path is a key, an
index of a list, or the name of a component in a list (its ``config.name``). The value is YAML: a scalar, or a list or mapping
in flow style; an empty one is null. The schema checks it later. :class:`ForEvery` changes one setting in every component of a
kind.

Fields: ``{field}`` in an override stands for data of a task of a batch. Data is put in after the YAML was parsed and the
references were resolved, and is read as neither. So a field can only set its value.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from autogen_core.code_executor import CodeExecutor
from autogen_core.models import ChatCompletionClient
from pydantic import JsonValue

from codeact_team.config import yaml12
from codeact_team.config.components import PlacedComponent, described_components
from codeact_team.config.document import (
    Document,
    Resolved,
    TextWithData,
    at,
    dotted,
    escape,
    in_words,
    is_in,
    last_key,
    mapped,
    moved,
    require_size,
    walk,
)
from codeact_team.config.models import change_client, field_of_client, objection_of_client
from codeact_team.config.yaml12 import Path
from codeact_team.core.providers import Policy, did_you_mean, resolve, schema_of
from codeact_team.errors import ConfigError

_REFERENCE = re.compile(
    r"(?P<escape>\$\$\{)|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}|(?P<malformed>\$\{[^}\n]{0,40}\}?)"
)


class UnresolvedError(Exception):
    """A reference cannot be resolved; the message names it, and says what to do."""


def resolve_text(written: str, environ: Mapping[str, str]) -> Resolved:
    """Resolve the references in a text; an :class:`UnresolvedError` if one cannot be, or is malformed."""
    values: dict[str, str] = {}
    referred = False

    def value_of(match: re.Match[str]) -> str:
        nonlocal referred
        if match["escape"]:
            return "${"
        if match["malformed"]:
            raise UnresolvedError(
                f"{match[0]!r} is not a reference: write ${{NAME}} or ${{NAME:-default}}, and $${{ for a literal ${{"
            )
        referred = True
        value = environ.get(match["name"])
        if match["default"] is None:
            try:
                value = environ[match["name"]]
            except KeyError:
                raise UnresolvedError(
                    f"the environment variable {match['name']} is not set; set it, "
                    f"or give a default: ${{{match['name']}:-default}}"
                ) from None
        elif not value:
            # as in a shell, a default also stands in for an empty value
            return match["default"]
        assert value is not None
        values[match["name"]] = value
        return value

    return Resolved(_REFERENCE.sub(value_of, written), written if referred else None, values)


_UNSET = re.compile(r"the environment variable (\w+) is not set; ")


def unset_variables(error: ConfigError) -> list[str]:
    """The environment variables that a config lacks, if it is wrong in nothing else; else none."""
    found = [_UNSET.match(problem.message) for problem in error.problems]
    return [match[1] for match in found if match] if all(found) else []


def _resolve_with_data(text: TextWithData, environ: Mapping[str, str]) -> Resolved:
    """Resolve the references in the parts that a person wrote, and put in the data as it is."""
    parts = [
        Resolved(part, None, {}) if number % 2 else resolve_text(part, environ)
        for number, part in enumerate(text.parts)
    ]
    whole = "".join(part.text for part in parts)
    if all(part.written is None for part in parts):
        return Resolved(whole, None, {})
    written = "".join(part.written or escape(part.text) for part in parts)
    # the config is kept as it is written, and has to mean the same when it is read again
    try:
        is_same = resolve_text(written, environ).text == whole
    except UnresolvedError:
        is_same = False
    if not is_same:
        raise UnresolvedError("a field that says $ cannot stand beside a reference to the environment")
    values = {name: value for part in parts for name, value in part.values.items()}
    return Resolved(whole, written, values)


_OPTIONS = {
    "model": "; or name the model by --model NAME",
    "base_url": "; or name the server by --base-url URL",
}


def resolve_references(document: Document, environ: Mapping[str, str]) -> Document:
    """The document with the references in all its text resolved, or noted as unresolved."""
    references: dict[Path, Resolved] = {}
    unresolved: dict[Path, str] = {}

    def resolved(path: Path, value: Any) -> Any:
        if not isinstance(value, str | TextWithData):
            return value
        try:
            text = (
                resolve_text(value, environ) if isinstance(value, str) else _resolve_with_data(value, environ)
            )
        except UnresolvedError as error:
            option = _OPTIONS.get(last_key(path), "")
            unresolved[path] = f"{error}{option}"
            return value if isinstance(value, str) else "".join(value.parts)
        if text.written is not None:
            references[path] = text
        return text.text

    data = mapped(document.data, resolved)
    return replace(document, data=data, references=references, unresolved=unresolved)


# but not ${NAME}, which is a reference
_FIELD = re.compile(r"(?<!\$)\{([A-Za-z_][A-Za-z0-9_-]*)\}")
_FLOW = ("[", "{", '"', "'")
_PRIVATE_USE = range(0xE000, 0xF900)


def field_names(override: str) -> frozenset[str]:
    """The names of the fields in an override ``path=value``."""
    return frozenset(_FIELD.findall(override.partition("=")[2]))


def _parse_with_fields(value: str, fields: Mapping[str, JsonValue]) -> Any:
    """Parse the value of an override as plain data, with :class:`TextWithData` for text from a field.

    A text that is nothing but one field becomes the data, be it text, a number or a list. Within longer text, data becomes
    text. A value is YAML if it begins with a bracket or a quote, and text if not.

    Raises:
        YamlError: If it cannot be parsed.
        ConfigError: If a field stands for a key, or its data is nested too deep.
    """
    # YAML would read {field} as a mapping, so the name is put between two characters that are nowhere else in the value
    mark = next(char for char in map(chr, _PRIVATE_USE) if char not in value)
    marked = _FIELD.sub(lambda found: f"{mark}{found[1]}{mark}", value.strip())
    parsed = yaml12.parse_value(marked) if marked.startswith(_FLOW) else marked
    if any(mark in str(key) for path, _ in walk(parsed) for key in path[-1:]):
        raise ConfigError("a field cannot stand for a key")
    return mapped(parsed, lambda _, each: _filled(each, mark, fields))


def _filled(value: Any, mark: str, fields: Mapping[str, JsonValue]) -> Any:
    if not isinstance(value, str) or mark not in value:
        return value
    # alternately the text between fields, and the name of a field
    parts = value.split(mark)
    if len(parts) == 3 and parts[0] == parts[2] == "":
        return _data(fields[parts[1]], parts[1])
    for number in range(1, len(parts), 2):
        data = fields[parts[number]]
        parts[number] = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    return TextWithData(parts)


def _data(value: JsonValue, name: str, depth: int = 0) -> Any:
    if depth > yaml12.MAX_DEPTH:
        raise ConfigError(f"the field {name!r} is nested more than {yaml12.MAX_DEPTH} deep")
    match value:
        case str():
            return TextWithData(["", value, ""])
        case dict():
            return {key: _data(item, name, depth + 1) for key, item in value.items()}
        case list():
            return [_data(item, name, depth + 1) for item in value]
        case _:
            return value


def apply_overrides(
    document: Document, overrides: Sequence[str], fields: Mapping[str, JsonValue] | None = None
) -> Document:
    """The document with each of ``overrides``, ``path=value``, applied in turn; ``None`` if ``{field}`` is plain text.

    Raises:
        ConfigError: If one is malformed, or sets something that has no place in the document.
    """
    if not overrides:
        return document
    data = copy.deepcopy(document.data)
    for text in overrides:
        steps, value = _parse(text, fields)
        # the value stays out of all messages: it may be a secret
        origin = f"-s {'.'.join(steps)}"
        path = _set_at(data, steps, value, origin)
        require_size(data, origin)
        document = document.overridden(data, {path: origin})
    return document


def _parse(text: str, fields: Mapping[str, JsonValue] | None) -> tuple[list[str], Any]:
    target, separator, value = text.partition("=")
    steps = [step.strip() for step in target.split(".")]
    if not separator or not all(steps):
        raise ConfigError("an override is written path.to.field=value", file=f"-s {target}")
    try:
        if fields is not None and field_names(text):
            return steps, _parse_with_fields(value, fields)
        return steps, yaml12.parse_value(value)
    except ConfigError as error:
        raise ConfigError(error.message, file=f"-s {target}") from None
    except yaml12.YamlError:
        # the details would quote the value
        raise ConfigError(
            "the value cannot be read as YAML; text may need quotes", file=f"-s {target}"
        ) from None


def _set_at(data: dict[str, Any], steps: Sequence[str], value: Any, origin: str) -> Path:
    parent: Any = data
    path: Path = ()
    for step in steps[:-1]:
        key = _existing(parent, step, path, origin)
        path, parent = (*path, key), parent[key]
    last = steps[-1]
    # only the last step may be a new key
    key = last if isinstance(parent, dict) else _existing(parent, last, path, origin)
    parent[key] = value
    return (*path, key)


def _existing(parent: Any, step: str, path: Path, origin: str) -> str | int:
    where = dotted(path) or "the document"
    if isinstance(parent, dict):
        keys = cast(dict[str, Any], parent)
        if step in keys:
            return step
        known = f" (it has {', '.join(keys) or 'no keys'})"
        raise ConfigError(f"{where} has no key {step!r}{did_you_mean(step, keys) or known}", file=origin)
    if isinstance(parent, list):
        return _in_list(cast(list[Any], parent), step, where, origin)
    raise ConfigError(f"{where} is {in_words(parent)}, which has no {step!r}", file=origin)


def _in_list(items: list[Any], step: str, where: str, origin: str) -> int:
    if step.isascii() and step.isdigit():
        if len(step) < 10 and int(step) < len(items):
            return int(step)
        raise ConfigError(f"{where} has {len(items)} items, counted from 0; there is no {step}", file=origin)
    names = [_name(item) for item in items]
    if names.count(step) == 1:
        return names.index(step)
    if step in names:
        raise ConfigError(f"{where} has several items named {step!r}; use the index", file=origin)
    known = [name for name in names if name is not None]
    named = f" (it has {', '.join(known)})" if known else f"; use an index from 0 to {len(items) - 1}"
    raise ConfigError(f"{where} has no item named {step!r}{did_you_mean(step, known) or named}", file=origin)


def _name(item: Any) -> str | None:
    match item:
        case {"config": {"name": str(name)}}:
            return name
        case _:
            return None


_WORDS: Mapping[type, str] = {ChatCompletionClient: "model client", CodeExecutor: "code executor"}


@dataclass(frozen=True)
class ForEvery:
    """An override of one setting in every component of a kind, such as ``ForEvery(ChatCompletionClient, "model", "o3")``.

    An override of a single component takes precedence. A component without that setting that only wraps another one of
    the kind, such as a cache around a client, is left as it is; any other is an error.

    Attributes:
        kind: Components of this class and its subclasses.
        setting: The field of their configs. For a model client, ``base_url`` stands for the name its class uses.
        value: As in a config, but ``${NAME}`` in it is plain text.
        origin: The name of the override in errors, such as ``--model``.
        adds: Whether the items of ``value`` are added to the list of a component, whatever has set that.
        is_first: Whether they are added before those that are there, as the first of several rules decides.
    """

    kind: type
    setting: str
    value: Any
    origin: str = ""
    adds: bool = False
    is_first: bool = False

    @property
    def name(self) -> str:
        """The name of the override in errors."""
        return self.origin or f"{self.setting} of every {_words(self.kind)}"


def apply_for_every(document: Document, overrides: Sequence[ForEvery], policy: Policy) -> Document:
    """The document with each override applied in turn, after its references are resolved and providers checked.

    Raises:
        ConfigError: If there is no such component, or one does not take the setting.
    """
    if not overrides:
        return document
    data = copy.deepcopy(document.data)
    try:
        parts = [
            PlacedComponent(path, resolve(value["provider"], policy), cast(dict[str, Any], value["config"]))
            for path, value in described_components(data)
            if type(value["config"]) is dict
        ]
    except ConfigError:
        # the check of the document reports it, together with its other problems
        return document
    origins: dict[Path, str] = {}
    references: dict[Path, Resolved] = {}
    for override in overrides:
        for part, setting in _taking(override, parts, document):
            place_of = (*part.path, "config")
            if override.adds and isinstance(there := part.config.get(setting), list):
                items, added = cast(list[Any], there), copy.deepcopy(override.value)
                place, start = (*place_of, setting), 0 if override.is_first else len(items)
                items[start:start] = added
                document = document.with_room(place, start, len(added))
                origins = moved(origins, place, start, len(added))
                origins |= {(*place, start + number): override.name for number in range(len(added))}
                continue
            # an override of a value above or below a key sets the key, too
            set_before = {
                key
                for key in part.config
                for place in [*document.overrides, *origins]
                if is_in((*place_of, key), place) or is_in(place, (*place_of, key))
            }
            part.config[setting] = copy.deepcopy(override.value)
            changed: dict[str, Resolved | None] = {setting: None}
            if issubclass(part.component, ChatCompletionClient):
                changed |= change_client(part.component, part.config, override.setting, set_before)
            for key, reference in changed.items():
                place = (*place_of, key)
                origins[place] = override.name
                if reference is not None:
                    references[place] = reference
    return document.overridden(data, origins, references)


def _taking(
    override: ForEvery, parts: Sequence[PlacedComponent], document: Document
) -> list[tuple[PlacedComponent, str]]:
    """The components that an override changes, each with its name of the setting."""
    meant = [part for part in parts if issubclass(part.component, override.kind)]
    if not meant:
        raise ConfigError(f"there is no {_words(override.kind)} in {document.name}", file=override.name)
    taking: list[tuple[PlacedComponent, str]] = []
    for part in meant:
        fields = schema_of(part.component).model_fields
        objection = None
        if issubclass(part.component, ChatCompletionClient):
            setting = field_of_client(fields, override.setting)
            objection = objection_of_client(part.component, part.config, override.setting, override.value)
        else:
            setting = override.setting if override.setting in fields else None
        if setting is None and any(other is not part and is_in(other.path, part.path) for other in meant):
            continue
        place = (*part.path, "config", setting or "")
        is_overridden = any(is_in(place, overridden) for overridden in document.overrides)
        if is_overridden and not override.adds and (setting is None or setting in part.config):
            continue
        if objection or setting is None:
            provider = at(document.data, (*part.path, "provider"))
            reason = objection or f"it has no setting {override.setting!r}"
            message = f"{provider} does not take this: {reason}"
            raise ConfigError(message, file=override.name, path=dotted(part.path) or None)
        taking.append((part, setting))
    return taking


def _words(kind: type) -> str:
    return _WORDS.get(kind, kind.__name__)
