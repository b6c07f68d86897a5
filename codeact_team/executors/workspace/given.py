"""The setting ``data``: files and directories that a person gives to the code, without recorded runs among them."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from codeact_team.errors import SettingError
from codeact_team.files.opening import THROUGH, open_named, opened_file
from codeact_team.files.trees import walk
from codeact_team.session.protocol import MIB
from codeact_team.text.visibility import readable

_PARTS: Mapping[str, re.Pattern[bytes]] = {
    "run.json": re.compile(rb'\{\s*"format":\s*\d+,\s*"id":'),
    "journal.jsonl": re.compile(rb'\{"n":\d+,"at":'),
}
"""The files by which the directory of a run is known, and how they begin. A damaged run may lack one."""
_BEGINNING = 256
_READ = os.O_RDONLY | os.O_NONBLOCK


def _is_of_a_run(directory: int) -> bool:
    """Whether an open directory is the directory of a run, even of a damaged one."""
    begins = {name: _beginning(directory, name) for name in _PARTS}
    there = [name for name, beginning in begins.items() if beginning is not None]
    return len(there) == len(_PARTS) or any(_PARTS[name].match(begins[name] or b"") for name in there)


def _run_above(path: str) -> str | None:
    """The directory of the run that a path is in, however deep; ``None`` if it is in none. Raises an ``OSError``."""
    above = os.path.dirname(path.rstrip("/")) or "."
    here, name = open_named(above, THROUGH), os.path.realpath(above)
    try:
        while not _is_of_a_run(here):
            outer = os.open("..", THROUGH, dir_fd=here)
            is_top = os.path.samestat(os.fstat(outer), os.fstat(here))
            os.close(here)
            here, name = outer, os.path.dirname(name)
            if is_top:
                return None
        return name
    finally:
        os.close(here)


def _beginning(directory: int, name: str) -> bytes | None:
    """The first bytes of a file; ``None`` without a file, and nothing if it cannot be read."""
    try:
        with opened_file(directory, name) as file:
            return os.pread(file, _BEGINNING, 0)
    except FileNotFoundError:
        return None
    except OSError:
        return b""


logger = logging.getLogger(__name__)

_MAX_SAID = 5
"""Hidden files that are named."""


@dataclass(frozen=True)
class Given:
    """A file, a directory or a link that is to be copied.

    Attributes:
        path: Its path in the workspace.
        source: Its path on this machine.
        mode: Its kind and its permissions, as in ``st_mode``.
        size: Of a file, in bytes.
        target: The target of a link, relative to it.
    """

    path: str
    source: str
    mode: int
    size: int = 0
    target: str = ""

    @property
    def is_file(self) -> bool:
        """Whether it is a file."""
        return stat.S_ISREG(self.mode)

    def open(self) -> io.FileIO:
        """Open the file on this machine, unbuffered. Raises an ``OSError`` if it cannot be read, or is a link now."""
        return open(open_named(self.source, _READ), "rb", buffering=0)


class GivenData:
    """The data of a setting: at most so many MiB and so many files and directories; ``None`` for any number.

    The setting ``field`` is the one that limits ``mib``.
    """

    def __init__(
        self, paths: Sequence[str], *, mib: int | None, files: int | None, field: str = "workspace_mib"
    ) -> None:
        self._paths = paths
        self._mib = mib
        self._files = files
        self._field = field
        self._found: Sequence[Given] | None = None

    def find(self) -> Sequence[Given]:
        """Find all entries to copy, directories before their content. Looks once. Blocks. Raises a ``SettingError``."""
        if self._found is None:
            self._found = self._find()
        return self._found

    async def found(self) -> Sequence[Given]:
        """Do :meth:`find` in a thread, if it has paths."""
        return await asyncio.to_thread(self.find) if self._paths else ()

    def _find(self) -> Sequence[Given]:
        found: list[Given] = []
        names: dict[str, str] = {}
        size = 0
        hidden: list[str] = []
        for path in self._paths:
            name = Path(path).name
            if name in ("", ".."):
                name = Path(path).resolve().name
            if not name:
                raise SettingError(f"data: {path!r} has no name that a copy could have")
            if name in names:
                raise SettingError(
                    f"data: {names[name]} and {path} would both be {name} in the workspace: rename one of them"
                )
            names[name] = path
            for one in _tree(path, name, hidden):
                found.append(one)
                size += one.size
                if self._mib is not None and size > self._mib * MIB:
                    raise SettingError(
                        f"data: {path} does not fit: {self._field} is {self._mib}, and the data up to this file "
                        f"has {size / MIB:,.1f} MiB: give less, or raise {self._field}"
                    )
                if self._files is not None and len(found) > self._files:
                    raise SettingError(
                        f"data: {path} does not fit: workspace_files is {self._files}, and the data has more: give less, "
                        "or raise workspace_files"
                    )
        if hidden:
            named = ", ".join([*map(readable, hidden[:_MAX_SAID]), *(["…"] if hidden[_MAX_SAID:] else [])])
            logger.info(
                "data: hidden files and directories are left out, unless you name them (%d): %s",
                len(hidden),
                named,
            )
        return found


def _tree(path: str, name: str, hidden: list[str]) -> Iterator[Given]:
    """The entry of a file, or the entries of a directory and its content; those left out are added to ``hidden``."""
    try:
        # a pipe would be waited for
        descriptor = open_named(path, _READ)
        try:
            status, run = os.fstat(descriptor), _run_above(path)
            if run is not None:
                raise SettingError(
                    f"data: {path} is in {run}, the directory of a run, which code must not read"
                )
            _check(path, status.st_mode)
            if stat.S_ISDIR(status.st_mode):
                yield from _below(path, descriptor, name, hidden)
            else:
                yield Given(name, path, status.st_mode, status.st_size)
        finally:
            os.close(descriptor)
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            raise SettingError(f"data: there is no {path} (looked for in {os.getcwd()})") from error
        raise SettingError(f"data: {path} cannot be read: {error.strerror}") from error


def _below(path: str, top: int, name: str, hidden: list[str]) -> Iterator[Given]:
    """The entries of the directory open as ``top``, which is at ``path`` here and at ``name`` in the workspace."""
    real = os.path.realpath(path)
    for directory in walk(top, leaves_device=True):
        source, place = os.path.join(path, *directory.names), "/".join([name, *directory.names])
        if _is_of_a_run(directory.descriptor):
            if not directory.names:
                raise SettingError(
                    f"data: {path} is the directory of a run, whose journal code must not read"
                )
            logger.info("%s is the directory of a run, and is not copied", source)
            continue
        yield Given(place, source, os.fstat(directory.descriptor).st_mode)
        for entry, status in sorted(directory.entries()):
            inner, inner_place = os.path.join(source, entry), f"{place}/{entry}"
            if entry.startswith("."):
                # secrets, histories, caches
                hidden.append(inner)
                continue
            if stat.S_ISLNK(status.st_mode):
                if (target := _target(inner, real)) is None:
                    hidden.append(inner)
                    continue
                yield Given(inner_place, inner, status.st_mode, target=target)
                continue
            _check(inner, status.st_mode)
            if stat.S_ISDIR(status.st_mode):
                directory.enter(entry, status)
            else:
                yield Given(inner_place, inner, status.st_mode, status.st_size)


def _check(path: str, mode: int) -> None:
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise SettingError(f"data: {path} is neither a file nor a directory")
    if not os.access(path, os.R_OK | (os.X_OK if stat.S_ISDIR(mode) else 0)):
        raise SettingError(f"data: {path} cannot be read: permission denied")


def _target(link: str, top: str) -> str | None:
    """The target of a link in a given directory; ``None`` if that is hidden.

    It has to be in that directory, too, so that the copy leads to a copy.
    """
    target = os.readlink(link)
    reached = os.path.realpath(link)
    if os.path.isabs(target) or not os.path.exists(link) or not Path(reached).is_relative_to(top):
        raise SettingError(
            f"data: the link {link} leads to {target}, which is not copied with it: replace the link by a copy of its target"
        )
    is_hidden = any(part.startswith(".") for part in Path(reached).relative_to(top).parts)
    return None if is_hidden else target
