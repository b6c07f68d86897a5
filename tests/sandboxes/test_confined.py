from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from operator import le
from pathlib import Path

import pytest
from sandboxes.confined_host import alive, children
from sandboxes.confined_support import (
    confined,
    control_groups,
    delegates_control_groups,
    host,
    line,
    python,
    run,
    skip_if_not_confined,
    started,
)
from sandboxes.conftest import Supervisors
from support.waiting import until

from codeact_team.errors import ConfinementError, SandboxError, SettingError
from codeact_team.sandbox.base import Cause, Exit, diagnose
from codeact_team.sandbox.confined import config
from codeact_team.sandbox.confined.sandbox import ConfinedSandbox

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="code is confined on Linux only")


class TestPrograms:
    async def test_runs_in_the_workspace_with_an_environment_of_its_own(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("API_KEY", "secret")
        async with started(tmp_path, environment={"A": "1"}) as sandbox:
            process = await sandbox.spawn(["sh", "-c", "pwd; env; cat"])
            await process.write(b"C=3\n")
            await process.close_stdin()
            lines = b""
            while chunk := await process.read():
                lines += chunk
            await process.aclose()
        first, *variables = lines.decode().splitlines()
        assert first == str(tmp_path)
        assert {"A=1", "C=3", "LANG=C.UTF-8"} <= set(variables)
        assert "API_KEY" not in lines.decode()

    async def test_stdout_and_stderr_are_one_stream_in_the_order_of_writing(
        self, sandbox: ConfinedSandbox
    ) -> None:
        # two pipes change the order
        code = """
            import ctypes, os, subprocess, sys
            for number in range(50):
                print("print", number)
                print("stderr", number, file=sys.stderr)
                os.write(1, b"write %d\\n" % number)
            subprocess.run(["echo", "child"])
            print("end")
        """
        output, _ = await python(sandbox, "if True:" + code)
        expected = [f"{what} {number}" for number in range(50) for what in ("print", "stderr", "write")]
        assert output.splitlines() == [*expected, "child", "end"]

    async def test_tells_how_a_program_ended(self, sandbox: ConfinedSandbox) -> None:
        assert (await run(sandbox, "true"))[1].code == 0
        assert (await run(sandbox, "sh", "-c", "exit 3"))[1].code == 3
        assert (await run(sandbox, "sh", "-c", "kill -TERM $$"))[1].code == 128 + signal.SIGTERM
        output, exit = await run(sandbox, "no-such-program")
        assert (exit.code, exit.lost) == (127, None)
        assert b"no-such-program" in output

    async def test_bytes_that_are_no_text_pass_unchanged(self, sandbox: ConfinedSandbox) -> None:
        # output that is not UTF-8 must not raise
        data = bytes(range(256)) * 1000
        assert (await run(sandbox, "cat", stdin=data))[0] == data

    async def test_writing_waits_for_a_slow_reader_and_ends_with_one_that_is_gone(
        self, sandbox: ConfinedSandbox
    ) -> None:
        data = b"x" * 1_000_000
        process = await sandbox.spawn(["sh", "-c", "sleep 0.2; wc -c"])
        await process.write(data)
        await process.close_stdin()
        assert (await process.read()).strip() == b"1000000"
        await process.aclose()
        await sandbox.kill()
        output, exit = await run(sandbox, "true", stdin=data)
        assert (output, exit.code) == (b"", 0)

    async def test_output_comes_while_the_program_runs(self, sandbox: ConfinedSandbox) -> None:
        process = await sandbox.spawn([sandbox.python, "-c", "print('before'); input(); print('after')"])
        assert await line(process) == b"before\n"
        await process.write(b"\n")
        assert await line(process) == b"after\n"
        assert await process.read() == b""
        assert await process.read() == b""
        await process.aclose()

    async def test_the_end_comes_with_the_program_not_with_its_output(self, sandbox: ConfinedSandbox) -> None:
        began = time.monotonic()
        output, exit = await run(sandbox, "sh", "-c", "echo a; exec >&- 2>&-; sleep 0.3; exit 4")
        assert (output, exit.code) == (b"a\n", 4)
        assert time.monotonic() - began > 0.3

    async def test_host_memory_stays_bounded_while_much_is_printed(self, sandbox: ConfinedSandbox) -> None:
        # 200 MB of output cost the host 574 MB
        process = await sandbox.spawn(["head", "-c", "50000000", "/dev/zero"])
        before, total = resident_mib(), 0
        while chunk := await process.read():
            total += len(chunk)
        await process.aclose()
        assert total == 50_000_000
        assert resident_mib() - before < 8

    async def test_the_interpreter_has_the_packages_of_this_one(self, sandbox: ConfinedSandbox) -> None:
        code = "import sys, ssl, sqlite3, ctypes, zoneinfo, pydantic_core; print(sys.prefix, zoneinfo.ZoneInfo('UTC'))"
        assert (await python(sandbox, code))[0].split() == [sys.prefix, "UTC"]

    async def test_temporary_files_work_and_vanish_with_the_sandbox(self, tmp_path: Path) -> None:
        code = """
            import os, tempfile
            directory = tempfile.mkdtemp()
            os.makedirs(os.path.join(directory, "closed", "inner"))
            os.chmod(os.path.join(directory, "closed"), 0)
            os.symlink("/usr", os.path.join(directory, "link"))
            os.chdir(directory)
            for _ in range(1100):
                os.mkdir("deep")
                os.chdir("deep")
            print(directory, os.path.expanduser("~"))
        """
        async with started(tmp_path) as sandbox:
            directory, home = (Path(path) for path in (await python(sandbox, "if True:" + code))[0].split())
            assert directory.parent == home
            output, _ = await python(sandbox, f"import os; print(os.listdir({str(home)!r}))")
            assert output == f"[{directory.name!r}]\n"
        assert not home.exists()
        assert os.listdir(tmp_path) == []

    async def test_a_file_has_a_size_and_is_written_where_it_cannot_be_allocated(
        self, sandbox: ConfinedSandbox
    ) -> None:
        code = """
            import os
            file = open("file", "wb", 0)
            os.posix_fallocate(file.fileno(), 0, 1 << 20)
            print(os.stat("file").st_blocks * 512 >= 1 << 20, flush=True)
            file.write(bytes(1 << 20))
            file.write(b"1")
        """
        output, exit = await python(sandbox, "if True:" + code)
        assert output.startswith("True\n")
        said = diagnose(sandbox.limits, exit_code=exit.code, output=output)
        assert said is not None
        assert "disk space (tmpfs_mib: 256, workspace_mib: 1)" in said

    async def test_multiprocessing_and_usual_file_operations_work(self, sandbox: ConfinedSandbox) -> None:
        code = """
            import asyncio, multiprocessing, os, shutil, subprocess
            open("a", "w").write("text")
            shutil.copy2("a", "b"); os.chmod("b", 0o755); os.utime("b"); shutil.move("b", "c"); os.symlink("a", "d")
            with multiprocessing.Pool(2) as pool:
                print(pool.map(abs, [-1, -2]))
            print(subprocess.run("cat < a | tr t T; echo > /dev/null", shell=True, capture_output=True, text=True).stdout)
            async def main():
                return (await (await asyncio.create_subprocess_exec("cat", "a", stdout=-1)).communicate())[0]
            print(asyncio.run(main()).decode())
        """
        output, _ = await python(sandbox, "if True:" + code)
        assert output.split() == ["[1,", "2]", "TexT", "text"]


def memory_kills(supervisor: int) -> int:
    """How many processes of its control group the memory limit has killed."""
    [counts] = [
        dict(line.split() for line in (group / name).read_text().splitlines())
        for group in control_groups(supervisor)
        for name in ("memory.events", "memory.oom_control")
        if (group / name).exists()
    ]
    return int(counts["oom_kill"])


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class TestStopping:
    async def test_kill_ends_code_that_ignores_signals(self, sandbox: ConfinedSandbox) -> None:
        # code that ignores SIGTERM ran on
        process = await sandbox.spawn(["sh", "-c", "trap '' INT TERM HUP; echo 1; while :; do :; done"])
        assert await line(process) == b"1\n"
        await sandbox.kill()
        assert await process.read() == b""
        assert (await process.wait()).code == 128 + signal.SIGKILL
        await process.aclose()
        assert sandbox.running
        assert (await run(sandbox, "echo", "next"))[0] == b"next\n"

    async def test_detached_children_end_with_the_program(self, tmp_path: Path) -> None:
        # detached children survived a time-out
        mark = f"detached-{os.getpid()}"
        code = f"""
            import os, sys
            for _ in range(2):
                if os.fork() == 0:
                    os.setsid()
                    if os.fork() == 0:
                        os.execv(sys.executable, [sys.executable, "-c", "import os; os.write(1, b'1\\\\n')\\nwhile True: pass", "{mark}"])
                    os._exit(0)
            input()
        """
        async with started(tmp_path) as sandbox:

            async def end_of_its_own() -> None:
                await process.write(b"\n")

            for end in (end_of_its_own, sandbox.kill, sandbox.stop):
                # on a busy machine a kill may have cost the sandbox
                await sandbox.start()
                process = await sandbox.spawn([sandbox.python, "-c", "if True:" + code])
                said = b""
                while said.count(b"1\n") < 2:
                    said += await line(process)
                assert alive(mark)
                await end()
                assert await process.read() == b""
                assert alive(mark) == []
                await process.aclose()

    async def test_processes_and_threads_are_bounded_and_a_fork_bomb_can_be_killed(
        self, tmp_path: Path
    ) -> None:
        mark = f"bomb-{os.getpid()}"
        code = """
            import os
            while True:
                try: os.fork()
                except OSError as error:
                    try: os.write(1, b"%d " % error.errno)
                    except OSError: pass
        """
        async with started(tmp_path, pids=20) as sandbox:
            process = await sandbox.spawn([sandbox.python, "-c", "if True:" + code, mark])
            assert (await process.read()).startswith(b"11 ")
            assert 0 < len(alive(mark)) <= 20
            await sandbox.kill()
            while await process.read():
                pass
            assert alive(mark) == []
            await process.aclose()
            output, exit = await run(sandbox, "sh", "-c", "for i in $(seq 40); do sleep 5 & done")
            said = diagnose(sandbox.limits, exit_code=exit.code, output=output.decode())
            assert said == "It may have run into a limit of the sandbox: number of processes (pids: 20)."
            if delegates_control_groups():
                # which a limit for each process does not bound
                code = "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
                said_by_python, exit = await python(sandbox, code)
                assert exit.code != 0
                assert diagnose(sandbox.limits, exit_code=exit.code, output=said_by_python) == said

    async def test_a_memory_bomb_ends_and_is_named(self, tmp_path: Path) -> None:
        async with started(tmp_path, memory_mib=100) as sandbox:
            output, exit = await python(
                sandbox, "kept = [bytearray(1 << 20) for _ in range(1000)]; print('survived')"
            )
            # without a control group, it is refused memory
            assert exit.code == 128 + signal.SIGKILL or "MemoryError" in output
            said = diagnose(sandbox.limits, exit_code=exit.code, output=output)
            assert said is not None
            assert "into a limit of the sandbox: memory (memory_mib: 100" in said
            assert (await python(sandbox, "kept = bytearray(50 << 20); print('enough')"))[0] == "enough\n"

    @pytest.mark.parametrize(
        "mode", [["required"], ["required", "namespaces"], ["best_effort", "namespaces", "landlock"]], ids=str
    )
    async def test_everything_ends_when_the_host_is_killed(self, tmp_path: Path, mode: list[str]) -> None:
        if "required" in mode:
            skip_if_not_confined()
        with host("hang", tmp_path, *mode) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            mark = f"orphan-{process.pid}"
            assert len(alive(mark)) == 2
            groups = control_groups(alive(mark)[0])
            assert bool(groups) == delegates_control_groups()
            process.kill()
            await until(lambda: alive(mark) == [], seconds=10)
            await until(lambda: not any(map(Path.exists, groups)), seconds=10)

    @pytest.mark.long
    async def test_ten_programs_leave_nothing_behind(self, tmp_path: Path, supervisors: Supervisors) -> None:
        # each cancel leaked a thread
        async with started(tmp_path) as sandbox:
            await run(sandbox, "true")
            supervisor = supervisors()[-1]
            # more than it holds in the end, if it is just closing what the first program used
            before, held_before = resources_held(), supervisor_holds(supervisor)
            for number in range(10):
                process = await sandbox.spawn(["sh", "-c", "sleep 60 & echo 1; sleep 60"])
                await process.read()
                reading = asyncio.ensure_future(process.read())
                await asyncio.sleep(0)
                if number % 2:
                    reading.cancel()
                await sandbox.kill()
                await asyncio.wait({reading})
                await process.aclose()
            assert resources_held() == before
            await until(lambda: all(map(le, supervisor_holds(supervisor), held_before)), seconds=10)


def resources_held() -> tuple[int, int, list[int]]:
    return len(os.listdir("/proc/self/fd")), threading.active_count(), children(os.getpid())


def supervisor_holds(pid: int) -> tuple[int, int, int]:
    return len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task")), len(children(pid))


@pytest.mark.skipif(not delegates_control_groups(), reason="this machine lets us make no control groups")
class TestControlGroup:
    """What a limit for each process does not bound."""

    async def test_memory_is_limited_altogether(self, tmp_path: Path, supervisors: Supervisors) -> None:
        of_processes = """
            import os, time
            for _ in range(16):
                if os.fork() == 0:
                    kept = bytearray(16 << 20)
                    time.sleep(60)
            os.wait()
        """
        of_sockets = """
            import socket
            pairs = []
            while True:
                pairs.append(socket.socketpair())
                for end in pairs[-1]:
                    end.setblocking(False)
                    try:
                        while True: end.send(bytes(1 << 16))
                    except BlockingIOError: pass
        """
        async with started(tmp_path, memory_mib=64) as sandbox:
            for code in (of_processes, of_sockets):
                before = memory_kills(supervisors()[-1])
                await python(sandbox, "if True:" + code)
                assert memory_kills(supervisors()[-1]) > before
                # its supervisor is in the group, too, and must not be the one that the kernel takes
                assert sandbox.running
                assert (await run(sandbox, "true"))[1] == Exit(0)

    async def test_processor_time_is_limited_altogether(self, tmp_path: Path) -> None:
        code = """
            import os, time
            began, used = time.monotonic(), sum(os.times()[:4])
            for _ in range(3):
                if os.fork() == 0:
                    while time.monotonic() - began < 0.5: pass
                    os._exit(0)
            for _ in range(3): os.wait()
            print((sum(os.times()[:4]) - used) / (time.monotonic() - began))
        """
        async with started(tmp_path, cpus=0.2) as sandbox:
            used, _ = await python(sandbox, "if True:" + code)
        # and one period of the kernel's
        assert 0 < float(used) < 0.2 + 0.2


class TestLifeCycle:
    async def test_start_and_stop_can_be_repeated(self, tmp_path: Path) -> None:
        sandbox = confined(tmp_path, confinement="best_effort")
        await sandbox.stop()
        assert not sandbox.running
        for _ in range(2):
            await sandbox.start()
            await sandbox.start()
            assert sandbox.running
            await sandbox.stop()
            await sandbox.stop()
            assert not sandbox.running

    def test_one_event_loop_starts_it_and_others_use_it(self, sandbox: ConfinedSandbox) -> None:
        # no state may be bound to a loop
        assert asyncio.run(run(sandbox, "echo", "1"))[0] == b"1\n"
        process = asyncio.run(sandbox.spawn(["cat"]))
        asyncio.run(process.write(b"2\n"))
        assert asyncio.run(process.read()) == b"2\n"
        asyncio.run(sandbox.kill())
        assert asyncio.run(process.read()) == b""
        asyncio.run(process.aclose())

    async def test_two_sandboxes_are_apart(self, sandbox: ConfinedSandbox, tmp_path: Path) -> None:
        # cancelling one block killed another that ran the same code
        async with started(tmp_path) as other:
            processes = [
                await each.spawn(["sh", "-c", "echo 1; read line; echo $line"]) for each in (sandbox, other)
            ]
            for process in processes:
                assert await line(process) == b"1\n"
            await sandbox.kill()
            await processes[1].write(b"2\n")
            assert await line(processes[1]) == b"2\n"
            assert (await processes[0].wait()).code == 128 + signal.SIGKILL
            assert (await processes[1].wait()).code == 0
            for process in processes:
                await process.aclose()
            output, _ = await python(sandbox, f"open({str(tmp_path / 'file')!r}, 'w')")
            assert "Error" in output

    async def test_one_program_at_a_time(self, sandbox: ConfinedSandbox) -> None:
        process = await sandbox.spawn(["sleep", "60"])
        with pytest.raises(SandboxError, match="runs one at a time"):
            await sandbox.spawn(["true"])
        await sandbox.kill()
        await process.aclose()
        await run(sandbox, "true")

    async def test_a_supervisor_that_is_killed_is_a_lost_sandbox_and_can_be_replaced(
        self, tmp_path: Path, supervisors: Supervisors
    ) -> None:
        # what was killed left the executor broken for ever
        mark = f"lost-{os.getpid()}"
        async with started(tmp_path) as sandbox:
            process = await sandbox.spawn(
                [sandbox.python, "-c", "print(1); import time; time.sleep(60)", mark]
            )
            assert await line(process) == b"1\n"
            supervisor = supervisors()[-1]
            groups = control_groups(supervisor)
            os.kill(supervisor, signal.SIGKILL)
            assert await process.read() == b""
            exit = await process.wait()
            assert exit.lost is not None
            await process.aclose()
            assert not sandbox.running
            await until(lambda: not any(map(Path.exists, groups)), seconds=5)
            assert not alive(mark)
            with pytest.raises(ConfinementError, match="not running"):
                await sandbox.spawn(["true"])
            await sandbox.kill()
            await sandbox.start()
            assert (await run(sandbox, "echo", "again"))[0] == b"again\n"
            groups = control_groups(supervisors()[-1])
        assert not any(map(Path.exists, groups))

    async def test_its_python_is_plain_until_something_of_the_code_s_could_be_in_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "library").mkdir()
        async with started(tmp_path) as sandbox:
            assert sandbox.python_is_plain
            await run(sandbox, "true")
            # it may have left a `usercustomize`
            assert not sandbox.python_is_plain
        async with started(tmp_path, environment={"PYTHONPATH": "library"}) as sandbox:
            assert not sandbox.python_is_plain
        monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "library")])
        async with started(tmp_path) as sandbox:
            # a `sitecustomize` there would be found
            assert not sandbox.python_is_plain

    async def test_spawning_before_the_start_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfinementError, match="start it first"):
            await confined(tmp_path).spawn(["true"])

    async def test_what_cannot_work_is_refused_by_name(self, tmp_path: Path) -> None:
        with pytest.raises(SettingError, match="/no/such/path"):
            await confined(tmp_path, readable=["/no/such/path"]).start()
        with pytest.raises(ConfinementError, match="work_dir"):
            await confined(tmp_path / "missing").start()


async def test_a_link_of_the_system_that_leads_nowhere_keeps_nothing_from_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (time_zone := tmp_path / "localtime").symlink_to("/no/such/zone")
    monkeypatch.setattr(config, "_SYSTEM", [*config._SYSTEM, str(time_zone)])  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(config, "_of_the_system", config._of_the_system.__wrapped__)  # pyright: ignore[reportPrivateUsage]
    (tmp_path / "workspace").mkdir()
    async with started(tmp_path / "workspace") as sandbox:
        said, exit = await run(sandbox, "echo", "runs")
        assert (said, exit.code) == (b"runs\n", 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="as root, to be two users")
async def test_a_workspace_that_root_has_made_for_a_container_is_refused_with_what_to_do(
    tmp_path: Path,
) -> None:
    made = tmp_path / "made"
    os.mkdir(made, 0o700)
    os.chown(made, 65534, 65534)
    with pytest.raises(
        ConfinementError, match=r"belongs to user 65534.* name another `work_dir`, or give this one"
    ):
        await confined(made).start()


@pytest.mark.skipif(os.geteuid() != 0, reason="as root, whose files these are")
async def test_code_of_root_reads_what_everybody_may_read_and_what_its_config_names(tmp_path: Path) -> None:
    named = tmp_path / "named"
    named.mkdir(mode=0o700)
    (tmp_path / "workspace").mkdir()
    secret = Path(sys.prefix, "lib", f"secret-of-{os.getpid()}")
    try:
        for file in (named / "key", secret):
            file.touch(mode=0o600)
            file.write_text("a key of root")
        async with started(tmp_path / "workspace", readable=[str(named)]) as sandbox:
            if Cause.UNSEEN not in sandbox.limits:
                pytest.skip("this machine forbids namespaces")
            # once each: one that fails ends the program
            said, exit = await run(sandbox, "cat", str(named / "key"))
            assert (said, exit.code) == (b"a key of root", 0)
            said, exit = await run(sandbox, "cat", str(secret))
            assert (said.endswith(b"Permission denied\n"), exit.code) == (True, 1)
    finally:
        os.unlink(secret)


@pytest.mark.skipif(os.geteuid() != 0, reason="as root, whose files these are")
async def test_a_python_that_only_root_may_read_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "environment" / "lib"
    library.mkdir(parents=True)
    library.chmod(0o700)
    monkeypatch.setattr(sys, "exec_prefix", str(library.parent))
    with pytest.raises(
        ConfinementError, match=rf"only root may read .*{library}.*: open it to others by `chmod -R o\+rX"
    ):
        await confined(tmp_path).start()
