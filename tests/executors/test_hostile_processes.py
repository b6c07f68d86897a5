"""Processes that attack, exhaust or outlive what surrounds them, with every executor."""

from __future__ import annotations

import asyncio
import resource
import signal
from contextlib import suppress
from pathlib import Path
from subprocess import TimeoutExpired

import pytest
from support.executing import Kind, in_containers, one_interpreter, run, usually, wait_until

from codeact_team.errors import SandboxLostError
from codeact_team.executors.base import SandboxedCodeExecutor
from codeact_team.executors.session import InterpreterCodeExecutor
from codeact_team.sandbox.processes import TerminalSize
from codeact_team.session.processes import SandboxProcess

confined = pytest.mark.parametrize("kind", ["confined", "confined-session"], indirect=True)

# what another process of the same user could do to one
ATTACK = """
import ctypes, os, signal, sys
names = {pid: open(f"/proc/{pid}/cmdline").read() for pid in os.listdir("/proc") if pid.isdigit()}
victims = [int(pid) for pid, line in names.items() if int(pid) != os.getpid()]
def attempt(deed, *arguments):
    try: deed(*arguments)
    except OSError: return
    print("could", deed.__name__, arguments, "supervisor" if "runner.supervisor" in names.get(str(arguments[0]), "") else "")
def write_memory(pid):
    os.close(os.open(f"/proc/{pid}/mem", os.O_RDWR))
def trace(pid):
    if ctypes.CDLL(None).ptrace(0x4206, pid, 0, 0) < 0: raise OSError
for pid in victims:
    for deed in (write_memory, trace): attempt(deed, pid)
    for number in (signal.SIGSTOP, signal.SIGKILL):
        attempt(os.kill, pid, number)
attempt(os.kill, -1, signal.SIGKILL)
print("ended", len(victims))
"""


@confined
async def test_a_process_reaches_neither_another_one_nor_those_above(
    executor: SandboxedCodeExecutor,
) -> None:
    processes = executor.processes
    async with await processes.start(["cat"]) as beside:
        result = await processes.run(["python3", "-c", ATTACK])
        lines = result.stdout.decode().splitlines()
        assert lines[-1].startswith("ended"), result.stderr
        # all signals go nowhere: there is nobody else whom it may reach
        assert [line for line in lines[:-1] if "(-1," not in line] == []
        await beside.write(b"unharmed")
        assert (await beside.read()).stdout == b"unharmed"
        assert (await run(executor, "print('unharmed')")).output.endswith("unharmed\n")


@in_containers
async def test_a_process_of_a_container_can_end_others_and_not_those_above(
    executor: SandboxedCodeExecutor,
) -> None:
    async with await executor.processes.start(["cat"]) as beside:
        result = await executor.processes.run(["python3", "-c", ATTACK])
        lines = result.stdout.decode().splitlines()
        assert lines[-1].startswith("ended"), (result.returncode, result.stderr)
        ours = [line for line in lines if line.endswith("supervisor")]
        assert not [line for line in ours if "write_memory" in line or "trace" in line]
        assert await beside.wait() == -signal.SIGKILL
    assert (await executor.processes.run(["echo", "unharmed"])).stdout == b"unharmed\n"
    assert (await run(executor, "print('unharmed')")).output.endswith("unharmed\n")


@usually("docker", "confined")
async def test_the_memory_limit_names_what_it_kills(kind: Kind, small: SandboxedCodeExecutor) -> None:
    hungry = ["python3", "-c", "hoard = [bytes([1]) * 2**20 for _ in range(512)]"]
    async with await small.processes.start(["cat"]) as beside:
        result = await small.processes.run(hungry)
        assert result.returncode in (1, -signal.SIGKILL)
        assert result.limit is not None
        assert kind.fields["memory"] in result.limit
        await beside.write(b"unharmed")
        assert (await beside.read()).stdout == b"unharmed"


@usually("docker", "confined")
async def test_too_many_processes_are_an_error_that_names_the_limit(
    kind: Kind, small: SandboxedCodeExecutor
) -> None:
    jobs: list[SandboxProcess] = []

    async def start_many() -> None:
        for _ in range(40):
            jobs.append(await small.processes.start(["cat"]))

    with pytest.raises(BlockingIOError, match=kind.fields["processes"]):
        await start_many()
    assert len(jobs) > 5
    for job in jobs:
        await job.aclose()
    assert (await small.processes.run(["echo", "room again"])).stdout == b"room again\n"


@usually("confined")
async def test_what_processes_add_to_the_workspace_is_limited(kind: Kind, tmp_path: Path) -> None:
    executor = kind.make(work_dir=tmp_path, workspace_mib=8)
    fill = ["sh", "-c", "n=0; while :; do head -c 1000000 /dev/zero > part$n; n=$((n+1)); sleep 0.05; done"]
    result = await executor.processes.run(fill)
    assert result.returncode == -signal.SIGKILL
    assert result.limit is not None
    assert "workspace_mib: 8" in result.limit
    await executor.processes.run(["sh", "-c", "rm part*"])
    async with await executor.processes.start(fill) as job:
        assert await job.wait() == -signal.SIGKILL
        assert "workspace_mib: 8" in str(job.limit)
    await executor.stop()


@usually("confined")
async def test_a_fork_bomb_ends_with_its_handle(small: SandboxedCodeExecutor) -> None:
    bomb = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
said = False
while True:
    try: os.fork() or os.setsid()
    except OSError:
        if not said: said = os.write(1, b"no more\\n") > 0
"""
    job = await small.processes.start(["python3", "-c", bomb])
    # it has reached the limit, and goes on
    assert b"no more" in (await job.read()).stdout
    await asyncio.sleep(0.05)
    await job.aclose()
    assert (await small.processes.run(["echo", "room again"])).stdout == b"room again\n"


@usually("docker", "confined")
async def test_a_process_that_closes_its_streams_and_detaches_ends_all_the_same(
    executor: SandboxedCodeExecutor, work_dir: Path
) -> None:
    code = """
import os, sys, time
for fd in range(3): os.close(fd)
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
while True:
    with open("beat", "a") as file: file.write("x")
    time.sleep(0.01)
"""
    job = await executor.processes.start(["python3", "-c", code])
    assert await job.wait() == 0
    await asyncio.to_thread(wait_until, (work_dir / "beat").exists, seconds=10)
    assert await job.has_left()
    await job.aclose()
    size = (work_dir / "beat").stat().st_size
    await asyncio.sleep(0.1)
    assert (work_dir / "beat").stat().st_size == size


@usually("confined", "confined-session")
async def test_what_waits_for_a_process_learns_that_the_sandbox_was_stopped(
    kind: Kind, tmp_path: Path
) -> None:
    executor = kind.make(work_dir=tmp_path)
    job = await executor.processes.start(["cat"])
    waiting = [
        asyncio.ensure_future(one)
        for one in (job.wait(), job.read(), executor.processes.run(["sleep", "99"]))
    ]
    await asyncio.sleep(0.1)
    await executor.stop()
    assert [type(one) for one in await asyncio.gather(*waiting, return_exceptions=True)] == [
        SandboxLostError
    ] * 3
    with pytest.raises((SandboxLostError, ValueError)):
        await job.write(b"x")
    await job.aclose()


@usually("confined")
async def test_what_waits_for_a_process_learns_that_the_sandbox_was_killed(
    kind: Kind, tmp_path: Path
) -> None:
    executor = kind.make(work_dir=tmp_path)
    before = kind.held()
    job = await executor.processes.start(["cat"])
    waiting = asyncio.ensure_future(job.read())
    await asyncio.sleep(0.1)
    kind.lose(kind.held() - before)
    with pytest.raises(SandboxLostError):
        await waiting
    await job.aclose()
    # the next one gets another sandbox
    assert (await executor.processes.run(["echo", "again"])).stdout == b"again\n"
    await executor.stop()


@one_interpreter
async def test_a_block_cannot_end_the_processes_beside_it(session: InterpreterCodeExecutor) -> None:
    async with await session.processes.start(["cat"]) as job:
        await run(session, ATTACK.replace("ctypes.CDLL(None).ptrace(0x4206, pid, 0, 0) < 0", "True"))
        await job.aclose()
    assert (await session.processes.run(["echo", "unharmed"])).stdout == b"unharmed\n"


WITHOUT_AN_END = """
import os, signal, sys, time
own = os.getpid()
if not os.fork():
    os.setsid()
    print("begun", flush=True)
    while True:
        for pid in os.listdir("/proc"):
            # whatever watches others by their time limits
            try:
                if pid.isdigit() and int(pid) not in (own, os.getpid()) and b"python" in open(f"/proc/{pid}/comm", "rb").read():
                    os.kill(int(pid), signal.SIGNAL)
            except OSError: pass
        if signal.SIGNAL == signal.SIGSTOP: time.sleep(0.05)
"""


@pytest.mark.parametrize(
    "name", ["SIGSTOP", *(pytest.param(name, marks=pytest.mark.long) for name in ("SIGTSTP", "SIGCHLD"))]
)
@usually("confined-session", among=["docker", "docker-session", "confined-session"])
async def test_no_signal_of_code_takes_the_time_limit_from_a_process(
    kind: Kind, name: str, tmp_path: Path
) -> None:
    executor = kind.make(work_dir=tmp_path)
    attack = WITHOUT_AN_END.replace("SIGNAL", name)
    attacker: SandboxProcess | None = None
    if isinstance(executor, InterpreterCodeExecutor):
        await run(executor, attack)
    else:
        attacker = await executor.processes.start(["python3", "-c", attack])
        await attacker.read()
    async with asyncio.timeout(20):
        # the code may have ended it, or kept it from its start
        with suppress(TimeoutExpired, OSError):
            result = await executor.processes.run(["sleep", "600"], timeout=0.5)
            assert result.returncode == -signal.SIGKILL
        if attacker is not None:
            await attacker.aclose()
        await executor.stop()


@pytest.mark.long
async def test_a_hundred_at_once_mix_up_nothing(kind: Kind, tmp_path: Path) -> None:
    executor = kind.make(work_dir=tmp_path, pids=512)
    processes = executor.processes

    async def one(number: int) -> None:
        code = "import sys\nd = sys.stdin.buffer.read()\nsys.stdout.buffer.write(d)\nsys.stderr.write(sys.argv[1])\nsys.exit(int(sys.argv[1]))"
        data = bytes([number]) * 300_000
        result = await processes.run(["python3", "-c", code, str(number)], input=data)
        assert (result.returncode, result.stdout, result.stderr) == (number, data, str(number).encode())

    await asyncio.gather(*map(one, range(100)))
    await executor.stop()


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_thousands_one_after_the_other_leave_nothing(kind: Kind, tmp_path: Path) -> None:
    executor = kind.make(work_dir=tmp_path)
    processes = executor.processes
    await processes.run(["true"])
    before = await _left(executor)
    for number in range(3_000):
        result = await processes.run(["sh", "-c", f"echo {number}; exit {number % 100}"])
        assert (result.stdout, result.returncode) == (f"{number}\n".encode(), number % 100)
    after = await _left(executor)
    assert after[:2] == before[:2]
    # KiB of all processes together, some of which share pages, which count for each
    assert after[2] < before[2] + 8192
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2**21
    await executor.stop()


async def _left(executor: SandboxedCodeExecutor) -> tuple[int, int, int]:
    """How many processes and open descriptors there are in the sandbox, and the memory that they use."""
    code = """
import os
pids = [pid for pid in os.listdir("/proc") if pid.isdigit()]
def kib(pid):
    return sum(int(line.split()[1]) for line in open(f"/proc/{pid}/status") if line.startswith("VmRSS"))
print(len(pids), len(os.listdir("/proc/self/fd")), sum(map(kib, pids)))
"""
    result = await executor.processes.run(["python3", "-c", code])
    processes, descriptors, kib = map(int, result.stdout.split())
    return processes, descriptors, kib


# what another process could do to a terminal
FORGERY = """
import fcntl, glob, os, struct, termios
patterns = "/dev/*/[0-9]*", "/dev/terminals/0", "/proc/[0-9]*/fd/*", "/dev/tty"
for path in sum(map(glob.glob, patterns), []):
    try:
        terminal = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
        if not os.isatty(terminal): continue
        os.write(terminal, b"forged")
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 1, 1, 0, 0))
        print("could open", path)
    except OSError: pass
print("ended")
"""


@confined
async def test_a_process_reaches_no_terminal_but_its_own(executor: SandboxedCodeExecutor) -> None:
    processes = executor.processes
    script = "read line; tty; stty size; echo to it > /dev/tty; echo again > $(tty); exit 3"
    async with await processes.start(["sh", "-c", script], terminal=TerminalSize(33, 77)) as job:
        for terminal in (None, TerminalSize(10, 20)):
            async with await processes.start(["python3", "-c", FORGERY], terminal=terminal) as attacker:
                output = b""
                while piece := await attacker.read():
                    output += piece.stdout
            # what it has opened in /proc, and by number, is what it was started with
            opened = [line.removeprefix("forged") for line in output.decode().splitlines()]
            others = [line for line in opened if "/dev/terminals/0" in line or "/dev/pts" in line]
            assert (others, opened[-1], "could open /dev/tty" in opened) == (
                [],
                "ended",
                terminal is not None,
            )
        await job.write(b"\n")
        output = b""
        while piece := await job.read():
            output += piece.stdout
        assert output.decode().split("\r\n")[1:] == ["/dev/terminals/0", "33 77", "to it", "again", ""]
        assert await job.wait() == 3
