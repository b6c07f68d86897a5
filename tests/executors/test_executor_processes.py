"""Processes beside the blocks of every executor: what a program asks for is what it gets."""

from __future__ import annotations

import asyncio
import errno
import signal
import subprocess
from collections.abc import AsyncGenerator, Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.executing import FRESH, LIVING, Kind, each_part_once, run, usually

from codeact_team.errors import SandboxLostError
from codeact_team.executors.base import SandboxedCodeExecutor
from codeact_team.executors.processes import Processes
from codeact_team.executors.session import InterpreterCodeExecutor
from codeact_team.sandbox.processes import TerminalSize
from codeact_team.session.processes import SandboxProcess


@pytest.fixture(scope="session")
def shared_executor(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Generator[SandboxedCodeExecutor]:
    """Not that of other tests, whose blocks run otherwise where processes run beside them."""
    executor = kind.make(work_dir=tmp_path_factory.mktemp("beside"), timeout=30)
    yield executor
    asyncio.run(executor.stop())


@pytest.fixture
def processes(executor: SandboxedCodeExecutor) -> Processes:
    return executor.processes


def sh(code: str, *arguments: str) -> list[str]:
    return ["sh", "-c", code, "sh", *arguments]


async def until_it_says(process: SandboxProcess, words: bytes) -> bytes:
    seen = b""
    while words not in seen:
        output = await process.read()
        assert output, f"it ended after {seen!r}"
        seen += output.stdout
    return seen


@usually("confined", "confined-session")
async def test_arguments_reach_the_program_as_they_are(processes: Processes) -> None:
    arguments = ["two words", "$HOME", "*", "", "ü\nü", "'\"\\"]
    result = await processes.run(["python3", "-c", "import sys; print(sys.argv[1:])", *arguments])
    assert result.stdout.decode() == f"{arguments}\n"
    assert result.args[-1] == arguments[-1]


@usually("docker", "confined", "confined-session")
async def test_streams_come_apart_or_together(processes: Processes) -> None:
    code = sh("echo one; echo two >&2; echo three; exit 7")
    apart = await processes.run(code)
    assert (apart.returncode, apart.stdout, apart.stderr) == (7, b"one\nthree\n", b"two\n")
    together = await processes.run(code, stderr="together")
    assert (together.stdout, together.stderr) == (b"one\ntwo\nthree\n", b"")


@usually("confined")
async def test_a_signal_is_a_negative_code(processes: Processes) -> None:
    result = await processes.run(sh("kill -TERM $$"))
    assert result.returncode == -signal.SIGTERM
    with pytest.raises(subprocess.CalledProcessError) as raised:
        await processes.run(sh("echo before; exit 3"), check=True)
    assert (raised.value.returncode, raised.value.stdout) == (3, b"before\n")


@usually("docker", "confined")
async def test_it_reads_bytes_pieces_or_nothing(processes: Processes) -> None:
    assert (await processes.run(["cat"])).stdout == b""
    data = bytes(range(256)) * 20_000
    assert (await processes.run(["cat"], input=data, output_limit=len(data))).stdout == data

    async def pieces() -> AsyncGenerator[bytes]:
        for start in range(0, len(data), 100_000):
            yield data[start : start + 100_000]

    assert (await processes.run(["cat"], input=pieces(), output_limit=len(data))).stdout == data
    # who reads nothing is not to be waited for
    assert (await processes.run(["true"], input=data)).returncode == 0


@usually("confined")
async def test_a_source_that_fails_ends_the_process(processes: Processes) -> None:
    async def source() -> AsyncGenerator[bytes]:
        yield b"some"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await processes.run(["cat"], input=source())


@usually("docker", "confined")
async def test_it_gets_variables_and_a_directory(processes: Processes) -> None:
    await processes.run(["mkdir", "-p", "below/there"])
    result = await processes.run(
        sh('echo "$PWD $MINE"; cat /proc/self/stat >/dev/null && test -n "$PATH"'),
        env={"MINE": "a = b"},
        cwd="below/there",
    )
    assert result.stdout.endswith(b"/below/there a = b\n")
    assert result.returncode == 0
    there = result.stdout.split()[0].decode()
    assert (await processes.run(["pwd"], cwd=there)).stdout.decode() == f"{there}\n"


@usually("confined")
async def test_the_newest_output_is_kept(processes: Processes) -> None:
    result = await processes.run(sh("seq 100000; seq 9 >&2"), output_limit=1000)
    assert len(result.stdout) == 1000
    assert result.stdout.endswith(b"\n99999\n100000\n")
    assert result.stdout_omitted == len("".join(f"{number}\n" for number in range(1, 100_001))) - 1000
    assert (result.stderr, result.stderr_omitted) == (b"1\n2\n3\n4\n5\n6\n7\n8\n9\n", 0)


@usually("confined")
async def test_output_is_told_as_it_comes(processes: Processes) -> None:
    told: list[tuple[str, bytes]] = []
    go_on = asyncio.Event()

    async def tell(stream: str, data: bytes) -> None:
        told.append((stream, data))
        go_on.set()

    async def feed() -> AsyncGenerator[bytes]:
        await go_on.wait()
        yield b"x\n"

    await processes.run(sh("echo first; read x; echo second >&2"), input=feed(), on_output=tell)
    assert told == [("stdout", b"first\n"), ("stderr", b"second\n")]

    async def fail(stream: str, data: bytes) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await processes.run(sh("echo first; sleep 1000"), on_output=fail)


@usually("docker", "confined")
async def test_a_time_out_ends_everything(processes: Processes) -> None:
    with pytest.raises(subprocess.TimeoutExpired) as raised:
        await processes.run(sh("echo before; setsid sleep 4321 & sleep 4321"), timeout=0.5)
    assert raised.value.output == b"before\n"
    assert b"4321" not in (await processes.run(sh("cat /proc/[0-9]*/cmdline"))).stdout.replace(
        b"sh\0-c\0cat", b""
    )


@usually("docker", "confined")
async def test_several_run_at_once(processes: Processes) -> None:
    async def one(number: int) -> tuple[int, bytes, bytes]:
        code = 'read x; echo "out $1 $x"; echo "err $1" >&2; exit $1'
        result = await processes.run(sh(code, str(number)), input=f"in {number}\n".encode())
        return result.returncode, result.stdout, result.stderr

    numbers = range(30)
    expected = [(n, f"out {n} in {n}\n".encode(), f"err {n}\n".encode()) for n in numbers]
    assert await asyncio.gather(*map(one, numbers)) == expected


@usually("docker", "confined", "confined-session")
async def test_a_job_outlives_the_call(executor: SandboxedCodeExecutor, processes: Processes) -> None:
    async with await processes.start(sh("while read x; do echo got $x; done; echo end")) as job:
        assert await job.poll() is None
        await job.write(b"one\n")
        assert await until_it_says(job, b"\n") == b"got one\n"
        assert (await run(executor, "print('a block beside')")).output.endswith("a block beside\n")
        assert not await job.read_available()
        await job.write(b"two\n")
        await job.close_stdin()
        assert await job.wait() == 0
        assert (await job.read()).stdout == b"got two\nend\n"
        assert not await job.read()
        assert (job.returncode, await job.poll(), await job.has_left()) == (0, 0, False)
        # there is nobody to hear it
        await job.send_signal(signal.SIGTERM)
        await job.kill()


@usually("docker", "confined")
async def test_a_job_is_signalled_with_its_group(processes: Processes) -> None:
    async with await processes.start(
        sh("trap 'echo trapped' USR1; echo ready; while :; do sleep 0.05; done")
    ) as job:
        await until_it_says(job, b"ready\n")
        await job.send_signal(signal.SIGUSR1)
        await until_it_says(job, b"trapped\n")
        await job.terminate()
        assert await job.wait() == -signal.SIGTERM


@usually("confined")
async def test_whoever_waits_and_reads_at_once_gets_all(processes: Processes) -> None:
    async with await processes.start(sh("sleep 0.2; echo out; sleep 0.2; exit 5")) as job:

        async def read_all() -> bytes:
            seen = b""
            while output := await job.read():
                seen += output.stdout
            return seen

        assert await asyncio.gather(job.wait(), read_all(), job.wait()) == [5, b"out\n", 5]


@usually("confined")
async def test_a_wait_that_is_cancelled_loses_no_output(processes: Processes) -> None:
    async with await processes.start(["cat"]) as job:
        seen = b""
        for number in range(50):
            with suppress(TimeoutError):
                seen += (await asyncio.wait_for(job.read(), 0.001 * (number % 5))).stdout
            await job.write(f"{number}\n".encode())
        await job.close_stdin()
        while output := await job.read():
            seen += output.stdout
    assert seen == b"".join(f"{number}\n".encode() for number in range(50))


@usually("confined")
async def test_a_job_does_not_wait_for_its_reader(processes: Processes) -> None:
    async with await processes.start(sh("seq 200000; echo done >&2; exit 4"), output_limit=2000) as job:
        assert await job.wait() == 4
        output = await job.read()
    assert output.stdout.endswith(b"\n200000\n")
    assert len(output.stdout) + output.stdout_omitted == len("".join(f"{n}\n" for n in range(1, 200_001)))
    assert output.stderr == b"done\n"


@usually("docker", "confined")
async def test_a_terminal_has_a_size_and_takes_control_characters(processes: Processes) -> None:
    code = sh("tty; stty size; echo ready; read line; stty size; cat")
    async with await processes.start(code, terminal=TerminalSize(33, 44)) as job:
        seen = await until_it_says(job, b"ready")
        assert seen.startswith((b"/dev/pts/", b"/dev/terminals/"))
        assert b"\r\n33 44\r\n" in seen
        await job.resize(TerminalSize(10, 20))
        await job.write(b"go\n")
        await until_it_says(job, b"10 20\r\n")
        # a shell goes on if a program that it waits for ends in that moment
        await job.write(b"echo\n")
        await until_it_says(job, b"echo\r\necho\r\n")
        await job.write(b"\x03")
        assert await job.wait() == -signal.SIGINT
    async with await processes.start(["cat"], terminal=TerminalSize()) as job:
        await job.close_stdin()
        assert await job.wait() == 0


@usually("docker", "confined", "confined-session")
async def test_what_a_run_leaves_ends_with_it_and_what_a_job_leaves_with_its_handle(
    processes: Processes,
) -> None:
    leave = "(setsid sleep 7654 >/dev/null 2>&1 &); sleep 7654 & echo left"
    count = sh("ps=$(cat /proc/[0-9]*/comm); echo \"$ps\" | grep -c '^sleep$'")
    assert (await processes.run(sh(leave))).stdout == b"left\n"
    assert (await processes.run(count)).stdout == b"0\n"
    async with await processes.start(sh(leave)) as job:
        assert await job.wait() == 0
        assert (await job.read()).stdout == b"left\n"
        assert await job.has_left()
        # a child of the shell that has not become the program yet has another name
        while (found := (await processes.run(count)).stdout) in (b"0\n", b"1\n"):
            pass
        assert found == b"2\n"
    assert (await processes.run(count)).stdout == b"0\n"


@usually("confined")
async def test_what_leaves_nothing_says_so(processes: Processes) -> None:
    async with await processes.start(sh("sleep 0.3 & exit 0")) as job:
        assert await job.wait() == 0
        while await job.has_left():  # noqa: ASYNC110 nobody is told of that
            await asyncio.sleep(0.05)


@usually("confined")
async def test_a_cancelled_run_ends_its_process(processes: Processes) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(processes.run(sh("setsid sleep 8765 & sleep 8765")), 0.5)
    assert b"sleep" not in (await processes.run(sh("cat /proc/[0-9]*/comm"))).stdout


WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no such program": ({"argv": ["nosuchprogram"]}, FileNotFoundError, "nosuchprogram"),
    "no program": ({"argv": ["/etc"]}, PermissionError, "/etc"),
    "no such directory": ({"argv": ["true"], "cwd": "nosuchplace"}, FileNotFoundError, "nosuchplace"),
    "no directory": ({"argv": ["true"], "cwd": "file"}, NotADirectoryError, "file"),
    "too long": ({"argv": ["true", *["x" * 100_000] * 21]}, OSError, "Argument list too long"),
    "longer than a frame": ({"argv": ["true", *["x" * 100_000] * 50]}, OSError, "Argument list too long"),
    "a null byte": ({"argv": ["true", "a\0b"]}, ValueError, "null byte"),
    "nothing": ({"argv": []}, ValueError, "needs a program"),
    "a string": ({"argv": "true"}, TypeError, "a list"),
    "a variable": ({"argv": ["true"], "env": {"A=B": "c"}}, ValueError, "variable name"),
    "a time": ({"argv": ["true"], "timeout": 0}, ValueError, "positive"),
    "a limit": ({"argv": ["true"], "output_limit": 0}, ValueError, "output_limit"),
    "a user": ({"argv": ["true"], "user": "nosuchuser"}, LookupError, "nosuchuser"),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("starts", [False, True], ids=["run", "start"])
@usually("confined")
async def test_wrong_use_is_an_exception_that_says_so(
    processes: Processes, work_dir: Path, wrong: str, starts: bool
) -> None:
    (work_dir / "file").touch()
    arguments, error, words = WRONG[wrong]
    with pytest.raises(error, match=words):
        await (processes.start if starts else processes.run)(**arguments)
    if wrong.endswith(("long", "frame")):
        with pytest.raises(OSError, match="too long") as raised:
            await processes.run(**arguments)
        assert raised.value.errno == errno.E2BIG
    assert (await processes.run(["true"])).returncode == 0


@usually("confined")
async def test_a_closed_handle_says_so(processes: Processes) -> None:
    job = await processes.start(["cat"])
    await job.aclose()
    await job.aclose()
    assert await job.wait() == await job.poll() == job.returncode == -signal.SIGKILL
    for use in (job.read(), job.read_available(), job.write(b"x"), job.close_stdin(), job.kill()):
        with pytest.raises(ValueError, match="'cat' is closed"):
            await use


@pytest.mark.parametrize("user", [pytest.param("0", marks=pytest.mark.long), "root"])
@each_part_once
async def test_another_user_is_one_of_the_container(kind: Kind, processes: Processes, user: str) -> None:
    if kind.name.startswith("confined"):
        own = (await processes.run(["id", "-u"])).stdout
        assert (await processes.run(["id", "-u"], user=own.decode().strip())).stdout == own
        with pytest.raises(LookupError, match="no other user than the code's"):
            await processes.run(["id", "-u"], user="root")
        return
    assert (await processes.run(["id", "-u"], user=user)).stdout == b"0\n"
    capabilities = await processes.run(["grep", "CapEff", "/proc/self/status"], user=user)
    assert int(capabilities.stdout.split()[1], 16) == 0
    assert (await processes.run(["id", "-u"], user="12345")).stdout == b"12345\n"


@usually("confined-session", among=LIVING)
async def test_an_interrupt_and_a_loss_of_the_interpreter_leave_jobs_alone(
    session: InterpreterCodeExecutor, processes: Processes
) -> None:
    async with await processes.start(["cat"]) as job:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(run(session, "import time; time.sleep(60)"), 1)
        assert "interpreter was lost" in (await run(session, "import os; os._exit(3)")).output
        assert (await run(session, "print('another')")).output.endswith("another\n")
        await job.write(b"still here")
        assert (await job.read()).stdout == b"still here"


@usually("confined", "confined-session")
async def test_a_restart_ends_processes(executor: SandboxedCodeExecutor, processes: Processes) -> None:
    async with await processes.start(sh("trap '' TERM; sleep 5432 & sleep 5432")) as job:
        waiting = asyncio.ensure_future(job.wait())
        await executor.restart()
        with suppress(SandboxLostError):
            assert await waiting == -signal.SIGKILL
        assert b"sleep" not in (await processes.run(sh("cat /proc/[0-9]*/comm"))).stdout


@usually("confined", among=FRESH)
async def test_a_block_that_is_stopped_leaves_jobs_alone(
    executor: SandboxedCodeExecutor, processes: Processes
) -> None:
    async with await processes.start(["cat"]) as job:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(run(executor, "import time; time.sleep(60)"), 1)
        result = await run(
            executor, "import os, sys\nprint('out')\nprint('err', file=sys.stderr)\nos._exit(9)"
        )
        assert (result.exit_code, sorted(result.output.split())) == (9, ["err", "out"])
        await job.write(b"still here")
        assert (await job.read()).stdout == b"still here"


@usually("confined-session", among=LIVING)
async def test_the_processes_of_a_fork_start_in_its_directory_and_end_with_it(
    session: InterpreterCodeExecutor, processes: Processes
) -> None:
    await run(session, "open('kept', 'w').write('before')")
    [fork] = await session.fork()
    job = await fork.processes.start(["sleep", "1000"])
    await fork.processes.run(sh("echo after > kept; mkdir sub"))
    assert (await fork.processes.run(["cat", "../kept"], cwd="sub")).stdout == b"after\n"
    assert (await processes.run(["cat", "kept"])).stdout == b"before"
    await fork.stop()
    assert b"sleep" not in (await processes.run(sh("cat /proc/[0-9]*/comm"))).stdout
    with pytest.raises(ValueError, match="closed"):
        await job.read()


@usually("confined")
async def test_what_is_no_signal_is_refused(processes: Processes) -> None:
    async with await processes.start(["cat"]) as job:
        for number in (0, 65, -1, 1000):
            with pytest.raises(ValueError, match="no signal"):
                await job.send_signal(number)
        assert await job.poll() is None
