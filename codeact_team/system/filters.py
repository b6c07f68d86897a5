"""Filters of system calls: rules assembled to a program that the kernel runs before each call. Linux only."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import sys
from collections.abc import Mapping, Sequence

from codeact_team.system.kernel import PR_SET_SECCOMP, checked, prctl

NUMBERS: dict[str, tuple[int, int | None]] = {
    "chmod": (90, None),
    "creat": (85, None),
    "fallocate": (285, 47),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "fcntl": (72, 25),
    "io_uring_setup": (425, 425),
    "ioprio_set": (251, 30),
    "kill": (62, 129),
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "mmap": (9, 222),
    "open": (2, None),
    "openat": (257, 56),
    "openat2": (437, 437),
    "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "prlimit64": (302, 261),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "setpriority": (141, 140),
    "socket": (41, 198),
    "tgkill": (234, 131),
    "tkill": (200, 130),
}
"""The number of each call on x86_64 and on the other processors known here; ``None`` where those do not have it."""

SET_ID = stat.S_ISUID | stat.S_ISGID
"""A file with these bits, of the user whose workspace it is in, would give that user's rights to others of the machine."""
MAKES_A_FILE = os.O_CREAT | 0o20000000
"""With ``O_TMPFILE``, as these processors have it; without such a flag a mode means nothing, and may be anything."""
MODES = {
    "chmod": 1,
    "creat": 1,
    "fchmod": 1,
    "fchmodat": 2,
    "fchmodat2": 2,
    "mkdir": 1,
    "mkdirat": 2,
    "mknod": 1,
    "mknodat": 2,
    "open": 2,
    "openat": 3,
}
"""Where the mode is among a call's arguments. That of openat2 is in memory, where no filter sees it."""
OPENING = ("open", "openat")
"""Those of these calls that make a file only if the argument before the mode says so."""


class Rule:
    """A system call that is refused.

    Attributes:
        call: Its name in :data:`NUMBERS`.
        unless: It is not refused if its arguments, by position, are all these.
        bits: It is refused only if each of these arguments has one of these bits.
        either: It is refused only if one of these arguments, by position, has this value.
        error: What it fails with.
    """

    def __init__(
        self,
        call: str,
        unless: Mapping[int, int] = {},
        bits: Mapping[int, int] = {},
        either: Sequence[tuple[int, int]] = (),
        error: int = errno.EPERM,
    ) -> None:
        self.call = call
        self.unless = unless
        self.bits = bits
        self.either = either
        self.error = error


NO_SET_ID = tuple(
    Rule(call, bits={**({mode - 1: MAKES_A_FILE} if call in OPENING else {}), mode: SET_ID})
    for call, mode in MODES.items()
)

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_OFFSET_NUMBER, _OFFSET_ARCH, _OFFSET_ARGS = 0, 4, 16
_X86_64 = "x86_64"
_AUDIT_ARCH = {_X86_64: 0xC000003E, "aarch64": 0xC00000B7, "riscv64": 0xC00000F3}
_X32_BIT = 0x40000000


def install(rules: Sequence[Rule]) -> None:
    """Refuse system calls, irrevocably, here and in all that is started from here.

    Raises:
        OSError: If the kernel takes no filter, or the processor is not one whose numbers of calls are known.
    """
    install_program(assemble(rules))


def assemble(rules: Sequence[Rule]) -> bytes:
    """The instructions that the kernel runs before each call. Raises an ``OSError`` for an unknown processor."""
    return b"".join(_program(rules, os.uname().machine))


def install_program(program: bytes) -> None:
    """Like :func:`install`, with what :func:`assemble` has made of the rules."""
    instructions = ctypes.create_string_buffer(program)
    filter_ = ctypes.create_string_buffer(
        struct.pack("@HP", len(program) // 8, ctypes.addressof(instructions))
    )
    checked(prctl(PR_SET_SECCOMP, 2, ctypes.addressof(filter_)))


def _program(rules: Sequence[Rule], machine: str) -> list[bytes]:
    # a 32-bit interpreter makes other calls than its machine's
    if machine not in _AUDIT_ARCH or sys.maxsize < 2**32:
        raise OSError(f"no system call numbers known for {machine}")
    unknown = _step(_RETURN, _ERRNO | errno.ENOSYS)
    # 32-bit programs have other numbers
    code = [_step(_LOAD, _OFFSET_ARCH), _step(_EQUAL, _AUDIT_ARCH[machine], 1, 0), unknown]
    code.append(_step(_LOAD, _OFFSET_NUMBER))
    if machine == _X86_64:
        code += [_step(_AT_LEAST, _X32_BIT, 0, 1), unknown]
    for rule in rules:
        number = NUMBERS[rule.call][machine != _X86_64]
        if number is not None:
            body = _body(rule)
            code += [_step(_EQUAL, number, 0, len(body)), *body]
    return [*code, _step(_RETURN, _ALLOW)]


def _body(rule: Rule) -> list[bytes]:
    """What decides on a call by its arguments."""
    allow, refuse = _step(_RETURN, _ALLOW), _step(_RETURN, _ERRNO | rule.error)
    if rule.either:
        body = [allow]
        for position, value in rule.either:
            body = [*_test(_EQUAL, position, value, 1), refuse, *body]
        return body
    if not (rule.bits or rule.unless):
        return [refuse]
    body = [refuse, allow] if rule.bits else [allow, refuse]
    for position, value in (rule.bits or rule.unless).items():
        # from an argument that does not meet its condition on to the end
        body = [*_test(_ANY_BIT if rule.bits else _EQUAL, position, value, len(body) - 1), *body]
    return body


def _test(compare: int, position: int, value: int, if_unmet: int) -> list[bytes]:
    """Look at an argument, and skip ``if_unmet`` steps where it does not meet the condition."""
    load = _step(_LOAD, _OFFSET_ARGS + 8 * position)
    return [load, _step(compare, value & 0xFFFFFFFF, 0, if_unmet)]


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
