"""What confined code asks about the names of sockets, where it shares them with the machine: ``bind`` and ``connect``.

The address of such a call is in memory that the code can change until the kernel reads it. So a socket of this process is bound
or connected in its place, and replaces the code's own. Code connects to nothing but what code of its sandbox has bound.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import stat
import struct
import threading
from contextlib import suppress

from codeact_team.sandbox.confined.supervisor.asked_files import (
    AT_FDCWD,
    WritableDirectories,
    as_int,
    entry_of,
    flags_of,
    open_entry,
    refused,
)
from codeact_team.sandbox.confined.supervisor.asked_network import NetworkCalls
from codeact_team.sandbox.confined.supervisor.listening import Asked, Listener, read_memory
from codeact_team.sandbox.system.kernel import MAKE_SOCKET, allow, in_domain, make_ruleset

_FAMILY = struct.Struct("=H")
_LONGEST_ADDRESS = 110
_MOST_NAMES = 256
"""The most names of sockets that code can connect to; the oldest are forgotten."""
_MOST_WAITING = 16
"""The most connections that wait for a server to take others first; more are told to try again."""
_UMASK = re.compile(rb"^Umask:\t([0-7]+)$", re.M)
_WAIT = struct.pack("@ll", 1, 0)
"""After so many seconds, and microseconds, a waiting connection looks whether it is still wanted."""
_INTERRUPTED = 512
"""The kernel's own ``ERESTARTSYS``: a call that a signal interrupts fails with ``EINTR``, or is made again, as its handler wants."""
_PENDING, _SHARED, _BLOCKED = (
    re.compile(rb"^%b:\t([0-9a-f]+)$" % name, re.M) for name in (b"SigPnd", b"ShdPnd", b"SigBlk")
)
_CONNECTED = b"03"
_KINDS = {socket.SOCK_STREAM, socket.SOCK_SEQPACKET}
"""The types that code can have. The others send to names without asking."""
_INODE_OF_SOCKET = re.compile(rb"socket:\[(\d+)\]")
_LINE = b"\n"
"""The kernel lists names as they are: with this in it, one could be lines about the sockets of others."""


class SocketCalls:
    """Does the calls of :data:`~.calls.OF_SOCKETS`.

    Args:
        listener: Where they are asked.
        directories: Where sockets may have names.
        network: What code may reach by TCP, if anything.
    """

    def __init__(
        self, listener: Listener, directories: WritableDirectories, network: NetworkCalls | None
    ) -> None:
        self._listener = listener
        self._directories = directories
        self._network = network
        self._names: list[int] = []
        """Descriptors of the names that code has bound: while one is open, no other file gets its identity."""
        self._waiting = threading.BoundedSemaphore(_MOST_WAITING)
        self._binding = make_ruleset(MAKE_SOCKET)
        for root in directories.roots:
            allow(self._binding, root, MAKE_SOCKET)

    def close(self) -> None:
        """Close what is held open."""
        for name in (*self._names, self._binding):
            os.close(name)
        if self._network is not None:
            self._network.close()

    def do(self, name: str, asked: Asked) -> int | None:
        """Do a call. Returns its result; ``None`` if it is answered in another way. Raises an ``OSError``."""
        if name == "socket":
            return self._require_network().make(asked)
        fd, address, length = as_int(asked.arguments[0]), asked.arguments[1], as_int(asked.arguments[2])
        if not _FAMILY.size < length <= _LONGEST_ADDRESS:
            raise refused(errno.EINVAL)
        data = read_memory(asked, address, length)
        if len(data) < length:
            raise refused()
        family = _FAMILY.unpack_from(data)[0]
        if family == socket.AF_INET and name == "connect":
            return self._require_network().connect(asked)
        path = data[_FAMILY.size :].partition(b"\0")[0]
        # a name without a path is everybody's on the machine
        if family != socket.AF_UNIX or not path:
            raise refused()
        if name == "bind" and _LINE in path:
            raise refused()
        return self._do_local(name, asked, fd, path)

    def _do_local(self, name: str, asked: Asked, fd: int, path: bytes) -> int | None:
        """Do a call for a socket with a path."""
        kind, is_connected = _kind_of(asked, fd)
        if kind not in _KINDS:
            # somebody outside has bound a name that reads like a line about this socket
            raise refused()
        if is_connected and name == "connect":
            raise refused(errno.EISCONN)
        flags = flags_of(asked, fd)
        ours = socket.socket(socket.AF_UNIX, kind)
        try:
            if name == "bind":
                self._bind(asked, ours, path)
            elif not self._connect(asked, ours, path, fd, flags):
                return None
            self._replace(asked, ours, fd, flags)
        except BaseException:
            ours.close()
            raise
        ours.close()
        return 0

    def _require_network(self) -> NetworkCalls:
        if self._network is None:
            raise refused()
        return self._network

    def _replace(self, asked: Asked, ours: socket.socket, fd: int, flags: int) -> None:
        os.set_blocking(ours.fileno(), not flags & os.O_NONBLOCK)
        self._listener.replace_descriptor(
            asked, ours.fileno(), fd, is_closed_on_exec=bool(flags & os.O_CLOEXEC)
        )

    def _bind(self, asked: Asked, ours: socket.socket, path: bytes) -> None:
        cwd = open_entry(asked, "cwd")
        try:
            umask = int(entry_of(asked, "status", _UMASK), 8)
            asked.require_waiting()
            # by the path as it is: programs read it back from the socket
            in_domain(self._binding, lambda: _bind_from(cwd, umask, ours, path))
        finally:
            os.close(cwd)
        # by now, the code may have put something else there, to which it cannot connect then
        with suppress(OSError), self._directories.named_by(asked, AT_FDCWD, path, follow=False) as found:
            if _refuses(found, ours.type):
                self._names.append(os.open(found, os.O_PATH | os.O_CLOEXEC))
        if len(self._names) > _MOST_NAMES:
            os.close(self._names.pop(0))

    def _connect(self, asked: Asked, ours: socket.socket, path: bytes, fd: int, flags: int) -> bool:
        """Connect. Returns whether that is done; otherwise the call is answered later."""
        if self._network is not None and path == self._network.path:
            # the supervisor of the sandbox, to the proxy; of others, the proxy takes nothing
            ours.setblocking(False)
            ours.connect(path)
            return True
        with self._directories.named_by(asked, AT_FDCWD, path) as found:
            if not stat.S_ISSOCK(os.stat(found).st_mode):
                raise refused(errno.ECONNREFUSED)
            if not any(os.path.samestat(os.fstat(name), os.stat(found)) for name in self._names):
                raise refused()
            ours.setblocking(False)
            try:
                ours.connect(found)
                return True
            except BlockingIOError:
                if flags & os.O_NONBLOCK or not self._waiting.acquire(blocking=False):
                    raise
            place = os.open(found, os.O_PATH | os.O_CLOEXEC)
        ours.setblocking(True)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _WAIT)

        def connect() -> None:
            try:
                with ours:
                    self._wait(asked, ours, place)
                    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, bytes(len(_WAIT)))
                    self._replace(asked, ours, fd, flags)
                self._listener.answer(asked, 0)
            except OSError as error:
                self._listener.answer(asked, -(error.errno or errno.EPERM))
            finally:
                os.close(place)
                self._waiting.release()

        threading.Thread(target=connect, daemon=True).start()
        return False

    def _wait(self, asked: Asked, ours: socket.socket, place: int) -> None:
        """Connect once the server has taken others. Raises an ``OSError`` if the call does not wait any more, or is interrupted."""
        while True:
            with suppress(BlockingIOError):
                return ours.connect(f"/proc/self/fd/{place}")
            asked.require_waiting()
            if _has_signal(asked):
                raise OSError(_INTERRUPTED, "interrupted")


def _has_signal(asked: Asked) -> bool:
    """Whether the calling thread has a signal to handle, which only its own call keeps it from."""
    pending, shared, blocked = (
        int(entry_of(asked, "status", one), 16) for one in (_PENDING, _SHARED, _BLOCKED)
    )
    return bool((pending | shared) & ~blocked)


def _kind_of(asked: Asked, fd: int) -> tuple[int, bool]:
    """The type of a socket of the caller, and whether it is connected. Raises an ``OSError`` if it is no unix socket."""
    try:
        found = _INODE_OF_SOCKET.fullmatch(os.readlink(f"/proc/{asked.thread}/fd/{fd}".encode()))
    except FileNotFoundError:
        raise refused(errno.EBADF) from None
    if found is None:
        raise refused(errno.ENOTSOCK)
    with open("/proc/net/unix", "rb") as file:
        for line in file:
            fields = line.split(maxsplit=7)
            # address, references, protocol, flags, type, state, inode, perhaps a path
            if fields[6:7] == [found[1]]:
                return int(fields[4], 16), fields[5] == _CONNECTED
    raise refused(errno.EOPNOTSUPP)


def _refuses(place: bytes, kind: int) -> bool:
    """Whether a socket takes no connections: so does one that was just bound here, and none of a server outside."""
    with socket.socket(socket.AF_UNIX, kind) as trying:
        trying.setblocking(False)
        try:
            trying.connect(place)
        except OSError as error:
            return error.errno == errno.ECONNREFUSED
    return False


def _bind_from(directory: int, umask: int, ours: socket.socket, path: bytes) -> None:
    # nothing else of this process has to do with its directory and its umask
    os.fchdir(directory)
    previous = os.umask(umask)
    try:
        ours.bind(path)
    finally:
        os.umask(previous)
        os.chdir("/")
