"""Text from a pipe or a file."""

from __future__ import annotations

import asyncio
import os
import stat
from collections import deque

from codeact_team.errors import SettingError

_READ_BYTES = 65_536


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


def decode(data: bytes, what: str) -> str:
    """The text of ``data``, or a SettingError if it is no UTF-8 text."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SettingError(f"{what} is no UTF-8 text") from error
