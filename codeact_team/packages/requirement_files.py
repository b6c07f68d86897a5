"""Reads requirements files, so that what they ask for is known before uv sees it.

What a file is read as is what uv gets, and never the file itself: uv would build what a line such as ``-e ./project``
names, and so run its code on this machine, even where it is told to build nothing.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from codeact_team.errors import SettingError
from codeact_team.system.regular_files import read_regular
from codeact_team.visibility import cut

_CONTINUED = re.compile(r"\\\r?\n")
_COMMENT = re.compile(r"(?:^|\s)#.*")
_HASH_OPTION = re.compile(r"\s--hash[= ]")
_HASH = re.compile(r"[a-z0-9]+:[0-9a-f]+")
_REQUIREMENTS, _CONSTRAINTS = (
    ("-r", "--requirement", "--requirements"),
    ("-c", "--constraint", "--constraints"),
)
_INDEXES = ("-i", "--index-url", "--extra-index-url")
_PATHS = ("-f", "--find-links")
_LOCK = re.compile(r"pylock\.(?:.*\.)?toml")
_LONG_KEY = re.compile(r"""(?<![\w-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){50}""")
"""A key that would be read in quadratic time; no lock has one of more than a few parts."""
_MOST = 16 << 20
"""Bytes of a file with all that it includes."""
_LONGEST = 64 << 10
"""Characters of a line with those that continue it, such as one with a hash for each wheel."""
_LONGEST_NAME = 255
"""Characters of the name of a file, wherever that is."""
_MAX_TOLD = 200
"""Characters of a line in an error."""


@dataclass
class RequirementLines:
    """What a requirements file, and those that it includes, ask for, in lines of the same notation."""

    requirements: list[str] = field(default_factory=list[str])
    constraints: list[str] = field(default_factory=list[str])


def is_lock(file: Path) -> bool:
    """Whether a file is called as a lock is."""
    return _LOCK.fullmatch(file.name) is not None


def read_lock(file: Path) -> str:
    """The text of a lock.

    Raises:
        SettingError: Where it names what would have to be built, or is none.
    """
    text = _text(file, _MOST)
    if _LONG_KEY.search(text):
        raise SettingError(f"packages_file: {file} is no lock: it has a key of more than 50 parts")
    try:
        lock: dict[str, Any] = tomllib.loads(text)
    except ValueError as error:
        raise SettingError(f"packages_file: {file}: {cut(str(error), _MAX_TOLD)}") from None
    except RecursionError:
        raise SettingError(f"packages_file: {file} is no lock: it is nested too deeply") from None
    packages = lock.get("packages", [])
    if not isinstance(packages, list) or not all(
        isinstance(each, dict) for each in cast(list[Any], packages)
    ):
        raise SettingError(f"packages_file: {file} is no lock: its `packages` are no tables")
    for package in cast(list[dict[str, Any]], packages):
        if "directory" in package:
            raise SettingError(
                f"packages_file: {file}: {cut(str(package.get('name')), _MAX_TOLD)} is a directory, and nothing is built on this "
                "machine: name a wheel"
            )
    return text


def read_requirements(file: Path) -> RequirementLines:
    """Read a requirements file, and those that it includes.

    Raises:
        SettingError: Where it cannot be read, or asks for what only a build could give.
    """
    reading = _Reading()
    reading.read(file)
    return reading.found


class _Reading:
    """Reads a file, and those that it includes, each where it is included, however deep that is.

    Attributes:
        found: What they ask for.
    """

    def __init__(self) -> None:
        self.found = RequirementLines()
        self._seen: set[tuple[str, bool]] = set()
        self._left = _MOST

    def read(self, file: Path) -> None:
        files = [self._read(file, self.found.requirements)]
        while files:
            if (included := next(files[-1], None)) is None:
                files.pop()
            else:
                files.append(self._read(*included))

    def _read(self, file: Path, into: list[str]) -> Iterator[tuple[Path, list[str]]]:
        """Take the lines of a file, and yield each file that it includes, with what its lines belong to."""
        this = os.path.realpath(file), into is self.found.constraints
        if this in self._seen:
            return
        self._seen.add(this)
        text = _text(file, self._left)
        self._left -= len(text)
        for number, line in _lines(text, file):
            if not line.startswith("-"):
                into.append(_requirement(line, file, number))
                continue
            option, value = _option(line, file, number)
            if option in _REQUIREMENTS:
                yield file.parent / value, into
            elif option in _CONSTRAINTS:
                yield file.parent / value, self.found.constraints
            elif option in _INDEXES:
                into.append(f"{option} {value}")
            elif option in _PATHS:
                into.append(f"{option} {value if '://' in value else (file.parent / value).resolve()}")
            elif option == "--no-index":
                into.append(option)
            elif option not in ("--only-binary", "--prefer-binary", "--require-hashes"):
                raise SettingError(
                    f"packages_file: {file}:{number}: {cut(option, _MAX_TOLD)} is not taken: only wheels are used, and nothing is "
                    "built on this machine"
                )


def _option(line: str, file: Path, number: int) -> tuple[str, str]:
    option, _, value = line.replace("=", " ", 1).partition(" ")
    try:
        return option, "".join(shlex.split(value)) if value else ""
    except ValueError as error:
        told = cut(line, _MAX_TOLD)
        raise SettingError(f"packages_file: {file}:{number}: {told!r} cannot be read: {error}") from None


def _text(file: Path, most: int) -> str:
    try:
        return read_regular(file, most).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SettingError(f"packages_file: {file} is no UTF-8 text") from None
    except OSError as error:
        why = error.strerror
        if error.errno == errno.EFBIG:
            why = f"with the files that it includes, it may have {_MOST:,} bytes, and has more"
        raise SettingError(f"packages_file: {file} cannot be read: {why}") from None


def _lines(text: str, file: Path) -> Iterator[tuple[int, str]]:
    """The lines that say something, each with the number at which it begins."""
    number = 1
    for line in _CONTINUED.sub("\0", text).splitlines():
        if len(line) > _LONGEST:
            raise SettingError(
                f"packages_file: {file}:{number}: a line has more than {_LONGEST:,} characters"
            )
        if said := _COMMENT.sub("", line.replace("\0", " ")).strip():
            yield number, said
        number += 1 + line.count("\0")


def _wheel(place: str, directory: Path) -> str:
    """A wheel, given by its path or address alone, as a requirement."""
    name = place.rpartition("/")[2]
    if len(name) > _LONGEST_NAME:
        raise InvalidWheelFilename(f"no file has a name of more than {_LONGEST_NAME} characters")
    return f"{parse_wheel_filename(name)[0]} @ {place if '://' in place else (directory / place).resolve().as_uri()}"


def _requirement(line: str, file: Path, number: int) -> str:
    wanted, *hashes = (part.strip() for part in _HASH_OPTION.split(line))
    try:
        if wanted.endswith(".whl") and "@" not in wanted:
            wanted = _wheel(wanted, file.parent)
        if (wrong := next((each for each in hashes if not _HASH.fullmatch(each)), None)) is not None:
            raise InvalidRequirement(f"{cut(wrong, _MAX_TOLD)!r} is no hash")
        return " ".join([str(parsed(wanted)), *(f"--hash={each}" for each in hashes)])
    except (InvalidRequirement, InvalidWheelFilename) as error:
        why, told = str(error).partition("\n")[0], cut(wanted, _MAX_TOLD)
        raise SettingError(f"packages_file: {file}:{number}: {told!r} is no requirement: {why}") from None


def parsed(requirement: str) -> Requirement:
    """A requirement.

    Raises:
        InvalidRequirement: If it is none.
    """
    try:
        return Requirement(requirement)
    except RecursionError:
        raise InvalidRequirement("its marker is nested too deeply") from None
