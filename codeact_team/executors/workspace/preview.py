"""Previews of tables for a model: names, columns and first rows, read in a sandbox, as a file may be hostile to its reader."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import re
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import cache
from importlib import resources
from pathlib import Path
from subprocess import TimeoutExpired

from pydantic import TypeAdapter, ValidationError

from codeact_team.errors import SandboxError
from codeact_team.executors.workspace.given import Given
from codeact_team.executors.workspace.telling import PACKED, TEXT_TABLES, Told
from codeact_team.sandbox.processes import ProcessRequest
from codeact_team.session.processes import ProcessServer
from codeact_team.session.protocol import MIB

logger = logging.getLogger(__name__)

_READERS: Mapping[str, str] = {
    ".xlsx": "openpyxl",
    ".xlsm": "openpyxl",
    ".xls": "xlrd",
    ".parquet": "pyarrow",
    ".pq": "pyarrow",
}
"""The packages without which no code can read such a file."""
_KINDS: Mapping[str, str] = {
    ".xlsx": "workbook",
    ".xlsm": "workbook",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".db": "database",
    ".sqlite": "database",
    ".sqlite3": "database",
    ".json": "json",
    ".zip": "zip",
    **{f"{table}{packed}": packed[1:] for table in (*TEXT_TABLES, ".json") for packed in PACKED},
}
_MAX_PREVIEWS = 5
_SECONDS, _SECONDS_FOR_ALL = 5.0, 10.0
_BEGINNING, _END = 32 * MIB, 4 * MIB
"""The parts of a longer file that are read: a database begins with its tables, and a parquet file ends with its columns."""
_PIECE = MIB
_MAX_SAID = 64 * 1024
_LINES = TypeAdapter(list[str])
_MAX_KNOWN = 32
_known: dict[tuple[object, ...], Mapping[str, Sequence[str]]] = {}
"""Previews by the packages and the versions of the files."""


def readers_of(given: Sequence[Given]) -> Mapping[str, str]:
    """The packages that some of the files need to be read, each with the path of the first such file."""
    found: dict[str, str] = {}
    for one in given:
        package = _by_ending(_READERS, one)
        if package is not None:
            found.setdefault(package, one.path)
    return found


def samples_of(told: Sequence[Told]) -> Mapping[str, Given]:
    """The first files that have a preview, one for each entry, by its path."""
    found: dict[str, Given] = {}
    for one in told:
        sample = next(
            (file for file in one.files if file.size and _by_ending(_KINDS, file) is not None), None
        )
        if sample is not None and len(found) < _MAX_PREVIEWS:
            found[one.entry.path] = sample
    return found


async def previews(
    given: Sequence[Given],
    packages: Path | None,
    open_processes: Callable[[], AbstractAsyncContextManager[ProcessServer]],
) -> Mapping[str, Sequence[str]]:
    """The lines about each of the files, by path; hostile data. A file that is broken, or takes too long, has none.

    Args:
        given: The files. Those of a batch, which are the same for all tasks, are read once.
        packages: The packages of the sandbox.
        open_processes: A context manager that starts processes in a sandbox, which read the files.

    Raises:
        SandboxError: If the sandbox does not start.
    """
    key = packages, *(await asyncio.to_thread(lambda: [_version(one) for one in given]))
    if (found := _known.get(key)) is None:
        async with open_processes() as processes:
            found = await _read(given, processes)
        if all(found.get(one.path) for one in given):
            _known[key] = found
            if len(_known) > _MAX_KNOWN:
                del _known[next(iter(_known))]
    return found


def _version(one: Given) -> object:
    """A value that changes with the content of a file."""
    try:
        status = os.lstat(one.source)
    except OSError:
        return object()
    return one.path, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


async def _read(given: Sequence[Given], processes: ProcessServer) -> Mapping[str, Sequence[str]]:
    found: dict[str, Sequence[str]] = {}
    try:
        async with asyncio.timeout(_SECONDS_FOR_ALL):
            for one in given:
                found[one.path] = await _preview(one, processes)
    except TimeoutError:
        logger.debug("the previews of the data take too long")
    return found


async def _preview(one: Given, processes: ProcessServer) -> Sequence[str]:
    # not isolated: the packages are on the path
    arguments = [
        "-W",
        "ignore",
        "-c",
        program(),
        _by_ending(_KINDS, one) or "",
        str(one.size),
        str(_BEGINNING),
    ]
    request = ProcessRequest(
        [processes.python, *arguments], stderr="together", output_limit=_MAX_SAID, timeout=_SECONDS
    )
    said = b""
    try:
        said = (await processes.run(request, _content(one))).stdout
        return _LINES.validate_json(said.rstrip().rpartition(b"\n")[2])
    except (OSError, SandboxError, TimeoutExpired, ValidationError) as error:
        logger.debug("%s has no preview: %s; the reader says %r", one.path, error, said[-300:])
        return ()


async def _content(one: Given) -> AsyncGenerator[bytes]:
    with await asyncio.to_thread(one.open) as file:
        for piece in _pieces(file, one.size):
            yield piece


def _pieces(file: io.FileIO, size: int) -> Iterator[bytes]:
    """The beginning of a file, and its end."""
    left = min(size, _BEGINNING)
    while left and (piece := file.read(min(left, _PIECE))):
        left -= len(piece)
        yield piece
    if size > _BEGINNING:
        left = min(size - _BEGINNING, _END)
        file.seek(size - left)
        while left and (piece := file.read(min(left, _PIECE))):
            left -= len(piece)
            yield piece


def _by_ending(table: Mapping[str, str], one: Given) -> str | None:
    name = one.path.lower()
    return next((value for ending, value in table.items() if one.is_file and name.endswith(ending)), None)


@cache
def program() -> str:
    """Return the source of the program that runs in the sandbox, which does not have this package."""
    inside = resources.files(__name__.rpartition(".")[0]) / "inside"
    start, rest = ((inside / name).read_text() for name in ("text_start.py", "preview.py"))
    return start + re.sub(r"^from (?:__future__|codeact_team).*\n", "", rest, flags=re.MULTILINE)
