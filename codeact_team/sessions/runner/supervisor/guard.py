"""Keeps the code from reading, tracing, signalling and imitating the process that supervises it.

The code runs as the same user in the same sandbox, so the kernel has to tell them apart. Linux only; elsewhere nothing
is guarded, and said so.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
from collections.abc import Sequence

try:
    import ctypes
except ImportError:
    sys.exit(
        "the Python in the sandbox has no ctypes, which the supervisor needs to guard itself from the code"
    )

_PR_GET_DUMPABLE, _PR_SET_DUMPABLE, _PR_SET_SECCOMP = 3, 4, 22
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 36, 38

_CAPABILITY_VERSION_3, _CAP_SYS_PTRACE = 0x20080522, 1 << 19

# the same numbers on every architecture
_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446
_CREATE_RULESET_VERSION, _RULE_PATH_BENEATH = 1, 1
_ACCESS_FS_REFER, _SCOPE_SIGNAL = 1 << 13, 1 << 1
_ABI_OF_REFER, _ABI_OF_SCOPES = 2, 6

_libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that none can hide."""
    if sys.platform == "linux":
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


class Guard:
    """Guards this process, from now on, against everything that it starts. Only one process may be guarded so.

    Against reading: this process is not dumpable, or else its children are in Landlock domains of their own. Against
    signals: a system call filter, or else a Landlock scope, which also keeps one block from ending what another has left
    running.

    Attributes:
        unguarded: What code could do to this process, or ``None``.
    """

    def __init__(self) -> None:
        self._ruleset: int | None = None
        if sys.platform != "linux":
            self.unguarded: str | None = (
                "code can read and signal its supervisor: only Linux can keep it from that"
            )
            return
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)
        _prctl(_PR_SET_DUMPABLE, 0)
        unreadable = _prctl(_PR_GET_DUMPABLE) == 0 and not _may_trace_anything()
        unreachable = _filter_calls()
        if not (unreadable and unreachable):
            abi = _syscall(_LANDLOCK_CREATE_RULESET, 0, 0, _CREATE_RULESET_VERSION)
            scope = _SCOPE_SIGNAL if not unreachable and abi >= _ABI_OF_SCOPES else 0
            if abi >= _ABI_OF_REFER and (ruleset := _make_ruleset(scope)) is not None:
                self._ruleset = ruleset
                unreadable = unreadable or self._memory_is_closed()
                unreachable = unreachable or scope != 0
        deeds = [deed for deed, kept in (("read", unreadable), ("signal", unreachable)) if not kept]
        self.unguarded = (
            f"code can {' and '.join(deeds)} its supervisor: the kernel, or what surrounds the sandbox, offers no"
            " way to keep it from that"
            if deeds
            else None
        )

    def _memory_is_closed(self) -> bool:
        # by trial: what surrounds the sandbox may open files on behalf of those inside
        me = os.getpid()
        if (child := os.fork()) == 0:
            try:
                self.enter_child()
                os.open(f"/proc/{me}/mem", os.O_RDONLY)
            except PermissionError:
                os._exit(0)
            finally:
                os._exit(1)
        return os.waitpid(child, 0)[1] == 0

    def enter_child(self) -> None:
        """To be called in a child before anything of the code's runs there.

        Raises:
            OSError: If the child cannot be kept from this process.
        """
        if self._ruleset is not None and _syscall(_LANDLOCK_RESTRICT_SELF, self._ruleset, 0) < 0:
            raise OSError(ctypes.get_errno(), "the code cannot be kept from its supervisor")


def _may_trace_anything() -> bool:
    header, sets = struct.pack("=II", _CAPABILITY_VERSION_3, 0), ctypes.create_string_buffer(24)
    if _libc.capget(header, sets) < 0:
        return True
    _, permitted, _ = struct.unpack_from("=III", sets)
    return bool(permitted & _CAP_SYS_PTRACE)


def _make_ruleset(scope: int) -> int | None:
    # a domain that does not mention it refuses to move files from one directory to another
    attributes = struct.pack("=QQQ", _ACCESS_FS_REFER, 0, scope)
    ruleset = _syscall(_LANDLOCK_CREATE_RULESET, attributes, len(attributes) if scope else 8, 0)
    if ruleset < 0:
        return None
    # what surrounds the sandbox may not show the root, but it does show what can be written
    if not _allow_moves_below(ruleset, "/"):
        for directory in (os.getcwd(), os.environ.get("TMPDIR", "/tmp"), "/dev/shm"):
            _allow_moves_below(ruleset, directory)
    return ruleset


def _allow_moves_below(ruleset: int, directory: str) -> bool:
    try:
        root = os.open(directory, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return False
    rule = struct.pack("=Qi", _ACCESS_FS_REFER, root)
    added = _syscall(_LANDLOCK_ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, 0)
    os.close(root)
    return added >= 0


_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_OFFSET_NUMBER, _OFFSET_ARCH, _OFFSET_ARGS = 0, 4, 16
_X86_64 = "x86_64"
_AUDIT_ARCH = {_X86_64: 0xC000003E, "aarch64": 0xC00000B7, "riscv64": 0xC00000F3}
_X32_BIT = 0x40000000

_PRIO_USER, _IOPRIO_WHO_USER, _F_SETSIG = 2, 3, 10


def _rules(me: int, group: int) -> Sequence[tuple[int, int, Sequence[tuple[int, int]]]]:
    """Numbers of a system call, on x86_64 and elsewhere, and each argument, by position, that makes it refused."""
    everyone = -1
    return (
        (62, 129, ((0, me), (0, -me), (0, -group), (0, everyone))),  # kill
        (200, 130, ((0, me),)),  # tkill
        (234, 131, ((0, me), (1, me))),  # tgkill
        (129, 138, ((0, me),)),  # rt_sigqueueinfo
        (297, 240, ((0, me), (1, me))),  # rt_tgsigqueueinfo
        (434, 434, ((0, me),)),  # pidfd_open
        (72, 25, ((1, _F_SETSIG),)),  # fcntl: SIGKILL could be what a file sends to its owner
        (302, 261, ((0, me),)),  # prlimit64
        (141, 140, ((0, _PRIO_USER), (1, me), (1, group))),  # setpriority
        (251, 30, ((0, _IOPRIO_WHO_USER), (1, me), (1, group))),  # ioprio_set
        (142, 118, ((0, me),)),  # sched_setparam
        (144, 119, ((0, me),)),  # sched_setscheduler
        (203, 122, ((0, me),)),  # sched_setaffinity
        (314, 274, ((0, me),)),  # sched_setattr
    )


_PIDFD_SEND_SIGNAL = 424
"""Refused whatever the arguments, as if it did not exist: they do not tell whom it means."""


def _filter_calls() -> bool:
    """Refuse system calls that are aimed at this process, here and in all that is started from here."""
    machine = os.uname().machine
    # a 32-bit interpreter makes other calls than its machine's
    if machine not in _AUDIT_ARCH or sys.maxsize < 2**32:
        return False
    program = b"".join(_program(machine, _rules(os.getpid(), os.getpgrp())))
    instructions = ctypes.create_string_buffer(program)
    filter_ = ctypes.create_string_buffer(
        struct.pack("@HP", len(program) // 8, ctypes.addressof(instructions))
    )
    return _prctl(_PR_SET_SECCOMP, 2, ctypes.addressof(filter_)) == 0


def _program(machine: str, rules: Sequence[tuple[int, int, Sequence[tuple[int, int]]]]) -> list[bytes]:
    refuse, unknown = _step(_RETURN, _ERRNO | errno.EPERM), _step(_RETURN, _ERRNO | errno.ENOSYS)
    allow = _step(_RETURN, _ALLOW)
    code = [
        # 32-bit programs have other numbers
        _step(_LOAD, _OFFSET_ARCH),
        _step(_EQUAL, _AUDIT_ARCH[machine], 1, 0),
        unknown,
        _step(_LOAD, _OFFSET_NUMBER),
        _step(_EQUAL, _PIDFD_SEND_SIGNAL, 0, 1),
        unknown,
    ]
    if machine == _X86_64:
        code += [_step(_AT_LEAST, _X32_BIT, 0, 1), unknown]
    for on_x86_64, elsewhere, refused in rules:
        body: list[bytes] = []
        for position, value in refused:
            body += [
                _step(_LOAD, _OFFSET_ARGS + 8 * position),
                _step(_EQUAL, value & 0xFFFFFFFF, 0, 1),
                refuse,
            ]
        code += [
            _step(_EQUAL, on_x86_64 if machine == _X86_64 else elsewhere, 0, len(body) + 1),
            *body,
            allow,
        ]
    return [*code, allow]


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _prctl(option: int, *arguments: int) -> int:
    padded = (*arguments, 0, 0, 0, 0)[:4]
    return _libc.prctl(option, *map(ctypes.c_ulong, padded))


def _syscall(number: int, *arguments: int | bytes) -> int:
    values = (value if isinstance(value, bytes) else ctypes.c_long(value) for value in arguments)
    return _libc.syscall(ctypes.c_long(number), *values)
