"""The system calls of confined code: which are refused, which the listener is asked about; all others are left to the kernel.

There are two views. In namespaces, code sees nothing but its own: mounts are read-only, processes are its own. Without them it
sees the machine's files and processes, of which Landlock protects most; the listener decides on what Landlock does not see.
"""

from __future__ import annotations

import errno
import os
import socket

from codeact_team.sandbox.system.filters import COUNTED, MODES, NO_SET_ID, OF_ITSELF, OPENING, Rule
from codeact_team.sandbox.system.kernel import ABI_OF_TRUNCATING, SIGNALS

_MAP_GROWSDOWN = 0x100
_O_LARGEFILE = {"aarch64": 0x20000}.get(os.uname().machine, 0x8000)
"""Some C libraries say it always, where Python knows no such flag."""
_CLONE_PARENT = 0x8000
_CLONE_NEW = 0x7E020000
"""All flags of clone that request namespaces."""
_F_SETOWN, _F_SETSIG, _F_SETOWN_EX, _F_SETLEASE, _F_NOTIFY = 8, 10, 15, 1024, 1026
_NO_STREAM = 2
"""A bit that ``SOCK_STREAM`` and ``SOCK_SEQPACKET`` lack. Sockets of other types take an address with each message."""
_NO_KIND_OF_IP = 12
"""The bits of the types of sockets beyond streams, datagrams and ``SOCK_RAW``."""
_AF_INET_BITS = 2
"""A bit of ``AF_INET`` and ``AF_INET6`` that ``AF_UNIX`` has not."""
_OPTIONS = {
    # reuse, broadcast, keepalive, urgent data inline, priority, linger, credentials, least to receive, time-outs
    socket.SOL_SOCKET: (2, 6, 9, 10, 12, 13, 15, 16, 18, 20, 21, 66, 67),
    # type of service, time to live, destination and errors told, path MTU, port bound late
    socket.IPPROTO_IP: (1, 2, 8, 10, 11, 24),
    # no delay, cork, keepalive, time-outs, delayed accept, quick acknowledgements, least to be unsent
    socket.IPPROTO_TCP: (1, 3, 4, 5, 6, 7, 8, 9, 12, 18, 25),
    # hops, path MTU, errors told, IPv6 only, destination told, traffic class
    socket.IPPROTO_IPV6: (16, 23, 25, 26, 49, 67),
}
"""The options of sockets that programs need, by level. Others have let attackers into the kernel: filters (``SO_ATTACH_FILTER``,
``_BPF``), protocols on top (``TCP_ULP``, ``TCP_REPAIR``, ``TCP_CONGESTION``, which loads modules), pages lent to the network
(``SO_ZEROCOPY``, ``TCP_ZEROCOPY_RECEIVE``), offload of UDP, headers and groups of IP, and the tables of netfilter."""
_BUFFERS = (socket.SO_SNDBUF, socket.SO_RCVBUF)
"""The options for sizes of buffers. The kernel bounds them silently, and here they do nothing: memory in sockets need not be counted."""
_TCP_ZEROCOPY_RECEIVE = 35
_OF_TERMINALS = set(range(0x5401, 0x5433)) - {0x5412, 0x541C, 0x541D, 0x5423}
"""Without those that type into a terminal, take the console's output, or load a line discipline."""
_OF_NEW_TERMINALS = {0x5441, 0x40045431, 0x80045430, 0x80045438, 0x80045439, 0x80045440}
_WITH_SPEEDS = {0x402C542B, 0x402C542C, 0x402C542D, 0x802C542A}
_OF_DESCRIPTORS = {0x5450, 0x5451, 0x5460, 0x8905}
_COPYING = {0x40049409, 0x4020940D}
"""``FICLONE`` and ``FICLONERANGE``, which take a descriptor that is open for writing."""
_REQUESTS = sorted({*_OF_TERMINALS, *_OF_NEW_TERMINALS, *_WITH_SPEEDS, *_OF_DESCRIPTORS, *_COPYING})
"""The requests of ``ioctl`` that programs need: of terminals, pipes and sockets. Others change what Landlock does not protect,
such as the flags of a file that is only readable, or name a process that gets signals."""

FOR_ALL = (
    # Landlock protects other processes against ptrace and signals, but not against these
    *(Rule(call, arguments) for call, arguments in OF_ITSELF.items()),
    # memory that grows by itself: the kernel checks the memory limit only for the first stack of a program
    Rule("mmap", bits={3: _MAP_GROWSDOWN}),
    # it allocates any part of a disk at once; if it is not supported, the C library writes instead
    Rule("fallocate", error=errno.EOPNOTSUPP),
    # it compares what processes have open
    Rule("kcmp"),
    *(Rule(call, error=error) for call, error in COUNTED.items()),
    *NO_SET_ID,
)
_OF_PROCESSES = "pidfd_getfd process_madvise process_mrelease process_vm_readv process_vm_writev ptrace"
"""Calls that inspect or change other processes. Landlock refuses most of them, too."""
# calls whose flags and modes a filter cannot see; programs know kernels without them
_UNSEEN = tuple(Rule(name, error=errno.ENOSYS) for name in ("openat2", "io_uring_setup"))
FOR_PLAIN = (
    Rule("socket"),
    *map(Rule, _OF_PROCESSES.split()),
    *_UNSEEN,
)
"""Refused where the kernel cannot confine."""

_OF_THE_MACHINE = """
acct add_key adjtimex bpf chroot clock_adjtime clock_settime delete_module fanotify_init fanotify_mark finit_module
init_module ioperm iopl kexec_file_load kexec_load keyctl migrate_pages modify_ldt move_pages name_to_handle_at
open_by_handle_at perf_event_open personality quotactl quotactl_fd reboot request_key setdomainname sethostname
settimeofday swapoff swapon syslog userfaultfd vhangup
"""
_OF_NAMESPACES = """
fsconfig fsmount fsopen fspick listmount mount mount_setattr move_mount open_tree open_tree_attr pivot_root setns statmount
umount2 unshare
"""
_OF_MEMORY = """
memfd_create memfd_secret mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink msgctl msgget msgrcv msgsnd
semctl semget semop semtimedop shmat shmctl shmdt shmget
"""
"""Calls whose memory outlives its process, or belongs to no directory with a size."""


def _streams_only(call: str) -> tuple[Rule, ...]:
    """Refuse all sockets but local streams."""
    return Rule(call, {0: socket.AF_UNIX}), Rule(call, bits={1: _NO_STREAM})


_FOR_BOTH = (
    *_streams_only("socketpair"),
    *(Rule("setsockopt", where=(1, socket.SOL_SOCKET), either=[(2, option)], error=0) for option in _BUFFERS),
    Rule("setsockopt", unless_one_of=(1, [*_OPTIONS]), error=errno.ENOPROTOOPT),
    *(
        Rule("setsockopt", where=(1, level), unless_one_of=(2, options), error=errno.ENOPROTOOPT)
        for level, options in _OPTIONS.items()
    ),
    Rule(
        "getsockopt",
        where=(1, socket.IPPROTO_TCP),
        either=[(2, _TCP_ZEROCOPY_RECEIVE)],
        error=errno.ENOPROTOOPT,
    ),
    *map(Rule, f"{_OF_THE_MACHINE} {_OF_PROCESSES} {_OF_NAMESPACES} {_OF_MEMORY}".split()),
    # the second makes children of the parent, whose number nobody would count
    *(Rule("clone", bits={0: flags}) for flags in (_CLONE_NEW, _CLONE_PARENT)),
    # a file could send a signal to any process, or stop others that open it
    Rule(
        "fcntl",
        either=[(1, command) for command in (_F_SETOWN, _F_SETSIG, _F_SETOWN_EX, _F_SETLEASE, _F_NOTIFY)],
    ),
    Rule("ioctl", unless_one_of=(1, _REQUESTS), error=errno.ENOTTY),
    # it empties files that may only be read, which Landlock does not refuse before version 3
    *(Rule(call, masked=(MODES[call] - 1, os.O_TRUNC | os.O_ACCMODE, os.O_TRUNC)) for call in OPENING),
    *_UNSEEN,
    *(Rule(name, error=errno.ENOSYS) for name in ("clone3", "io_uring_enter", "io_uring_register")),
)
"""Also calls that attackers of the kernel need rather than programs."""

_SIGNALLING = "kill rt_sigqueueinfo rt_tgsigqueueinfo tgkill tkill"
IN_NAMESPACES = (
    *_FOR_BOTH,
    # local streams, and TCP and UDP of a network that is the sandbox's own loopback: no raw ones, no rarer protocols
    Rule("socket", unless_one_of=(0, (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6))),
    Rule("socket", where=(0, socket.AF_UNIX), bits={1: _NO_STREAM}),
    Rule("socket", masked=(1, 0xF, socket.SOCK_RAW)),
    Rule("socket", bits={0: _AF_INET_BITS, 1: _NO_KIND_OF_IP}),
    Rule("socket", unless_one_of=(2, (0, socket.IPPROTO_TCP, socket.IPPROTO_UDP))),
    # Landlock protects the supervising process, which is the first here, since Linux 6.12 only
    *(Rule(call, either=((0, 1),)) for call in f"{_SIGNALLING} pidfd_open".split()),
)
"""Refused, beside :data:`FOR_ALL`, where code has namespaces."""

OF_SIGNALS = (*_SIGNALLING.split(), "pidfd_send_signal")
OF_CHILDREN = ("clone", "fork", "vfork")
OF_SOCKETS = ("bind", "connect", "socket")
OF_TERMINALS = ("open", "openat")
"""Asked only with ``O_RDWR``, and without flags that create or empty a file: so programs make terminals, and open them."""
_MORE_THAN_A_TERMINAL = 0xFFFFFFFF & ~(os.O_NOCTTY | os.O_CLOEXEC | _O_LARGEFILE)
OF_FILES = """
chmod chown fchmod fchmodat fchmodat2 fchown fchownat fremovexattr fsetxattr futimesat getxattr lchown lgetxattr listxattr
llistxattr lremovexattr lsetxattr removexattr setxattr utime utimensat utimes
""".split()
"""Calls on modes, owners, times and attributes of files, which Landlock does not restrict."""
_NEW_OF_FILES = "file_setattr getxattrat listxattrat removexattrat setxattrat"


_WITH_A_WAY_OUT = (
    # what code gets for it is one end of a connection, and the other end is not its own
    Rule("socket", unless_one_of=(0, (socket.AF_UNIX, socket.AF_INET))),
    Rule("socket", bits={1: _NO_STREAM}),
    Rule("socket", unless_one_of=(2, (0, socket.IPPROTO_TCP))),
    Rule("socket", where=(0, socket.AF_INET), asked=True),
)


def without_namespaces(landlock: int, scopes: int, *, has_way_out: bool = False) -> list[Rule]:
    """Refused or asked, beside :data:`FOR_ALL`, where code has no namespaces, but this version of Landlock, with these scopes."""
    # by its scope, Landlock keeps signals within the sandbox, and within what the session's supervisor keeps apart there
    of_signals = () if scopes & SIGNALS else OF_SIGNALS
    return [
        *_FOR_BOTH,
        *(_WITH_A_WAY_OUT if has_way_out else _streams_only("socket")),
        # Landlock does not know it yet
        *((Rule("truncate"),) if landlock < ABI_OF_TRUNCATING else ()),
        # programs know kernels without them
        *(Rule(name, error=errno.ENOSYS) for name in _NEW_OF_FILES.split()),
        *(
            Rule(call, masked=(MODES[call] - 1, _MORE_THAN_A_TERMINAL, os.O_RDWR), asked=True)
            for call in OF_TERMINALS
        ),
        *(Rule(call, asked=True) for call in (*of_signals, *OF_CHILDREN, "bind", "connect", *OF_FILES)),
    ]
