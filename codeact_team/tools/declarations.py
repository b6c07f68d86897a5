"""Describe a tool for the sandbox and the model: make a signature and a docstring of its JSON schema."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import indent
from typing import Any

from pydantic import JsonValue

from codeact_team.tools.annotations import Annotator, NamedType, literals
from codeact_team.tools.error_texts import clean, one_line
from codeact_team.tools.identifiers import assign
from codeact_team.tools.schema_documents import NO_SCHEMA, Document, Schema, as_schema, subschemas
from codeact_team.tools.tool_sources import ListedTool
from codeact_team.visibility import cut

MAX_DESCRIPTION = 4000
"""How many characters of a tool's description are passed on."""
MAX_DOC = 16_000
"""How long a docstring may be."""

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
    """A parameter of the function that stands for a tool."""

    name: str
    key: str
    """Its name in the arguments."""
    annotation: str
    required: bool
    default: Sequence[JsonValue]
    """Holds the default value, unless there is none or it is too long to be shown."""
    keyword_only: bool
    about: str
    """What else is known, in words."""

    def declare(self) -> dict[str, JsonValue]:
        """See :attr:`codeact_team.execution.HostTools.declarations`."""
        declared: dict[str, JsonValue] = {
            "name": self.name,
            "key": self.key,
            "annotation": self.annotation,
            "required": self.required,
            "keyword_only": self.keyword_only,
        }
        return declared | {"default": self.default[0]} if self.default else declared

    def show(self) -> str:
        """Write it as a signature does."""
        given = "" if self.required else f" = {repr(self.default[0]) if self.default else '...'}"
        return f"{self.name}: {self.annotation}{given}"

    def show_short(self) -> str:
        """Write it as a signature without annotations does."""
        default = repr(self.default[0]) if self.default else "..."
        return self.name if self.required else f"{self.name}={cut(default, _MAX_SHOWN_DEFAULT)}"


@dataclass(frozen=True)
class Declaration:
    """What is told of a tool; its name is the dotted path below ``tools``."""

    name: str
    summary: str
    parameters: Sequence[Parameter]
    returns: str | None
    doc: str
    takes_others: bool
    """Whether it may be called with keywords that are no parameter's."""

    def declare(self) -> dict[str, JsonValue]:
        """See :attr:`codeact_team.execution.HostTools.declarations`."""
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
        # a quotation mark at its end would close it too early
        close = '\n"""' if any(sign in self.doc for sign in '\n"\\') else '"""'
        return f"{head}\n" + indent(f'{raw}"""{self.doc}{close}', _INDENT)

    def line(self) -> str:
        """Write the signature and the summary in one line."""
        head = cut(f"tools.{self.name}({_signature(self.parameters, Parameter.show_short)})", _MAX_SHORT)
        return f"{head}  # {self.summary}" if self.summary else head


def declare(name: str, tool: ListedTool) -> Declaration:
    """Describe a tool, whose schema was checked against its meta-schema."""
    annotator = Annotator()
    parameters = list(_parameters(annotator, Document(tool.schema)))
    result = "Media" if tool.returns_media else None
    sections = [clean(tool.description, MAX_DESCRIPTION), _args(parameters)]
    if (returns := tool.returns) is not None:
        shown = annotator.annotation(Document(returns), returns, "Result")
        result = None if shown == "Any" else shown
        if about := _about(Document(returns), returns):
            sections.append(f"Returns:\n{_INDENT}{about}")
    sections += [_type_section(found) for found in annotator.types]
    doc = cut("\n\n".join(filter(None, sections)), MAX_DOC).replace('"""', "'''")
    # only where it says so: most schemas just do not mention what their tool cannot take
    others = bool(tool.schema.get("patternProperties")) or (
        tool.schema.get("additionalProperties", False) is not False
    )
    return Declaration(name, one_line(tool.description, _MAX_SHORT), parameters, result, doc, others)


def _parameters(annotator: Annotator, document: Document) -> Iterator[Parameter]:
    fields = document.fields_of(document.root)
    keys = list(fields.schemas) + sorted(fields.required - set(fields.schemas))
    names = dict(zip(keys, assign(keys, "arg"), strict=True))
    first_required = [key for key in keys if key in fields.required]
    last = max((keys.index(key) for key in first_required), default=-1)
    # what stands before a required one would move behind it: only its name tells then which it is
    optional = [key for key in keys[last + 1 :] if key not in fields.required]
    moved = [key for key in keys[: last + 1] if key not in fields.required]
    for key in (*first_required, *optional, *moved):
        schema = fields.schemas.get(key, NO_SCHEMA)
        yield Parameter(
            name=names[key],
            key=key,
            annotation=annotator.annotation(document, schema, key),
            required=key in fields.required,
            default=() if key in fields.required else _default(document, schema),
            keyword_only=key in moved,
            about=_about(document, schema, key),
        )


def _default(document: Document, schema: Schema) -> Sequence[JsonValue]:
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


def _about(document: Document, schema: Schema, key: str = "") -> str:
    """Put into words what a schema says of its value beside the type."""
    resolved = document.resolve(schema)
    said: list[str] = []
    description = resolved.get("description")
    # what AutoGen writes where nothing is said
    if isinstance(description, str) and description != key:
        said.append(clean(" ".join(description[: 4 * _MAX_FIELD].split()), _MAX_FIELD))
    # of an optional value, what the value is
    options = [document.resolve(option) for option in subschemas(resolved, "anyOf")]
    narrowed = [option for option in options if option.get("type") != "null"]
    said += _limits(document, narrowed[0] if len(narrowed) == 1 else resolved)
    return " ".join(text if text.endswith((".", "!", "?")) else f"{text}." for text in said if text)


def _limits(document: Document, schema: Schema) -> Iterator[str]:
    for described in (schema, document.resolve(as_schema(schema.get("items")))):
        values = described.get("enum")
        if isinstance(values, list) and literals(described) is None:
            yield clean(f"One of {', '.join(map(repr, values))}", _MAX_CHOICES)
    for keyword, words in _LIMITS.items():
        value = schema.get(keyword)
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            yield clean(f"{words.capitalize()} {value}", _MAX_FIELD)


def _args(parameters: Sequence[Parameter]) -> str:
    lines = [f"{_INDENT}{one.name}: {one.about}" for one in parameters if one.about]
    return "\n".join(["Args:", *lines]) if lines else ""


def _type_section(found: NamedType) -> str:
    lines = [f"{found.name} is a dict:"]
    for key, schema in found.fields.schemas.items():
        optional = "" if key in found.fields.required else ", optional"
        about = _about(found.document, schema, key)
        default = _default(found.document, schema)
        if default and default[0] is not None:
            about = f"{about} Default: {default[0]!r}.".strip()
        shown = one_line(key, 100) if key.isidentifier() else cut(repr(key), 100)
        lines.append(f"{_INDENT}{shown} ({found.hints[key]}{optional})" + (f": {about}" if about else ""))
    return "\n".join(lines)


def _signature(parameters: Sequence[Parameter], show: Any) -> str:
    shown: list[str] = []
    for parameter in parameters:
        if parameter.keyword_only and "*" not in shown:
            shown.append("*")
        shown.append(show(parameter))
    return ", ".join(shown)
