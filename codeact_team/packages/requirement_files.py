"""Reads requirements files, so that what they ask for is known before uv sees it.

What a file is read as is what uv gets, and never the file itself: uv would build what a line such as ``-e ./project``
names, and so run its code on this machine, even where it is told to build nothing.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from codeact_team.errors import SettingError

_CONTINUED = re.compile(r"\\\r?\n")
_COMMENT = re.compile(r"(?:^|\s)#.*")
_HASHES = re.compile(r"(?:\s+--hash[= ][a-z0-9]+:[0-9a-f]+)+\s*$")
_REQUIREMENTS, _CONSTRAINTS = (
    ("-r", "--requirement", "--requirements"),
    ("-c", "--constraint", "--constraints"),
)
_INDEXES = ("-i", "--index-url", "--extra-index-url")
_PATHS = ("-f", "--find-links")
_LOCK = re.compile(r"pylock\.(?:.*\.)?toml")


@dataclass
class RequirementLines:
    """What a requirements file, and those that it includes, ask for, in lines of the same notation."""

    requirements: list[str] = field(default_factory=list[str])
    constraints: list[str] = field(default_factory=list[str])


def is_lock(file: Path) -> bool:
    """Whether a file is called as a lock is."""
    return _LOCK.fullmatch(file.name) is not None


def check_lock(file: Path) -> None:
    """Refuse a lock that names what would have to be built.

    Raises:
        SettingError: Where it does, or is none.
    """
    try:
        lock: dict[str, Any] = tomllib.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise SettingError(f"packages_file: {file}: {error}") from None
    for package in lock.get("packages", ()):
        if "directory" in package:
            raise SettingError(
                f"packages_file: {file}: {package.get('name')} is a directory, and nothing is built on this machine: "
                "name a wheel"
            )


def read_requirements(file: Path) -> RequirementLines:
    """Read a requirements file, and those that it includes.

    Raises:
        SettingError: Where it cannot be read, or asks for what only a build could give.
    """
    found = RequirementLines()
    _read(file, found, found.requirements, set())
    return found


def _read(file: Path, found: RequirementLines, into: list[str], seen: set[tuple[Path, bool]]) -> None:
    this = file.resolve(), into is found.constraints
    if this in seen:
        return
    seen.add(this)
    for number, line in _lines(file):
        if not line.startswith("-"):
            into.append(_requirement(line, file, number))
            continue
        option, value = _option(line, file, number)
        if option in _REQUIREMENTS:
            _read(file.parent / value, found, into, seen)
        elif option in _CONSTRAINTS:
            _read(file.parent / value, found, found.constraints, seen)
        elif option in _INDEXES:
            into.append(f"{option} {value}")
        elif option in _PATHS:
            into.append(f"{option} {value if '://' in value else (file.parent / value).resolve()}")
        elif option == "--no-index":
            into.append(option)
        elif option not in ("--only-binary", "--prefer-binary", "--require-hashes"):
            raise SettingError(
                f"packages_file: {file}:{number}: {option} is not taken: only wheels are used, and nothing is built on "
                "this machine"
            )


def _option(line: str, file: Path, number: int) -> tuple[str, str]:
    option, _, value = line.replace("=", " ", 1).partition(" ")
    try:
        return option, "".join(shlex.split(value)) if value else ""
    except ValueError as error:
        raise SettingError(f"packages_file: {file}:{number}: {line!r} cannot be read: {error}") from None


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """The lines that say something, each with the number at which it begins."""
    try:
        text = file.read_text()
    except (OSError, ValueError) as error:
        raise SettingError(f"packages_file: {file}: {error}") from None
    number = 1
    for line in _CONTINUED.sub("\0", text).splitlines():
        if said := _COMMENT.sub("", line.replace("\0", " ")).strip():
            yield number, said
        number += 1 + line.count("\0")


def _wheel(place: str, directory: Path) -> str:
    """A wheel, given by its path or address alone, as a requirement."""
    name, *_ = parse_wheel_filename(place.rpartition("/")[2])
    return f"{name} @ {place if '://' in place else (directory / place).resolve().as_uri()}"


def _requirement(line: str, file: Path, number: int) -> str:
    hashes = _HASHES.search(line)
    wanted = line if hashes is None else line[: hashes.start()]
    try:
        if wanted.endswith(".whl") and "@" not in wanted:
            wanted = _wheel(wanted, file.parent)
        return f"{Requirement(wanted)}{'' if hashes is None else ' ' + ' '.join(hashes[0].split())}"
    except (InvalidRequirement, InvalidWheelFilename) as error:
        raise SettingError(f"packages_file: {file}:{number}: {wanted!r} is no requirement: {error}") from None
