"""The packages of a config, and the Python that they are for.

Requirements files are read here, and uv gets the result, never the files: uv would build what a line such as
``-e ./project`` names, and so run its code on this machine, even with the option to build nothing.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shlex
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, cast

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from codeact_team.errors import SandboxError, SettingError
from codeact_team.files.opening import open_regular, read_regular
from codeact_team.text.visibility import cut

MAX_DESCRIPTION_BYTES = 1024 * 1024
_MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
_GLIBC = re.compile(r"2\.(\d{1,3})")
_GLIBCS = (17, 28, *range(31, 41))
"""The minor versions of glibc that uv knows by name."""

Word = Annotated[str, Field(max_length=200)]


class PythonDescription(BaseModel):
    """The description of a Python in a sandbox, by itself: it is checked, as everything from a sandbox.

    Attributes:
        implementation: Such as ``cpython``.
        version: Such as ``3.11.2``.
        free_threaded: Whether it has no global interpreter lock.
        machine: The processor's architecture.
        libc: Name and version of the C library, empty where it does not say.
        soabi: The tag of its extension modules.
        cache_tag: Its name in names of files that it has compiled.
        packages: Name and version of each package it has.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    implementation: Word
    version: str = Field(pattern=r"^\d{1,3}(\.\d{1,5}){1,2}[a-z0-9+]{0,20}$")
    free_threaded: bool
    machine: Word
    libc: tuple[Word, Word]
    soabi: Word
    cache_tag: str = Field(pattern=r"^[a-z]{0,20}-?[0-9a-z]{0,20}$")
    packages: tuple[tuple[Word, Word], ...] = Field(max_length=10_000)

    def __str__(self) -> str:
        name = "CPython" if self.implementation == "cpython" else self.implementation
        threads = " (free-threaded)" if self.free_threaded else ""
        libc = " ".join(self.libc).strip() or ("musl" if self._is_musl else "an unknown C library")
        return f"{name} {self.version}{threads} on {self.machine} with {libc}"

    @property
    def name(self) -> str:
        """Its name for a model, such as ``Python 3.11.2``."""
        kind = "" if self.implementation == "cpython" else f" ({self.implementation})"
        return f"Python {self.version}{kind}"

    def key(self, origin: str) -> str:
        """What decides which packages fit a Python that comes from ``origin``, and who may use what it has compiled."""
        return f"{self.version} {self.platform} {self.cache_tag} {origin}"

    @property
    def _is_musl(self) -> bool:
        return "musl" in self.soabi

    @property
    def platform(self) -> str:
        """The platform that packages have to be built for, as uv names it. Raises a ``SandboxError`` if it has no name."""
        machine = _MACHINES.get(self.machine.lower())
        if self.implementation != "cpython" or self.free_threaded or machine is None:
            raise SandboxError(
                f"packages cannot be added to {self}, only to CPython with the GIL, on x86_64 and aarch64. Use an image "
                "that has the packages, and leave out `packages`"
            )
        if self._is_musl:
            return f"{machine}-unknown-linux-musl"
        if self.libc[0] != "glibc" or (found := _GLIBC.match(self.libc[1])) is None:
            raise SandboxError(
                f"packages cannot be added to {self}: use an image with glibc or musl, or one that has the packages"
            )
        fitting = [minor for minor in _GLIBCS if minor <= int(found[1])]
        if not fitting:
            raise SandboxError(f"packages cannot be added to {self}: it needs glibc 2.17 or newer")
        return f"{machine}-manylinux_2_{fitting[-1]}"


@cache
def describing() -> tuple[str, ...]:
    """The arguments by which a Python describes itself."""
    # isolated: nothing that is left in the workspace is run
    return ("-I", "-c", (resources.files(__name__.rpartition(".")[0]) / "inside" / "describe.py").read_text())


def read_description(said: bytes) -> PythonDescription:
    """Read the description that a Python has written. Raises a ``SandboxError`` if it is none."""
    try:
        return PythonDescription.model_validate_json(said)
    except ValidationError:
        words = said[:300].decode(errors="replace").strip()
        raise SandboxError(f"the sandbox's Python does not describe itself; it says: {words!r}") from None


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
"""A key that would take quadratic time. Keys of locks have a few parts only."""
_MOST = 16 << 20
"""Bytes of a file and those that it includes."""
_LONGEST = 64 << 10
"""Characters of a line with its continuations, such as one with a hash for each wheel."""
_LONGEST_NAME = 255
"""Characters of the name of a file, on any file system."""
_MAX_SHOWN = 200
"""Characters of a line in an error."""


@dataclass
class RequirementLines:
    """The requirements and constraints of a file and those that it includes, in lines of the same notation."""

    requirements: list[str] = field(default_factory=list[str])
    constraints: list[str] = field(default_factory=list[str])


def _read_lock(file: Path) -> str:
    """Read a lock. Raises a ``SettingError`` if it is none, or names a package that would have to be built."""
    text = _text(file, _MOST)
    if _LONG_KEY.search(text):
        raise SettingError(f"packages_file: {file} is not a lock: it has a key of more than 50 parts")
    try:
        lock: dict[str, Any] = tomllib.loads(text)
    except ValueError as error:
        raise SettingError(f"packages_file: {file}: {cut(str(error), _MAX_SHOWN)}") from None
    except RecursionError:
        raise SettingError(f"packages_file: {file} is not a lock: it is nested too deeply") from None
    packages = lock.get("packages", [])
    if not isinstance(packages, list) or not all(
        isinstance(each, dict) for each in cast(list[Any], packages)
    ):
        raise SettingError(f"packages_file: {file} is not a lock: its `packages` are not tables")
    for package in cast(list[dict[str, Any]], packages):
        if "directory" in package:
            raise SettingError(
                f"packages_file: {file}: {cut(str(package.get('name')), _MAX_SHOWN)} is a directory, and packages are not built on "
                "this machine: name a wheel"
            )
    return text


def read_requirements(file: Path) -> RequirementLines:
    """Read a requirements file, and those that it includes.

    Raises a ``SettingError`` if it cannot be read, or names a package that would have to be built.
    """
    reading = _Reading()
    reading.read(file)
    return reading.found


class _Reading:
    """Reads a file and those that it includes, in the order of their lines, however deep."""

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
        """Add the lines of a file, and yield each file that it includes, with the list for its lines."""
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
                    f"packages_file: {file}:{number}: {cut(option, _MAX_SHOWN)} is not supported: only wheels are used, and "
                    "packages are not built on this machine"
                )


def _option(line: str, file: Path, number: int) -> tuple[str, str]:
    option, _, value = line.replace("=", " ", 1).partition(" ")
    try:
        return option, "".join(shlex.split(value)) if value else ""
    except ValueError as error:
        shown = cut(line, _MAX_SHOWN)
        raise SettingError(f"packages_file: {file}:{number}: {shown!r} cannot be read: {error}") from None


def _text(file: Path, most: int) -> str:
    try:
        return read_regular(file, most).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SettingError(f"packages_file: {file} is not UTF-8 text") from None
    except OSError as error:
        why = error.strerror
        if error.errno == errno.EFBIG:
            why = f"with the files that it includes, it has more than {_MOST:,} bytes"
        raise SettingError(f"packages_file: {file} cannot be read: {why}") from None


def _lines(text: str, file: Path) -> Iterator[tuple[int, str]]:
    """The lines that are not empty, each with its first line number."""
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
    """The requirement for a wheel that is given only by its path or address."""
    name = place.rpartition("/")[2]
    if len(name) > _LONGEST_NAME:
        raise InvalidWheelFilename(f"a file name has at most {_LONGEST_NAME} characters")
    return f"{parse_wheel_filename(name)[0]} @ {place if '://' in place else (directory / place).resolve().as_uri()}"


def _requirement(line: str, file: Path, number: int) -> str:
    wanted, *hashes = (part.strip() for part in _HASH_OPTION.split(line))
    try:
        if wanted.endswith(".whl") and "@" not in wanted:
            wanted = _wheel(wanted, file.parent)
        if (wrong := next((each for each in hashes if not _HASH.fullmatch(each)), None)) is not None:
            raise InvalidRequirement(f"{cut(wrong, _MAX_SHOWN)!r} is not a hash")
        return " ".join([str(_parsed(wanted)), *(f"--hash={each}" for each in hashes)])
    except (InvalidRequirement, InvalidWheelFilename) as error:
        why, shown = str(error).partition("\n")[0], cut(wanted, _MAX_SHOWN)
        raise SettingError(f"packages_file: {file}:{number}: {shown!r} is not a requirement: {why}") from None


def _parsed(requirement: str) -> Requirement:
    """Parse a requirement. Raises an ``InvalidRequirement`` if it is none."""
    try:
        return Requirement(requirement)
    except RecursionError:
        raise InvalidRequirement("its marker is nested too deeply") from None


@dataclass(frozen=True)
class Requested:
    """Packages, as ``packages`` (such as ``matplotlib>=3.8``) and ``packages_file`` of a config name them.

    Raises a ``SettingError`` if a requirement is invalid, or the file, a requirements file or a lock, cannot be read.
    """

    requirements: Sequence[str] = ()
    file: Path | None = None

    def __post_init__(self) -> None:
        for one in self.requirements:
            try:
                _parsed(one)
            except InvalidRequirement as error:
                raise SettingError(f"packages: {one!r} is not a requirement: {error}") from None
        if self.file is not None:
            try:
                os.close(open_regular(self.file))
            except FileNotFoundError:
                raise SettingError(f"packages_file: {str(self.file)!r} does not exist") from None
            except OSError as error:
                raise SettingError(f"packages_file: {self.file} cannot be read: {error.strerror}") from None

    def __bool__(self) -> bool:
        return bool(self.requirements) or self.file is not None

    def __str__(self) -> str:
        return ", ".join([*self.requirements, *([] if self.file is None else [str(self.file)])])

    @property
    def lock(self) -> Path | None:
        """The file, if it is a lock."""
        return self.file if self.file is not None and _LOCK.fullmatch(self.file.name) else None

    def lines(self) -> RequirementLines:
        """Return all requirements, except a lock's. Reads the files. Raises a ``SettingError``."""
        if self.lock is not None:
            _read_lock(self.lock)
        asked = RequirementLines() if self.file is None or self.lock else read_requirements(self.file)
        asked.requirements += self.requirements
        return asked

    def names(self) -> frozenset[str]:
        """The names of the packages, without their dependencies. Reads the files. Raises a ``SettingError``."""
        named = [line for line in self.lines().requirements if not line.startswith("-")]
        lock: dict[str, Any] = {} if self.lock is None else tomllib.loads(_read_lock(self.lock))
        locked: list[dict[str, Any]] = lock.get("packages", [])
        names = [_parsed(_HASH_OPTION.split(line)[0]).name for line in named]
        return frozenset(map(canonicalize_name, [*names, *(str(each.get("name")) for each in locked)]))

    def digest(self, python: str) -> str:
        """A digest of the requirements and the key of a Python. Reads the files. Raises a ``SettingError``."""
        lines = self.lines()
        locked = "" if self.lock is None else _read_lock(self.lock)
        asked = [lines.requirements, lines.constraints, locked, python]
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()
