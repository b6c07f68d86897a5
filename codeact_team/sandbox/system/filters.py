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
    "bind": (49, 200),
    "bpf": (321, 280),
    "chmod": (90, None),
    "chown": (92, None),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "clone": (56, 220),
    "clone3": (435, 435),
    "connect": (42, 203),
    "creat": (85, None),
    "delete_module": (176, 106),
    "fallocate": (285, 47),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "fcntl": (72, 25),
    "file_setattr": (469, 469),
    "finit_module": (313, 273),
    "fork": (57, None),
    "fremovexattr": (199, 16),
    "fsconfig": (431, 431),
    "fsetxattr": (190, 7),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "futimesat": (261, None),
    "getsockopt": (55, 209),
    "getxattr": (191, 8),
    "getxattrat": (464, 464),
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
    "lchown": (94, None),
    "lgetxattr": (192, 9),
    "listmount": (458, 458),
    "listxattr": (194, 11),
    "listxattrat": (465, 465),
    "llistxattr": (195, 12),
    "lremovexattr": (198, 15),
    "lsetxattr": (189, 6),
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
    "mq_getsetattr": (245, 185),
    "mq_notify": (244, 184),
    "mq_open": (240, 180),
    "mq_timedreceive": (243, 183),
    "mq_timedsend": (242, 182),
    "mq_unlink": (241, 181),
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
    "removexattr": (197, 14),
    "removexattrat": (466, 466),
    "request_key": (249, 218),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "seccomp": (317, 277),
    "semctl": (66, 191),
    "semget": (64, 190),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "setpriority": (141, 140),
    "setsockopt": (54, 208),
    "settimeofday": (164, 170),
    "setxattr": (188, 5),
    "setxattrat": (463, 463),
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
    "truncate": (76, 45),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "utime": (132, None),
    "utimensat": (280, 88),
    "utimes": (235, None),
    "vfork": (58, None),
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
    """A system call that is refused, or asked of a listener. Of several rules for a call, the first that meets it decides.

    Attributes:
        call: Its name in :data:`NUMBERS`.
        unless: Arguments, by position. The rule is not met if all have these values.
        bits: Arguments, by position. The rule is met only if each has one of these bits.
        masked: The position of an argument, a mask and a value. The rule is met only if the argument has it under the mask.
        either: Pairs of position and value. The rule is met only if one of these arguments has this value.
        unless_one_of: The position of an argument, and values. The rule is not met if it has one of them.
        where: The position of an argument, and a value. The rule is met only if the argument has it, too.
        error: The error number that it fails with; 0 if it does nothing, and seems to succeed.
        asked: Whether a listener decides instead.
    """

    def __init__(
        self,
        call: str,
        unless: Mapping[int, int] = {},
        bits: Mapping[int, int] = {},
        masked: tuple[int, int, int] | None = None,
        either: Sequence[tuple[int, int]] = (),
        unless_one_of: tuple[int, Sequence[int]] | None = None,
        where: tuple[int, int] | None = None,
        error: int = errno.EPERM,
        asked: bool = False,
    ) -> None:
        self.call = call
        self.unless = unless
        self.bits = bits
        self.masked = masked
        self.either = either
        self.unless_one_of = unless_one_of
        self.where = where
        self.error = error
        self.asked = asked


NO_SET_ID = tuple(
    Rule(call, bits={**({mode - 1: MAKES_A_FILE} if call in OPENING else {}), mode: SET_ID})
    for call, mode in MODES.items()
)

_LOAD, _AND, _JUMP, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x54, 0x05, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ASK, _ERRNO = 0x7FFF0000, 0x7FC00000, 0x00050000
_OFFSET_NUMBER, _OFFSET_ARCH, _OFFSET_ARGS = 0, 4, 16
_X86_64 = "x86_64"
_AUDIT_ARCH = {_X86_64: 0xC000003E, "aarch64": 0xC00000B7, "riscv64": 0xC00000F3}
_X32_BIT = 0x40000000


def number_of(call: str) -> int | None:
    """The number of a call on this processor, if it has that."""
    return NUMBERS[call][os.uname().machine != _X86_64]


def names_of(calls: Sequence[str]) -> dict[int, str]:
    """The names of calls by their numbers on this processor."""
    return {number: call for call in calls if (number := number_of(call)) is not None}


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
    of_calls: dict[int, list[bytes]] = {}
    for rule in rules:
        if (number := number_of(rule.call)) is not None:
            body = _body(rule)
            if rule.where is not None:
                body = [*_test(_EQUAL, *rule.where, len(body)), *body]
            of_calls.setdefault(number, []).extend(body)
    for number, body in of_calls.items():
        # a conditional jump reaches 255 instructions
        code += [_step(_EQUAL, number, 1, 0), _step(_JUMP, len(body) + 1), *body, _step(_RETURN, _ALLOW)]
    return [*code, _step(_RETURN, _ALLOW)]


def _body(rule: Rule) -> list[bytes]:
    """The instructions that decide on a call by its arguments, and go on behind the last if the rule is not met."""
    decide = _step(_RETURN, _ASK if rule.asked else _ERRNO | rule.error)
    if rule.either:
        return [step for one in rule.either for step in (*_test(_EQUAL, *one, 1), decide)]
    if rule.masked is not None:
        position, mask, value = rule.masked
        load = _step(_LOAD, _OFFSET_ARGS + 8 * position)
        return [load, _step(_AND, mask), _step(_EQUAL, value, 0, 1), decide]
    if rule.unless_one_of is not None:
        position, values = rule.unless_one_of
        tests = [_step(_EQUAL, value, len(values) - place, 0) for place, value in enumerate(values)]
        return [_step(_LOAD, _OFFSET_ARGS + 8 * position), *tests, decide]
    if not (rule.bits or rule.unless):
        return [decide]
    body = [decide] if rule.bits else [_step(_JUMP, 1), decide]
    for position, value in (rule.bits or rule.unless).items():
        # an argument that does not meet its condition skips all, or all but the decision
        if_unmet = len(body) if rule.bits else len(body) - 1
        body = [*_test(_ANY_BIT if rule.bits else _EQUAL, position, value, if_unmet), *body]
    return body


def _test(compare: int, position: int, value: int, if_unmet: int) -> list[bytes]:
    """Load an argument, and skip ``if_unmet`` instructions if it does not meet the condition."""
    load = _step(_LOAD, _OFFSET_ARGS + 8 * position)
    return [load, _step(compare, value & 0xFFFFFFFF, 0, if_unmet)]


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
