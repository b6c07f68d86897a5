"""Tasks of Inspect, with Inspect's own tools, in both sandboxes.

They run in the environment of that suite, where Inspect finds the sandboxes by their entry point; see ``test_inspect.py``.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from inspect_ai import Task, eval_async  # pyright: ignore[reportUnknownVariableType]
from inspect_ai.dataset import Sample
from inspect_ai.log import EvalLog
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.tool import bash, bash_session, text_editor
from inspect_ai.util import (
    ExecRemoteAwaitableOptions,
    ExecRemoteStreamingOptions,
    ExecStdout,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentSpec,
    SandboxEnvironmentType,
    SandboxUserUnsupportedError,
    override_sandbox_output_limit,
    sandbox,
)
from support.executing import KINDS

from codeact_team.adapters.inspect import CodeactEnvironment, SandboxSettings

Work = Callable[[SandboxEnvironment], Awaitable[None]]

WHERE = os.environ.get("WHERE", "docker")
KIND = f"codeact-{WHERE}"
FIRST = Sample(input="-")


@pytest.fixture(autouse=True)
def in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inspect writes its logs and its traces here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def held() -> set[str]:
    """What this process keeps running for its sandboxes."""
    return KINDS[f"{WHERE}-session"].held()


def doing(work: Work) -> Solver:
    @solver
    def do() -> Solver:
        async def solve(state: TaskState, generate: Generate) -> TaskState:
            await work(sandbox())
            return state

        return solve

    return do()


async def evaluate(
    work: Work, samples: Sequence[Sample] = (FIRST,), where: SandboxEnvironmentType = KIND, **options: Any
) -> EvalLog:
    task = Task(dataset=[*samples], solver=doing(work), sandbox=where)
    (log,) = await eval_async(task, model="mockllm/model", **options)
    return log


async def succeed(
    work: Work, samples: Sequence[Sample] = (FIRST,), where: SandboxEnvironmentType = KIND
) -> None:
    """Run a task whose solver asserts."""
    log = await evaluate(work, samples, where)
    errors = [sample.error.traceback for sample in log.samples or () if sample.error]
    assert log.status == "success", "\n".join(errors) or log.error


async def test_a_sample_has_its_files_and_its_setup() -> None:
    async def work(box: SandboxEnvironment) -> None:
        assert await box.read_file("data/numbers.txt") == "3\r\n4\r\n"
        assert await box.read_file("sum.txt") == "7\n"
        assert (await box.exec(["ls"])).stdout.split() == ["data", "sum.txt"]

    setup = (
        "#!/usr/bin/env python3\nprint(sum(map(int, open('data/numbers.txt'))), file=open('sum.txt', 'w'))"
    )
    sample = Sample(input="-", files={"data/numbers.txt": "3\r\n4\r\n"}, setup=setup)
    await succeed(work, [sample])
    assert not held()


async def test_samples_run_at_once_and_apart() -> None:
    present = asyncio.Barrier(4)

    async def work(box: SandboxEnvironment) -> None:
        assert (await box.exec(["ls", "-A"])).stdout == ""
        mine = f"{id(box)}"
        await box.write_file("name", mine)
        await box.write_file("/tmp/name", mine)
        await present.wait()
        assert await box.read_file("name") == await box.read_file("/tmp/name") == mine

    await succeed(work, [Sample(input=str(number)) for number in range(4)])
    assert not held()


async def test_what_a_command_leaves_in_the_background_is_there_for_the_next() -> None:
    async def work(box: SandboxEnvironment) -> None:
        shell = bash(timeout=20)
        script = "(while read line; do echo got $line; done <pipe >/tmp/task.log; echo over >>/tmp/task.log)"
        started = await shell(command=f"mkfifo pipe; nohup bash -c '{script}' >/dev/null 2>&1 & echo PID $!")
        number = str(started).split()[-1]
        assert str(await shell(command=f"test -d /proc/{number} && echo runs")) == "runs\n"
        told = await shell(
            command="echo news >pipe; until grep -qs over /tmp/task.log; do sleep 0.05; done; cat /tmp/task.log"
        )
        assert told == "got news\nover\n"

    await succeed(work)


async def test_long_jobs_are_streamed_and_killed() -> None:
    async def work(box: SandboxEnvironment) -> None:
        script = "echo $NAME; pwd; read line; echo got $line; sleep 600"
        options = ExecRemoteStreamingOptions(stdin_open=True, cwd="/tmp", env={"NAME": "job"})
        job = await box.exec_remote(["sh", "-c", script], options)
        await job.write_stdin("news\n")
        said = ""
        async for event in job:
            assert isinstance(event, ExecStdout)
            said += event.data
            if "got" in said:
                break
        assert said == "job\n/tmp\ngot news\n"
        assert (await box.exec(["test", "-d", f"/proc/{job.pid}"])).success
        await job.kill()
        assert not (await box.exec(["test", "-d", f"/proc/{job.pid}"])).success

    await succeed(work)


async def test_long_jobs_are_awaited() -> None:
    async def work(box: SandboxEnvironment) -> None:
        ended = await box.exec_remote(
            ["sh", "-c", "cat; echo problem >&2; exit 3"],
            ExecRemoteAwaitableOptions(input="in"),
            stream=False,
        )
        assert (ended.success, ended.returncode, ended.stdout, ended.stderr) == (False, 3, "in", "problem\n")
        with pytest.raises(TimeoutError):
            await box.exec_remote(["sleep", "600"], ExecRemoteAwaitableOptions(timeout=1), stream=False)

    await succeed(work)


async def test_the_tools_that_inspect_puts_into_a_sandbox_work() -> None:
    async def work(box: SandboxEnvironment) -> None:
        session = bash_session(timeout=300)
        await session(action="type_submit", input="cd /tmp && NAME=session")
        assert "in /tmp: session" in str(await session(action="type_submit", input='echo "in $PWD: $NAME"'))
        edit = text_editor(timeout=30)
        await edit(command="create", path="/tmp/notes.txt", file_text="one\ntwo\n")
        await edit(command="str_replace", path="/tmp/notes.txt", old_str="two", new_str="three")
        assert await box.read_file("/tmp/notes.txt") == "one\nthree\n"

    await succeed(work)


async def test_the_interpreter_lives_on_for_tools_of_a_task() -> None:
    async def work(box: SandboxEnvironment) -> None:
        ours = box.as_type(CodeactEnvironment).sandbox
        await ours.run_python("numbers = [1, 2]")
        await box.write_file("more.txt", "3")
        assert (await ours.run_python("print(sum(numbers) + int(open('more.txt').read()))")).output == "6\n"

    await succeed(work)


async def test_limits_and_wrong_use_are_said_in_terms_of_inspect() -> None:
    async def work(box: SandboxEnvironment) -> None:
        with override_sandbox_output_limit(1000, "exec"), pytest.raises(OutputLimitExceededError) as flood:
            await box.exec(["sh", "-c", "seq 100000; touch ended"])
        assert (flood.value.truncated_output or "").endswith("99999\n100000\n")
        assert await box.read_file("ended") == ""

        await box.exec(["truncate", "-s", "500M", "sparse"])
        with pytest.raises(OutputLimitExceededError, match="64 MiB"):
            await box.read_file("sparse")
        await box.write_file("bytes", b"\xff\n")
        with pytest.raises(UnicodeDecodeError):
            await box.read_file("bytes")
        with pytest.raises(NotADirectoryError):
            await box.write_file("bytes/below", "")

        with pytest.raises(TimeoutError) as late:
            await box.exec(["sh", "-c", "echo so far; sleep 600"], timeout=1)
        assert getattr(late.value, "truncated_output", None) == "so far\n"
        missing = await box.exec(["no-such-program"])
        assert (missing.returncode, missing.success) == (127, False)
        assert "no-such-program" in missing.stderr
        nowhere = await box.exec(["ls"], cwd="no-such-directory")
        assert not nowhere.success
        assert "no-such-directory" in nowhere.stderr
        assert (await box.exec(["true", "x" * 200_000])).returncode == 126

    await succeed(work)


@pytest.mark.skipif(WHERE != "docker", reason="only a container has other users")
async def test_commands_run_as_other_users_of_a_container() -> None:
    async def work(box: SandboxEnvironment) -> None:
        assert (await box.exec(["id", "-u"], user="root")).stdout == "0\n"
        assert (await box.exec(["id", "-u"], user="1234")).stdout == "1234\n"
        with pytest.raises(SandboxUserUnsupportedError, match="nobody-of-that-name"):
            await box.exec(["true"], user="nobody-of-that-name")

    await succeed(work)


@pytest.mark.skipif(WHERE != "confined", reason="a container has other users")
async def test_a_confined_sandbox_has_one_user() -> None:
    async def work(box: SandboxEnvironment) -> None:
        own = (await box.exec(["id", "-u"])).stdout
        assert (await box.exec(["id", "-u"], user=own.strip())).stdout == own
        with pytest.raises(SandboxUserUnsupportedError, match="nobody-of-that-name"):
            await box.exec(["true"], user="nobody-of-that-name")

    await succeed(work)


async def test_a_config_file_is_found_next_to_the_task(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / f"{KIND}.yaml").write_text("environment: {WHENCE: the file}\n")
    file = tmp_path / "tasks" / "task.py"
    file.write_text(
        "from inspect_ai import Task, task\n"
        "from inspect_ai.solver import solver\n"
        "from inspect_ai.util import sandbox\n\n"
        "@solver\n"
        "def check():\n"
        "    async def solve(state, generate):\n"
        "        assert (await sandbox().exec(['sh', '-c', 'echo $WHENCE'])).stdout == 'the file\\n'\n"
        "        return state\n"
        "    return solve\n\n"
        "@task\n"
        f"def checked():\n    return Task(solver=check(), sandbox='{KIND}')\n"
    )
    (log,) = await eval_async("tasks/task.py", model="mockllm/model")
    assert log.status == "success", log.error


async def test_settings_can_be_given_in_python() -> None:
    async def work(box: SandboxEnvironment) -> None:
        assert (await box.exec(["sh", "-c", "echo $WHENCE"])).stdout == "the task\n"

    settings = SandboxSettings(environment={"WHENCE": "the task"})
    await succeed(work, where=SandboxEnvironmentSpec(KIND, settings))


async def test_a_wrong_setting_ends_the_task_before_its_first_sample() -> None:
    async def work(box: SandboxEnvironment) -> None:
        raise AssertionError("this does not run")

    spec = SandboxEnvironmentSpec(KIND, SandboxSettings(memory_gib=1))
    with pytest.raises(TypeError, match="memory_gib"):
        await evaluate(work, where=spec)


async def test_an_interrupted_task_leaves_nothing() -> None:
    begun = asyncio.Event()

    async def work(box: SandboxEnvironment) -> None:
        begun.set()
        await box.exec(["sleep", "600"])

    running = asyncio.create_task(evaluate(work))
    await begun.wait()
    assert held()
    running.cancel()
    await asyncio.wait([running])
    assert not held()


async def test_a_task_that_cleans_nothing_up_leaves_nothing_either() -> None:
    async def work(box: SandboxEnvironment) -> None:
        await box.write_file("name", "-")

    log = await evaluate(work, sandbox_cleanup=False)
    assert log.status == "success"
    assert not held()
