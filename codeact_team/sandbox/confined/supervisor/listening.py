"""The listener of a filter of system calls: it is told of the calls that are asked, and answers them. Linux only.

See ``seccomp_unotify(2)``. While a call is asked, its thread waits in the kernel. What the call points to is in the memory of
that thread, where others may change it meanwhile: so an answer either acts itself, on what it has read once, or lets the kernel go
on where registers alone decide.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from codeact_team.sandbox.system.filters import Rule, assemble, number_of
from codeact_team.sandbox.system.kernel import checked, libc, syscall

_SET_MODE_FILTER, _NEW_LISTENER, _WAIT_KILLABLE = 1, 1 << 3, 1 << 5
_NOTIFICATION, _RESPONSE, _ADDITION = (
    struct.Struct("=QIIiIQ6Q"),
    struct.Struct("=QqiI"),
    struct.Struct("=QIIII"),
)
_RECEIVE, _SEND, _IS_VALID, _ADD, _SET_FLAGS = 0xC0502100, 0xC0182101, 0x40082102, 0x40182103, 0x40082104
_GO_ON, _IN_PLACE, _WAKE_AT_ONCE = 1, 1, 1
_SECCOMP, _OPEN_AT = (number_of(call) or 0 for call in ("seccomp", "openat2"))
_RESOLVE_NO_MAGICLINKS, _RESOLVE_NO_SYMLINKS, _RESOLVE_BENEATH = 0x02, 0x04, 0x08
_LONGEST_PATH = 4096
"""Bytes of a path with the zero that ends it, as the kernel takes them."""


def install_asking(rules: Sequence[Rule]) -> int:
    """Install a filter for this process and all that it starts, irrevocably. Returns the descriptor of its listener.

    Raises an ``OSError``: ``EBUSY`` if a filter around this process has a listener already; ``EINVAL`` or ``EACCES`` if the kernel
    takes no such filter.
    """
    program = assemble(rules)
    instructions = ctypes.create_string_buffer(program, len(program))
    filter_ = struct.pack("@HP", len(program) // 8, ctypes.addressof(instructions))
    # since Linux 5.19, only a signal that kills interrupts a call that is being answered
    fd = syscall(_SECCOMP, _SET_MODE_FILTER, _NEW_LISTENER | _WAIT_KILLABLE, filter_)
    if fd < 0 and ctypes.get_errno() == errno.EINVAL:
        fd = syscall(_SECCOMP, _SET_MODE_FILTER, _NEW_LISTENER, filter_)
    return checked(fd)


def send_listener(to: socket.socket, fd: int) -> None:
    """Send the listener of this process to the one that answers, and close it here."""
    socket.send_fds(to, [b"l"], [fd])
    os.close(fd)


def receive_listener(sender: socket.socket) -> int:
    """Receive what :func:`send_listener` has sent. Raises an ``OSError`` if the sender has ended without it."""
    _, descriptors, _, _ = socket.recv_fds(sender, 1, 1)
    if not descriptors:
        raise OSError(errno.ECONNRESET, "no listener has come")
    os.set_inheritable(descriptors[0], False)
    return descriptors[0]


class Asked(NamedTuple):
    """A call that waits for its answer.

    Attributes:
        id: Identifies it as long as it waits.
        thread: The id of the calling thread, as this process sees it.
        number: The number of the call.
        arguments: Its six arguments, as they are in registers.
        listener: The descriptor of the listener.
    """

    id: int
    thread: int
    number: int
    arguments: Sequence[int]
    listener: int

    def require_waiting(self) -> None:
        """Raise an ``OSError`` if it does not wait any more: then the id of its thread may have become another one's."""
        checked(libc.ioctl(self.listener, ctypes.c_ulong(_IS_VALID), struct.pack("=Q", self.id)))


class Listener:
    """Receives asked calls and answers them.

    Args:
        fd: The descriptor, as :func:`install_asking` returns it. Closed by :meth:`close`.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._buffer = ctypes.create_string_buffer(_NOTIFICATION.size)
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)
        # since Linux 6.6, who asks and who answers wake each other without a detour of the scheduler
        with suppress(OSError):
            checked(libc.ioctl(fd, ctypes.c_ulong(_SET_FLAGS), ctypes.c_ulong(_WAKE_AT_ONCE)))

    def receive(self) -> Asked | None:
        """Wait for the next call; ``None`` once nothing that could ask is left."""
        while True:
            # the kernel does not end a wait in the next call
            [(_, events)] = self._poll.poll()
            if not events & select.POLLIN:
                return None
            ctypes.memset(self._buffer, 0, _NOTIFICATION.size)
            if libc.ioctl(self._fd, ctypes.c_ulong(_RECEIVE), self._buffer) >= 0:
                id_, thread, _, number, _, _, *arguments = _NOTIFICATION.unpack(self._buffer)
                return Asked(id_, thread, number, arguments, self._fd)
            # it was killed or interrupted meanwhile
            if ctypes.get_errno() not in (errno.ENOENT, errno.EINTR):
                return None

    def go_on(self, asked: Asked) -> None:
        """Let the kernel do it."""
        self._send(asked, 0, 0, _GO_ON)

    def answer(self, asked: Asked, result: int) -> bool:
        """Return a result of the call; a negative one is an error's number. Returns whether it waited for that."""
        return self._send(asked, max(0, result), min(0, result), 0)

    def _send(self, asked: Asked, value: int, error: int, flags: int) -> bool:
        response = ctypes.create_string_buffer(_RESPONSE.pack(asked.id, value, error, flags))
        return libc.ioctl(self._fd, ctypes.c_ulong(_SEND), response) >= 0

    def replace_descriptor(self, asked: Asked, fd: int, place: int, *, is_closed_on_exec: bool) -> None:
        """Put a copy of ``fd`` in the place of a descriptor of the caller. Raises an ``OSError``."""
        self._add(asked, _IN_PLACE, fd, place, is_closed_on_exec=is_closed_on_exec)

    def add_descriptor(self, asked: Asked, fd: int, *, is_closed_on_exec: bool) -> int:
        """Give the caller a copy of ``fd``. Returns its number there. Raises an ``OSError``."""
        return self._add(asked, 0, fd, 0, is_closed_on_exec=is_closed_on_exec)

    def _add(self, asked: Asked, how: int, fd: int, place: int, *, is_closed_on_exec: bool) -> int:
        flags = os.O_CLOEXEC if is_closed_on_exec else 0
        addition = ctypes.create_string_buffer(_ADDITION.pack(asked.id, how, fd, place, flags))
        return checked(libc.ioctl(self._fd, ctypes.c_ulong(_ADD), addition))

    def close(self) -> None:
        """Close it: from then on asked calls fail as if the kernel did not have them."""
        os.close(self._fd)


def read_memory(asked: Asked, address: int, size: int) -> bytes:
    """Read the memory of the caller; less than ``size`` bytes if it ends before. Raises an ``OSError``."""
    # not by process_vm_readv, which the profiles of older engines refuse
    memory = os.open(f"/proc/{asked.thread}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(memory, size, address)
    except (OSError, OverflowError):
        # as every call says of an address where nothing is
        raise OSError(errno.EFAULT, os.strerror(errno.EFAULT)) from None
    finally:
        os.close(memory)


def write_memory(asked: Asked, address: int, data: bytes) -> None:
    """Write to the memory of the caller. Raises an ``OSError``."""
    memory = os.open(f"/proc/{asked.thread}/mem", os.O_WRONLY | os.O_CLOEXEC)
    try:
        # opened while it waits, so it is the caller's
        asked.require_waiting()
        if os.pwrite(memory, data, address) < len(data):
            raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))
    finally:
        os.close(memory)


def read_text(
    asked: Asked, address: int, longest: int = _LONGEST_PATH, *, too_long: int = errno.ENAMETOOLONG
) -> bytes:
    """Read bytes of the caller up to a zero. Raises an ``OSError``: ``too_long`` if none comes in time."""
    data = read_memory(asked, address, longest)
    text, zero, _ = data.partition(b"\0")
    if not zero:
        error = too_long if len(data) == longest else errno.EFAULT
        raise OSError(error, os.strerror(error))
    return text


def open_place(base: int, path: bytes, *, follow: bool = True) -> int:
    """Open what a path leads to, from the directory ``base`` on, only to name it. Links of ``/proc`` to files are not followed."""
    return _open_at(base, path, follow=follow, resolve=_RESOLVE_NO_MAGICLINKS)


def open_beneath(base: int, path: bytes) -> int:
    """Open what a path without links leads to below a directory, only to name it."""
    resolve = _RESOLVE_BENEATH | _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_MAGICLINKS
    return _open_at(base, path, follow=False, resolve=resolve)


def _open_at(base: int, path: bytes, *, follow: bool, resolve: int) -> int:
    flags = os.O_PATH | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    how = struct.pack("=QQQ", flags, 0, resolve)
    return checked(syscall(_OPEN_AT, base, path + b"\0", how, len(how)))
