"""What the supervisor gives up for itself and all that it starts, before it starts anything. Linux only."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

_libc = ctypes.CDLL(None, use_errno=True)

_CLONE_NEWNS, _CLONE_NEWIPC, _CLONE_NEWUSER, _CLONE_NEWPID, _CLONE_NEWNET = (
    0x00020000,
    0x08000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_PRIVATE = 0x1, 0x2, 0x4, 0x8, 0x4000, 0x40000
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_OPEN_TREE_CLONE, _MOVE_MOUNT_F_EMPTY_PATH, _MOUNT_ATTR_RDONLY = 0x1, 0x4, 0x1
# the same number on every architecture
_SYS_OPEN_TREE, _SYS_MOVE_MOUNT, _SYS_MOUNT_SETATTR = 428, 429, 442

_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = (
    1,
    22,
    24,
    36,
    38,
)
_CAPABILITY_VERSION_3 = 0x20080522
_LAST_CAPABILITY = 63

SHARED_MEMORY = "/dev/shm"
"""Private in the namespaces, so that the semaphores of ``multiprocessing`` work there."""
_SHARED_MEMORY_OPTIONS = b"mode=0700,size=64m"


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that none can hide."""
    _checked(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))


def enter_namespaces(writable: Sequence[str], at_the_end: Callable[[], object] = lambda: None) -> None:
    """Leave the host's processes, network and IPC, and see its files read-only but for the directories ``writable``.

    Returns in a child, which is the first process of its namespace: when it ends, the kernel ends all others there. This
    process waits for it, calls ``at_the_end``, still with the host's files before it, and ends.

    Raises:
        OSError: If this machine does not let us. The process may then be of no more use: try with :func:`failure_of`.
    """
    uid, gid = os.getuid(), os.getgid()
    if _libc.unshare(_CLONE_NEWPID) < 0:
        _checked(_libc.unshare(_CLONE_NEWPID | _CLONE_NEWUSER))
        for name, line in (
            ("setgroups", "deny"),
            ("uid_map", f"{uid} {uid} 1"),
            ("gid_map", f"{gid} {gid} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(line)
    if child := os.fork():
        try:
            os.waitpid(child, 0)
            at_the_end()
        finally:
            os._exit(0)
    _checked(_libc.unshare(_CLONE_NEWNS | _CLONE_NEWIPC | _CLONE_NEWNET))
    _mount(writable)


def _mount(writable: Sequence[str]) -> None:
    _checked(_libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None))
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_RECURSIVE
    trees = [(path, _syscall(_SYS_OPEN_TREE, _AT_FDCWD, os.fsencode(path), flags)) for path in writable]
    read_only = struct.pack("=QQQQ", _MOUNT_ATTR_RDONLY, 0, 0, 0)
    _syscall(_SYS_MOUNT_SETATTR, _AT_FDCWD, b"/", _AT_RECURSIVE, read_only, len(read_only))
    for path, tree in trees:
        _syscall(_SYS_MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(path), _MOVE_MOUNT_F_EMPTY_PATH)
        os.close(tree)
    no_special = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    _checked(_libc.mount(b"proc", b"/proc", b"proc", no_special | _MS_RDONLY, None))
    _checked(_libc.mount(b"tmpfs", SHARED_MEMORY.encode(), b"tmpfs", no_special, _SHARED_MEMORY_OPTIONS))


def failure_of(action: Callable[[], object]) -> str | None:
    """Try ``action`` in a child of this process: ``None`` if it works, else why not."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        try:
            action()
        except Exception as error:
            os.write(writer, (str(error) or repr(error)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as said:
        reason = said.read().decode(errors="replace")
    os.waitpid(child, 0)
    return reason or None


def end_with_parent() -> None:
    """Be killed when the parent ends. To be called after what changes privileges, which undoes it."""
    _checked(_libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0))


def drop_privileges() -> None:
    """Give up all capabilities, and the ways to gain new ones: matters where the host process is root's."""
    for capability in range(_LAST_CAPABILITY + 1):
        # fails for those that this kernel does not know, and for users that have none to drop
        _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    _checked(_libc.capset(struct.pack("=II", _CAPABILITY_VERSION_3, 0), bytes(24)))
    _checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


class Rule(NamedTuple):
    """A system call that is refused unless its arguments, by position, are these."""

    numbers: Mapping[str, int]
    unless: Mapping[int, int] = {}


_X86_64 = "x86_64"
_OTHERS = "others"


def _number(x86_64: int, others: int) -> Mapping[str, int]:
    return {_X86_64: x86_64, _OTHERS: others}


_AF_UNIX, _IOPRIO_WHO_PROCESS = 1, 1

NO_SOCKETS = Rule(_number(41, 198))
UNIX_SOCKETS_ONLY = Rule(_number(41, 198), {0: _AF_UNIX})

# what Landlock guards by itself
NO_TRACING = (
    Rule(_number(101, 117)),  # ptrace
    Rule(_number(310, 270)),  # process_vm_readv
    Rule(_number(311, 271)),  # process_vm_writev
    Rule(_number(438, 438)),  # pidfd_getfd
)

# Landlock guards a foreign process against ptrace and signals, not against these
OWN_PROCESS_ONLY = (
    Rule(_number(302, 261), {0: 0}),  # prlimit64
    Rule(_number(141, 140), {0: 0, 1: 0}),  # setpriority
    Rule(_number(251, 30), {0: _IOPRIO_WHO_PROCESS, 1: 0}),  # ioprio_set
    Rule(_number(142, 118), {0: 0}),  # sched_setparam
    Rule(_number(144, 119), {0: 0}),  # sched_setscheduler
    Rule(_number(203, 122), {0: 0}),  # sched_setaffinity
    Rule(_number(314, 274), {0: 0}),  # sched_setattr
)

_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_OFFSET_NUMBER, _OFFSET_ARCH, _OFFSET_ARGS = 0, 4, 16
_AUDIT_ARCH = {_X86_64: 0xC000003E, "aarch64": 0xC00000B7, "riscv64": 0xC00000F3}
_X32_BIT = 0x40000000
_EPERM = 1


def install_filter(rules: Sequence[Rule]) -> None:
    """Refuse system calls, irrevocably, here and in all that is started from here.

    Raises:
        OSError: If the kernel takes no filter, or the processor is not one we know the numbers of.
    """
    program = b"".join(_program(rules, platform.machine()))
    instructions = ctypes.create_string_buffer(program)
    filter_ = struct.pack("@HP", len(program) // 8, ctypes.addressof(instructions))
    _checked(_libc.prctl(_PR_SET_SECCOMP, 2, ctypes.c_char_p(filter_), 0, 0))


def _program(rules: Sequence[Rule], machine: str) -> list[bytes]:
    if machine not in _AUDIT_ARCH:
        raise OSError(f"no system call numbers known for {machine}")
    code = [
        _step(_LOAD, _OFFSET_ARCH),
        _step(_EQUAL, _AUDIT_ARCH[machine], 1, 0),
        _step(_RETURN, _ERRNO | _EPERM),
        _step(_LOAD, _OFFSET_NUMBER),
    ]
    if machine == _X86_64:
        code += [_step(_AT_LEAST, _X32_BIT, 0, 1), _step(_RETURN, _ERRNO | _EPERM)]
    for rule in rules:
        number = rule.numbers[machine if machine in rule.numbers else _OTHERS]
        # from each argument that does not match on to the refusal
        checks: list[bytes] = []
        for left, (position, value) in zip(
            range(len(rule.unless) - 1, -1, -1), rule.unless.items(), strict=True
        ):
            checks += [_step(_LOAD, _OFFSET_ARGS + 8 * position), _step(_EQUAL, value, 0, 2 * left + 1)]
        if checks:
            checks.append(_step(_RETURN, _ALLOW))
        code += [_step(_EQUAL, number, 0, len(checks) + 1), *checks, _step(_RETURN, _ERRNO | _EPERM)]
    code.append(_step(_RETURN, _ALLOW))
    return code


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _syscall(number: int, *args: object) -> int:
    return _checked(_libc.syscall(number, *args))


def _checked(result: int) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result
