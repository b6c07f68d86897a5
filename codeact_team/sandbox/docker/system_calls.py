"""The system calls that the code of a container may make."""

from __future__ import annotations

import errno
import json
import socket
from collections.abc import Sequence
from functools import cache
from typing import Any

from codeact_team.sandbox.system.filters import COUNTED, MAKES_A_FILE, MODES, OF_ITSELF, OPENING, SET_ID

_ARCHITECTURES = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}

_FILES = """
access chdir chown close close_range copy_file_range dup dup2 dup3 faccessat faccessat2 fadvise64 fchdir fchown
fchownat fcntl fdatasync fgetxattr flistxattr flock fremovexattr fsetxattr fstat fstatfs fsync ftruncate futimesat getcwd
getdents getdents64 getxattr getxattrat ioctl lchown
lgetxattr link linkat listxattr listxattrat llistxattr lremovexattr lseek lsetxattr lstat newfstatat pread64 preadv
preadv2 pwrite64 pwritev pwritev2 read readahead readlink readlinkat readv removexattr removexattrat rename renameat
renameat2 rmdir sendfile setxattr setxattrat splice stat statfs statx symlink symlinkat sync sync_file_range syncfs tee
truncate umask unlink unlinkat utime utimensat utimes vmsplice write writev
"""
_MEMORY_CALLS = """
brk cachestat madvise map_shadow_stack memfd_create mincore mlock mlock2 mlockall mmap mprotect mremap mseal msync munlock
munlockall munmap pkey_alloc pkey_free pkey_mprotect
"""
_PROCESSES = """
arch_prctl capget capset execve execveat exit exit_group fork get_robust_list getcpu getegid geteuid getgid getgroups
getpgid getpgrp getpid getppid getpriority getresgid getresuid getrlimit getrusage getsid gettid getuid ioprio_get
landlock_add_rule landlock_create_ruleset landlock_restrict_self membarrier pidfd_open prctl
rseq sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr sched_getparam
sched_getscheduler sched_rr_get_interval sched_yield
seccomp set_robust_list set_tid_address setfsgid setfsuid setgid setgroups setpgid setregid setresgid
setresuid setreuid setrlimit setsid setuid sysinfo times uname vfork wait4 waitid
"""
_SIGNALS = """
kill pause pidfd_send_signal restart_syscall rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn
rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo sigaltstack signalfd signalfd4 tgkill tkill
"""
_TIME = """
adjtimex alarm clock_adjtime clock_getres clock_gettime clock_nanosleep getitimer gettimeofday nanosleep setitimer time
timer_create timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create timerfd_gettime timerfd_settime
"""
_COMMUNICATION = """
accept accept4 bind connect epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2
futex futex_requeue futex_wait futex_waitv futex_wake getpeername getrandom getsockname getsockopt listen mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend
mq_unlink msgctl msgget msgrcv msgsnd pipe pipe2 poll ppoll pselect6 recvfrom recvmmsg recvmsg select semctl semget semop
semtimedop sendmmsg sendmsg sendto setsockopt shmat shmctl shmdt shmget shutdown socketpair
"""

# the flags of clone(2) for namespaces; clone3 has its flags in memory, where no filter sees them, so programs have to use clone
_CLONE_NEW = 0x7E020000
_PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)
"""Linux, 32-bit Linux, either with an old kernel's version number, and the query of the present value."""
_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)
_AF_NETLINK, _NETLINK_ROUTE = 16, 0


@cache
def profile(architecture: str) -> str | None:
    """Our system call profile in the engine's format, as JSON; ``None`` if the arguments of the calls are not known there.

    It allows what the engines' default profiles allow to a container without capabilities, except calls that help attackers
    more than programs: io_uring, sockets of rare families, old calls with a history of holes, calls that inspect or change
    other processes, calls that use up resources of a whole user or machine, and 32-bit programs on 64-bit machines. It
    also refuses modes that let a file run with its owner's rights. It lists the allowed calls, as an engine ignores names that
    it is too old to know, and so refuses those calls.
    """
    if architecture not in _ARCHITECTURES:
        return None
    names = "".join((_FILES, _MEMORY_CALLS, _PROCESSES, _SIGNALS, _TIME, _COMMUNICATION)).split()
    calls = [
        _allow(names),
        _allow(["clone"], _masked(0, _CLONE_NEW)),
        *(_allow(["personality"], _equal(0, value)) for value in _PERSONALITIES),
        *(_allow(["socket"], _equal(0, family)) for family in _FAMILIES),
        _allow(["socket"], _equal(0, _AF_NETLINK), _equal(2, _NETLINK_ROUTE)),
        *(_allow([name], *(_low(*each) for each in own.items())) for name, own in OF_ITSELF.items()),
        *(_allow([name], _masked(position, SET_ID)) for name, position in MODES.items()),
        *(_allow([name], _masked(MODES[name] - 1, MAKES_A_FILE)) for name in OPENING),
        _refuse(["clone3", "openat2"], errno.ENOSYS),
        # it allocates any part of the host's disk at once; if it is not supported, the C library writes instead
        _refuse(["fallocate"], errno.EOPNOTSUPP),
        *(_refuse([name], error) for name, error in COUNTED.items()),
    ]
    architectures = [_ARCHITECTURES[architecture]]
    rules = {"defaultAction": "SCMP_ACT_ERRNO", "architectures": architectures, "syscalls": calls}
    return json.dumps(rules, separators=(",", ":"))


def _allow(names: Sequence[str], *conditions: dict[str, Any]) -> dict[str, Any]:
    return {"names": names, "action": "SCMP_ACT_ALLOW", "args": conditions}


def _refuse(names: Sequence[str], error: int) -> dict[str, Any]:
    return {"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": error}


def _equal(position: int, value: int) -> dict[str, Any]:
    return {"index": position, "value": value, "op": "SCMP_CMP_EQ"}


def _masked(position: int, bits: int, value: int = 0) -> dict[str, Any]:
    """Return a condition: of ``bits``, exactly the bits of ``value`` are set."""
    return {"index": position, "value": bits, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}


def _low(position: int, value: int) -> dict[str, Any]:
    """An argument of 32 bits has this value; the kernel ignores the upper half."""
    return _masked(position, 0xFFFFFFFF, value)
