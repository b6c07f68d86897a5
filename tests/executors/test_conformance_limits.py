"""What every executor does with code that does not end, or takes more than it may."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import time
from contextlib import aclosing
from pathlib import Path

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from support.executing import (
    Kind,
    each_part_once,
    fresh_processes,
    goes_on,
    in_containers,
    long_where,
    one_interpreter,
    one_part,
    run,
    usually,
    wait_until,
)
from support.fork_server import start
from support.small_disk import small_disk

from codeact_team.core.execution import ExecutionResult, Outcome
from codeact_team.executors.base import SandboxedCodeExecutor
from codeact_team.executors.session import InterpreterCodeExecutor

BEAT = """
import os, signal, sys, time
def beat():
    with open("beat", "a") as file:
        while True:
            file.write("x")
            file.flush()
            time.sleep(0.02)
"""

HOST = str(Path(__file__).with_name("host.py"))

IGNORES = """
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
"""
DETACHES = "detaches, and ends itself by the interrupt"
STUBBORN = {
    "closes its output and catches the interrupt": """
os.close(1); os.close(2)
while True:
    try: beat()
    except BaseException: pass
""",
    DETACHES: """
if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.fork() == 0:
        for fd in (0, 1, 2): os.close(fd)
        beat()
    os._exit(0)
time.sleep(60)
""",
    "floods": """
if os.fork() == 0: beat()
while True: os.write(1, b"flood" * 1000)
""",
    "stops itself": """
if os.fork() == 0: beat()
os.kill(os.getpid(), signal.SIGSTOP)
""",
    "ignores all signals and forks all the time": IGNORES
    + """
open("beat", "w")
def next_one():
    try:
        if os.fork(): os._exit(0)
    except OSError: pass
if os.fork() == 0:
    while True: next_one(); open("beat", "a").write("x"); time.sleep(0.001)
time.sleep(60)
""",
}


async def assert_dead(directory: Path, *, least: int = 1) -> None:
    """Nothing beats any more; ``least`` is 0 where a busy machine may not have begun."""
    beats = size(directory / "beat")
    await asyncio.sleep(0.15)
    assert size(directory / "beat") == beats >= least


def size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


async def started(directory: Path, file: str = "beat") -> None:
    await asyncio.to_thread(wait_until, lambda: size(directory / file) > 0, seconds=20)


@pytest.mark.usefixtures("short_grace")
@pytest.mark.parametrize("code", STUBBORN.values(), ids=STUBBORN)
@long_where(lambda kind, code: kind.startswith("docker") and code != STUBBORN[DETACHES])
async def test_a_cancellation_stops_all_that_a_block_started(
    executor: SandboxedCodeExecutor, work_dir: Path, code: str
) -> None:
    token = CancellationToken()
    call = asyncio.create_task(run(executor, BEAT + code, "print('not run')", token=token))
    await started(work_dir)
    token.cancel()
    result = await call
    assert (result.exit_code, result.outcome) == (1, Outcome.CANCELLED)
    assert "Code execution was cancelled." in result.output
    await assert_dead(work_dir)
    assert (await run(executor, "print('next')")).output == "next\n"


@pytest.mark.parametrize(
    "name",
    [
        DETACHES,
        pytest.param("ignores all signals and forks all the time", marks=pytest.mark.long),
    ],
)
@usually("docker", "confined", "confined-session")
async def test_a_time_out_stops_all_that_a_block_started(hasty: SandboxedCodeExecutor, name: str) -> None:
    result = await run(hasty, BEAT + STUBBORN[name])
    assert (result.exit_code, result.outcome) == (124, Outcome.TIMED_OUT)
    assert result.limit == "time (timeout: 1)"
    assert "Timeout: stopped after 1 s, the limit that `timeout` sets." in result.output
    await assert_dead(hasty.work_dir, least=0)
    assert await goes_on(hasty)


@usually("docker", "confined", "confined-session")
async def test_output_before_a_stop_is_kept(executor: SandboxedCodeExecutor, work_dir: Path) -> None:
    # not flushed by the program; and Python says where it was
    token = CancellationToken()
    code = "import time\nprint('working', end=' ')\nopen('beat', 'w').write('1'); time.sleep(60)"
    call = asyncio.create_task(run(executor, code, "print('not run')", token=token))
    await started(work_dir)
    token.cancel()
    output = (await call).output
    assert output.startswith("working Traceback")
    assert "line 3, in <module>" in output
    assert output.endswith("cancelled.\n[1 more code block(s) not run: block 1 failed]")


@one_interpreter
async def test_every_block_has_the_whole_time(hasty: SandboxedCodeExecutor) -> None:
    result = await run(hasty, *(["import time; time.sleep(0.2)"] * 6))
    assert (result.exit_code, result.outcome) == (0, Outcome.COMPLETED)


@each_part_once
@pytest.mark.usefixtures("short_grace")
async def test_task_cancels(executor: SandboxedCodeExecutor, work_dir: Path) -> None:
    call = asyncio.create_task(run(executor, BEAT + IGNORES + "beat()"))
    await started(work_dir)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await assert_dead(work_dir)
    # a session says that it had to kill the interpreter
    assert (await run(executor, "print('next')")).output.endswith("next\n")


@usually("confined", "confined-session")
async def test_cancelled_before_it_begins(executor: SandboxedCodeExecutor) -> None:
    token = CancellationToken()
    token.cancel()
    result = await run(executor, "print('ran')", token=token)
    assert (result.output, result.outcome) == ("Code execution was cancelled.", Outcome.CANCELLED)


@fresh_processes
async def test_what_a_block_has_left_running_ends_with_it(
    executor: SandboxedCodeExecutor, work_dir: Path
) -> None:
    leave = (
        "if os.fork() == 0:\n    os.setsid()\n    beat()\nwhile not os.path.exists('beat'): time.sleep(0.01)"
    )
    assert (await run(executor, BEAT + leave)).outcome is Outcome.COMPLETED
    await assert_dead(work_dir)


@pytest.mark.long
@fresh_processes
async def test_half_of_the_code_is_never_run(executor: SandboxedCodeExecutor, work_dir: Path) -> None:
    # a cancellation while the code is being sent, or before, or after that
    name = "half = not open(__file__).read().endswith('end')"
    code = f"# filename: half.py\n{name}\nopen('half' if half else 'whole', 'w').write('1')\n{'#' * 8_000_000}end"
    outcomes: list[Outcome] = []
    for hundredths in range(10):
        token = CancellationToken()
        call = asyncio.create_task(run(executor, code, token=token))
        await asyncio.sleep(hundredths / 100)
        token.cancel()
        outcomes.append((await call).outcome)
        assert not size(work_dir / "half")
    assert Outcome.CANCELLED in outcomes


@one_part
async def test_cancelling_one_call_leaves_the_queued_one(
    executor: SandboxedCodeExecutor, work_dir: Path
) -> None:
    # also where both run the same code
    code = "import os, time\nif os.path.exists('beat'): print('second')\nelse: open('beat', 'w').write('1'); time.sleep(60)"
    token = CancellationToken()
    one = asyncio.create_task(run(executor, code, token=token))
    await started(work_dir)
    two = asyncio.create_task(run(executor, code))
    three_token = CancellationToken()
    three = asyncio.create_task(run(executor, code, token=three_token))
    await asyncio.sleep(0.05)
    three_token.cancel()
    token.cancel()
    assert (await one).outcome is Outcome.CANCELLED
    assert (await two).output == "second\n"
    assert (await three).outcome is Outcome.CANCELLED


@pytest.mark.long
async def test_cancelled_calls_leave_nothing_behind(
    executor: SandboxedCodeExecutor, work_dir: Path, kind: Kind
) -> None:
    async def cancel(after: float, by_token: bool) -> None:
        token = CancellationToken()
        call = asyncio.create_task(run(executor, BEAT + "beat()", token=token))
        await asyncio.sleep(after)
        if by_token:
            token.cancel()
            assert (await call).outcome is Outcome.CANCELLED
        else:
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call

    def held() -> tuple[int, int, int]:
        gc.collect()
        return threading.active_count(), len(os.listdir("/dev/fd")), len(kind.held())

    # the loop's thread pool grows to its size first
    await asyncio.gather(*(asyncio.to_thread(time.sleep, 0.05) for _ in range(40)))
    await run(executor, "print(1)")
    before = held()
    for number in range(12):
        # at any moment: while it is launched, while it begins, while it runs
        await cancel(number * 0.01, by_token=number % 2 == 0)
    assert all(now <= then for now, then in zip(held(), before, strict=True))
    await assert_dead(work_dir, least=0)


USUALLY_REACHED = {
    "docker": ("bytearray", "os.fork", "create_connection", "/usr/x"),
    "confined": ("",),
    "docker-session": (),
    "confined-session": ("bytearray", "os.fork", "create_connection", "/usr/x"),
}
"""By what kind of executor each limit is usually tried, by words of the code."""


@pytest.mark.parametrize(
    ("limit", "code"),
    [
        ("memory", "x = []\nwhile True: x.append(bytearray(1_000_000))"),
        ("processes", "import os, time\nfor _ in range(100):\n    if os.fork() == 0: time.sleep(60)"),
        ("processes", "import subprocess\nx = [subprocess.Popen(['sleep', '60']) for _ in range(100)]"),
        ("network", "import socket; socket.create_connection(('192.0.2.1', 80), 5)"),
        ("network", "import socket; print(socket.getaddrinfo('example.com', 80))"),
        ("network", "import urllib.request; urllib.request.urlopen('http://example.com')"),
        ("read-only", "open('/usr/x', 'w')"),
    ],
)
@long_where(lambda kind, code: not any(words in code for words in USUALLY_REACHED[kind]))
async def test_result_names_the_limit_and_its_field(
    small: SandboxedCodeExecutor, kind: Kind, limit: str, code: str
) -> None:
    if isinstance(small, InterpreterCodeExecutor):
        # where the limit only refuses memory, the variables of earlier code still have theirs
        await small.restart()
    result = await run(small, code)
    assert result.exit_code != 0
    # an interpreter that the memory limit ends is lost; a program is not
    assert result.outcome in (Outcome.COMPLETED, Outcome.LOST)
    assert result.limit is not None, result.output
    assert kind.fields[limit] in result.limit
    assert result.output.endswith(result.limit)
    assert (await run(small, "print('next')")).output == "next\n"


@each_part_once
@pytest.mark.long
async def test_a_workspace_does_not_grow_without_end(kind: Kind, tmp_path: Path) -> None:
    much = "for n in range(12): open(f'grown-{n}', 'wb').write(bytes(1 << 20))", "workspace_mib: 8"
    many = "for n in range(400): open(f'grown-{n}', 'w').close()", "workspace_files: 300"
    async with kind.make(work_dir=tmp_path, timeout=10, workspace_mib=8, workspace_files=300) as executor:
        for code, field in (much, many):
            result = await run(executor, f"import os, time\n{code}\ntime.sleep(60)", "print('not run')")
            assert result.exit_code == 153
            # an interpreter that does not notice its interrupt is lost
            assert result.outcome in (Outcome.COMPLETED, Outcome.LOST)
            assert result.limit == f"This ran into a limit of the sandbox: disk space ({field})."
            assert f"{result.limit} Remove files that are not needed.\n" in result.output
            assert result.output.endswith("[1 more code block(s) not run: block 1 failed]")
            # what is there can be looked at, and removed, however long that takes
            result = await run(executor, "sleep 0.5; rm -r grown*; echo removed", language="sh")
            assert (result.output.splitlines()[-1], result.limit) == ("removed", None)


@usually("docker", "confined")
async def test_a_disk_cannot_be_taken_at_once_but_written(executor: SandboxedCodeExecutor) -> None:
    code = """
        import ctypes, errno, os
        file = os.open("taken", os.O_CREAT | os.O_RDWR)
        libc = ctypes.CDLL(None, use_errno=True)
        print(libc.fallocate(file, 0, 0, 1 << 20), ctypes.get_errno() == errno.EOPNOTSUPP, os.path.getsize("taken"))
        os.posix_fallocate(file, 0, 1 << 20)
        print(os.path.getsize("taken"))
    """
    result = await run(executor, f"if True:{code}")
    assert result.output == "-1 True 0\n1048576\n"


@usually("confined", "confined-session")
async def test_temporary_files_have_a_size(small: SandboxedCodeExecutor) -> None:
    # what blocks of a session have left running takes memory
    await small.restart()
    code = """
        import tempfile, time
        with tempfile.NamedTemporaryFile() as file:
            for _ in range(80): file.write(bytes(1 << 20))
            time.sleep(60)
    """
    result = await run(small, f"if True:{code}")
    assert result.limit is not None
    assert "tmpfs_mib: 16" in result.limit


@usually("confined", "confined-session")
async def test_failing_code_is_not_blamed_on_a_limit(small: SandboxedCodeExecutor) -> None:
    # what blocks of a session have left running holds all the processes there may be
    await small.restart()
    assert (await run(small, "raise ValueError('network')")).limit is None
    assert (await run(small, "echo 'No space left on device'", language="sh")).limit is None


@fresh_processes
@pytest.mark.long
@pytest.mark.parametrize(
    "code", ["f() { f | f & }; f", "f() { f | f & }; f; sleep 1"], ids=["left behind", "waited for"]
)
async def test_fork_bomb_is_contained(small: SandboxedCodeExecutor, code: str) -> None:
    await run(small, code, language="sh")
    # it may starve the next block, never for good
    await run(small, "print('starved?')")
    assert (await run(small, "print('next')")).output == "next\n"


@each_part_once
@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="how much memory a process uses is read from /proc")
def test_flood_of_output_does_not_show_in_the_hosts_memory(kind: Kind, tmp_path: Path) -> None:
    # 200 MB once cost 574 MB
    with start([HOST, "flood", kind.name], cwd=tmp_path, environment=os.environ) as host:
        stdout, stderr = host.communicate(timeout=100)
    assert host.returncode == 0, stderr
    grown_mib, kept, omitted = map(int, stdout.split())
    assert omitted > 70_000_000
    assert kept < 2_000_000
    assert grown_mib < 32


@each_part_once
def test_a_host_killed_with_9_leaves_nothing_behind(kind: Kind, tmp_path: Path) -> None:
    _leaves_nothing(kind, "wait", tmp_path)


@usually("confined")
def test_processes_of_a_host_killed_with_9_end_with_it(kind: Kind, tmp_path: Path) -> None:
    _leaves_nothing(kind, "jobs", tmp_path)


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="how much memory a process uses is read from /proc")
def test_output_of_processes_does_not_show_in_the_hosts_memory(kind: Kind, tmp_path: Path) -> None:
    with start([HOST, "unread", kind.name], cwd=tmp_path, environment=os.environ) as host:
        stdout, stderr = host.communicate(timeout=100)
    assert host.returncode == 0, stderr
    # the last MiB of each of twenty results, and what is on its way for each
    assert int(stdout) < 64


@in_containers
@pytest.mark.parametrize("owner", [0, pytest.param(64321, marks=pytest.mark.long)])
@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a directory another user's")
def test_code_cannot_keep_a_container_from_ending_with_its_host(
    kind: Kind, tmp_path: Path, owner: int
) -> None:
    os.chown(tmp_path, owner, owner)
    _leaves_nothing(kind, "held", tmp_path)


def _leaves_nothing(kind: Kind, what: str, work_dir: Path) -> None:
    with start([HOST, what, kind.name, str(work_dir)], cwd=work_dir, environment=os.environ) as host:
        assert host.stdout is not None
        assert host.stdout.readline() == b"up\n"
        (sandbox,) = kind.inside(host.pid)
        host.kill()
    wait_until(lambda: not kind.exists(sandbox), seconds=5)
    beats = size(work_dir / "beat")
    time.sleep(0.15)
    assert size(work_dir / "beat") == beats > 0


@each_part_once
async def test_a_block_gets_the_time_that_is_set_and_not_more(hasty: SandboxedCodeExecutor) -> None:
    # by the order of two timers of one loop, which is kept however busy the machine is
    late = hasty.work_dir / "late"
    code = "import os, time\nprint('begun', flush=True)\nwhile not os.path.exists('late'): time.sleep(0.01)"
    blocks = [CodeBlock(code=code, language="python")]
    timer: asyncio.TimerHandle | None = None
    async with aclosing(hasty.execute_code_blocks_stream(blocks, CancellationToken())) as items:
        async for item in items:
            if isinstance(item, ExecutionResult):
                assert item.outcome is Outcome.TIMED_OUT
            elif timer is None:
                timer = asyncio.get_running_loop().call_later(1.2, late.touch)
    assert timer is not None
    timer.cancel()


@usually("confined", "confined-session")
async def test_code_that_lacks_a_module_reads_what_to_do(executor: SandboxedCodeExecutor):
    code = CodeBlock(code="print('first')\nimport sklearnish.svm", language="python")
    result = await executor.execute_code_blocks([code], CancellationToken())
    assert (result.exit_code, result.missing_module, result.limit) == (1, "sklearnish", None)
    assert result.output.rstrip().endswith(
        "by `--package NAME` on the command line, `packages: [NAME]` in the settings of the executor, or an image that has it."
    )
    assert "The sandbox has no module 'sklearnish', and nothing can be installed from inside" in result.output
    handled = CodeBlock(
        code="try:\n    import sklearnish\nexcept ImportError as e:\n    print(repr(e))", language="python"
    )
    result = await executor.execute_code_blocks([handled], CancellationToken())
    assert (result.exit_code, result.missing_module) == (0, None)


@one_part
async def test_a_full_disk_of_this_machine_is_not_blamed_on_the_sandbox(kind: Kind, tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", "4m"):
        async with kind.make(work_dir=tmp_path / "small" / "coding", timeout=10) as executor:
            result = await run(executor, "open('large', 'wb').write(bytes(8 << 20))")
            assert result.exit_code != 0
            assert "No space left on device" in result.output
            assert result.limit is None
            assert "The disk of the host that holds the workspace is full." in result.output
            (tmp_path / "small" / "coding" / "large").unlink()
