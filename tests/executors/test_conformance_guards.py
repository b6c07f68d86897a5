"""Code reaches none of the processes that are ours, nor those of blocks to come."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path

import pytest
from support.executing import FRESH, LIVING, Kind, living_interpreters, run, usually

from codeact_team.errors import ForkError
from codeact_team.executors.base import SandboxedCodeExecutor
from codeact_team.executors.docker import DockerSessionCodeExecutor
from codeact_team.executors.session import InterpreterCodeExecutor

_NOBODY_ELSE = 64321

FIND_OURS = """
import ctypes, fcntl, os, signal, struct
libc = ctypes.CDLL(None, use_errno=True)
x86 = os.uname().machine == "x86_64"
def parent(pid):
    try:
        with open(f"/proc/{pid}/stat") as file: return int(file.read().rpartition(")")[2].split()[1])
    except PermissionError: return None
def visible():
    try: return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except PermissionError: return range(1, 100)
def attempt(name, deed):
    try: deed()
    except OSError: pass
    else: print("worked:", name)
def call(number, *arguments):
    libc.syscall.restype = ctypes.c_long
    if libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments)) < 0:
        raise OSError(ctypes.get_errno(), "refused")
mine = os.getpid()
# the shell around a block of its own says something of that block only
ours, above = {1}, {1}
if session:
    ours.add(parent(mine)); above.add(parent(mine))
for pid in visible():
    try:
        if parent(pid) in above: ours.add(pid)
    except OSError: pass
ours.discard(mine)
"""
"""Code that finds the processes that are not the block's own; ``session`` says whether its parent is one of them."""

LOOK_INTO = """
def open_all(pid):
    for fd in range(16):
        for flags in (os.O_RDONLY, os.O_WRONLY):
            try: os.close(os.open(f"/proc/{pid}/fd/{fd}", flags | os.O_NONBLOCK))
            except OSError: continue
            return
    raise OSError
for pid in ours:
    for name in ("mem", "environ", "maps", "auxv"):
        for flags in (os.O_RDONLY, os.O_RDWR):
            attempt(f"{name} {flags}", lambda: os.read(os.open(f"/proc/{pid}/{name}", flags), 1))
    attempt("fd", lambda: open_all(pid))
    attempt("exe", lambda: os.readlink(f"/proc/{pid}/exe"))
    attempt("ptrace seize", lambda: call(101 if x86 else 117, 0x4206, pid, 0, 0))
    attempt("pidfd_getfd", lambda: call(438, call(434, pid, 0) or 0, 0, 0))
    attempt("kcmp", lambda: call(312 if x86 else 272, mine, pid, 0, 0, 0))
content = ctypes.create_string_buffer(8)
vector = ctypes.create_string_buffer(struct.pack("QQ", ctypes.addressof(content), 8))
to_itself = (mine, ctypes.addressof(vector), 1, ctypes.addressof(vector), 1, 0)
# on the block's own process: what is refused here is refused by the filter
for name, number, arguments in (
    ("ptrace", (101, 117), (0,)),
    ("process_madvise", (440, 440), (-1, 0, 0, 0, 0)),
    ("kcmp", (312, 272), (mine, mine, 0, 0, 0)),
    ("process_vm_readv", (310, 270), to_itself),
    ("process_vm_writev", (311, 271), to_itself),
):
    attempt(name, lambda: call(number[not x86], *arguments))
print("tried", len(ours) > 0)
"""


async def test_no_process_of_ours_can_be_read_or_traced(kind: Kind, executor: SandboxedCodeExecutor) -> None:
    code = f"session = {kind.name.endswith('session')}\n{FIND_OURS}{LOOK_INTO}"
    assert (await run(executor, code)).output == "tried True\n"


STARVE = """
import resource
idle = os.sched_param(0)
attributes = ctypes.create_string_buffer(struct.pack("=IIQiIQQQ", 48, 0, 0, 19, 0, 0, 0, 0), 48)
for pid in ours:
    # the kernel takes what is in the lower half of an argument
    for number in (pid, pid | 1 << 32):
        attempt(f"limit {number}", lambda: call(302 if x86 else 261, number, resource.RLIMIT_NOFILE, 0, 0))
        attempt(f"set attributes {number}", lambda: call(314 if x86 else 274, number, ctypes.addressof(attributes), 0))
        attempt(f"disk time {number}", lambda: call(251 if x86 else 30, 1, number, 3 << 13))
        attempt(f"priority {number}", lambda: call(141 if x86 else 140, 0, number, 19))
    attempt(f"limit {pid}", lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, (0, 0)))
    attempt(f"schedule {pid}", lambda: os.sched_setscheduler(pid, os.SCHED_IDLE, idle))
    attempt(f"parameters {pid}", lambda: os.sched_setparam(pid, idle))
    attempt(f"pin {pid}", lambda: os.sched_setaffinity(pid, os.sched_getaffinity(0)))
    for which in (os.PRIO_PGRP, os.PRIO_USER):
        attempt(f"priority of all {pid}", lambda: os.setpriority(which, os.getpgid(pid) if which == os.PRIO_PGRP else os.getuid(), 19))
        attempt(f"disk time of all {pid}", lambda: call(251 if x86 else 30, which + 1, os.getpgid(pid), 3 << 13))
if (child := os.fork()) == 0:
    resource.prlimit(0, resource.RLIMIT_CORE, (0, 0))
    os.nice(1)
    os.sched_setaffinity(0, os.sched_getaffinity(0))
    os.sched_setscheduler(0, os.SCHED_BATCH, idle)
    os._exit(0)
print("tried", len(ours) > 0, os.waitpid(child, 0)[1])
"""


async def test_no_process_of_ours_can_be_starved(kind: Kind, executor: SandboxedCodeExecutor) -> None:
    code = f"session = {kind.name.endswith('session')}\n{FIND_OURS}{STARVE}"
    # a process may do it to itself
    assert (await run(executor, code)).output == "tried True 0\n"


SURVIVE = """
import os, subprocess, sys, time
mark = None
with open(f"/proc/{os.getppid()}/maps") as maps, open(f"/proc/{os.getppid()}/mem", "rb", 0) as memory:
    for line in maps:
        place, rights, *_ = line.split()
        if not rights.startswith("rw"): continue
        start, end = (int(each, 16) for each in place.split("-"))
        memory.seek(start)
        try: content = memory.read(end - start)
        except OSError: continue
        at = content.find(b"mark=")
        found = content[at + 5 : at + 37] if at >= 0 else b""
        if len(found) == 32 and all(each in b"0123456789abcdef" for each in found): mark = found
if os.fork() == 0:
    os.setsid()
    os.execvp("sleep", ["sleep", "31337"])
sys.stdout.flush()
# as the shell would say it, if nothing were left
os.write(1, (mark or b"?") + b" 0 0 0 0 0\\n")
time.sleep(3600)
"""


@usually("confined", among=FRESH)
async def test_nothing_of_a_block_outlives_it_though_it_speaks_for_the_shell_around_it(
    kind: Kind, tmp_path: Path
) -> None:
    # what runs on could change what a later block finds, and says
    executor = kind.make(work_dir=tmp_path, timeout=3)
    await run(executor, SURVIVE)
    left = await run(
        executor, "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 3133[7]'", language="sh"
    )
    await executor.stop()
    assert left.output == "0\n"


SIGNAL = """
import socket
signal.signal(signal.SIGIO, signal.SIG_IGN)
CLONE_PARENT = 0x8000
SETOWN, SETOWN_EX, SETLEASE, NOTIFY = 8, 15, 1024, 1026
FIOSETOWN, SIOCSPGRP = 0x8901, 0x8902
def owners(pid):
    yield lambda fd: fcntl.fcntl(fd, SETOWN, pid)
    yield lambda fd: fcntl.fcntl(fd, SETOWN, -os.getpgid(pid))
    for kind, owner in ((0, pid), (1, pid), (2, os.getpgid(pid))):
        yield lambda fd: fcntl.fcntl(fd, SETOWN_EX, struct.pack("ii", kind, owner))
    for request in (FIOSETOWN, SIOCSPGRP):
        yield lambda fd: fcntl.ioctl(fd, request, struct.pack("i", pid))
def send(own):
    for make in (os.pipe, lambda: [each.detach() for each in socket.socketpair()]):
        reader, writer = make()
        try:
            own(reader)
            fcntl.fcntl(reader, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
            os.write(writer, b"x")
            # as SIGURG, where it is a socket
            with socket.socket(fileno=os.dup(writer)) as sender: sender.send(b"x", socket.MSG_OOB)
        except OSError: pass
        finally: os.close(reader); os.close(writer)
    directory = os.open(".", os.O_RDONLY)
    open("leased", "w").close()
    leased = os.open("leased", os.O_RDONLY)
    try:
        fcntl.fcntl(directory, NOTIFY, 0x80000004)
        own(directory)
        open("noticed", "w").close()
    except OSError: pass
    try:
        fcntl.fcntl(leased, SETLEASE, fcntl.F_RDLCK)
        own(leased)
        os.open("leased", os.O_WRONLY | os.O_NONBLOCK)
    except OSError: pass
    for fd in (directory, leased): os.close(fd)
siblings = [pid for pid in ours if pid != 1 and parent(pid) == parent(mine)]
for pid in ours:
    try:
        for own in owners(pid): send(own)
    # one that was about to end
    except ProcessLookupError: pass
def end_with(number, flags):
    if (pid := libc.syscall(56 if x86 else 220, flags | number, 0, 0, 0, 0)) == 0:
        # its own parent is told by this signal, and a sibling of it tells that by the same
        if not flags: end_with(number, CLONE_PARENT)
        libc.syscall(231 if x86 else 94, 0)
for number in (signal.SIGCHLD, signal.SIGKILL, signal.SIGSTOP, signal.SIGIO, signal.SIGUSR1):
    end_with(number, CLONE_PARENT)
if os.fork() == 0:
    for number in (signal.SIGUSR1, signal.SIGIO, signal.SIGKILL): end_with(number, 0)
    os._exit(0)
print("tried", siblings)
"""
"""Has files send signals to processes that are ours, as their owners, and children that end to their parents."""


@living_interpreters
async def test_no_file_and_no_end_of_a_process_signals_a_process_of_ours(
    kind: Kind, session: InterpreterCodeExecutor
) -> None:
    await session.restart()
    first = (await run(session, f"session = True\n{FIND_OURS}{SIGNAL}")).output
    await session.restart()
    assert first.startswith("tried [")
    # what interpreters are forked from is still there
    pids = first.removeprefix("tried ").strip()
    code = f"session = True\n{FIND_OURS}print([pid for pid in {pids} if pid in ours and parent(pid) == parent(mine)])"
    assert (await run(session, code)).output.strip() == pids != "[]"


@usually("confined-session", among=LIVING)
@pytest.mark.parametrize(
    "deed",
    [
        "fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid()); fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_ASYNC)",
        "fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_NONBLOCK)",
        "fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT)",
        "os.dup2(os.open('/dev/full', os.O_RDWR), fd)",
        "fcntl.fcntl(fd, fcntl.F_SETOWN, 1)",
    ],
    ids=["async", "nonblocking", "packets", "replaced", "owner"],
)
async def test_what_code_does_to_its_descriptors_is_over_with_its_interpreter(
    session: InterpreterCodeExecutor, deed: str
) -> None:
    # an open file description is shared by all who have inherited it
    code = f"""
import fcntl, os
for fd in [int(name) for name in os.listdir('/proc/self/fd')]:
    try:
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        {deed}
    except OSError: pass
"""
    await session.restart()
    await run(session, code)
    await session.restart()
    for _ in range(3):
        result = await run(session, "print('x' * 300_000)")
        assert (result.exit_code, len(result.output)) == (0, 300_001), result.output[-500:]
    shell = await run(session, "printf done", language="sh")
    assert shell.output == "done"


PLANT = """
import os, site, sys
for place in {site.getusersitepackages(), os.getcwd()}:
    os.makedirs(place, exist_ok=True)
    for name in ("usercustomize.py", "sitecustomize.py", "tabnanny.py", "helper.pth"):
        with open(os.path.join(place, name), "w") as file:
            file.write("import builtins; builtins.planted = True\\n")
"""


@usually("confined-session", among=LIVING)
@pytest.mark.parametrize(
    "setup",
    ["", "import tabnanny, threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()"],
    ids=["forked", "started"],
)
async def test_no_file_of_the_codes_runs_in_the_next_interpreter(
    kind: Kind, tmp_path: Path, setup: str
) -> None:
    # with the setup that cannot be forked, each interpreter is a program that is started
    executor = kind.make(work_dir=tmp_path, **({"setup": setup} if setup else {}))
    assert (await run(executor, PLANT)).exit_code == 0
    await executor.restart()
    result = await run(executor, "import builtins; print(hasattr(builtins, 'planted'))")
    await executor.stop()
    assert result.output == "False\n"


FORGE = """
import os, site
place = site.getusersitepackages()
os.makedirs(place, exist_ok=True)
for name in ("usercustomize.py", "first.pth"):
    with open(os.path.join(place, name), "w") as file:
        file.write("import os; os.write(1, b'forged'); os._exit(0)\\n")
"""


# an environment of its own, such as that of the tests, has no such place
PYTHON = os.path.realpath(sys.executable)


@usually("confined", among=FRESH)
async def test_no_file_of_the_codes_runs_before_the_next_block(kind: Kind, tmp_path: Path) -> None:
    more = {"languages": {"python": PYTHON}} if kind.name == "confined" else {}
    executor = kind.make(work_dir=tmp_path, **more)
    assert (await run(executor, FORGE)).exit_code == 0
    result = await run(executor, "print('said')")
    await executor.stop()
    assert result.output == "said\n"


@usually("confined", among=FRESH)
async def test_a_block_of_powershell_runs_without_the_profile_that_code_can_write(
    kind: Kind, tmp_path: Path
) -> None:
    # no image of the tests has one: this says what it is asked for
    stand_in = tmp_path / "pwsh"
    stand_in.write_text('#!/bin/sh\necho "$1"\n')
    stand_in.chmod(0o755)
    paths = {"docker": "/workspace", "confined": str(tmp_path)}
    executor = kind.make(work_dir=tmp_path, environment={"PATH": f"/usr/bin:/bin:{paths[kind.name]}"})
    outputs = [(await run(executor, "", language=label)).output for label in ("pwsh", "powershell", "ps1")]
    await executor.stop()
    assert outputs == ["-NoProfile\n"] * 3


FLY = """
import array, os, resource, socket
pairs = []
try:
    for _ in range(120):
        pair = socket.socketpair()
        pairs.append(pair)
        fds = array.array("i", [pair[0].fileno()] * 253)
        pair[0].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
except OSError as error: print("no more:", error.strerror)
"""
"""Has as many descriptors in flight between sockets as the kernel lets it."""


@usually("confined-session", among=LIVING)
async def test_descriptors_in_flight_do_not_keep_others_from_an_interpreter(
    kind: Kind, tmp_path: Path
) -> None:
    one, other = (kind.make(work_dir=tmp_path / name) for name in ("one", "other"))
    for executor in (one, other):
        executor.work_dir.mkdir(exist_ok=True)
        await run(executor, "kept = 1")
    filled = await run(one, FLY)
    assert filled.output == "no more: Too many references: cannot splice\n"
    for executor in (other, one):
        await executor.restart()
        assert (await run(executor, "print('goes on')")).output == "goes on\n"
    # nor this machine's own programs, whose limit is not as low
    ours, theirs = socket.socketpair()
    with ours, theirs:
        socket.send_fds(ours, [b"x"], [ours.fileno()] * 100)
        for fd in socket.recv_fds(theirs, 1, 100)[1]:
            os.close(fd)
    for executor in (one, other):
        await executor.stop()


@pytest.mark.long
@pytest.mark.docker
async def test_an_interpreter_that_cannot_be_passed_its_descriptors_is_started(tmp_path: Path) -> None:
    # of a user whom no other test has
    os.chown(tmp_path, _NOBODY_ELSE, _NOBODY_ELSE)
    executor = DockerSessionCodeExecutor(work_dir=tmp_path, setup="made = []")
    assert (await run(executor, "print(made)")).output == "[]\n"
    program = f"""
import array, os, resource, socket
resource.setrlimit(resource.RLIMIT_NOFILE, (2048, 2048))
os.setuid({_NOBODY_ELSE})
{FLY}
print(flush=True)
input()
"""
    other = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdin=-1, stdout=-1)
    assert other.stdin is not None
    assert other.stdout is not None
    assert b"no more" in await other.stdout.readline()
    await executor.restart()
    outputs = [(await run(executor, "print(made)")).output for _ in range(2)]
    for copy in (executor.fork, executor.checkpoint):
        with pytest.raises(ForkError, match="cannot be forked now"):
            await copy()
    outputs.append((await run(executor, "print(made)")).output)
    await other.communicate(b"\n")
    assert outputs == ["[]\n"] * 3
    [fork] = await executor.fork()
    assert (await run(fork, "print(made)")).output == "[]\n"
    await executor.restart()
    assert (await run(executor, "made.append(1); print(made)")).output == "[1]\n"
    await executor.stop()


TAKE = """
import ctypes, os, resource
libc = ctypes.CDLL(None, use_errno=True)
def attempt(name, number, *arguments):
    result = libc.syscall(ctypes.c_long(number), *arguments)
    print(name, os.strerror(ctypes.get_errno()) if result < 0 else "worked")
x86 = os.uname().machine == "x86_64"
attempt("inotify", 294 if x86 else 26, 0)
attempt("aio", 206 if x86 else 0, 8, ctypes.byref(ctypes.c_ulong(0)))
attempt("queue", 240 if x86 else 180, b"name", os.O_CREAT | os.O_RDWR, 0o600, None)
segment = libc.shmget(0, 1 << 20, 0o1600)
# SHM_LOCK
attempt("lock", 31 if x86 else 195, segment, 11, None)
for name in ("NOFILE", "SIGPENDING", "MSGQUEUE", "CORE", "MEMLOCK"):
    print(name, resource.getrlimit(getattr(resource, f"RLIMIT_{name}")))
"""


@usually("docker", "confined")
async def test_code_takes_little_of_what_is_counted_for_its_user_as_a_whole(
    executor: SandboxedCodeExecutor,
) -> None:
    inotify, aio, queue, lock, *limits = (await run(executor, TAKE)).output.splitlines()
    assert inotify == "inotify Too many open files"
    assert aio == "aio Resource temporarily unavailable"
    assert "worked" not in queue + lock
    assert limits == [
        "NOFILE (512, 512)",
        "SIGPENDING (1024, 1024)",
        "MSGQUEUE (0, 0)",
        "CORE (0, 0)",
        "MEMLOCK (65536, 65536)",
    ]
