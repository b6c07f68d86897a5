"""Processes of a program in a run that is recorded: what had ended is answered, what was under way is unknown."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import pytest
from autogen_agentchat.messages import TextMessage
from pydantic_core import to_json
from stories import CLIENT, CONFINED, IN_WORK, component, python, text_of
from support import fork_server
from support.command_line import environment
from support.openai_server import Body, ScriptedServer, Text
from support.recorded import journal_of, recorder

from codeact_team.agents.codeact.agent import CodeActAgent
from codeact_team.core.effects import Dispatcher, Event
from codeact_team.core.events import ProcessBegan, ProcessEnded, SandboxStarted
from codeact_team.core.places import put
from codeact_team.core.process_effects import ProcessEffect, ProcessFailure, ProcessOutcome, ProcessRun
from codeact_team.errors import JournalError, SandboxError, SandboxLostError
from codeact_team.executors.base import SandboxedCodeExecutor
from codeact_team.executors.confined import ConfinedCommandLineCodeExecutor, ConfinedSessionCodeExecutor
from codeact_team.executors.docker import DockerSessionCodeExecutor
from codeact_team.executors.processes import Processes
from codeact_team.journal.history import History
from codeact_team.journal.journal import Journal
from codeact_team.journal.recorded_run import RecordedRun
from codeact_team.journal.replay import Replay
from codeact_team.journal.run_directory import RunDirectory
from codeact_team.runs.opening import open_team
from codeact_team.sandbox.processes import ProcessOutput
from codeact_team.session.processes import SandboxProcess
from codeact_team.standalone.opening import open_sandbox
from codeact_team.text.redaction import Redactor

PROGRAM = Path(__file__).with_name("process_program.py")
KEY = "sk-of-the-test-0123456789"


class _FailedError(Exception):
    """Ends a program."""


def agent(executor: str = "Confined", **settings: Any) -> dict[str, Any]:
    made = component(f"codeact_team.{executor}SessionCodeExecutor", **(settings or CONFINED))
    client = component(str(CLIENT["provider"]), model="gpt-4o-2024-08-06", max_retries=0)
    return component("codeact_team.CodeActAgent", name="coder", model_client=client, code_executor=made)


@asynccontextmanager
async def opened(folder: Path, **settings: Any) -> AsyncGenerator[SandboxedCodeExecutor]:
    """The executor of a recorded team."""
    async with open_team(agent(**settings), record=folder / "kept" / "it") as team:
        executor = cast("CodeActAgent", team).code_executor
        assert isinstance(executor, SandboxedCodeExecutor)
        yield executor


@asynccontextmanager
async def failing(folder: Path, **settings: Any) -> AsyncGenerator[SandboxedCodeExecutor]:
    """The same, of a program that fails at last."""
    with suppress(_FailedError):
        async with opened(folder, **settings) as executor:
            yield executor
            raise _FailedError


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def sh(code: str) -> list[str]:
    return ["sh", "-c", code]


def recorded(folder: Path) -> RecordedRun:
    return RecordedRun(RunDirectory(folder / "kept" / "it"))


def kept(folder: Path) -> bytes:
    """All that is kept of the run."""
    return b"".join(path.read_bytes() for path in (folder / "kept").rglob("*") if path.is_file())


def started(folder: Path) -> int:
    """How many sandboxes have started since the run was resumed."""
    return sum(isinstance(event, SandboxStarted) for event in recorded(folder).events())


def start_program(folder: Path, seconds: float, nth: int = 0, how: str = "after") -> fork_server.Forked:
    variables = environment(OPENAI_API_KEY=KEY, PYTHONPATH=str(PROGRAM.parent))
    program = [str(PROGRAM), str(seconds), str(nth), how]
    return fork_server.start(program, cwd=folder, environment=variables, stdin=subprocess.DEVNULL)


def run_program(folder: Path, seconds: float = 1000) -> tuple[list[str], int]:
    """What the program says when it is left alone, and how many entries it writes."""
    with start_program(folder, seconds) as process:
        stdout, stderr = process.communicate(timeout=100)
        assert process.wait(100) == 0, stderr.decode()
    return stdout.decode().splitlines(), int(stderr.split()[-1])


def kill_when(folder: Path, line: str) -> list[str]:
    """Start the program and kill it once a process of it has written a line; returns what it has said."""
    written = folder / "work" / "ran.txt"
    with start_program(folder, 1000) as process:
        while not (written.exists() and line in ran(folder)):
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        stdout, _ = process.communicate(timeout=100)
        assert process.wait(100) == -signal.SIGKILL
    return stdout.decode().splitlines()


def prepared(folder: Path, kind: str = "Confined") -> Path:
    (folder / "work").mkdir(parents=True)
    settings = IN_WORK if kind == "Confined" else {"work_dir": "work"}
    (folder / "config.json").write_text(json.dumps(agent(kind, **settings)))
    return folder


def ran(folder: Path) -> list[str]:
    """What the processes of the program have written, in order."""
    return (folder / "work" / "ran.txt").read_text().split()


@pytest.mark.parametrize(
    "kind",
    ["Confined", pytest.param("Docker", marks=[pytest.mark.docker, pytest.mark.long])],
)
@pytest.mark.long
def test_a_program_that_is_killed_gets_the_processes_that_had_ended_and_runs_none_twice(
    kind: str, tmp_path: Path
) -> None:
    said = kill_when(prepared(tmp_path, kind), "five")
    resumed, _ = run_program(tmp_path)

    # the last one that it had started, and then waited for
    assert said[-1] == r"started b'up\n'"
    assert resumed[: len(said) - 1] == said[:-1]
    unknown, alike, read, end = resumed[len(said) - 1 :]
    assert (unknown, alike, end) == ("unknown True", "unknown True", "done")
    assert read.startswith(r"0 b'one\ntwo\nthree\nfour\nfive\n' b''")
    # nothing of the sandbox is needed once everything has ended
    assert run_program(tmp_path)[0] == resumed
    assert started(tmp_path) == 0
    assert ran(tmp_path) == ["one", "two", "three", "four", "five"]
    assert not Redactor({"variable": "hidden-4711", "input": "typed-0815"}).found_in(kept(tmp_path))


@pytest.mark.long
@pytest.mark.parametrize("how", ["before", "torn", "after"])
def test_whenever_a_program_is_killed_it_runs_no_process_twice(how: str, tmp_path: Path) -> None:
    expected, entries = run_program(prepared(tmp_path / "alone"), 0.1)
    assert expected[-1] == "done"
    for nth in range(2, entries, 5):
        folder = prepared(tmp_path / str(nth))
        with start_program(folder, 0.1, nth, how) as process:
            process.communicate(timeout=100)
            assert process.wait(100) == -signal.SIGKILL
        said, _ = run_program(folder, 0.1)
        # the callback of one that is unknown has got nothing
        known = [line for line in said if line not in ("unknown True", "[]")]
        assert said.count("unknown True") <= 5
        lines = iter(expected)
        # the last but one has what all have done: one that was under way has done its part, or not
        assert all(line in lines for line in known[:-2]), (nth, said)
        assert known[-1] == "done"
        assert len({*ran(folder)}) == len(ran(folder)), nth


@pytest.mark.long
async def test_a_new_process_finds_the_files_of_those_that_had_ended(tmp_path: Path) -> None:
    async with failing(tmp_path) as executor:
        await executor.processes.run(sh("echo one > one.txt; mkdir sub; echo two > sub/two.txt"))
        async with await executor.processes.start(sh("echo three > three.txt")) as job:
            assert await job.wait() == 0
    async with opened(tmp_path) as executor:
        processes = executor.processes
        assert (
            await processes.run(sh("echo one > one.txt; mkdir sub; echo two > sub/two.txt"))
        ).returncode == 0
        async with await processes.start(sh("echo three > three.txt")) as job:
            assert (await job.read(), await job.wait()) == (await job.read_available(), 0)
        result = await processes.run(sh("cat one.txt sub/two.txt three.txt"))
        assert result.stdout == b"one\ntwo\nthree\n"


async def test_a_job_is_answered_with_what_its_program_had_read_until_it_was_closed(tmp_path: Path) -> None:
    async def work(executor: SandboxedCodeExecutor) -> list[object]:
        async with await executor.processes.start(sh("echo up; read line; echo $line; sleep 1000")) as job:
            seen = (await job.read()).stdout
            await job.write(b"hello\n")
            while b"hello" not in seen:
                seen += (await job.read()).stdout
            await job.send_signal(signal.SIGCONT)
        with pytest.raises(ValueError, match="closed"):
            await job.read()
        return [seen, job.args, await job.poll()]

    async with failing(tmp_path) as executor:
        before = await work(executor)
    async with opened(tmp_path) as executor:
        after = await work(executor)
    assert (after[:2], b"hello" in cast("bytes", after[0])) == (before[:2], True)
    assert started(tmp_path) == 0


async def test_a_process_that_was_cut_off_is_unknown_and_one_that_was_not_asked_for_runs(
    tmp_path: Path,
) -> None:
    async def wait(executor: SandboxedCodeExecutor) -> None:
        async with await executor.processes.start(sh("echo up; sleep 1000")) as job:
            up.set_result(await job.read())
            await job.wait()

    up: asyncio.Future[ProcessOutput] = asyncio.get_running_loop().create_future()
    async with failing(tmp_path) as executor:
        waiting = asyncio.create_task(wait(executor))
        assert (await up).stdout == b"up\n"
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    async with opened(tmp_path) as executor:
        with pytest.raises(SandboxError, match="Its effects are not known"):
            await executor.processes.start(sh("echo up; sleep 1000"))
        # the program may decide to do it once more
        async with await executor.processes.start(sh("echo up; sleep 1000")) as job:
            assert (await job.read()).stdout == b"up\n"


async def test_a_credential_is_in_no_spelling_in_the_journal_and_comes_back_from_it(tmp_path: Path) -> None:
    argv = ["sh", "-c", 'echo "it is $1"; echo "$1" | base64 >&2; echo "$1" > key.txt', "sh", KEY]
    async with failing(tmp_path) as executor:
        before = await executor.processes.run(argv)
    assert KEY.encode() in before.stdout
    assert not Redactor({"key": KEY}).found_in(kept(tmp_path))
    async with opened(tmp_path) as executor:
        after = await executor.processes.run(argv)
    assert (after.stdout, after.stderr) == (before.stdout, before.stderr)


@pytest.mark.parametrize("end", ["", "\\377\\000"], ids=["text", "bytes"])
async def test_nor_is_one_in_what_a_process_has_printed_otherwise_than_plainly(
    tmp_path: Path, end: str
) -> None:
    key = 'pa/ss "wörd" 12345'
    spellings = [json.dumps(key), quote(key), repr(key), base64.b64encode(f"ann:{key}".encode()).decode()]
    text = f"Authorization: Basic {' '.join(spellings)}"
    argv = ["sh", "-c", f"printf '%s{end}' \"$1\"", "sh", text]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MY_API_KEY", key)
        async with failing(tmp_path) as executor:
            before = await executor.processes.run(argv)
        assert before.stdout.startswith(text.encode())
        whole = kept(tmp_path)
        found = re.findall(rb'"([A-Za-z0-9+/=]{20,})"', whole)
        assert found
        for data in [whole, *(base64.b64decode(text) for text in found if len(text) % 4 == 0)]:
            assert not Redactor({"key": key}).found_in(data)
        async with opened(tmp_path) as executor:
            assert (await executor.processes.run(argv)).stdout == before.stdout


async def test_what_may_be_a_short_secret_cannot_be_guessed_from_the_journal(tmp_path: Path) -> None:
    for name, value in (("one", "1234"), ("other", "5678")):
        folder = tmp_path / name
        folder.mkdir()
        async with failing(folder) as executor:
            await executor.processes.run(["true"], env={"PIN": value}, input=value.encode())
    first, second = (
        next(effect.request for effect in recorded(tmp_path / name).effects() if effect.kind == "process")
        for name in ("one", "other")
    )
    assert isinstance(first, dict)
    assert isinstance(second, dict)
    asked = to_json(sorted({"PIN": "1234"}.items())) + b"1234"
    digests = {hashlib.new(name, asked).hexdigest() for name in ("sha256", "md5", "sha1")}
    assert first["digest"] != second["digest"]
    assert not any(digest.startswith(str(first["digest"])[:16]) for digest in digests)


async def test_a_program_that_runs_something_else_is_refused(tmp_path: Path) -> None:
    async with failing(tmp_path) as executor:
        await executor.processes.run(["true"], env={"A": "1"})
    with pytest.raises(JournalError, match="acts differently from before"):
        async with opened(tmp_path) as executor:
            await executor.processes.run(["true"], env={"A": "2"})


async def test_a_process_whose_sandbox_could_not_start_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").write_text("a file where the directory is to be")
    work = {**CONFINED, "work_dir": str(tmp_path / "work")}
    with pytest.raises(SandboxError):
        async with opened(tmp_path, **work) as executor:
            await executor.processes.run(["true"])
    (tmp_path / "work").unlink()
    async with opened(tmp_path, **work) as executor:
        assert (await executor.processes.run(["true"])).returncode == 0


@pytest.mark.long
async def test_many_at_once_are_answered_each_with_its_own(tmp_path: Path) -> None:
    async def work(executor: SandboxedCodeExecutor) -> list[bytes]:
        codes = [sh(f"echo {n} > {n}.txt; cat {n}.txt") for n in range(30)]
        results = await asyncio.gather(*map(executor.processes.run, codes))
        return [result.stdout for result in results]

    async with failing(tmp_path) as executor:
        before = await work(executor)
    async with opened(tmp_path) as executor:
        assert await work(executor) == before == [f"{n}\n".encode() for n in range(30)]
        result = await executor.processes.run(sh("cat *.txt | sort -n"))
        assert result.stdout.decode().split() == [str(n) for n in range(30)]


async def test_code_finds_the_files_of_processes_also_after_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = "x = open('given.txt').read()\nfinal_answer(x)", "final_answer(x + open('more.txt').read())"

    def reply(body: Body) -> Text:
        return python(codes["Second." in text_of(body)])

    async def work(*, fails: bool) -> str:
        async with open_team(agent(), record=tmp_path / "kept" / "it") as team:
            coder = cast("CodeActAgent", team)
            executor = coder.code_executor
            assert isinstance(executor, SandboxedCodeExecutor)
            await executor.processes.run(sh("printf given > given.txt"))
            await coder.run(task="First.")
            await executor.processes.run(sh("printf more > more.txt"))
            if fails:
                raise _FailedError
            return cast("TextMessage", (await coder.run(task="Second.")).messages[-1]).content

    async with ScriptedServer(reply) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        with pytest.raises(_FailedError):
            await work(fails=True)
        assert await work(fails=False) == "givenmore"


@pytest.mark.long
async def test_what_runs_beside_a_process_that_was_under_way_is_answered_before_its_program_goes_on(
    tmp_path: Path,
) -> None:
    async def one(processes: Processes, up: asyncio.Event) -> str:
        async def ready(stream: str, data: bytes) -> None:
            up.set()

        for _ in range(2):
            with suppress(SandboxError):
                return (
                    await processes.run(sh("echo up; sleep $S"), on_output=ready, env={"S": "9"})
                ).stdout.decode()
        return "unknown"

    async def others(processes: Processes, up: asyncio.Event) -> list[bytes]:
        await up.wait()
        return [(await processes.run(["echo", str(n)])).stdout for n in range(10)]

    async with opened(tmp_path) as executor:
        up = asyncio.Event()
        first = asyncio.create_task(one(executor.processes, up))
        before = await others(executor.processes, up)
        # as a kill would leave it
        shutil.copytree(tmp_path / "kept", tmp_path / "killed" / "kept")
        first.cancel()
        await asyncio.wait({first})
    async with opened(tmp_path / "killed") as executor:
        up = asyncio.Event()
        up.set()
        told, after = await asyncio.gather(one(executor.processes, up), others(executor.processes, up))
    assert (told, after) == ("up\n", before)


@pytest.mark.long
async def test_a_program_may_start_a_job_again_that_was_under_way(tmp_path: Path) -> None:
    serve = sh("echo serving >> served.txt; echo up; sleep 1000")

    async def ask(processes: Processes) -> list[bytes]:
        asked: list[bytes] = []
        for n in range(3):
            async with await processes.start(["echo", str(n)]) as job:
                asked.append((await job.read()).stdout)
                assert await job.wait() == 0
        return asked

    async with opened(tmp_path) as executor:
        async with await executor.processes.start(serve) as server:
            assert (await server.read()).stdout == b"up\n"
            before = await ask(executor.processes)
            shutil.copytree(tmp_path / "kept", tmp_path / "killed" / "kept")
    async with opened(tmp_path / "killed") as executor:
        with pytest.raises(SandboxError, match="not known"):
            await executor.processes.start(serve)
        async with await executor.processes.start(serve) as server:
            assert (await server.read()).stdout == b"up\n"
            assert await ask(executor.processes) == before


async def test_a_replay_answers_without_a_sandbox(tmp_path: Path) -> None:
    async def work(processes: Processes) -> object:
        result = await processes.run(sh("echo out; echo err >&2; exit 5"))
        async with await processes.start(["echo", "job"]) as job:
            seen = (await job.read()).stdout, await job.wait()
        with pytest.raises(FileNotFoundError):
            await processes.run(["no-such-program"])
        return result.stdout, result.stderr, result.returncode, seen

    async with failing(tmp_path) as executor:
        before = await work(executor.processes)
    directory = recorded(tmp_path).directory
    replay = Replay(History(directory), Redactor({}, directory.about().nonce), {}, lambda reason: None)
    with Dispatcher(Journal(replay, replay.requests).intercept):
        # of a program that cannot start: nothing asks it to
        other = DockerSessionCodeExecutor(image="an-image-that-is-not-there:1")
        put(other, "config.code_executor")
        assert await work(other.processes) == before
        await other.stop()
    assert (replay.answered, replay.changed) == (3, {})


async def test_a_sandbox_that_the_config_does_not_have_is_no_part_of_the_journal(
    tmp_path: Path,
) -> None:
    recording = recorder(tmp_path, "it")
    with Dispatcher(journal_of(recording).intercept) as dispatcher:
        dispatcher.listen(recording)
        # as a tool may open one
        async with open_sandbox("confined", confinement="best_effort") as sandbox:
            assert (await sandbox.run(["echo", "hi"])).stdout == b"hi\n"
    recording.close()
    run = RecordedRun(recording.directory)
    assert ([*run.effects()], [event.type for event in run.events()]) == (
        [],
        ["sandbox_starting", "sandbox_started", "process_began", "process_ended", "sandbox_stopped"],
    )


@pytest.fixture(name="session")
async def _session() -> AsyncGenerator[ConfinedSessionCodeExecutor]:
    executor = ConfinedSessionCodeExecutor(confinement="best_effort")
    yield executor
    await executor.stop()


@pytest.fixture(name="heard")
def _heard() -> list[Event]:
    return []


def of_processes(heard: list[Event]) -> list[ProcessBegan | ProcessEnded]:
    return [event for event in heard if isinstance(event, ProcessBegan | ProcessEnded)]


async def test_events_tell_of_a_process_without_what_it_is_given(
    session: ConfinedSessionCodeExecutor, heard: list[Event]
) -> None:
    with Dispatcher() as dispatcher:
        dispatcher.listen(heard.append)
        await session.processes.run(sh("cat; exit 3"), input=b"given", env={"SECRET": "hidden"}, cwd="..")
        with pytest.raises(subprocess.TimeoutExpired):
            await session.processes.run(["sleep", "1000"], timeout=0.1)
        with pytest.raises(PermissionError):
            await session.processes.run(["/etc"])
        async with await session.processes.start(["echo", "hi"]) as job:
            await job.wait()
    told = of_processes(heard)
    assert [event.type for event in told] == ["process_began", "process_ended"] * 4
    began, ended = cast("list[ProcessBegan]", told[::2]), cast("list[ProcessEnded]", told[1::2])
    assert [event.span for event in began] == [event.span for event in ended]
    assert (began[0].argv, began[0].cwd, began[0].variables, began[0].input_size) == (
        ["sh", "-c", "cat; exit 3"],
        "..",
        ["SECRET"],
        5,
    )
    assert [event.is_job for event in began] == [False, False, False, True]
    assert [event.returncode for event in ended] == [3, None, None, 0]
    errors = [event.error or "" for event in ended]
    assert [error.partition(":")[0] for error in errors] == ["", "TimeoutExpired", "PermissionError", ""]
    assert "hidden" not in repr(told)


async def test_without_a_dispatcher_a_process_is_no_task(session: ConfinedSessionCodeExecutor) -> None:
    async with await session.processes.start(["sleep", "1000"]) as job:
        assert type(job) is SandboxProcess
        assert effects_at_work() == 0
        with Dispatcher():
            async with await session.processes.start(["sleep", "1000"]):
                assert effects_at_work() == 1
        assert effects_at_work() == 0


def effects_at_work() -> int:
    """How many tasks perform processes as effects."""
    names = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()]
    return names.count("_perform")


@pytest.mark.parametrize("make", [ConfinedSessionCodeExecutor, ConfinedCommandLineCodeExecutor])
async def test_a_job_that_is_an_effect_ends_with_its_executor(
    make: Callable[..., SandboxedCodeExecutor], heard: list[Event]
) -> None:
    with Dispatcher() as dispatcher:
        dispatcher.listen(heard.append)
        async with make(confinement="best_effort") as executor:
            left = await executor.processes.start(["sleep", "1000"])
            async with await executor.processes.start(["sleep", "1000"]):
                assert len(of_processes(heard)) == 2
            assert len(of_processes(heard)) == 3
        assert effects_at_work() == 0
        with pytest.raises(SandboxLostError):
            await left.wait()
    ended = [event for event in heard if isinstance(event, ProcessEnded)]
    assert [(event.error or "").partition(":")[0] for event in ended] == ["", "SandboxLostError"]


@pytest.mark.long
async def test_a_job_that_is_an_effect_gives_all_of_its_output(
    session: ConfinedSessionCodeExecutor, heard: list[Event]
) -> None:
    with Dispatcher() as dispatcher:
        dispatcher.listen(heard.append)
        async with await session.processes.start(["seq", "100000"]) as job:
            reading = asyncio.create_task(read_all(job))
            assert await job.wait() == 0
            assert (await reading).split() == [str(n).encode() for n in range(1, 100001)]
        async with await session.processes.start(["seq", "100000"]) as job:
            assert await job.wait() == 0
            assert len((await read_all(job)).split()) == 100000
        async with await session.processes.start(sh("sleep 1000 & echo left")) as job:
            assert (await job.wait(), await job.has_left()) == (0, True)
            assert await read_all(job) == b"left\n"


async def test_a_job_that_is_an_effect_is_killed_like_any_other(session: ConfinedSessionCodeExecutor) -> None:
    with Dispatcher():
        async with await session.processes.start(["sleep", "1000"]) as job:
            await job.kill()
            assert await job.wait() == -signal.SIGKILL


async def read_all(job: SandboxProcess) -> bytes:
    seen = b""
    while output := await job.read():
        assert not output.stdout_omitted
        seen += output.stdout
    return seen


async def test_what_a_callback_raises_is_the_programs(
    session: ConfinedSessionCodeExecutor, heard: list[Event]
) -> None:
    async def refuse(stream: str, data: bytes) -> None:
        raise FileNotFoundError(2, "of the program")

    with Dispatcher() as dispatcher:
        dispatcher.listen(heard.append)
        with pytest.raises(FileNotFoundError, match="of the program"):
            await session.processes.run(sh("echo hi; sleep 1000"), on_output=refuse)
    _, ended = of_processes(heard)
    assert isinstance(ended, ProcessEnded)
    assert "not known" in (ended.error or "")


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(2, "No such file or directory", "no-such-program"),
        OSError(7, "Argument list too long"),
        BlockingIOError(11, "too many"),
        LookupError("no user"),
        SandboxLostError("it was stopped"),
    ],
)
def test_an_exception_comes_back_from_json_as_it_was(error: Exception) -> None:
    effect = ProcessRun(None, {"argv": ["true"]})
    assert isinstance(error, OSError | LookupError | SandboxLostError)
    outcome = ProcessOutcome(failure=ProcessFailure.of(error))
    loaded = effect.load(json.loads(json.dumps(effect.dump(outcome))))
    assert loaded == outcome
    assert loaded.failure is not None
    again = loaded.failure.exception()
    assert (type(again), again.args, str(again)) == (type(error), error.args, str(error))


def test_an_outcome_whose_credential_is_not_restored_cannot_be_read() -> None:
    effect: ProcessEffect = ProcessRun(None, {"argv": ["true"]})
    data = cast("dict[str, Any]", effect.dump(ProcessOutcome(0, b"\xff\x00some bytes")))
    assert effect.load(data).stdout == b"\xff\x00some bytes"
    with pytest.raises(JournalError, match="credential"):
        effect.load({**data, "stdout": "«NAME/base64-0#1234»"})
