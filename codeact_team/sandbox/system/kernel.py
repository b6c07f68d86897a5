"""Calls of the kernel that Python lacks: by number, for capabilities, limits, the OOM score, and Landlock.

The calls return -1 on failure; :func:`checked` turns that into an ``OSError``.
"""

from __future__ import annotations

import _thread
import ctypes
import errno
import gc
import os
import resource
import stat
import struct
import sys
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    _T = TypeVar("_T")

CLONE_NEWUSER = 0x10000000
PR_SET_PDEATHSIG, PR_GET_DUMPABLE, PR_SET_DUMPABLE, _PR_SET_SECCOMP = 1, 3, 4, 22
PR_CAPBSET_DROP, _PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 24, 36, 38
_SECCOMP_MODE_FILTER = 2

CAPABILITIES = struct.pack("=II", 0x20080522, 0)
"""The header by which version 3 of the capability calls names this process."""
SIZE_OF_CAPABILITIES = 24

PROCESS_TERMINALS = "/dev/terminals"
"""Where a sandbox that keeps processes apart has the pseudo-terminals that it starts them in."""

libc: ctypes.CDLL = ctypes.CDLL(None, use_errno=True)


def checked(result: int) -> int:
    """Return the result of a call. Raises an ``OSError`` if the call failed."""
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


def prctl(option: int, *arguments: int) -> int:
    """Control this process."""
    padded = (*arguments, 0, 0, 0, 0)[:4]
    return libc.prctl(option, *map(ctypes.c_ulong, padded))


def syscall(number: int, *arguments: int | bytes) -> int:
    """Make a system call by its number."""
    values = (value if isinstance(value, bytes) else ctypes.c_long(value) for value in arguments)
    return libc.syscall(ctypes.c_long(number), *values)


def install_filter(program: bytes) -> None:
    """Install an assembled system call filter, irrevocably, for this process and all that it starts. Raises an ``OSError``."""
    instructions = ctypes.create_string_buffer(program)
    filter_ = ctypes.create_string_buffer(
        struct.pack("@HP", len(program) // 8, ctypes.addressof(instructions))
    )
    checked(prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(filter_)))


def close_descriptors(first: int, end: int, *kept: int) -> None:
    """Close the descriptors from ``first`` to ``end - 1``, except those that are ``kept``."""
    for fd in sorted({fd for fd in kept if fd >= first}):
        os.closerange(first, fd)
        first = fd + 1
    os.closerange(first, end)


def descriptors_of_libffi() -> list[int]:
    """Return the descriptors that a fork must not close if it is to use ctypes.

    From this file, libffi 3.5 maps code for functions that C calls back. Without it, a process can make few of them.
    """
    found: list[int] = []
    for fd in os.listdir("/proc/self/fd"):
        # the one that lists them is closed by now
        with suppress(OSError):
            if os.path.basename(os.readlink(f"/proc/self/fd/{fd}")).startswith("libffi."):
                found.append(int(fd))
    return found


def adopt_orphans() -> int:
    """Make this process the parent of every descendant whose own parent ends, so that none can hide. Linux only."""
    return prctl(_PR_SET_CHILD_SUBREAPER, 1) if sys.platform == "linux" else -1


def share_memory_with_forks() -> None:
    """Exclude all present objects from garbage collection, so that forks share their pages, and free unused memory."""
    # a collection writes to every object, and a page that is written to is not shared any more
    gc.collect()
    gc.freeze()
    # not every C library has it
    if trim := getattr(libc, "malloc_trim", None):
        trim(0)


def is_running(process: int) -> bool:
    """Whether a process with this id exists, of whatever user."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


# limits

MIB = 1 << 20

CODE_DESCRIPTORS = 512
"""The most descriptors that a process of the user's code may open.

Linux refuses to send a descriptor through a socket once its user has more of them in flight than the sender may have open,
and one message adds up to 253. So code has at most 765 in flight, and a process that may open more can still send.
"""
OWN_DESCRIPTORS = 1024
"""The most descriptors that a process of ours in a sandbox may open; the usual limit of programs on a machine."""
RELAY_DESCRIPTORS = 4096
"""The same for one that relays a thousand connections, two descriptors for each, or listens for as many names."""
PENDING_SIGNALS = 1024
"""The most signals and timers that the code's user may queue: a small part of the limit of one user of a machine."""
LOCKED_BYTES = 64 * 1024
"""The most memory that code may lock. Locked shared segments count for the whole user, who may usually lock 8 MiB of a
machine; programs that protect a key need no more than this."""


def limit(what: int, most: int) -> None:
    """Lower a resource limit, such as ``RLIMIT_NOFILE``, of this process and of all that it starts."""
    soft, hard = (
        most if now == resource.RLIM_INFINITY else min(now, most) for now in resource.getrlimit(what)
    )
    resource.setrlimit(what, (soft, hard))


_KILLED_FIRST = b"1000"
KILLED_SECOND = b"500"


class OomScore:
    """Within its ``with``, whatever is forked is the first that the kernel kills when memory is short. Linux only.

    Must be made while this process is dumpable: afterwards its files in ``/proc`` belong to root. ``own`` is the score of
    this process from now on; by default its present one. ``proc`` is a descriptor of ``/proc`` for a process that will see
    another one, or cannot write to its own.
    """

    def __init__(self, own: bytes = b"", proc: int | None = None) -> None:
        self._own = own
        self._fd: int | None = None
        path = "/proc/self/oom_score_adj" if proc is None else "self/oom_score_adj"
        with suppress(OSError):
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC, dir_fd=proc)
            self._own = own or os.read(fd, 16)
            self._fd = fd
        self._write(self._own)

    def __enter__(self) -> None:
        self._write(_KILLED_FIRST)

    def __exit__(self, *_: object) -> None:
        # also in the child, where the file is still the parent's
        self._write(self._own)

    def _write(self, score: bytes) -> None:
        if self._fd is not None:
            with suppress(OSError):
                os.pwrite(self._fd, score, 0)


# Landlock: domains that limit what a process, and all that it starts, can reach. Linux only

# the same numbers on every architecture
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION, _PATH_BENEATH = 1, 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIRECTORY = 1 << 0, 1 << 1, 1 << 2, 1 << 3
MAKE_SOCKET, MOVE = 1 << 9, 1 << 13
"""Moving files from one directory to another. A domain whose ruleset does not handle this refuses it."""
_TRUNCATE, _CONTROL_DEVICES = 1 << 14, 1 << 15
_OF_FILES = {5: 16, 3: 15, 2: 14, 1: 13}
"""The number of rights over files, by the version since which it holds."""
_FOR_FILES = EXECUTE | READ_FILE | WRITE_FILE | _TRUNCATE | _CONTROL_DEVICES
"""The rights that apply to a file; the others apply to directories."""
ALL_OF_TCP = 3
ABSTRACT_SOCKETS, SIGNALS = 1 << 0, 1 << 1
"""Scopes: connections and signals to processes outside the domain."""

ABI_OF_MOVES, ABI_OF_TRUNCATING, ABI_OF_TCP, ABI_OF_SCOPES = 2, 3, 4, 6


def landlock_abi() -> int:
    """The version of Landlock in this kernel; less than 1 without Landlock."""
    return syscall(_CREATE_RULESET, 0, 0, _VERSION)


def landlock_scopes() -> int:
    """The scopes that Landlock has. Not by its version: the kernel of RHEL 9 says one that has more than it knows."""
    found = 0
    if landlock_abi() >= ABI_OF_SCOPES:
        for scope in (ABSTRACT_SOCKETS, SIGNALS):
            with suppress(OSError):
                os.close(make_ruleset(0, scopes=scope))
                found |= scope
    return found


def rights_over_files(abi: int) -> int:
    """All rights over files that this version of Landlock knows."""
    return (1 << next(number for since, number in _OF_FILES.items() if abi >= since)) - 1


def make_ruleset(files: int, *, tcp: int = 0, scopes: int = 0) -> int:
    """Create a ruleset, which refuses the handled rights unless a rule allows them. Returns its descriptor.

    Rights over TCP need version 4, and ``scopes``, which no rule can allow, version 6. Raises an ``OSError`` if this kernel
    does not know all of that.
    """
    attributes = struct.pack("=QQQ", files, tcp, scopes)
    size = len(attributes) if scopes else 16 if tcp else 8
    return checked(syscall(_CREATE_RULESET, attributes, size, 0))


def allow(ruleset: int, path: str | int, access: int) -> None:
    """Add a rule that allows ``access`` to a path, or what is open as a descriptor, and to everything below it.

    Raises an ``OSError`` on failure.
    """
    place = os.open(path, os.O_PATH | os.O_CLOEXEC) if isinstance(path, str) else os.dup(path)
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            access &= _FOR_FILES
        checked(syscall(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", access, place), 0))
    finally:
        os.close(place)


def enter_domain(ruleset: int) -> None:
    """Enter a domain with this ruleset, for good. Raises an ``OSError`` on failure."""
    checked(syscall(_RESTRICT_SELF, ruleset, 0))


DOMAIN = "CODEACT_TEAM_DOMAIN"
"""The variable by which a program gets the ruleset of a domain for what it starts itself."""
DOOR = "CODEACT_TEAM_DOOR"
"""The variable by which a supervisor gets the socket through which connections of code come that it cannot take itself."""


def handed(variable: str, descriptor: int) -> dict[str, str]:
    """The variable for a program that inherits the descriptor."""
    return {variable: str(descriptor)}


def take_handed(variable: str) -> int | None:
    """The descriptor that this program was handed by a variable, if any."""
    if (descriptor := os.environ.pop(variable, None)) is None:
        return None
    os.set_inheritable(int(descriptor), False)
    return int(descriptor)


def in_domain(ruleset: int, action: Callable[[], _T]) -> _T:
    """Do something in a domain, and return its result; this thread does not enter it.

    Raises what the action raises, and a ``BlockingIOError`` if there may be no more threads.
    """
    results: list[_T] = []
    failures: list[BaseException] = []

    def work() -> None:
        try:
            enter_domain(ruleset)
            results.append(action())
        except BaseException as error:
            failures.append(error)
        finally:
            ended.release()

    # a domain is for good, but each thread has its own
    ended = _thread.allocate_lock()
    ended.acquire()
    try:
        _thread.start_new_thread(work, ())
    except RuntimeError as error:
        raise BlockingIOError(errno.EAGAIN, str(error)) from None
    ended.acquire()
    if failures:
        raise failures[0]
    return results[0]
