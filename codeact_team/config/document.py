"""A config document: its data, and where each part of it comes from."""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from codeact_team.config import yaml12
from codeact_team.config.yaml12 import Path
from codeact_team.errors import ConfigError, NotAllowedError
from codeact_team.providers import did_you_mean

MAX_FILE_BYTES = 1 << 20
"""A megabyte: the slowest document of that size is read, or refused, within seconds."""

_BARE_NAME = re.compile(r"[A-Za-z0-9_-]+")


def dotted(path: Path) -> str:
    """A path as people write it: ``config.participants.0.provider``."""
    return ".".join(str(part) for part in path)


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a document.

    Attributes:
        path: Where.
        message: What is wrong and what to do.
        not_allowed: Whether the allow-list, or safety, is why.
    """

    path: Path
    message: str
    not_allowed: bool = False


@dataclass(frozen=True)
class Document:
    """Plain data with the origin of everything in it.

    Attributes:
        name: The file, as the user named it.
        data: What it says, after overrides and environment references where these were applied.
        lines: The line, counted from 1, of each path of the file.
        overrides: The override that set a path, for paths that one did.
        references: The text with ``${...}`` that a text was made from, by path.
    """

    name: str
    data: dict[str, Any]
    lines: Mapping[Path, int] = field(default_factory=dict[Path, int])
    overrides: Mapping[Path, str] = field(default_factory=dict[Path, str])
    references: Mapping[Path, str] = field(default_factory=dict[Path, str])

    def error(self, problems: Sequence[Problem]) -> ConfigError:
        """One error that tells all ``problems``, each with its place, in the order of the file."""
        kind = NotAllowedError if any(problem.not_allowed for problem in problems) else ConfigError
        each = [self._located(problem, kind) for problem in problems]
        if len(each) == 1:
            return each[0]
        each.sort(key=lambda error: error.line or 0)
        told = "\n".join(f"  {error}" for error in each)
        return kind(f"{len(each)} problems in {self.name}:\n{told}", problems=each)

    def _located(self, problem: Problem, kind: type[ConfigError]) -> ConfigError:
        file, line = self._place(problem.path)
        return kind(problem.message, file=file, line=line, path=dotted(problem.path) or None)

    def _place(self, path: Path) -> tuple[str, int | None]:
        upwards = [path[:length] for length in range(len(path), -1, -1)]
        # an override replaces all that the file says below it
        for above in upwards:
            if above in self.overrides:
                return self.overrides[above], None
        return self.name, next((self.lines[above] for above in upwards if above in self.lines), None)


def read_document(source: str | os.PathLike[str]) -> Document:
    """Read a YAML or JSON file, or a shipped config by its bare name.

    Args:
        source: Path of a file; or, where there is no such file, the name of a shipped config, such as ``quickstart``.

    Raises:
        ConfigError: If there is no such document, or it is no mapping of plain data.
    """
    file = _find(source)
    text = _read_text(file)
    try:
        data, lines = yaml12.parse(text)
    except yaml12.YamlError as error:
        raise ConfigError(error.message, file=str(file), line=error.line) from error
    if not isinstance(data, dict):
        found = "it is empty" if data is None else f"this is {in_words(data)}"
        raise ConfigError(
            f"a config is a mapping with the keys 'provider' and 'config'; {found}", file=str(file)
        )
    return Document(str(file), data, lines)  # pyright: ignore[reportUnknownArgumentType]


def shipped_configs() -> dict[str, pathlib.Path]:
    """The configs that come with this package, by their bare names."""
    package = pathlib.Path(__file__).parent.parent
    # a wheel holds them in the package, a checkout beside it
    folder = next(
        (each for each in (package / "_configs", package.parent / "configs") if each.is_dir()), None
    )
    return {} if folder is None else {file.stem: file for file in sorted(folder.glob("*.yaml"))}


def in_words(value: object) -> str:
    """What kind of value this is, for a person."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case dict():
            return "a mapping"
        case list():
            return "a list"
        case _:
            return f"a Python {type(value).__name__}"


def _find(source: str | os.PathLike[str]) -> pathlib.Path:
    file = pathlib.Path(source)
    if _BARE_NAME.fullmatch(str(source)) and not file.is_file():
        shipped = shipped_configs()
        if str(source) in shipped:
            return shipped[str(source)]
        if not file.exists():
            near = did_you_mean(str(source), shipped) or f"; shipped configs: {', '.join(shipped) or 'none'}"
            raise ConfigError(f"there is no file and no shipped config {str(source)!r}{near}")
    return file


def _read_text(file: pathlib.Path) -> str:
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError as error:
        raise ConfigError("there is no such file", file=str(file)) from error
    except IsADirectoryError as error:
        raise ConfigError("this is a folder; name a YAML or JSON file", file=str(file)) from error
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        raise ConfigError(f"cannot be read: {error}", file=str(file)) from error
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(f"larger than a config may be ({MAX_FILE_BYTES} bytes)", file=str(file))
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError("this is no UTF-8 text", file=str(file), line=line) from error
