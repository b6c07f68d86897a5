"""A config as a document: plain data, and where each value in it comes from."""

from __future__ import annotations

import errno
import json
import os
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeGuard, TypeVar, cast

from autogen_core import ComponentModel
from pydantic import BaseModel

from codeact_team.config import yaml12
from codeact_team.config.yaml12 import Path
from codeact_team.core.providers import did_you_mean
from codeact_team.core.shipped import shipped_configs
from codeact_team.errors import ConfigError, NotAllowedError
from codeact_team.files.opening import read_regular
from codeact_team.text.visibility import cut

T = TypeVar("T")

MASK = "*" * 10
"""The text that AutoGen's own dumps put in the place of a secret."""


def with_references(text: str, values: Mapping[str, str], place: str = "", inside: str = "") -> str:
    """Replace the values that a message quotes, in whole or in part, by the references they came from.

    Other libraries' errors may quote a value, or a word of it, such as a path's package or a URL's port. A short word may
    be a coincidence, so it counts only if the message is about a text with the reference.

    Args:
        text: The message.
        values: The value of each variable.
        place: The text, with references, that the message is about.
        inside: All text with references in that part of the document.
    """
    words: list[tuple[str, str, str]] = []
    for name, value in values.items():
        bare = 4 if f"${{{name}" in place else 6
        quoted = 1 if f"${{{name}" in inside else bare
        for word in {value, *re.split(r"\W+", value)} - {""}:
            if word == value or len(word) >= quoted:
                words.append((word, _pattern(word, bare), f"${{{name}}}"))
    if not words:
        return text
    # longest first, as one may contain another
    words.sort(key=lambda each: len(each[0]), reverse=True)
    anywhere = re.compile("|".join(f"({pattern})" for _, pattern, _ in words))
    return anywhere.sub(lambda found: words[(found.lastindex or 1) - 1][2], text)


def _pattern(word: str, bare: int) -> str:
    """A pattern for a word; one that is shorter than ``bare`` characters has to be in quotes."""
    spelled = "|".join(re.escape(each) for each in {word, repr(word)[1:-1], json.dumps(word)[1:-1]})
    if len(word) >= bare:
        return rf"(?<!\w)(?:{spelled})(?!\w)"
    return rf"(?<=['\"`])(?:{spelled})(?=['\"`])"


MAX_FILE_BYTES = 1 << 20
"""A larger file is no config, but named by mistake."""
_MAX_NAME_CHARS = 300
"""Length at which errors cut a name that does not exist, such as the text of a config without its line breaks."""

ConfigSource = str | os.PathLike[str] | Mapping[str, Any] | ComponentModel
"""The path of a YAML or JSON file; the name of a shipped config, such as ``quickstart``, if there is no such file; the
text of a config; a mapping; or a ``ComponentModel``, as components dump themselves, in which ``${NAME}`` is plain text."""

_NAMELESS = "<config>"
_BARE_NAME = re.compile(r"[A-Za-z0-9_-]+")


def dotted(path: Path) -> str:
    """A path as people write it: ``config.participants.0.provider``."""
    return ".".join(str(part) for part in path)


def last_key(path: Path) -> str:
    """The key at ``path``, or of the list that ``path`` leads into."""
    return next((part for part in reversed(path) if isinstance(part, str)), "")


def is_in(path: Path, outer: Path) -> bool:
    """Whether ``path`` is ``outer`` or lies below it."""
    return path[: len(outer)] == outer


def at(data: Any, path: Path) -> Any:
    """The value at ``path`` in plain data."""
    for step in path:
        data = data[step]
    return data


def walk(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every value in plain data with its path, outer before inner."""
    yield path, value
    if isinstance(value, dict):
        for key, item in cast(dict[str, Any], value).items():
            yield from walk(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(cast(list[Any], value)):
            yield from walk(item, (*path, index))


def mapped(value: Any, change: Callable[[Path, Any], Any], path: Path = ()) -> Any:
    """A copy of plain data in which each value that is neither a mapping nor a list is changed, given its path."""
    if isinstance(value, dict):
        mapping = cast(dict[str, Any], value)
        return {key: mapped(item, change, (*path, key)) for key, item in mapping.items()}
    if isinstance(value, list):
        return [mapped(item, change, (*path, index)) for index, item in enumerate(cast(list[Any], value))]
    return change(path, value)


@dataclass(frozen=True)
class Problem:
    """A mistake in a document; ``not_allowed`` if the allow-list, or safety, refuses something."""

    path: Path
    message: str
    not_allowed: bool = False

    @classmethod
    def of(cls, path: Path, error: ConfigError) -> Problem:
        """The problem that an error reports, at ``path``."""
        return cls(path, error.message, isinstance(error, NotAllowedError))


@dataclass(frozen=True)
class Resolved:
    """A text whose references to the environment are resolved."""

    text: str
    written: str | None
    """The text with ``${...}``; ``None`` where there was no reference."""
    values: Mapping[str, str]
    """The value of each variable that is referred to and set. Defaults are not in it: the config itself shows them."""


@dataclass(frozen=True)
class TextWithData:
    """Text with data in it, until references are resolved: alternately what a person wrote, and data without any."""

    parts: Sequence[str]


_KINDS: Mapping[type, str] = {
    type(None): "nothing",
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "text",
    dict: "a mapping",
    list: "a list",
    TextWithData: "text",
}


@dataclass(frozen=True)
class Document:
    """Plain data with the origin of everything in it, by path.

    Attributes:
        name: The file, as the user named it.
        data: The data.
        lines: The lines of the file, from 1.
        overrides: The names of the overrides that set values.
        references: The texts that were written with references to the environment.
        unresolved: Why a reference could not be resolved.
        aliases: For each YAML alias, the path of the value with the anchor.
    """

    name: str
    data: dict[str, Any]
    lines: Mapping[Path, int] = field(default_factory=dict[Path, int])
    overrides: Mapping[Path, str] = field(default_factory=dict[Path, str])
    references: Mapping[Path, Resolved] = field(default_factory=dict[Path, Resolved])
    unresolved: Mapping[Path, str] = field(default_factory=dict[Path, str])
    aliases: Mapping[Path, Path] = field(default_factory=dict[Path, Path])

    def overridden(
        self,
        data: dict[str, Any],
        overrides: Mapping[Path, str],
        references: Mapping[Path, Resolved] | None = None,
    ) -> Document:
        """The document with new data, in which overrides have set values, some of them written with references."""

        def stays(path: Path) -> bool:
            return not any(above in overrides for above in _upwards(path))

        return replace(
            self,
            data=data,
            overrides={path: name for path, name in self.overrides.items() if stays(path)} | {**overrides},
            references={path: text for path, text in self.references.items() if stays(path)}
            | {**(references or {})},
            unresolved={path: text for path, text in self.unresolved.items() if stays(path)},
        )

    def with_room(self, place: Path, start: int, count: int) -> Document:
        """The document in which ``count`` items of the list at ``place`` stand before what was at ``start``, with other data."""
        aliases = moved(self.aliases, place, start, count)
        return replace(
            self,
            lines=moved(self.lines, place, start, count),
            overrides=moved(self.overrides, place, start, count),
            references=moved(self.references, place, start, count),
            unresolved=moved(self.unresolved, place, start, count),
            aliases={path: _moved(target, place, start, count) for path, target in aliases.items()},
        )

    def all_problems(self, found: Iterable[Problem]) -> list[Problem]:
        """The references that are not resolved, and the problems found elsewhere: such a reference fits nowhere."""
        unresolved = [Problem(path, reason) for path, reason in self.unresolved.items()]
        return [*unresolved, *(problem for problem in found if problem.path not in self.unresolved)]

    def error(self, problems: Sequence[Problem]) -> ConfigError:
        """One error that reports all ``problems``, each with its place, in the order of the file."""
        kind = NotAllowedError if any(problem.not_allowed for problem in problems) else ConfigError
        mistakes: dict[object, Problem] = {}
        for problem in problems:
            mistakes.setdefault(self._mistake(problem), problem)
        each: list[ConfigError] = []
        for problem in mistakes.values():
            file, line, path = self._place(problem.path)
            message = self.shown(problem.message, problem.path)
            each.append(kind(message, file=file, line=line, path=dotted(path) or None))
        if len(each) == 1:
            return each[0]
        each.sort(key=lambda error: error.line or 0)
        listed = "\n".join(f"  {error}" for error in each)
        return kind(f"{len(each)} problems in {self.name}:\n{listed}", problems=each)

    def shown(self, message: str, path: Path) -> str:
        """A message about the value at ``path``, with references in place of their values."""
        return with_references(message, self.values, self.written(path), self._written_in.get(path, ""))

    def written(self, path: Path) -> str:
        """The text with ``${...}`` at ``path``; empty where there is no reference."""
        resolved = self.references.get(path)
        return (resolved and resolved.written) or ""

    @cached_property
    def values(self) -> Mapping[str, str]:
        """The value of each variable that is referred to and set."""
        return {name: value for each in self.references.values() for name, value in each.values.items()}

    @cached_property
    def _written_in(self) -> Mapping[Path, str]:
        """For each path, all text with references at it and below."""
        inside: dict[Path, list[str]] = {}
        for place in self.references:
            for above in _upwards(place):
                inside.setdefault(above, []).append(self.written(place))
        return {path: "".join(written) for path, written in inside.items()}

    def _mistake(self, problem: Problem) -> object:
        """A key that is the same for all problems with one cause, also where aliases repeat it."""
        file, _, path = self._place(problem.path)
        if any(above in self.overrides for above in _upwards(problem.path)):
            # one override may set the same in many places
            return file, path, problem.message
        for above in _upwards(path):
            if above in self.aliases:
                path = self.aliases[above] + path[len(above) :]
                break
        return file, path, problem.message

    def _place(self, path: Path) -> tuple[str, int | None, Path]:
        """Where the value at ``path`` was written: the file and the line, or an override; and the path in that."""
        # an override replaces all that is below it
        for above in _upwards(path):
            if above in self.overrides:
                return self.overrides[above], None, path[len(above) :]
        line = next((self.lines[above] for above in _upwards(path) if above in self.lines), None)
        return self.name, line, path


def _upwards(path: Path) -> Iterator[Path]:
    return (path[:length] for length in range(len(path), -1, -1))


def moved(found: Mapping[Path, T], place: Path, start: int, count: int) -> dict[Path, T]:
    """What is known of paths, when ``count`` items have been put in at ``start`` of the list at ``place``."""
    return {_moved(path, place, start, count): value for path, value in found.items()}


def _moved(path: Path, place: Path, start: int, count: int) -> Path:
    if len(path) > len(place) and is_in(path, place) and isinstance(index := path[len(place)], int):
        return (*place, index + count * (index >= start), *path[len(place) + 1 :])
    return path


def escape(text: str) -> str:
    """Write ``text`` so that nothing in it is read as a reference to the environment."""
    return text.replace("${", "$${")


def read_document(source: ConfigSource, name: str | None = None) -> Document:
    """Read a config, to which errors give a ``name``; a :class:`ConfigError` if it is missing, or no mapping of plain data."""
    name = name or name_of(source)
    if isinstance(source, ComponentModel):
        data, text = cast("Mapping[str, Any]", source.model_dump()), escape
    elif isinstance(source, Mapping):
        data, text = source, str
    elif is_text(source):
        return _parse(source, name)
    else:
        file = _find(source)
        return _parse(_read_text(file), str(file))
    require_size(data, name)
    return Document(name, _plain(data, text))


def name_of(source: ConfigSource) -> str:
    """The name of a config in errors."""
    return str(source) if isinstance(source, str | os.PathLike) and not is_text(source) else _NAMELESS


def is_text(source: object) -> TypeGuard[str]:
    """Whether a source is the text of a document."""
    # a path has neither
    return isinstance(source, str) and (source.lstrip().startswith("{") or "\n" in source)


def require_size(data: Mapping[str, Any], origin: str) -> None:
    """Raise a :class:`ConfigError`, which blames ``origin``, if data is larger than a config may be."""
    values, depth, level = 1, 0, [data]
    try:
        while level:
            inner: list[Any] = []
            for one in level:
                if isinstance(one, Mapping):
                    mapping = cast(Mapping[Any, Any], one)
                    values += 2 * len(mapping)
                    inner += mapping.values()
                elif isinstance(one, Sequence) and not isinstance(one, str | bytes):
                    items = cast(Sequence[Any], one)
                    values += len(items)
                    inner += items
                yaml12.require_size(values, depth)
            depth, level = depth + 1, inner
    except yaml12.YamlError as error:
        raise ConfigError(error.message, file=origin) from None


def _plain(value: Any, text: Callable[[str], str]) -> Any:
    """Turn mappings and sequences of every kind into dicts and lists."""
    match value:
        case str():
            return text(value)
        case BaseModel():
            return _plain(value.model_dump(), text)
        case Mapping():
            items = cast(Mapping[Any, Any], value).items()
            if (wrong := next((key for key, _ in items if not isinstance(key, str)), None)) is not None:
                raise ConfigError(f"the key {wrong!r} is not text", file=_NAMELESS)
            return {key: _plain(item, text) for key, item in items}
        case bytes():
            return value
        case Sequence():
            return [_plain(item, text) for item in cast(Sequence[Any], value)]
        case _:
            return value


def _parse(text: str, name: str) -> Document:
    try:
        data, places = yaml12.parse(text)
    except yaml12.YamlError as error:
        raise ConfigError(error.message, file=name, line=error.line) from error
    if not isinstance(data, dict):
        found = "it is empty" if data is None else f"this is {in_words(data)}"
        raise ConfigError(f"a config is a mapping with the keys 'provider' and 'config'; {found}", file=name)
    return Document(name, data, places.lines, aliases=places.aliases)  # pyright: ignore[reportUnknownArgumentType]


def in_words(value: object) -> str:
    """The kind of a value, for a person."""
    return _KINDS.get(type(value)) or f"a Python {type(value).__name__}"


def _find(source: str | os.PathLike[str]) -> pathlib.Path:
    file = pathlib.Path(source)
    if _BARE_NAME.fullmatch(str(source)) and not file.is_file():
        shipped = shipped_configs()
        if str(source) in shipped:
            # the installation may hold links
            return shipped[str(source)].resolve()
        if not file.exists():
            near = did_you_mean(str(source), shipped) or f"; shipped configs: {', '.join(shipped) or 'none'}"
            name = cut(str(source), _MAX_NAME_CHARS)
            raise ConfigError(f"there is no file and no shipped config {name!r}{near}")
    return file


def _read_text(file: pathlib.Path) -> str:
    try:
        content = read_regular(file, MAX_FILE_BYTES)
    except FileNotFoundError as error:
        raise ConfigError("there is no such file", file=str(file)) from error
    except IsADirectoryError as error:
        raise ConfigError("this is a folder; name a YAML or JSON file", file=str(file)) from error
    except OSError as error:
        why = f"cannot be read: {error.strerror}"
        if error.errno == errno.EFBIG:
            why = f"larger than a config may be ({MAX_FILE_BYTES} bytes)"
        raise ConfigError(why, file=str(file)) from error
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError("this is not UTF-8 text", file=str(file), line=line) from error
