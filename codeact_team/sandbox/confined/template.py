"""The host's end of the supervising processes, and of the template of which they are forks."""

from __future__ import annotations

import asyncio
import json
import marshal
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import util
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from codeact_team.errors import ConfinementError
from codeact_team.sandbox.base import LoadedAhead
from codeact_team.sandbox.readiness import readable

SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_DIRECTORY = Path(__file__).with_name("supervisor")
PROGRAM = """
import sys
sys.path[0], *_arguments = sys.argv[1:]
from beginning import begin
from main_thread import obey
begin(_arguments)
del begin
while obey(): pass
_loaded.run(_arguments)
"""
"""What the template runs, and so what is on the stack of a program that is a fork of it."""
_SEND_TIMEOUT = 5.0
"""Seconds that a process may take to read a message, which it does at once."""


class End(socket.socket):
    """This process's end of a socket to a process that closes its own last of all."""

    @classmethod
    def pair(cls) -> tuple[End, socket.socket]:
        """A new one, and the other end."""
        ours, theirs = socket.socketpair()
        end = cls(fileno=ours.detach())
        end.settimeout(_SEND_TIMEOUT)
        return end, theirs

    @property
    def is_closed_there(self) -> bool:
        """Whether the process has ended, or never listened."""
        poll = select.poll()
        poll.register(self, select.POLLIN)
        if not poll.poll(0):
            return False
        try:
            return not self.recv(1, socket.MSG_PEEK)
        except ConnectionError:
            # it was killed before it had read what was sent to it
            return True

    def tell(self, message: object, descriptors: Sequence[int] = ()) -> None:
        """Send a message, and descriptors with it, or raise an OSError."""
        data = json.dumps(message).encode() + b"\n"
        sent = socket.send_fds(self, [data], descriptors)
        self.sendall(data[sent:])

    async def finish(self) -> None:
        """Tell the process that nothing more comes, and wait until it has ended."""
        # it may have ended already
        with suppress(OSError):
            self.shutdown(socket.SHUT_WR)
        await readable(self.fileno())


class _Template:
    """A started one, see ``supervisor/template.py``.

    It shares neither environment nor descriptors nor terminal with this process.

    Args:
        program: What it loads, if anything.
    """

    def __init__(self, program: LoadedAhead | None) -> None:
        self.end, theirs = End.pair()
        self.program = program
        self.host = os.getpid()
        self.forks = 0
        """How many there were so far."""
        self.living = 0
        # where code is to find itself in a fork, it is started as the code's Python would be
        option = "-S" if program is None else "-u"
        with theirs, TemporaryFile() as loading:
            loading.write(marshal.dumps(None if program is None else [*program]))
            loading.seek(0)
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    option,
                    "-c",
                    PROGRAM,
                    str(_DIRECTORY),
                    str(loading.fileno()),
                    *_directory_of("sandlock"),
                ],
                stdin=theirs.fileno(),
                pass_fds=[loading.fileno()],
                # what nobody reads; a pipe, as programs in its forks will have
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                # sandlock cannot be imported where a user has no home
                env={"PATH": SEARCH_PATH, "LANG": "C.UTF-8", "HOME": "/"},
                cwd="/",
                start_new_session=True,
            )
        assert self._process.stdout is not None, "it is a pipe"
        self._process.stdout.close()

    def serves(self, program: LoadedAhead | None) -> bool:
        """Whether it can be asked for a fork that has that loaded."""
        has_it = program is None or program is self.program
        return has_it and self.host == os.getpid() and not self.end.is_closed_there

    async def close(self) -> None:
        await self.end.finish()
        self.end.close()
        # it closes its end last of all, so this does not wait
        self._process.wait()


_lock = threading.Lock()
_current: _Template | None = None


class Fork:
    """A process that is a fork of the template; that ends with the last of them.

    Args:
        settings: What it needs to know.
        control: The socket that it gets, which stays the caller's.
        program: What it is to have loaded, if anything.

    Raises:
        OSError: If it cannot be had.
    """

    def __init__(
        self, settings: Mapping[str, Any], control: socket.socket, program: LoadedAhead | None = None
    ) -> None:
        global _current
        with _lock:
            template = _current
            if template is None or not template.serves(program):
                template = _current = _Template(program)
            self._template = template
            self._number = template.forks = template.forks + 1
            self._clean, until_clean = os.pipe()
            message = {"do": "fork", "number": self._number, "settings": settings}
            try:
                template.end.tell(message, [control.fileno(), until_clean])
            except OSError:
                os.close(self._clean)
                raise
            finally:
                os.close(until_clean)
            template.living += 1

    def kill(self) -> None:
        """End it by force."""
        with _lock, suppress(OSError):
            self._template.end.tell({"do": "kill", "number": self._number})

    async def close(self) -> None:
        """Wait until it has ended, and what was made for it is removed."""
        global _current
        await readable(self._clean)
        os.close(self._clean)
        with _lock:
            self._template.living -= 1
            if self._template.living:
                return
            if _current is self._template:
                _current = None
        await self._template.close()


def _directory_of(module: str) -> Sequence[str]:
    """Where to import ``module`` from, if it is installed."""
    spec = util.find_spec(module)
    return () if spec is None or spec.origin is None else (os.path.dirname(os.path.dirname(spec.origin)),)


_START_TIMEOUT = 20.0
"""Seconds for an interpreter to start; a loaded machine needs a few."""
_STOP_TIMEOUT = 10.0
"""Seconds to end what runs and to remove temporary files."""
_MAX_ANSWER = 1 << 16
_GROUP = " control group"


class Control:
    """A started supervising process, see ``supervisor/supervision.py``, with what it needs to know first.

    Args:
        settings: What confines.
        program: What it is to have loaded, if anything.

    Raises:
        ConfinementError: If it cannot be started.
    """

    def __init__(self, settings: Mapping[str, Any], program: LoadedAhead | None = None) -> None:
        self.reasons: dict[str, str | None] = {}
        """Why something that confines cannot be had, or ``None``, by its name; empty until it has answered."""
        self.is_by_kernel = False
        """Whether the kernel alone confines, so that a fork of the process can be confined."""
        self._end, theirs = End.pair()
        self._killed = False
        try:
            with theirs:
                self._fork = Fork(settings, theirs, program)
        except OSError as error:
            self._end.close()
            raise ConfinementError(f"The supervising process cannot be started: {error}") from error

    @property
    def alive(self) -> bool:
        """Whether the process runs. Where it is killed, one that it has forked may hold the socket for a moment."""
        return not self._killed and not self._end.is_closed_there

    def send(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        """Send a message, and descriptors with it, or raise a ConfinementError."""
        try:
            self._end.tell(message, fds)
        except OSError as error:
            raise ConfinementError(f"The supervising process is gone: {error}") from error

    async def greet(self) -> None:
        """Wait until it is ready, or raise a ConfinementError."""
        answer = b""
        try:
            async with asyncio.timeout(_START_TIMEOUT):
                while not answer.endswith(b"\n"):
                    await readable(self._end.fileno())
                    if not (data := self._end.recv(_MAX_ANSWER)):
                        raise ConfinementError("The supervising process ended at its start.")
                    answer += data
        except ConnectionError as error:
            raise ConfinementError(f"The supervising process ended at its start: {error}") from error
        except TimeoutError:
            raise ConfinementError(
                f"The supervising process did not start within {_START_TIMEOUT:g} s."
            ) from None
        said = json.loads(answer)
        if "failed" in said:
            raise ConfinementError(f"The supervising process failed at its start: {said['failed']}")
        self.reasons, self.is_by_kernel = said["reasons"], said["by_kernel"]

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
        self._killed = True
        self._fork.kill()

    async def close(self) -> None:
        """Let the process end all that it has started, and itself."""
        try:
            async with asyncio.timeout(_STOP_TIMEOUT):
                await self._end.finish()
        except TimeoutError:
            self.kill()
        await self._fork.close()
        self._end.close()
