"""The host's end of the supervising process: starts it, tells it what to do, and sees it end."""

from __future__ import annotations

import asyncio
import json
import select
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from codeact_team.errors import ConfinementError
from codeact_team.sandboxes.readiness import readable

SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_PROGRAM = Path(__file__).with_name("supervisor")
_START_TIMEOUT = 20.0
"""Seconds for an interpreter to start; a loaded machine needs a few."""
_STOP_TIMEOUT = 10.0
"""Seconds to end what runs and to remove temporary files."""
_SEND_TIMEOUT = 5.0
"""Seconds that the supervisor may take to read a message, which it does at once."""
_MAX_ANSWER = 1 << 16
_GROUP = " control group"


class Control:
    """A started supervising process, see ``supervisor/__main__.py``, with what it needs to know first.

    It shares neither environment nor descriptors nor terminal with this process.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.reasons: dict[str, str | None] = {}
        """Why something that confines cannot be had, or ``None``, by its name; empty until it has answered."""
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(_SEND_TIMEOUT)
        self._readable = select.poll()
        self._readable.register(self._socket, select.POLLIN)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_PROGRAM)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # sandlock cannot be imported where a user has no home
                env={"PATH": SEARCH_PATH, "LANG": "C.UTF-8", "HOME": "/"},
                cwd="/",
                start_new_session=True,
            )
        self.send(settings)

    @property
    def alive(self) -> bool:
        """Whether the process runs, by its end of the socket, which closes before the process can be waited for.

        Where it is killed, one that it has forked may hold that end for a moment.
        """
        return not self._at_end() and self._process.poll() is None

    def _at_end(self) -> bool:
        if not self._readable.poll(0):
            return False
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except ConnectionError:
            # it was killed before it had read what was sent to it
            return True

    def send(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        """Send a message, and descriptors with it, or raise a ConfinementError."""
        data = json.dumps(message).encode() + b"\n"
        try:
            sent = socket.send_fds(self._socket, [data], fds)
            self._socket.sendall(data[sent:])
        except OSError as error:
            raise ConfinementError(f"The supervising process is gone: {error}") from error

    async def greet(self) -> None:
        """Wait for the answer to the settings, or raise a ConfinementError."""
        answer = b""
        try:
            async with asyncio.timeout(_START_TIMEOUT):
                while not answer.endswith(b"\n"):
                    await readable(self._socket.fileno())
                    if not (data := self._socket.recv(_MAX_ANSWER)):
                        raise ConfinementError("The supervising process ended at its start.")
                    answer += data
        except ConnectionError as error:
            raise ConfinementError(f"The supervising process ended at its start: {error}") from error
        except TimeoutError:
            raise ConfinementError(
                f"The supervising process did not start within {_START_TIMEOUT:g} s."
            ) from None
        self.reasons = json.loads(answer)
        if "failed" in self.reasons:
            raise ConfinementError(f"The supervising process failed at its start: {self.reasons['failed']}")

    @property
    def has_namespaces(self) -> bool:
        """Whether programs see no processes but their own, and have their temporary files in memory."""
        return self.reasons.get("namespaces", "") is None

    @property
    def ungrouped(self) -> Mapping[str, str]:
        """Why a controller of control groups cannot be had, by its name."""
        return {
            name.removesuffix(_GROUP): reason
            for name, reason in self.reasons.items()
            if reason is not None and name.endswith(_GROUP)
        }

    def kill(self) -> None:
        """End the process by force; the program that it runs ends with it."""
        self._process.kill()

    async def close(self) -> None:
        """Let the process end all that it has started, and itself."""
        self._socket.shutdown(socket.SHUT_WR)
        try:
            async with asyncio.timeout(_STOP_TIMEOUT):
                await readable(self._socket.fileno())
        except TimeoutError:
            self.kill()
        self._socket.close()
        # it closes its end last of all, so this does not wait
        self._process.wait()
