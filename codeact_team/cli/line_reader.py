"""Text from a pipe or a file."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections import deque
from pathlib import Path

from codeact_team.errors import SettingError
from codeact_team.system.regular_files import read_regular

_READ_BYTES = 65_536
_MOST = 1 << 20
"""Bytes of a text: no model reads more."""


class LineReader:
    """Messages on standard input, each a line; read without a thread, which would have to be waited for at the end."""

    def __init__(self) -> None:
        mode = os.fstat(0).st_mode
        # what else there is, such as a file, can be read at once, and does not say so
        self._says_when = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(0)
        self._complete: deque[bytes] = deque()
        self._begun = b""
        self._ended = False

    async def read(self) -> str | None:
        """The next line; ``None`` at the end."""
        while not self._complete and not self._ended:
            if self._says_when:
                await self._readable()
            data = os.read(0, _READ_BYTES)
            *complete, self._begun = (self._begun + data).split(b"\n")
            self._complete += complete
            if len(self._begun) > _MOST:
                raise SettingError(f"a message from standard input has more than {_MOST:,} bytes")
            if not data:
                self._ended = True
                self._complete.append(self._begun)
        if not self._complete:
            return None
        return decode(self._complete.popleft(), "a message from standard input")

    async def _readable(self) -> None:
        loop, readable = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(0, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(0)


def read_file(path: Path, what: str) -> str:
    """The text in a file that a person names.

    Args:
        path: The file.
        what: What it is, for errors.

    Raises:
        SettingError: If it cannot be read, is larger than a text may be, or is no UTF-8 text.
    """
    try:
        return decode(read_regular(path, _MOST), f"{what} from {path}")
    except OSError as error:
        raise SettingError(f"{what} cannot be read from {path}: {error.strerror}") from error


def read_standard_input(what: str) -> str:
    """All the text on standard input.

    Raises:
        SettingError: If it is more than a text may be, or no UTF-8 text.
    """
    data = sys.stdin.buffer.read(_MOST + 1)
    if len(data) > _MOST:
        raise SettingError(f"{what} from standard input has more than {_MOST:,} bytes")
    return decode(data, f"{what} from standard input")


def decode(data: bytes, what: str) -> str:
    """The text of ``data``, or a SettingError if it is no UTF-8 text."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SettingError(f"{what} is no UTF-8 text") from error
