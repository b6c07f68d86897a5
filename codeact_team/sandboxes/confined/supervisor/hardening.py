"""What the supervisor gives up for itself and all that it starts, before it starts anything. Linux only."""

from __future__ import annotations

import errno
import os
import select
import signal
import struct
from collections.abc import Callable, Sequence

from codeact_team.system import kernel
from codeact_team.system.filters import NO_SET_ID, Rule
from codeact_team.system.kernel import checked, libc, syscall

_CLONE_NEWNS, _CLONE_NEWIPC, _CLONE_NEWNET = 0x00020000, 0x08000000, 0x40000000
_CLONE_NEWUSER, _CLONE_NEWPID = 0x10000000, 0x20000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_PRIVATE = 0x1, 0x2, 0x4, 0x8, 0x4000, 0x40000
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_OPEN_TREE_CLONE, _MOVE_MOUNT_F_EMPTY_PATH, _MOUNT_ATTR_RDONLY = 0x1, 0x4, 0x1
# the same number on every architecture
_SYS_OPEN_TREE, _SYS_MOVE_MOUNT, _SYS_MOUNT_SETATTR = 428, 429, 442

_LAST_CAPABILITY = 63

SHARED_MEMORY = "/dev/shm"
"""Private in the namespaces, so that the semaphores of ``multiprocessing`` work there."""
_SHARED_MEMORY_MIB = 64
_MOST_FILES = 1 << 16
"""How many a file system in memory may have: each takes memory beside its content."""


def enter_namespaces(
    writable: str,
    private: tuple[str, int],
    shown: Sequence[tuple[str, str]] = (),
    birth: int | None = None,
) -> None:
    """Leave the host's processes, network and IPC, and see its files read-only but for the directory ``writable``.

    Goes on in a child, whose process id is written to ``birth``; this process ends. The child is the first process of its
    namespace: when it ends, the kernel ends all others there. Where this machine does not let us, the process may be of no
    more use: try with :func:`failure_of`. In place of the directory ``private``, there is a file system in memory of so
    many MiB; each directory of ``shown`` is seen in another place, too.
    """
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(_CLONE_NEWPID) < 0:
        checked(libc.unshare(_CLONE_NEWPID | _CLONE_NEWUSER))
        maps = {"setgroups": "deny", "uid_map": f"{uid} {uid} 1", "gid_map": f"{gid} {gid} 1"}
        for name, line in maps.items():
            with open(f"/proc/self/{name}", "w") as file:
                file.write(line)
    _go_on_in_a_child(birth)
    checked(libc.unshare(_CLONE_NEWNS | _CLONE_NEWIPC | _CLONE_NEWNET))
    _mount(writable, private, shown)


def _go_on_in_a_child(birth: int | None) -> None:
    me = os.pidfd_open(os.getpid())
    if child := os.fork():
        try:
            if birth is not None:
                os.write(birth, str(child).encode())
        finally:
            os._exit(0)
    # from then on, its parent is the one with which it is to end
    select.select([me], [], [])
    os.close(me)


def _mount(writable: str, private: tuple[str, int], shown: Sequence[tuple[str, str]]) -> None:
    checked(libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None))
    tree = _tree(writable)
    for path, place in shown:
        _attach(_tree(path), place)
    read_only = struct.pack("=QQQQ", _MOUNT_ATTR_RDONLY, 0, 0, 0)
    checked(syscall(_SYS_MOUNT_SETATTR, _AT_FDCWD, b"/", _AT_RECURSIVE, read_only, len(read_only)))
    _attach(tree, writable)
    no_special = _MS_NOSUID | _MS_NODEV
    checked(libc.mount(b"proc", b"/proc", b"proc", no_special | _MS_NOEXEC | _MS_RDONLY, None))
    _mount_memory(SHARED_MEMORY, _SHARED_MEMORY_MIB, no_special | _MS_NOEXEC)
    _mount_memory(*private, no_special)


def _mount_memory(place: str, mib: int, flags: int) -> None:
    options = f"mode=0700,size={mib}m,nr_inodes={_MOST_FILES}".encode()
    checked(libc.mount(b"tmpfs", os.fsencode(place), b"tmpfs", flags, options))


def _tree(path: str) -> int:
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_RECURSIVE
    return checked(syscall(_SYS_OPEN_TREE, _AT_FDCWD, os.fsencode(path), flags))


def _attach(tree: int, place: str) -> None:
    checked(syscall(_SYS_MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(place), _MOVE_MOUNT_F_EMPTY_PATH))
    os.close(tree)


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
    checked(kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL))


def drop_privileges() -> None:
    """Give up all capabilities, and the ways to gain new ones: matters where the host process is root's."""
    for capability in range(_LAST_CAPABILITY + 1):
        # fails for those that this kernel does not know, and for users that have none to drop
        kernel.prctl(kernel.PR_CAPBSET_DROP, capability)
    checked(libc.capset(kernel.CAPABILITIES, bytes(kernel.SIZE_OF_CAPABILITIES)))
    checked(kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1))


_AF_UNIX, _IOPRIO_WHO_PROCESS, _MAP_GROWSDOWN = 1, 1, 0x100

FOR_ALL = (
    # Landlock guards a foreign process against ptrace and signals, not against these
    Rule("prlimit64", {0: 0}),
    Rule("setpriority", {0: 0, 1: 0}),
    Rule("ioprio_set", {0: _IOPRIO_WHO_PROCESS, 1: 0}),
    Rule("sched_setparam", {0: 0}),
    Rule("sched_setscheduler", {0: 0}),
    Rule("sched_setaffinity", {0: 0}),
    Rule("sched_setattr", {0: 0}),
    # memory that grows by itself: only for the first stack of a program the kernel checks the memory limit
    Rule("mmap", bits={3: _MAP_GROWSDOWN}),
    # takes any part of a disk at once; where it is not supported, the C library writes instead
    Rule("fallocate", error=errno.EOPNOTSUPP),
    *NO_SET_ID,
)
FOR_CONFINED = (Rule("socket", {0: _AF_UNIX}),)
FOR_PLAIN = (
    Rule("socket"),
    # what Landlock guards by itself
    *map(Rule, ("ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd")),
    # what a filter cannot see the modes of; programs know kernels without these
    Rule("openat2", error=errno.ENOSYS),
    Rule("io_uring_setup", error=errno.ENOSYS),
)
