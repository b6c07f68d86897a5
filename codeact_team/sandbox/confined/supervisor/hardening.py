"""What the supervisor gives up for itself and all that it starts, before it starts anything. Linux only."""

from __future__ import annotations

import errno
import os
import select
import signal
from collections.abc import Callable, Sequence

from codeact_team.sandbox.system import kernel, landlock
from codeact_team.sandbox.system.filters import COUNTED, NO_SET_ID, OF_ITSELF, Rule
from codeact_team.sandbox.system.kernel import checked, libc

_CLONE_NEWNS, _CLONE_NEWIPC, _CLONE_NEWNET = 0x00020000, 0x08000000, 0x40000000
_CLONE_NEWUSER, _CLONE_NEWPID = 0x10000000, 0x20000000
_LAST_CAPABILITY = 63


def enter_namespaces(see: Callable[[], None], birth: int | None = None) -> None:
    """Leave the host's processes, network and IPC, and have mounts of its own, with which ``see`` does what it likes.

    Goes on in a child, whose process id is written to ``birth``; this process ends. The child is the first process of its
    namespace: when it ends, the kernel ends all others there. Where this machine does not let us, the process may be of no
    more use: try with :func:`failure_of`.
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
    see()


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


def allow_only(readable: Sequence[str], writable: Sequence[str]) -> None:
    """Let this process, and all that it starts, read and execute, or write, what is at these paths, and nothing else.

    Nor may they signal any other process, or reach its sockets.
    """
    scopes = landlock.ABSTRACT_SOCKETS | landlock.SIGNALS
    ruleset = landlock.make_ruleset(landlock.ALL_OF_FILES, tcp=landlock.ALL_OF_TCP, scopes=scopes)
    for path in readable:
        landlock.allow(ruleset, path, landlock.EXECUTE | landlock.READ_FILE | landlock.READ_DIRECTORY)
    for path in writable:
        landlock.allow(ruleset, path, landlock.ALL_OF_FILES)
    landlock.enter(ruleset)
    os.close(ruleset)


_AF_UNIX, _MAP_GROWSDOWN = 1, 0x100

FOR_ALL = (
    # Landlock guards a foreign process against ptrace and signals, not against these
    *(Rule(call, arguments) for call, arguments in OF_ITSELF.items()),
    # memory that grows by itself: only for the first stack of a program the kernel checks the memory limit
    Rule("mmap", bits={3: _MAP_GROWSDOWN}),
    # takes any part of a disk at once; where it is not supported, the C library writes instead
    Rule("fallocate", error=errno.EOPNOTSUPP),
    *(Rule(call, error=error) for call, error in COUNTED.items()),
    *NO_SET_ID,
)
# what a filter cannot see the flags and modes of; programs know kernels without these
_UNSEEN = tuple(Rule(name, error=errno.ENOSYS) for name in ("openat2", "io_uring_setup"))
FOR_CONFINED = (Rule("socket", {0: _AF_UNIX}),)
_OF_THE_MACHINE = """
acct add_key adjtimex bpf chroot clock_adjtime clock_settime delete_module fanotify_init fanotify_mark finit_module
init_module ioperm iopl kexec_file_load kexec_load keyctl migrate_pages modify_ldt move_pages name_to_handle_at
open_by_handle_at perf_event_open personality quotactl quotactl_fd reboot request_key setdomainname sethostname
settimeofday swapoff swapon syslog userfaultfd vhangup
"""
_OF_PROCESSES = "kcmp pidfd_getfd process_madvise process_mrelease process_vm_readv process_vm_writev ptrace"
"""What looks into other processes, or changes them. Landlock refuses most of it, too."""
_OF_NAMESPACES = """
fsconfig fsmount fsopen fspick listmount mount mount_setattr move_mount open_tree open_tree_attr pivot_root setns statmount
umount2 unshare
"""
_OF_MEMORY = """
memfd_create memfd_secret msgctl msgget msgrcv msgsnd semctl semget semop semtimedop shmat shmctl shmdt shmget
"""
"""What outlives its process, or is no file of a directory with a size."""
_CLONE_NEW = 0x7E020000
"""All flags of clone that ask for namespaces."""
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
"""What types into a terminal."""
FOR_KERNEL = (
    *FOR_CONFINED,
    Rule("socketpair", {0: _AF_UNIX}),
    *map(Rule, f"{_OF_THE_MACHINE} {_OF_PROCESSES} {_OF_NAMESPACES} {_OF_MEMORY}".split()),
    Rule("clone", bits={0: _CLONE_NEW}),
    Rule("ioctl", either=((1, _TIOCSTI), (1, _TIOCLINUX))),
    *_UNSEEN,
    *(Rule(name, error=errno.ENOSYS) for name in ("clone3", "io_uring_enter", "io_uring_register")),
)
"""Where the kernel alone confines: also what is of use to attackers of the kernel rather than to programs."""
FOR_PLAIN = (
    Rule("socket"),
    *map(Rule, _OF_PROCESSES.split()),
    *_UNSEEN,
)
