"""The processes that the host has started: several at once, each with a keeper and streams of its own.

Nothing here waits for a process, and no process waits for the host: unread output is kept up to a limit, the newest.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import struct
import termios

# without the module around it, which takes longer to load than everything else here
from _socket import AF_UNIX, SOCK_SEQPACKET, socketpair
from collections import deque
from contextlib import ExitStack, suppress
from functools import partial

from codeact_team.sandbox.system.framing import ProtocolError, frame
from codeact_team.session.protocol import (
    KIB,
    KILL_TREE,
    MAX_PROCESSES,
    MAX_PROGRESS_BYTES,
    PROCESS_HEAD,
    ExitedFrame,
    Kind,
    Obstacle,
    ProgressFrame,
    Wait,
)
from codeact_team.session.runner.supervisor.keeper import ENDED, NOT_STARTED, REPORT, STARTED, hand, keep
from codeact_team.session.runner.supervisor.results import difference
from codeact_team.session.runner.supervisor.streams import PipeWriter, make_pipe, read_available
from codeact_team.session.runner.supervisor.terminals import open_terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket
    from collections.abc import Callable, Mapping
    from typing import Any

    from codeact_team.session.runner.supervisor.interpreter_process import Context
    from codeact_team.session.runner.supervisor.keeper import Task
    from codeact_team.session.runner.supervisor.streams import HostConnection, PollLoop

REQUESTS = frozenset((Kind.START, Kind.INPUT, Kind.SIGNAL, Kind.RESIZE, Kind.READ, Kind.POLL, Kind.CLOSE))
_KILLED = -9
_LITTLE, _MOMENT = 4 * KIB, 0.003
"""So few bytes are told so many seconds later where nobody answers them: a short program has ended by then, and one message is
faster than two."""
_GRACE = 2.0
"""Seconds by which a keeper may be late to end what it keeps."""
_MOST_FREE = 4
"""The most keepers that wait for the next process."""
_SIZE = struct.Struct("=HHHH")
_END_OF_INPUT = b"\4"
"""The byte that a terminal takes for the end of the input."""


class _UnreadOutput:
    """Output of a process to one stream that was not read yet.

    Args:
        fd: Where it is read.
        limit: How many bytes are kept.
        waits: Whether a full one is read no further, so that the process waits; otherwise the oldest bytes are dropped.
    """

    def __init__(
        self, loop: PollLoop, fd: int, limit: int, *, waits: bool, changed: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._fd = fd
        self._limit = limit
        self._waits = waits
        self._changed = changed
        self._pieces: deque[bytes] = deque()
        self.size = 0
        self.dropped = 0
        self.is_open = True
        self._listening = False
        os.set_blocking(fd, False)
        self._listen()

    def _listen(self) -> None:
        if self.is_open and not self._listening:
            self._listening = True
            self._loop.on_readable(self._fd, self._on_readable)

    def _on_readable(self) -> None:
        self.read()
        if self._waits and self.size >= self._limit and self._listening:
            self._loop.forget(self._fd)
            self._listening = False
        self._changed()

    def read(self) -> None:
        """Take one piece, if any."""
        try:
            piece = read_available(self._fd)
        except BlockingIOError:
            return
        except OSError:
            # a terminal that no process has open any more
            piece = b""
        if not piece:
            self.close()
            return
        self._pieces.append(piece)
        self.size += len(piece)
        if not self._waits:
            while self.size - self._limit >= len(self._pieces[0]):
                self._drop(len(self._pieces.popleft()))
            if (excess := self.size - self._limit) > 0:
                self._pieces[0] = self._pieces[0][excess:]
                self._drop(excess)

    def _drop(self, size: int) -> None:
        self.size -= size
        self.dropped += size

    def read_rest(self) -> None:
        """Take all that has come, without waiting."""
        while self.is_open and (self.size < self._limit or not self._waits):
            before = self.size + self.dropped
            self.read()
            if self.size + self.dropped == before:
                break

    def pop(self, most: int) -> bytes:
        """Remove and return the oldest bytes, at most so many."""
        taken = bytearray()
        while self._pieces and len(taken) < most:
            piece = self._pieces.popleft()
            room = most - len(taken)
            taken += piece[:room]
            if len(piece) > room:
                self._pieces.appendleft(piece[room:])
        self.size -= len(taken)
        self._listen()
        return bytes(taken)

    def take_dropped(self) -> int:
        """Return the number of bytes that were dropped since the last call."""
        dropped, self.dropped = self.dropped, 0
        return dropped

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._loop.forget(self._fd)
            os.close(self._fd)


class _HostedProcess:
    """A process of the host's, as its supervisor sees it.

    Attributes:
        keeper: The process id of its keeper; 0 once nothing of it is left.
    """

    def __init__(
        self,
        context: Context,
        keepers: _Keepers,
        number: int,
        request: dict[str, Any],
        send: Callable[[bytes], None],
        forget_gone: Callable[[], None],
    ) -> None:
        self._context = context
        self._head = PROCESS_HEAD.pack(number)
        self._send_to_host = send
        self._forget_gone = forget_gone
        self._terminal: int | None = None
        self._wait: Wait | None = None
        self._code: int | None = None
        self._runs_out = bool(request["runs_out"])
        self._before = context.usage.counts()
        self._input: PipeWriter | None = None
        self._closes_input = False
        self._has_started = False
        self._is_closing = False
        self._is_over = False
        self._can_keep_another = False
        self._timed_out = False
        self._is_delayed = False
        self._held = b""
        """A frame that is sent with the next one."""
        with ExitStack() as opened, ExitStack() as theirs:
            streams = self._open_streams(request, opened, theirs)
            self.keeper, self._control = keepers.get((request, streams))
            opened.pop_all()
        self._keepers = keepers
        if (timeout := request["timeout"]) is not None:
            context.loop.call_later(timeout + _GRACE, self._time_is_over)
        context.loop.on_readable(self._control.fileno(), self._on_report)

    def _open_streams(self, request: dict[str, Any], ours: ExitStack, theirs: ExitStack) -> list[int]:
        """Open the standard streams of the process. Returns its own ends."""
        # of what runs out nothing is dropped here, and the host asks as soon as so much has come
        loop, limit = self._context.loop, MAX_PROGRESS_BYTES if self._runs_out else int(request["limit"])
        listen = partial(_UnreadOutput, loop, limit=limit, waits=self._runs_out, changed=self._answer)
        self.outputs: list[_UnreadOutput] = []
        ours.callback(self.close)
        if (terminal := request["terminal"]) is not None:
            master, slave = open_terminal()
            theirs.callback(os.close, slave)
            self._terminal = master
            self._input = PipeWriter(os.dup(master))
            self.outputs = [listen(master)]
            self.resize(*terminal)
            return [slave, slave, slave]
        if request["has_input"]:
            stdin, writer = make_pipe()
            self._input = PipeWriter(writer)
        else:
            stdin = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        theirs.callback(os.close, stdin)
        streams = [stdin]
        for _ in range(1 if request["together"] else 2):
            reader, stream = make_pipe()
            theirs.callback(os.close, stream)
            streams.append(stream)
            self.outputs.append(listen(reader))
        return [streams[0], streams[1], streams[-1]]

    # requests

    def handle(self, kind: int, payload: bytes) -> None:
        if kind == Kind.INPUT:
            self._write(payload)
        elif kind == Kind.SIGNAL:
            self._order(payload)
        elif kind == Kind.READ:
            if self._wait is not None:
                self._tell()
            self._wait = Wait(payload[0])
            self._answer()
        elif kind == Kind.POLL:
            self._send(Kind.POLLED)
        elif kind == Kind.RESIZE:
            size = json.loads(payload)
            self.resize(size["rows"], size["columns"])
        elif kind == Kind.CLOSE:
            self._is_closing = True
            self._order(bytes([KILL_TREE]))
            if not self.keeper:
                self._send(Kind.CLOSED)

    def _order(self, order: bytes) -> None:
        if self.keeper:
            if order[0] == KILL_TREE:
                self._context.loop.call_later(_GRACE, self._kill)
            # it may have been killed
            with suppress(OSError):
                self._control.send(order)

    def _kill(self) -> None:
        """Kill the keeper, and thereby all that it keeps, which should have ended by now: code can stop a keeper."""
        with suppress(ProcessLookupError):
            os.kill(self.keeper, signal.SIGKILL)

    def _time_is_over(self) -> None:
        self._timed_out = True
        self._kill()

    def _write(self, data: bytes) -> None:
        pipe = self._input
        if pipe is None:
            # its reader has ended
            self._send(Kind.TAKEN)
            return
        self._closes_input = not data and self._terminal is None
        pipe.add(data or (b"" if self._closes_input else _END_OF_INPUT))
        self._context.loop.flush(pipe, self._on_room)

    def _on_room(self) -> None:
        if self._closes_input:
            self._close_input()
        self._send(Kind.TAKEN)

    def resize(self, rows: int, columns: int) -> None:
        if self._terminal is not None and self.outputs[0].is_open:
            fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, _SIZE.pack(rows, columns, 0, 0))

    # what happens

    def _on_report(self) -> None:
        self._take_report()
        self._forget_gone()

    def _take_report(self) -> bool:
        """Read a report. Returns whether there may be another one."""
        try:
            report = self._control.recv(REPORT.size) if self.keeper else b""
        except OSError:
            return False
        if not report:
            # it has ended, which its end as a child shows, too
            if self.keeper:
                self._context.loop.forget(self._control.fileno())
            return False
        what, number, first, second, used = REPORT.unpack(report)
        if what in (STARTED, NOT_STARTED):
            self._can_keep_another = first
        if what == STARTED:
            self._has_started = True
            if not self._runs_out:
                self._send(Kind.STARTED)
            return True
        if what == NOT_STARTED:
            self._refuse(number, about=second)
        elif what == ENDED:
            self._end(os.waitstatus_to_exitcode(number), used, timed_out=first, leaves=bool(second))
        if what != ENDED or not second:
            self._free()
        return True

    def _free(self) -> None:
        """Note that nothing of it is left, so that its keeper is free."""
        self._context.loop.forget(self._control.fileno())
        if self._can_keep_another:
            self._keepers.release(self.keeper, self._control)
        else:
            self._control.close()
        self._note_nothing_left()

    def _note_nothing_left(self) -> None:
        self.keeper = 0
        for handler in (self._kill, self._time_is_over):
            self._context.loop.cancel(handler)
        if self._is_closing or not self._runs_out:
            self._send(Kind.CLOSED)

    def _refuse(self, number: int, why: str = "", *, about: int = Obstacle.PROGRAM) -> None:
        self._has_started = self._is_over = True
        self._send(Kind.STARTED, _refusal(number, why, about))

    def _end(
        self, code: int, used: int | None = None, *, timed_out: bool = False, leaves: bool = False
    ) -> None:
        self._code = code
        # what it leaves may stay
        self._context.loop.cancel(self._time_is_over)
        for output in self.outputs:
            output.read_rest()
        self._close_input()
        counted = difference(self._context.usage.counts(), self._before)
        ended = ExitedFrame(code, timed_out, leaves, *counted, used)
        # together with the last of its output, as two messages take longer
        self._held = frame(Kind.EXITED, self._head, ended.pack())
        self._answer()
        if self._held:
            self._send_to_host(self._held)
            self._held = b""

    def on_keeper_end(self, status: int) -> None:
        """Note that its keeper has ended by itself, or was killed; ``status`` is as :func:`os.waitpid` returns it."""
        # its earlier reports still count
        while self._take_report():
            pass
        if not self.keeper:
            return
        if not self._has_started:
            code = os.waitstatus_to_exitcode(status)
            how = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
            self._refuse(errno.EIO, f"the supervisor's process that was to start it {how}")
        elif self._code is None:
            self._end(_KILLED, timed_out=self._timed_out)
        self._context.loop.forget(self._control.fileno())
        self._control.close()
        self._note_nothing_left()

    def _answer(self) -> None:
        """Answer the host's question for output, if any, and if it is time."""
        waiting = max(output.size for output in self.outputs)
        if self._code is not None or self._wait == Wait.NOT or waiting >= MAX_PROGRESS_BYTES:
            is_time = True
        else:
            is_time = self._wait == Wait.FOR_OUTPUT and waiting > 0
            if is_time and self._runs_out and waiting <= _LITTLE:
                if not self._is_delayed:
                    self._is_delayed = True
                    self._context.loop.call_later(_MOMENT, self._tell)
                return
        if is_time and self._wait is not None:
            self._tell()

    def _tell(self) -> None:
        self._wait, self._is_delayed = None, False
        self._context.loop.cancel(self._tell)
        pieces = [output.pop(MAX_PROGRESS_BYTES) for output in self.outputs]
        dropped = [output.take_dropped() for output in self.outputs]
        if len(pieces) == 1:
            pieces.append(b"")
            dropped.append(0)
        if self._code is not None:
            # a full one was read no further
            for output in self.outputs:
                output.read_rest()
        has_ended = self._code is not None and not any(output.size for output in self.outputs)
        self._send(Kind.PROGRESS, ProgressFrame(has_ended, *dropped, *pieces).pack())
        if has_ended and self._runs_out:
            self._is_over = True

    @property
    def is_gone(self) -> bool:
        """Whether the host needs it no more, and nothing of it is left."""
        return not self.keeper and (self._is_closing or self._is_over)

    def _close_input(self) -> None:
        if (pipe := self._input) is None:
            return
        self._input = None
        is_waiting = len(pipe) > 0
        self._context.loop.forget(pipe.fd)
        pipe.close()
        if is_waiting:
            # its reader has ended
            self._send(Kind.TAKEN)

    def close(self) -> None:
        """Close its streams."""
        self._close_input()
        for output in self.outputs:
            output.close()

    def _send(self, kind: Kind, *payload: bytes) -> None:
        held, self._held = self._held, b""
        self._send_to_host(held + frame(kind, self._head, *payload))


def _refusal(number: int, why: str = "", about: int = Obstacle.PROGRAM) -> bytes:
    """Return the payload that says why a process was not started."""
    words = {"errno": number, "message": why or os.strerror(number), "about": about}
    return json.dumps(words).encode()


class _Keepers:
    """Starts keepers, and has those that are free keep another process."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._free: dict[int, socket] = {}
        """Those that wait for a task, by process id."""
        self._shield = b""
        """The extra protection with which the idle keepers were started."""

    def get(self, task: Task) -> tuple[int, socket]:
        """A keeper for this task, and the socket to it. Raises an ``OSError`` if there can be none."""
        if self._shield != self._context.guard.shielding:
            self._shield = self._context.guard.shielding
            for control in self._free.values():
                control.close()
            self._free.clear()
        # one that is free has no terminal in its domain
        while self._free and task[0]["terminal"] is None:
            keeper, control = self._free.popitem()
            if hand(control, task):
                return keeper, control
            # the task is too large, or the keeper was killed
            control.close()
        ours, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
        try:
            if (keeper := self._context.fork()) == 0:
                keep(theirs, self._context.guard, task)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        self._context.keepers.add(keeper)
        return keeper, ours

    def release(self, keeper: int, control: socket) -> None:
        """Take back a keeper that is free. It ends if enough others are."""
        if len(self._free) < _MOST_FREE and self._shield == self._context.guard.shielding:
            self._free[keeper] = control
        else:
            control.close()

    def on_end(self, keeper: int) -> None:
        """Note that a keeper has ended."""
        if (control := self._free.pop(keeper, None)) is not None:
            control.close()


class HostedProcesses:
    """The processes of one sandbox. Frames for the host are queued, so that a host which sends something is heard."""

    def __init__(self, context: Context, host: HostConnection) -> None:
        self._context = context
        self._host = host
        self._keepers = _Keepers(context)
        self._all: dict[int, _HostedProcess] = {}

    @property
    def numbers(self) -> Mapping[int, int]:
        """The numbers of those of which something runs, by their keepers."""
        return {process.keeper: number for number, process in self._all.items() if process.keeper}

    def handle(self, kind: int, payload: bytes) -> None:
        """Handle a frame from the host. Raises a ``ProtocolError``."""
        try:
            (number,) = PROCESS_HEAD.unpack_from(payload)
            content = payload[PROCESS_HEAD.size :]
            process = self._all.get(number)
            if kind == Kind.START:
                line, _, code = content.partition(b"\n")
                self._start(number, {**json.loads(line), "code": code})
            elif process is not None:
                process.handle(kind, content)
                self._forget_gone()
            elif kind == Kind.CLOSE:
                self._send(frame(Kind.CLOSED, PROCESS_HEAD.pack(number)))
        except (struct.error, ValueError, LookupError, TypeError) as error:
            raise ProtocolError(f"a request about a process cannot be understood: {error!r}") from error

    def _start(self, number: int, request: dict[str, Any]) -> None:
        if number in self._all:
            raise ProtocolError("a process needs a new number")
        if not (request["apart"] and self._context.guard.separates):
            self._context.touch()
        problem = errno.EAGAIN
        if len(self._all) < MAX_PROCESSES:
            try:
                self._all[number] = _HostedProcess(
                    self._context, self._keepers, number, request, self._send, self._forget_gone
                )
                return
            except OSError as error:
                problem = error.errno or errno.EIO
        self._send(frame(Kind.STARTED, PROCESS_HEAD.pack(number), _refusal(problem)))

    def _send(self, data: bytes) -> None:
        self._host.out.add(data)
        self._context.loop.flush(self._host.out)

    def on_child_end(self) -> None:
        """Check whether keepers have ended."""
        for keeper in [*self._context.keepers]:
            if (status := self._context.processes.status(keeper)) is None:
                continue
            self._context.keepers.discard(keeper)
            self._keepers.on_end(keeper)
            for process in self._all.values():
                if process.keeper == keeper:
                    process.on_keeper_end(status)
            if status:
                # it was killed, and has left orphans
                while not self._context.processes.end(self._context.is_orphan):
                    pass
        self._forget_gone()

    def _forget_gone(self) -> None:
        for number, process in list(self._all.items()):
            if process.is_gone:
                process.close()
                del self._all[number]
