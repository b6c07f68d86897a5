"""System call filters: rules, assembled into a program that the kernel runs before each call. Linux only."""

from __future__ import annotations

import errno
import os
import stat
import struct
import sys
from collections.abc import Mapping, Sequence

from codeact_team.sandbox.system.kernel import install_filter

NUMBERS: dict[str, tuple[int, int | None]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "chmod": (90, None),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "clone": (56, 220),
    "clone3": (435, 435),
    "creat": (85, None),
    "delete_module": (176, 106),
    "fallocate": (285, 47),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "fcntl": (72, 25),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "io_setup": (206, 0),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioctl": (16, 29),
    "ioperm": (173, None),
    "iopl": (172, None),
    "ioprio_set": (251, 30),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "kill": (62, 129),
    "listmount": (458, 458),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "migrate_pages": (256, 238),
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "mmap": (9, 222),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "msgctl": (71, 187),
    "msgget": (68, 186),
    "msgrcv": (70, 188),
    "msgsnd": (69, 189),
    "name_to_handle_at": (303, 264),
    "open": (2, None),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "openat": (257, 56),
    "openat2": (437, 437),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "pivot_root": (155, 41),
    "prlimit64": (302, 261),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "semctl": (66, 191),
    "semget": (64, 190),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "setpriority": (141, 140),
    "settimeofday": (164, 170),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "shmdt": (67, 197),
    "shmget": (29, 194),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "statmount": (457, 457),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "tgkill": (234, 131),
    "tkill": (200, 130),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}
"""The number of each call on x86_64, and on the other known processors; ``None`` if those do not have the call."""

SET_ID = stat.S_ISUID | stat.S_ISGID
"""The set-id bits. A file with them in the workspace would give the rights of the user who owns it to other users."""
MAKES_A_FILE = os.O_CREAT | 0o20000000
"""``O_CREAT``, and ``O_TMPFILE`` as these processors have it. Without such a flag the mode of a call has no meaning."""
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
"""The position of the mode among a call's arguments. That of openat2 is in memory, where a filter cannot see it."""
COUNTED = {"inotify_init": errno.EMFILE, "inotify_init1": errno.EMFILE, "io_setup": errno.EAGAIN}
"""Calls that use up a resource of the whole user or machine, with the error of each when that is exhausted. No limit of a
process bounds them."""
_IOPRIO_WHO_PROCESS = 1
OF_ITSELF: dict[str, dict[int, int]] = {
    "ioprio_set": {0: _IOPRIO_WHO_PROCESS, 1: 0},
    "prlimit64": {0: 0},
    "sched_setaffinity": {0: 0},
    "sched_setattr": {0: 0},
    "sched_setparam": {0: 0},
    "sched_setscheduler": {0: 0},
    "setpriority": {0: 0, 1: 0},
}
"""Calls that change limits or priorities of a process, with the arguments, by position, that mean the calling process
itself. Aimed at one of our processes, they could take time or descriptors away from it."""
OPENING = ("open", "openat")
"""The calls of :data:`MODES` that create a file only if the argument before the mode says so."""


class Rule:
    """A system call that is refused.

    Attributes:
        call: Its name in :data:`NUMBERS`.
        unless: Arguments, by position. The call is allowed if all have these values.
        bits: Arguments, by position. The call is refused only if each has one of these bits.
        either: Pairs of position and value. The call is refused only if one of these arguments has this value.
        error: The error number that it fails with.
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
    """Refuse system calls, irrevocably, for this process and all that it starts.

    Raises an ``OSError`` if the kernel accepts no filter, or the call numbers of this processor are not known.
    """
    install_filter(assemble(rules))


def assemble(rules: Sequence[Rule]) -> bytes:
    """Assemble rules into the instructions of a filter. Raises an ``OSError`` for an unknown processor."""
    return b"".join(_program(rules, os.uname().machine))


def _program(rules: Sequence[Rule], machine: str) -> list[bytes]:
    # a 32-bit interpreter does not make the calls of its machine
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
    """The instructions that decide on a call by its arguments."""
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
        # an argument that does not meet its condition skips to the end
        body = [*_test(_ANY_BIT if rule.bits else _EQUAL, position, value, len(body) - 1), *body]
    return body


def _test(compare: int, position: int, value: int, if_unmet: int) -> list[bytes]:
    """Load an argument, and skip ``if_unmet`` instructions if it does not meet the condition."""
    load = _step(_LOAD, _OFFSET_ARGS + 8 * position)
    return [load, _step(compare, value & 0xFFFFFFFF, 0, if_unmet)]


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
