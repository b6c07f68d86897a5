"""YAML 1.2 and plain data, both ways. JSON is YAML 1.2, so this reads JSON as well.

Plain data is what JSON knows: mappings with text as keys, lists, text, numbers, booleans and null.
"""

# ruamel.yaml leaves its nodes, marks and representers untyped
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import io
import math
import re
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError
from ruamel.yaml.representer import SafeRepresenter
from ruamel.yaml.scanner import Scanner

Path = tuple[str | int, ...]
"""A place in a document: keys and list indexes from the top."""

_MAX_CHARS = 1 << 20
"""Longest document. Its scalars together, with aliases expanded, may not have more characters either."""
MAX_VALUES = 10_000
"""Most keys and values of a document, with aliases expanded."""
MAX_DEPTH = 100
"""Deepest nesting of lists and mappings, with aliases expanded."""

_MAX_TAG_CHARS = 100

_LINE_WIDTH = 110
_UNBROKEN = 1 << 30

_TAG = "tag:yaml.org,2002:"
# YAML 1.2 has no timestamps, and "=" and "<<" mean something in a mapping's key only
_TEXT_TAGS = frozenset(_TAG + name for name in ("str", "timestamp", "value", "merge"))
_DIRECTIVE = re.compile(r"\s*(?:#.*\n\s*)*%YAML\s+(?!1\.2\b)")


@dataclass(frozen=True)
class Places:
    """The lines of the values of a document, counted from 1, and for each alias the path of the value with its anchor."""

    lines: dict[Path, int] = field(default_factory=dict[Path, int])
    aliases: dict[Path, Path] = field(default_factory=dict[Path, Path])


class YamlError(Exception):
    """A text is not plain data in YAML 1.2; ``line`` is counted from 1."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


def parse(text: str) -> tuple[Any, Places]:
    """Read one YAML 1.2 document; a :class:`YamlError` if it is no plain data, or larger than the limits above."""
    if _DIRECTIVE.match(text):
        raise YamlError("only YAML 1.2 is supported; remove the %YAML line", 1)
    node = _compose(text)
    reading = _Reading()
    return reading.plain(node, ()), reading.places


def parse_value(text: str) -> Any:
    """Read a scalar, or a list or mapping in flow style (``[1, 2]``, ``{a: 1}``); in block style it is text.

    Raises:
        YamlError: If the text cannot be read as plain data, or is larger than the limits above.
    """
    node = _compose(text)
    if isinstance(node, MappingNode | SequenceNode) and not node.flow_style:
        return text
    return _Reading().plain(node, ())


def write(data: Any) -> str:
    """Write plain data as YAML 1.2 that :func:`parse` reads back as the same data; text of several lines as a block."""
    text = _written(data, _LINE_WIDTH)
    # ruamel.yaml adds a blank where it breaks a line between an escape and blanks
    return _written(data, _UNBROKEN) if "\\" in text else text


def _written(data: Any, width: int) -> str:
    yaml = YAML(typ="safe", pure=True)
    yaml.Representer = _Representer
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # pyright: ignore[reportAttributeAccessIssue]
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.width = width
    yaml.allow_unicode = True
    stream = io.StringIO()
    yaml.dump(data, stream)
    return stream.getvalue()


class _Scanner(Scanner):
    """Accepts any scalar as a key of a flow mapping, however long, and with its colon on a later line, as JSON does."""

    def stale_possible_simple_keys(self) -> None:
        candidate = self.possible_simple_keys.get(self.flow_level) if self.flow_level else None
        super().stale_possible_simple_keys()
        # a list or mapping would have brought more tokens than the candidate
        if candidate is not None and self.tokens_taken + len(self.tokens) <= candidate.token_number + 1:
            self.possible_simple_keys[self.flow_level] = candidate

    def scan_tag(self) -> Any:
        # the time to scan a tag grows with the square of its length
        if not any(map(str.isspace, self.reader.prefix(_MAX_TAG_CHARS + 1))):
            raise YamlError("a tag is longer than any that is supported", self.reader.line + 1)
        return super().scan_tag()


class _Composer(Composer):
    """Stops at the first value beyond the limits, before the rest of the text is scanned."""

    values = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.values += 1
        require_size(self.values, self.depth, self.parser.peek_event().start_mark.line + 1)
        return super().compose_node(parent, index)


def require_size(values: int, depth: int, line: int | None = None) -> None:
    """Raise a :class:`YamlError` if there are too many values, or they are nested too deep."""
    if values > MAX_VALUES:
        raise YamlError(f"more than {MAX_VALUES} keys and values, with aliases expanded", line)
    if depth > MAX_DEPTH:
        raise YamlError(f"nested more than {MAX_DEPTH} deep", line)


def _compose(text: str) -> Node | None:
    if len(text) > _MAX_CHARS:
        raise YamlError(f"longer than {_MAX_CHARS} characters")
    yaml = YAML(typ="safe", pure=True)
    yaml.Scanner = _Scanner
    yaml.Composer = _Composer
    # YAML allows an anchor to be defined again
    yaml.composer.warn_double_anchors = False
    try:
        return yaml.compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise YamlError(_in_words(error), None if mark is None else mark.line + 1) from error
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise YamlError(f"the character {chr(error.character)!r} is not allowed in YAML", line) from error
    except (YAMLError, ValueError, RecursionError) as error:
        raise YamlError(f"this is not YAML: {error}") from error


def _in_words(error: MarkedYAMLError) -> str:
    problem = str(error.problem)
    if "'\\t'" in problem:
        return "a tab cannot indent; use spaces"
    if "another document" in problem:
        return "more than one document in the file; keep one"
    return f"this is not YAML: {f'{error.context}, ' if error.context else ''}{problem}"


@dataclass
class _Reading:
    """Converts the nodes of one document to data."""

    places: Places = field(default_factory=Places)
    first: dict[int, Path] = field(default_factory=dict[int, Path])
    values: int = 0
    chars: int = 0

    def plain(self, node: Node | None, path: Path) -> Any:
        if node is None:
            return None
        self._count(node, path)
        self.places.lines.setdefault(path, _line(node))
        if (first := self.first.setdefault(id(node), path)) != path:
            if path[: len(first)] == first:
                raise YamlError("an alias points to a value that contains it", _line(node))
            self.places.aliases[path] = first
        if isinstance(node, ScalarNode):
            return _scalar(node)
        return self._mapping(node, path) if isinstance(node, MappingNode) else self._list(node, path)

    def _count(self, node: Node, path: Path) -> None:
        """Refuse a document that aliases make too large: a few hundred bytes can stand for a billion values."""
        self.values += 1
        self.chars += len(node.value) if isinstance(node, ScalarNode) else 0
        require_size(self.values, len(path), _line(node))
        if self.chars > _MAX_CHARS:
            raise YamlError(f"longer than {_MAX_CHARS} characters, with aliases expanded", _line(node))

    def _mapping(self, node: MappingNode, path: Path) -> dict[str, Any]:
        _require_tag(node, "map")
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            self._count(key_node, path)
            key = self._key(key_node)
            if key in data:
                raise YamlError(f"the mapping has the key {key!r} twice", _line(key_node))
            self.places.lines[*path, key] = _line(key_node)
            data[key] = self.plain(value_node, (*path, key))
        return data

    def _list(self, node: Node, path: Path) -> list[Any]:
        _require_tag(node, "seq")
        return [self.plain(item, (*path, index)) for index, item in enumerate(node.value)]

    def _key(self, node: Node) -> str:
        if isinstance(node, ScalarNode):
            if str(node.tag) == f"{_TAG}merge":
                raise YamlError("merge keys (<<) are not supported", _line(node))
            key = _scalar(node)
            if isinstance(key, str):
                return key
            raise YamlError(f"the key {node.value!r} is not text; put it in quotes", _line(node))
        raise YamlError("a key has to be text", _line(node))


def _line(node: Node) -> int:
    return node.start_mark.line + 1


def _require_tag(node: Node, name: str) -> None:
    if str(node.tag) != _TAG + name:
        raise YamlError(f"the tag {str(node.tag).replace(_TAG, '!!')!r} is not supported", _line(node))


def _scalar(node: ScalarNode) -> Any:
    tag, value = str(node.tag), str(node.value)
    try:
        if tag in _TEXT_TAGS:
            return _text(value)
        if tag == f"{_TAG}null":
            return None
        if tag == f"{_TAG}bool":
            return {"true": True, "false": False}[value.lower()]
        if tag == f"{_TAG}int":
            return _integer(value)
        if tag == f"{_TAG}float":
            return _float(value)
    except (ValueError, KeyError) as error:
        name = tag.removeprefix(_TAG)
        raise YamlError(f"{value[:40]!r} cannot be read ({name}); put it in quotes", _line(node)) from error
    raise YamlError(f"the tag {tag.replace(_TAG, '!!')!r} is not supported", _line(node))


def _text(value: str) -> str:
    # JSON writes characters beyond the basic plane as two escapes; one alone is no text
    return value.encode("utf-16", "surrogatepass").decode("utf-16")


def _integer(value: str) -> int:
    digits = value.replace("_", "")
    return int(digits) if digits.lstrip("+-").isdecimal() else int(digits, 0)


def _float(value: str) -> float:
    special = {".inf": math.inf, "+.inf": math.inf, "-.inf": -math.inf, ".nan": math.nan}
    return special[value.lower()] if value.lower() in special else float(value.replace("_", ""))


class _Representer(SafeRepresenter):
    """Writes text of several lines as a block if a block preserves it."""


def _represent_text(representer: _Representer, text: str) -> ScalarNode:
    return representer.represent_scalar(f"{_TAG}str", text, style=_style(text))


def _style(text: str) -> str | None:
    """The scalar style that preserves ``text``; ``None`` leaves the choice to the emitter."""
    lines = text.split("\n")
    if not all(line.isprintable() for line in lines):
        return '"'
    if len(lines) == 1:
        return None
    # in a block, trailing blanks would be invisible, and leading ones its indentation
    tidy = not text[0].isspace() and all(line == line.rstrip() for line in lines)
    return "|" if tidy else '"'


_Representer.add_representer(str, _represent_text)
