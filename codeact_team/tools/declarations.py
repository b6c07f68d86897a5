"""Describe a tool for the sandbox and the model: make a signature and a docstring of its JSON schema."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import indent
from typing import Any

from pydantic import JsonValue

from codeact_team.tools.annotations import Annotator, NamedType, literals
from codeact_team.tools.error_texts import clean, one_line
from codeact_team.tools.identifiers import assign
from codeact_team.tools.schema_documents import NO_SCHEMA, Document, Schema, as_schema, is_finite, subschemas
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
    """A parameter of the function that stands for a tool.

    Attributes:
        name: An identifier.
        key: Its name in the arguments.
        annotation: What it may be.
        required: Whether it must be given.
        default: A list with the default value; an empty one if there is none, or it is too long to be shown.
        keyword_only: Whether it must be given by name.
        about: What else is known, in words.
    """

    name: str
    key: str
    annotation: str
    required: bool
    default: Sequence[JsonValue]
    keyword_only: bool
    about: str

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
    """What is told of a tool.

    Attributes:
        name: The dotted path below ``tools``.
        summary: The first paragraph of its description, in a line.
        parameters: As code passes them.
        returns: The annotation of what it returns, if that is known.
        doc: Its docstring.
        takes_others: Whether it may be called with keywords that are no parameter's.
    """

    name: str
    summary: str
    parameters: Sequence[Parameter]
    returns: str | None
    doc: str
    takes_others: bool

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


def declare(
    name: str, description: str, schema: Schema, *, returns: Schema | None = None, returns_media: bool = False
) -> Declaration:
    """Describe a tool.

    Args:
        name: The dotted path below ``tools``.
        description: What it does, in the words of whoever made it.
        schema: The JSON schema of the arguments, checked against its meta-schema.
        returns: The JSON schema of what it returns, if that is known.
        returns_media: Whether it returns a picture or the like.
    """
    annotator = Annotator()
    parameters = list(_parameters(annotator, Document(schema)))
    result = "Media" if returns_media else None
    if returns is not None:
        shown = annotator.annotation(Document(returns), returns, "Result")
        result = None if shown == "Any" else shown
    sections = [clean(description, MAX_DESCRIPTION), _args(parameters)]
    if returns is not None and (about := _about(Document(returns), returns)):
        sections.append(f"Returns:\n{_INDENT}{about}")
    sections += [_type_section(found) for found in annotator.types]
    doc = cut("\n\n".join(filter(None, sections)), MAX_DOC).replace('"""', "'''")
    # only where it says so: most schemas just do not mention what their tool cannot take
    others = bool(schema.get("patternProperties")) or schema.get("additionalProperties", False) is not False
    return Declaration(name, one_line(description, _MAX_SHORT), parameters, result, doc, others)


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
    if "default" not in resolved or not is_finite(value := resolved["default"]):
        return ()
    return (value,) if len(repr(value)) <= _MAX_DEFAULT else ()


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
