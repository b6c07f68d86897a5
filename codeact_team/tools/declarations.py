"""Declarations of tools for code: Python names, signatures and docstrings, made of JSON Schemas."""

from __future__ import annotations

import json
import keyword
import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import indent
from typing import Any, cast

from pydantic import JsonValue

from codeact_team.text.visibility import clean, cut
from codeact_team.tools.schemas import ANYTHING, Fields, Schema, SchemaDocument, as_schema, subschemas
from codeact_team.tools.sources import ListedTool

RESERVED = frozenset({"Media", "ToolDenied", "ToolError", "ToolTimeout"})
"""Members of the module ``tools`` beside the tools."""

_LONGEST_IDENTIFIER = 100


def identifier(text: str, instead: str) -> str:
    """Make a public identifier of ``text``; it begins with ``instead`` if it would not begin with a letter."""
    # as Python itself normalizes names
    text = unicodedata.normalize("NFKC", text[:_LONGEST_IDENTIFIER])[:_LONGEST_IDENTIFIER]
    name = "".join(char if f"_{char}".isidentifier() else "_" for char in text).lstrip("_")
    if not name.isidentifier():
        name = f"{instead}_{name}".rstrip("_")
    return f"{name}_" if keyword.iskeyword(name) else name


def assign(names: Sequence[str], instead: str, *, reserved: Collection[str] = ()) -> list[str]:
    """Make a unique identifier for each name, in order. Valid names stay; others get a number if they are taken."""
    wanted = [identifier(name, instead) for name in names]
    wanted = [f"{name}_" if name in reserved else name for name in wanted]
    taken: set[str] = set(reserved)
    numbers: dict[str, int] = {}
    assigned: dict[int, str] = {}
    for index in sorted(range(len(names)), key=lambda index: wanted[index] != names[index]):
        base = name = wanted[index]
        while name in taken:
            numbers[base] = numbers.get(base, 1) + 1
            name = f"{base}_{numbers[base]}"
        taken.add(name)
        assigned[index] = name
    return [assigned[index] for index in range(len(names))]


_MAX_TYPES = 40
"""Objects that get a name. Further ones are annotated as ``dict[str, Any]``."""

_MAX_SCHEMAS = 3000
_DEEPEST_ANNOTATION = 25
_LONGEST_ANNOTATION = 300
_MAX_LITERALS = 12
_MAX_LITERAL_LENGTH = 100
_NAMES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
_TAKEN = RESERVED | {"Any", "Literal", "None", "bool", "dict", "float", "int", "list", "str"}
_WORDS = re.compile(r"[^\W_]+")


@dataclass
class _NamedType:
    """An object whose fields are known; ``base`` is its name without a number, ``hints`` annotate fields by key."""

    name: str
    base: str
    schema: Schema
    document: SchemaDocument
    fields: Fields
    hints: dict[str, str] = field(default_factory=dict[str, str])


class _Annotator:
    """Writes the annotations of one tool, and collects the objects with a name in them in ``types``."""

    def __init__(self) -> None:
        self.types: list[_NamedType] = []
        self._names = set(_TAKEN)
        self._named: dict[int, str] = {}
        self._open: set[int] = set()
        self._left = _MAX_SCHEMAS
        self._depth = 0

    def annotation(self, document: SchemaDocument, schema: Schema, hint: str) -> str:
        """Write the annotation of a value; an object without a title is named after the hint."""
        self._depth += 1
        parts = list(dict.fromkeys(self._parts(document, schema, hint)))
        self._depth -= 1
        if "None" in parts:
            parts = [part for part in parts if part != "None"] + ["None"]
        text = " | ".join(parts)
        return "Any" if "Any" in parts or len(text) > _LONGEST_ANNOTATION else text

    def _parts(self, document: SchemaDocument, schema: Schema, hint: str) -> Iterator[str]:
        self._left -= 1
        if self._left < 0 or self._depth > _DEEPEST_ANNOTATION or len(self._open) > _DEEPEST_ANNOTATION:
            yield "Any"
        elif isinstance(reference := schema.get("$ref"), str):
            yield from self._referenced(document, reference)
        elif (choices := _literals(schema)) is not None:
            yield from choices
        elif document.has_fields(schema):
            yield self._object(document, schema, hint)
        elif alternatives := self._alternatives(document, schema, hint):
            yield from alternatives
        elif parts := list(subschemas(schema, "allOf")):
            yield next(
                (text for part in parts if (text := self.annotation(document, part, hint)) != "Any"), "Any"
            )
        else:
            for kind in _types(schema):
                yield self._of_type(document, kind, schema, hint)

    def _alternatives(self, document: SchemaDocument, schema: Schema, hint: str) -> list[str]:
        options = [*subschemas(schema, "anyOf"), *subschemas(schema, "oneOf")]
        parts = [part for option in options for part in self._parts(document, option, hint)]
        # alternatives may differ in other things than the type, which is beside them
        return [] if "Any" in parts and "type" in schema else parts

    def _referenced(self, document: SchemaDocument, reference: str) -> Iterator[str]:
        target = document.find(reference)
        if id(target) in self._named:
            yield self._named[id(target)]
        elif id(target) in self._open:
            yield "Any"
        else:
            self._open.add(id(target))
            yield from self._parts(document, target, reference.rpartition("/")[2])
            self._open.discard(id(target))

    def _object(self, document: SchemaDocument, schema: Schema, hint: str) -> str:
        if id(schema) in self._named:
            return self._named[id(schema)]
        if len(self.types) >= _MAX_TYPES:
            return "dict[str, Any]"
        title = schema.get("title")
        base = _camel(title if isinstance(title, str) and title else hint)
        if same := next((one for one in self.types if one.base == base and one.schema == schema), None):
            return same.name
        found = _NamedType(self._name(base), base, schema, document, document.fields_of(schema))
        # before its fields, which may refer to it
        self._named[id(schema)] = found.name
        self.types.append(found)
        for key, value in found.fields.schemas.items():
            found.hints[key] = self.annotation(document, value, f"{found.name} {key}")
        return found.name

    def _name(self, base: str) -> str:
        name, number = base, 1
        while name in self._names:
            number += 1
            name = f"{base}{number}"
        self._names.add(name)
        return name

    def _of_type(self, document: SchemaDocument, kind: str | None, schema: Schema, hint: str) -> str:
        if kind == "array":
            items = [*subschemas(schema, "prefixItems"), *_single(schema, "items")]
            return f"list[{self._union(document, items, f'{hint} item')}]"
        if kind == "object":
            values = [
                *_single(schema, "additionalProperties"),
                *map(as_schema, as_schema(schema.get("patternProperties")).values()),
            ]
            return f"dict[str, {self._union(document, values, f'{hint} value')}]"
        return _NAMES.get(kind or "", "Any")

    def _union(self, document: SchemaDocument, schemas: list[Schema], hint: str) -> str:
        return self.annotation(document, cast("Schema", {"anyOf": schemas}), hint)


def _camel(hint: str) -> str:
    words = _WORDS.findall(hint[:200])
    return identifier("".join(word[:1].upper() + word[1:] for word in words)[:60], "Object")


def _literals(schema: Schema) -> list[str] | None:
    """Write the annotation of a schema that lists its values; ``None`` if it does not, or lists too many."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list) or not 0 < len(values) <= _MAX_LITERALS:
        return None
    if not all(value is None or isinstance(value, str | int) for value in values):
        return None
    texts = [repr(value) for value in values if value is not None]
    if sum(map(len, texts)) > _MAX_LITERAL_LENGTH:
        return None
    return [f"Literal[{', '.join(texts)}]"] * bool(texts) + ["None"] * (None in values)


def _types(schema: Schema) -> list[str | None]:
    kinds = schema.get("type")
    if isinstance(kinds, list):
        return [kind if isinstance(kind, str) else None for kind in kinds]
    if isinstance(kinds, str):
        return [kinds]
    values = schema.get("enum")
    if isinstance(values, list) and values and all(isinstance(value, str) for value in values):
        return ["string"]
    guesses = {"items": "array", "prefixItems": "array", "additionalProperties": "object"}
    return [next((kind for keyword, kind in guesses.items() if keyword in schema), None)]


def _single(schema: Schema, keyword: str) -> Iterator[Schema]:
    if isinstance(found := schema.get(keyword), Mapping):
        yield as_schema(found)


MAX_DESCRIPTION = 4000
"""Characters of a tool's description that are passed on."""
MAX_DOC = 16_000
"""Characters of a docstring."""

_MAX_FIELD = 500
_MAX_DEFAULT = 200
_MAX_SHOWN_DEFAULT = 30
_MAX_CHOICES = 1000
_MAX_SHORT = 200
_INDENT = "    "
_LIMITS = {
    "format": "format",
    "pattern": "pattern",
    "minimum": "at least",
    "maximum": "at most",
    "exclusiveMinimum": "more than",
    "exclusiveMaximum": "less than",
    "multipleOf": "a multiple of",
    "minLength": "minimum length",
    "maxLength": "maximum length",
    "minItems": "minimum items",
    "maxItems": "maximum items",
}


@dataclass(frozen=True)
class Parameter:
    """A parameter of the function for a tool.

    Attributes:
        key: Its name in the arguments for the host.
        default: The default value as the only item; empty if there is none, or it is too long.
        about: Its description and limits in words.
    """

    name: str
    key: str
    annotation: str
    required: bool
    default: Sequence[JsonValue]
    keyword_only: bool
    about: str

    def declare(self) -> dict[str, JsonValue]:
        """Declare it as in :attr:`codeact_team.core.execution.HostTools.declarations`."""
        declared: dict[str, JsonValue] = {
            "name": self.name,
            "key": self.key,
            "annotation": self.annotation,
            "required": self.required,
            "keyword_only": self.keyword_only,
        }
        return declared | {"default": self.default[0]} if self.default else declared

    def show(self) -> str:
        """Write it as in a signature."""
        given = "" if self.required else f" = {repr(self.default[0]) if self.default else '...'}"
        return f"{self.name}: {self.annotation}{given}"

    def show_short(self) -> str:
        """Write it as in a signature without annotations."""
        default = repr(self.default[0]) if self.default else "..."
        return self.name if self.required else f"{self.name}={cut(default, _MAX_SHOWN_DEFAULT)}"


@dataclass(frozen=True)
class Declaration:
    """The declaration of a tool.

    Attributes:
        name: The dotted path below ``tools``.
        summary: Its description in a line.
        returns: The annotation of its result, if it is known.
        takes_others: Whether it takes other keywords than its parameters.
    """

    name: str
    summary: str
    parameters: Sequence[Parameter]
    returns: str | None
    doc: str
    takes_others: bool

    def declare(self) -> dict[str, JsonValue]:
        """Declare it as in :attr:`codeact_team.core.execution.HostTools.declarations`."""
        return {
            "name": self.name,
            "doc": self.doc,
            "parameters": [parameter.declare() for parameter in self.parameters],
            "returns": self.returns,
            "takes_others": self.takes_others,
        }

    def stub(self) -> str:
        """Write the signature with the docstring, as a prompt shows it."""
        returns = f" -> {self.returns}" if self.returns else ""
        head = f"def tools.{self.name}({_signature(self.parameters, Parameter.show)}){returns}:"
        if not self.doc:
            return f"{head}\n{_INDENT}..."
        raw = "r" if "\\" in self.doc else ""
        # a quotation mark at the end of the text would close it too early
        close = '\n"""' if any(sign in self.doc for sign in '\n"\\') else '"""'
        return f"{head}\n" + indent(f'{raw}"""{self.doc}{close}', _INDENT)

    def line(self) -> str:
        """Write the signature and the summary in one line."""
        head = cut(f"tools.{self.name}({_signature(self.parameters, Parameter.show_short)})", _MAX_SHORT)
        return f"{head}  # {self.summary}" if self.summary else head


def declare(name: str, tool: ListedTool) -> Declaration:
    """Make the declaration of a tool, whose schema was checked against its meta-schema."""
    annotator = _Annotator()
    parameters = list(_parameters(annotator, SchemaDocument(tool.schema)))
    result = "Media" if tool.returns_media else None
    lines = [f"{_INDENT}{one.name}: {one.about}" for one in parameters if one.about]
    sections = [clean(tool.description, MAX_DESCRIPTION), "\n".join(["Args:", *lines]) if lines else ""]
    if (returns := tool.returns) is not None:
        shown = annotator.annotation(SchemaDocument(returns), returns, "Result")
        result = None if shown == "Any" else shown
        if about := _about(SchemaDocument(returns), returns):
            sections.append(f"Returns:\n{_INDENT}{about}")
    sections += [_type_section(found) for found in annotator.types]
    doc = cut("\n\n".join(filter(None, sections)), MAX_DOC).replace('"""', "'''")
    # only if it is stated: most schemas leave out that their tool takes nothing else
    others = bool(tool.schema.get("patternProperties")) or (
        tool.schema.get("additionalProperties", False) is not False
    )
    return Declaration(name, _summary(tool.description, _MAX_SHORT), parameters, result, doc, others)


def _parameters(annotator: _Annotator, document: SchemaDocument) -> Iterator[Parameter]:
    fields = document.fields_of(document.root)
    keys = list(fields.schemas) + sorted(fields.required - set(fields.schemas))
    names = dict(zip(keys, assign(keys, "arg"), strict=True))
    first_required = [key for key in keys if key in fields.required]
    last = max((place for place, key in enumerate(keys) if key in fields.required), default=-1)
    # an optional one before a required one has to move behind it, and is keyword-only then
    optional = [key for key in keys[last + 1 :] if key not in fields.required]
    moved = [key for key in keys[: last + 1] if key not in fields.required]
    are_moved = {*moved}
    for key in (*first_required, *optional, *moved):
        schema = fields.schemas.get(key, ANYTHING)
        yield Parameter(
            name=names[key],
            key=key,
            annotation=annotator.annotation(document, schema, key),
            required=key in fields.required,
            default=() if key in fields.required else _default(document, schema),
            keyword_only=key in are_moved,
            about=_about(document, schema, key),
        )


def _default(document: SchemaDocument, schema: Schema) -> Sequence[JsonValue]:
    resolved = document.resolve(schema)
    if "default" not in resolved:
        return ()
    value = resolved["default"]
    try:
        json.dumps(value, allow_nan=False)
        return (value,) if len(repr(value)) <= _MAX_DEFAULT else ()
    except (ValueError, RecursionError):
        # JSON has no such number, or the value is nested too deeply
        return ()


def _about(document: SchemaDocument, schema: Schema, key: str = "") -> str:
    """Put the description and the limits of a value into words."""
    resolved = document.resolve(schema)
    texts: list[str] = []
    description = resolved.get("description")
    # AutoGen writes the name if there is no description
    if isinstance(description, str) and description != key:
        texts.append(clean(" ".join(description[: 4 * _MAX_FIELD].split()), _MAX_FIELD))
    # of an optional value, the limits of the value
    options = [document.resolve(option) for option in subschemas(resolved, "anyOf")]
    narrowed = [option for option in options if option.get("type") != "null"]
    texts += _limits(document, narrowed[0] if len(narrowed) == 1 else resolved)
    return " ".join(text if text.endswith((".", "!", "?")) else f"{text}." for text in texts if text)


def _limits(document: SchemaDocument, schema: Schema) -> Iterator[str]:
    for described in (schema, document.resolve(as_schema(schema.get("items")))):
        values = described.get("enum")
        if isinstance(values, list) and _literals(described) is None:
            yield clean(f"One of {', '.join(map(repr, values))}", _MAX_CHOICES)
    for limit, words in _LIMITS.items():
        value = schema.get(limit)
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            yield clean(f"{words.capitalize()} {value}", _MAX_FIELD)


def _type_section(found: _NamedType) -> str:
    lines = [f"{found.name} is a dict:"]
    for key, schema in found.fields.schemas.items():
        optional = "" if key in found.fields.required else ", optional"
        about = _about(found.document, schema, key)
        default = _default(found.document, schema)
        if default and default[0] is not None:
            about = f"{about} Default: {default[0]!r}.".strip()
        shown = _summary(key, 100) if key.isidentifier() else cut(repr(key), 100)
        lines.append(f"{_INDENT}{shown} ({found.hints[key]}{optional})" + (f": {about}" if about else ""))
    return "\n".join(lines)


def _signature(parameters: Sequence[Parameter], show: Any) -> str:
    shown: list[str] = []
    for parameter in parameters:
        if parameter.keyword_only and "*" not in shown:
            shown.append("*")
        shown.append(show(parameter))
    return ", ".join(shown)


def _summary(text: str, limit: int) -> str:
    """The first paragraph of a text as one line of at most ``limit`` characters."""
    paragraph = clean(text, 4 * limit).partition("\n\n")[0]
    return cut(" ".join(paragraph.split()), limit)
