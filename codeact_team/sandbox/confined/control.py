"""The host's end of the supervising processes, of the zygote that they are forks of, and of the programs in them."""

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
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

from codeact_team.errors import ConfinementError
from codeact_team.sandbox.base import KILLED, Exit, Process, ZygoteProgram
from codeact_team.sandbox.confined.protocol import (
    Confinement,
    Message,
    MessageSocket,
    ProgramEnd,
    Readied,
    SpawnRequest,
)
from codeact_team.sandbox.readiness import Readiness, readable, writable

SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_DIRECTORY = Path(__file__).with_name("supervisor")
_PROGRAM = """
import sys
sys.path[0], *_arguments = sys.argv[1:]
from fork_server import begin
_main_thread = begin(_arguments)
del begin
while _main_thread.obey(): pass
_loaded.run(_arguments)
"""
"""The program of the zygote, and so the stack of a program that is a fork of it."""
_SEND_TIMEOUT = 5.0
"""Seconds for a process to read a message, which takes it no time."""
_START_TIMEOUT = 20.0
"""Seconds for a supervising process to start; a loaded machine needs a few."""
_STOP_TIMEOUT = 10.0
"""Seconds to end what runs and to remove temporary files."""
_CHUNK = 1 << 16


class _HostEnd(MessageSocket):
    """This process's end of a socket to a process, which closes its own end last of all."""

    def __init__(self) -> None:
        self._own, self.theirs = socket.socketpair()
        self._own.settimeout(_SEND_TIMEOUT)
        super().__init__(self._own)

    @property
    def is_closed_there(self) -> bool:
        """Whether the process has ended, or never listened."""
        poll = select.poll()
        poll.register(self._own, select.POLLIN)
        if not poll.poll(0):
            return False
        try:
            return not self._own.recv(1, socket.MSG_PEEK)
        except ConnectionError:
            # it was killed before it had read everything
            return True

    async def readable(self) -> None:
        """Wait until something can be received, or the stream has ended."""
        await readable(self._own.fileno())

    async def finish(self) -> None:
        """Close the stream to the process, and wait until it has ended."""
        # it may have ended already
        with suppress(OSError):
            self._own.shutdown(socket.SHUT_WR)
        await self.readable()

    def close(self) -> None:
        self._own.close()


class _Zygote:
    """A running zygote, and the program that it loads, if any; see ``supervisor/zygote.py``.

    It shares neither environment nor descriptors nor terminal with this process.
    """

    def __init__(self, program: ZygoteProgram | None) -> None:
        self.end = _HostEnd()
        self._program = program
        self._host = os.getpid()
        self.forks = 0
        """The number of forks so far."""
        self.living = 0
        # where code runs in a fork, the zygote is started as the code's Python would be
        option = "-S" if program is None else "-u"
        with self.end.theirs, TemporaryFile() as loading:
            loading.write(marshal.dumps(None if program is None else [*program]))
            loading.seek(0)
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    option,
                    "-c",
                    _PROGRAM,
                    str(_DIRECTORY),
                    str(loading.fileno()),
                ],
                stdin=self.end.theirs.fileno(),
                pass_fds=[loading.fileno()],
                # it is not read; a pipe, as programs in its forks will have
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={"PATH": SEARCH_PATH, "LANG": "C.UTF-8"},
                cwd="/",
                start_new_session=True,
            )
        assert self._process.stdout is not None, "it is a pipe"
        self._process.stdout.close()

    def serves(self, program: ZygoteProgram | None) -> bool:
        """Whether it can fork processes that have this program loaded."""
        has_it = program is None or program is self._program
        return has_it and self._host == os.getpid() and not self.end.is_closed_there

    async def close(self) -> None:
        await self.end.finish()
        self.end.close()
        # it closes its end last of all, so this does not wait
        self._process.wait()


_lock = threading.Lock()
_current: _Zygote | None = None


class SupervisingProcess:
    """A supervising process; see ``supervisor/supervision.py``. It is a fork of the zygote, which ends with the last fork.

    Raises a ``ConfinementError`` if it cannot be started.
    """

    def __init__(self, settings: Confinement, program: ZygoteProgram | None = None) -> None:
        self.readied: Readied = Readied({}, is_confined=False, uid=os.getuid())
        """Its mechanisms, once it is ready."""
        self._end = _HostEnd()
        self._killed = False
        try:
            with self._end.theirs as theirs:
                self._zygote, self._number, self._clean = _fork(settings, theirs, program)
        except OSError as error:
            self._end.close()
            raise ConfinementError(f"The supervising process cannot be started: {error}") from error

    @property
    def alive(self) -> bool:
        """Whether it runs. After it was killed, a fork of it may hold the socket for a moment."""
        return not self._killed and not self._end.is_closed_there

    def send(self, kind: Message, request: SpawnRequest | None = None, fds: Sequence[int] = ()) -> None:
        """Send a message, and descriptors with it. Raises a ``ConfinementError`` if the process is gone."""
        try:
            self._end.send(kind, request, fds)
        except OSError as error:
            raise ConfinementError(f"The supervising process is gone: {error}") from error

    async def wait_until_ready(self) -> None:
        """Wait until it takes requests. Raises a ``ConfinementError`` if it does not."""
        try:
            async with asyncio.timeout(_START_TIMEOUT):
                while True:
                    await self._end.readable()
                    for kind, value in self._end.receive():
                        if kind == Message.FAILED:
                            raise ConfinementError(f"The supervising process failed at its start: {value}")
                        self.readied = Readied(*value)
                        return
        except EOFError:
            raise ConfinementError("The supervising process ended at its start.") from None
        except ConnectionError as error:
            raise ConfinementError(f"The supervising process ended at its start: {error}") from error
        except TimeoutError:
            raise ConfinementError(
                f"The supervising process did not start within {_START_TIMEOUT:g} s."
            ) from None

    def kill(self) -> None:
        """Kill it; the program that it runs ends with it."""
        self._killed = True
        with _lock, suppress(OSError):
            self._zygote.end.send(Message.KILL_FORK, self._number)

    async def close(self) -> None:
        """End it and everything that it has started, and wait until everything is removed."""
        try:
            async with asyncio.timeout(_STOP_TIMEOUT):
                await self._end.finish()
        except TimeoutError:
            self.kill()
        await readable(self._clean)
        os.close(self._clean)
        await _release(self._zygote)
        self._end.close()


def _fork(
    settings: Confinement, control: socket.socket, program: ZygoteProgram | None
) -> tuple[_Zygote, int, int]:
    """Have the zygote fork. Returns the zygote, and the number of the fork.

    Also a descriptor that becomes readable when the fork has ended and everything that was made for it is removed.
    """
    global _current
    with _lock:
        zygote = _current
        if zygote is None or not zygote.serves(program):
            zygote = _current = _Zygote(program)
        number = zygote.forks = zygote.forks + 1
        clean, until_clean = os.pipe()
        try:
            zygote.end.send(Message.FORK, [number, settings], [control.fileno(), until_clean])
        except OSError:
            os.close(clean)
            raise
        finally:
            os.close(until_clean)
        zygote.living += 1
        return zygote, number, clean


async def _release(zygote: _Zygote) -> None:
    """Note that a fork of the zygote has ended, and close the zygote after the last one."""
    global _current
    with _lock:
        zygote.living -= 1
        if zygote.living:
            return
        if _current is zygote:
            _current = None
    await zygote.close()


class ConfinedProcess(Process):
    """A program in a sandbox. Its supervising process reports its end through a pipe, after ending everything it has forked.

    The pipe stays open until then, also for the sandbox, which has to know whether something runs.
    """

    def __init__(self) -> None:
        stdin, self._stdin = os.pipe()
        self._output, output = os.pipe()
        self._status, status = os.pipe()
        self.inner_fds: list[int] = [stdin, output, status]
        """The ends for the program and its supervising process, until they are passed on."""
        for fd in (self._stdin, self._output, self._status):
            os.set_blocking(fd, False)
        self._open = {self._stdin, self._output, self._status}
        self._both = Readiness(self._output, self._status)
        self._end = Readiness(self._status)
        self._exit: Exit | None = None
        self.lost = "its supervising process was killed"
        """The reason for the loss of the sandbox if the pipe closes without a report."""
        self.is_orphaned: bool = False
        """Whether the pipe was closed without a report."""

    @property
    def ended(self) -> bool:
        """Whether the program has ended, with everything that it has forked."""
        if self._exit is None and self._status in self._open:
            try:
                report = os.read(self._status, _CHUNK)
            except BlockingIOError:
                return False
            self._exit = self._parse_exit(report)
            self._both.close()
            self._end.close()
            self._close(self._status)
        return self._exit is not None

    async def read(self) -> bytes:
        while True:
            if data := self._read_now():
                return data
            if self.ended:
                # what the program wrote before its end is in the pipe by then
                return self._read_now() or b""
            if data is None:
                await self._both.wait()
            else:
                # a pipe at its end is always readable
                self._both.close()
                await self._end.wait()

    def _read_now(self) -> bytes | None:
        """Read what is available; ``None`` if nothing has come yet, ``b""`` at the end."""
        if self._output not in self._open:
            return b""
        try:
            return os.read(self._output, _CHUNK)
        except BlockingIOError:
            return None

    async def write(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left and self._stdin in self._open:
                try:
                    left = left[os.write(self._stdin, left) :]
                except BlockingIOError:
                    await writable(self._stdin)
        except BrokenPipeError:
            # the reader has ended
            return

    async def close_stdin(self) -> None:
        self._close(self._stdin)

    async def wait(self) -> Exit:
        while not self.ended:
            await self._end.wait()
        assert self._exit is not None
        return self._exit

    async def aclose(self) -> None:
        self._both.close()
        self._end.close()
        self._close(self._stdin)
        self._close(self._output)

    def close_inner(self) -> None:
        """Close the ends for the program, once the supervising process has them."""
        for fd in self.inner_fds:
            os.close(fd)
        self.inner_fds = []

    def _parse_exit(self, report: bytes) -> Exit:
        if not report:
            self.is_orphaned = True
            return Exit(KILLED, lost=self.lost)
        end = ProgramEnd(*json.loads(report))
        if end.failed:
            return Exit(1, lost=f"the program could not be started: {end.failed}")
        return Exit(end.code)

    def _close(self, fd: int) -> None:
        if fd in self._open:
            self._open.remove(fd)
            os.close(fd)
