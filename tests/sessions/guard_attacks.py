"""Run as a block: tries what a program can do to another one of the same user. Prints what worked.

The process to attack is the one in TARGET, by default this one's parent.
"""

import ctypes
import fcntl
import os
import resource
import signal
import struct
import sys
from collections.abc import Callable

libc = ctypes.CDLL(None, use_errno=True)
target = int(os.environ.get("TARGET") or os.getppid())
# what the interpreter was built for, whatever the machine pretends to be
x86 = "x86_64" in getattr(sys.implementation, "_multiarch", "")


def call(number: int, *arguments: int) -> int:
    result: int = libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result


def attempt(name: str, deed: Callable[[], object]) -> None:
    try:
        deed()
    except OSError:
        return
    print("worked:", name)


def open_fds() -> None:
    for fd in range(64):
        for flags in (os.O_RDONLY, os.O_WRONLY):
            try:
                os.open(f"/proc/{target}/fd/{fd}", flags | os.O_NONBLOCK)
                return
            except OSError:
                pass
    raise OSError


def peek() -> None:
    local, remote = (ctypes.c_char * 8)(), ctypes.addressof(ctypes.create_string_buffer(8))
    vectors = (ctypes.c_ulong * 4)(ctypes.addressof(local), 8, remote, 8)
    base = ctypes.addressof(vectors)
    call(310 if x86 else 270, target, base, 1, base + 16, 1, 0)


def sigio() -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(reader, fcntl.F_SETOWN, target)
    fcntl.fcntl(reader, 10, signal.SIGKILL)
    fcntl.fcntl(reader, fcntl.F_SETFL, os.O_ASYNC)
    os.write(writer, b"x")


info = ctypes.create_string_buffer(struct.pack("=iii", signal.SIGCONT, 0, -1), 128)
affinity = ctypes.create_string_buffer(b"\xff" * 128)

attempt("open its descriptors", open_fds)
attempt("read its memory", lambda: os.open(f"/proc/{target}/mem", os.O_RDONLY))
attempt("write its memory", lambda: os.open(f"/proc/{target}/mem", os.O_RDWR))
attempt("copy its memory", peek)
attempt("attach to it", lambda: call(101 if x86 else 117, 16, target, 0, 0))
attempt("seize it", lambda: call(101 if x86 else 117, 0x4206, target, 0, 0))
attempt("take its descriptors", lambda: call(438, os.pidfd_open(target), 1, 0))
for number in (0, signal.SIGCONT, signal.SIGSTOP, signal.SIGKILL):
    attempt(f"kill {number}", lambda number=number: os.kill(target, number))
    attempt(f"tgkill {number}", lambda number=number: call(234 if x86 else 131, target, target, number))
    attempt(f"tkill {number}", lambda number=number: call(200 if x86 else 130, target, number))
    attempt(f"kill its group {number}", lambda number=number: os.kill(-target, number))
attempt("kill everything", lambda: os.kill(-1, signal.SIGCONT))
attempt("queue a signal", lambda: call(129 if x86 else 138, target, signal.SIGCONT, ctypes.addressof(info)))
attempt("signal a pidfd", lambda: signal.pidfd_send_signal(os.pidfd_open(target), signal.SIGCONT))
proc = os.open(f"/proc/{target}", os.O_RDONLY)
attempt("signal a directory", lambda: call(424, proc, signal.SIGCONT, 0, 0))
attempt("signal by a file", sigio)
attempt("limit it", lambda: resource.prlimit(target, resource.RLIMIT_CPU, (1, 1)))
attempt("move it", lambda: call(203 if x86 else 122, target, 8, ctypes.addressof(affinity)))
attempt("slow it down", lambda: os.setpriority(os.PRIO_PROCESS, target, 19))
attempt("slow all down", lambda: os.setpriority(os.PRIO_USER, 0, 19))
attempt("reschedule it", lambda: os.sched_setscheduler(target, 0, os.sched_param(0)))
attempt("starve it of disk time", lambda: call(251 if x86 else 30, 1, target, 3 << 13))
if os.getuid() != 0:
    # root owns the files of what nobody may read
    attempt("offer it to the OOM killer", lambda: os.open(f"/proc/{target}/oom_score_adj", os.O_WRONLY))
print("done")
