"""A program that records what it does with a sandbox goes on after a kill, and is replayed as a test."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
from killed_run import EFFECTS
from pydantic import JsonValue
from sandbox_program import SETTINGS, UNKNOWN, work
from support import fork_server
from support.command_line import codeact_team, environment
from support.variations import mostly_long

from codeact_team import AsyncSandbox, Outcome, open_sandbox, record_run, replay_run
from codeact_team.core.events import BlockBegan
from codeact_team.core.execution import CallAnswer, HostTools
from codeact_team.errors import JournalError, SettingError
from codeact_team.journal.recorded_run import RecordedRun
from codeact_team.journal.result import RunEnding
from codeact_team.journal.run_directory import RunDirectory
from codeact_team.tools.approvals import Pause

PROGRAM = Path(__file__).with_name("sandbox_program.py")
CONFINED = SETTINGS["confined"]
TOLD = ["", "first\nsecond\n", "[1, 2]\n", "[1, 3]\n", "6\n", "[1, 2, 4]\n"]


def run(folder: Path, nth: int, how: str = "after", kind: str = "confined") -> tuple[int, str, str]:
    folder.mkdir(exist_ok=True)
    with fork_server.start(
        [str(PROGRAM), kind, str(nth), how],
        cwd=folder,
        environment=environment(PYTHONPATH=str(PROGRAM.parent)),
        stdin=subprocess.DEVNULL,
    ) as process:
        stdout, stderr = process.communicate(timeout=100)
        return process.wait(100), stdout.decode(), stderr.decode()


def goes_on(folder: Path, nth: int, how: str, expected: str, kind: str = "confined") -> None:
    """A program that is killed with an entry comes to the same in its second life, and does nothing twice."""
    assert run(folder, nth, how, kind)[0] == -signal.SIGKILL
    code, stdout, stderr = run(folder, 0, kind=kind)
    if UNKNOWN in stdout:
        # the tool, or the process, was just at work
        return
    assert (code, stdout) == (0, expected), stderr
    assert (folder / EFFECTS).read_text() == "4\n"


def test_a_program_that_is_killed_goes_on_to_the_same_end(tmp_path: Path) -> None:
    code, expected, stderr = run(tmp_path / "alone", 0)
    assert code == 0, stderr
    assert [line for line in TOLD if line not in expected] == []
    entries = int(re.findall(r"\d+", stderr)[-1])
    goes_on(tmp_path / "killed", round(entries * 0.7), "torn", expected)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["confined", pytest.param("docker", marks=pytest.mark.docker)])
def test_it_may_be_killed_with_each_entry(tmp_path: Path, kind: Literal["confined", "docker"]) -> None:
    code, expected, stderr = run(tmp_path / "alone", 0, kind=kind)
    assert code == 0, stderr
    entries = int(re.findall(r"\d+", stderr)[-1])
    # nothing is recorded before the first two entries, and nothing is lost with the last
    for nth in range(1, entries + 1, 1 if kind == "confined" else 4):
        goes_on(tmp_path / str(nth), nth, ("before", "torn", "after")[nth % 3], expected, kind)


async def recorded(directory: Path, code: str, *, tools: Any = None) -> None:
    async with record_run(directory, open_sandbox("confined", **CONFINED)) as sandbox:
        result = await sandbox.run_python(code, tools=tools)
        assert result.exit_code == 0, result.output


def test_all_that_a_program_does_is_replayed_without_its_tools_and_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replay_run: Callable[..., None]
) -> None:
    monkeypatch.chdir(tmp_path)

    async def program() -> list[str]:
        async with record_run("it", open_sandbox("confined", **CONFINED)) as sandbox:
            return await work(sandbox)

    told = asyncio.run(program())
    replay_run("it", open_sandbox("confined", **CONFINED), work)
    assert told[-1] == "first\nsecond\n"
    # its tool has been called once
    assert Path(EFFECTS).read_text() == "4\n"


@pytest.mark.parametrize(
    ("changed", "told"),
    mostly_long(
        [
            ("x = 6 * 8\nprint(x)", "-42\n+48"),
            ("x = 6 * 7\nprint(x)\nn = open('y', 'w').write('longer')", "-file get: "),
        ]
    ),
)
async def test_a_difference_is_told(tmp_path: Path, changed: str, told: str) -> None:
    async def program(
        sandbox: AsyncSandbox, code: str = "x = 6 * 7\nprint(x)\nn = open('y', 'w').write('y')"
    ) -> None:
        await sandbox.run_python(code)
        await sandbox.get("y")

    async with record_run(tmp_path / "it", open_sandbox("confined", **CONFINED)) as sandbox:
        await program(sandbox)
    found = await replay_run(
        tmp_path / "it", open_sandbox("confined", **CONFINED), lambda sandbox: program(sandbox, changed)
    )
    assert found.difference is not None
    assert told in found.difference


@pytest.mark.long
async def test_a_block_with_magics_is_kept_and_replayed_as_it_was_written(tmp_path: Path) -> None:
    block = "files = !echo one; echo two\n!echo {len(files)} files > count"

    async def program(sandbox: AsyncSandbox) -> None:
        await sandbox.run_python(block)
        await sandbox.get("count")

    async with record_run(tmp_path / "it", open_sandbox("confined", **CONFINED)) as sandbox:
        await program(sandbox)
    found = await replay_run(tmp_path / "it", open_sandbox("confined", **CONFINED), program)
    assert found.difference is None
    blocks = [
        event
        for event in RecordedRun(RunDirectory(tmp_path / "it")).events()
        if isinstance(event, BlockBegan)
    ]
    assert [code.code for event in blocks for code in event.blocks] == [block]


@pytest.mark.long
def test_a_program_without_an_event_loop_records_as_well(tmp_path: Path) -> None:
    for _ in range(2):
        with record_run(tmp_path / "it", open_sandbox("confined", **CONFINED)) as sandbox:
            sandbox.put("a.txt", "a")
            [fork] = sandbox.fork()
            with fork:
                assert fork.run_python("open('a.txt').read()").output == "'a'\n"
            assert sandbox.run(["cat", "a.txt"]).stdout == b"a"
    run = RecordedRun(RunDirectory(tmp_path / "it"))
    assert [effect.kind for effect in run.effects() if not effect.is_repeated][:4] == [
        "file_put",
        "sandbox_fork",
        "block",
        "process",
    ]


async def test_the_end_of_the_program_is_that_of_the_run(tmp_path: Path) -> None:
    await recorded(tmp_path / "good", "1")
    with pytest.raises(ZeroDivisionError):
        async with record_run(tmp_path / "bad", open_sandbox("confined", **CONFINED)):
            _ = 1 / 0
    endings = [RecordedRun(RunDirectory(tmp_path / name)).result() for name in ("good", "bad")]
    assert [ending and ending.ending for ending in endings] == [RunEnding.ANSWERED, RunEnding.FAILED]


async def test_code_that_was_stopped_is_not_run_again_and_the_loss_is_told(tmp_path: Path) -> None:
    async def program(sandbox: AsyncSandbox) -> Outcome:
        await sandbox.run_python("x = 1")
        return (await sandbox.run_python("while True: pass", timeout=0.5)).outcome

    async with record_run(tmp_path / "it", open_sandbox("confined", **CONFINED)) as sandbox:
        assert await program(sandbox) is Outcome.TIMED_OUT
    async with record_run(tmp_path / "it", open_sandbox("confined", **CONFINED)) as sandbox:
        assert await program(sandbox) is Outcome.TIMED_OUT
        new = await sandbox.run_python("x")
        assert "some of it was stopped before its end" in new.output
        assert new.state_lost
        assert "lost" not in (await sandbox.run_python("2")).output


async def test_a_program_that_does_something_else_is_told_before_it_does_it(tmp_path: Path) -> None:
    await recorded(tmp_path / "it", "x = 1")
    with pytest.raises(JournalError, match="acts differently from before"):
        await recorded(tmp_path / "it", "x = 2")


class Private(HostTools):
    """Makes its calls itself."""

    @property
    def declarations(self) -> Sequence[Mapping[str, JsonValue]]:
        return ()

    @property
    def max_parallel(self) -> int:
        return 1

    async def call(self, name: str, arguments: dict[str, JsonValue], *, pause: Pause) -> CallAnswer:
        raise AssertionError("it is refused before")


async def test_calls_past_the_journal_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="calls of a Private bypass the journal"):
        await recorded(tmp_path / "it", "1", tools=Private())


@pytest.mark.long
async def test_errors_of_files_are_those_of_then_and_of_now(tmp_path: Path) -> None:
    for _ in range(2):
        async with record_run(tmp_path / "it", open_sandbox("confined", **CONFINED)) as sandbox:
            with pytest.raises(FileNotFoundError):
                await sandbox.get("missing.txt")
            with pytest.raises(FileNotFoundError):
                await sandbox.run(["no-such-program"])


def test_code_and_output_are_shown(tmp_path: Path) -> None:
    asyncio.run(recorded(tmp_path / "it", "print('the answer is', 6 * 7)"))
    shown = codeact_team("show", str(tmp_path / "it"), cwd=tmp_path)
    assert "| print('the answer is', 6 * 7)\nthe answer is 42\n✓ exit code 0" in shown.stdout
    assert (
        codeact_team(
            "show", str(tmp_path / "it"), "--html", str(tmp_path / "it.html"), cwd=tmp_path
        ).returncode
        == 0
    )
    assert "the answer is 42" in (tmp_path / "it.html").read_text()


async def test_a_sandbox_that_nobody_records_leaves_no_trace_in_a_run_around_it(tmp_path: Path) -> None:
    async def nested() -> int:
        async with open_sandbox("confined", **CONFINED) as inner:
            return len((await inner.run_python("2")).output)

    await recorded(tmp_path / "it", "print(tools.nested())", tools=[nested])
    kinds = [effect.kind for effect in RecordedRun(RunDirectory(tmp_path / "it")).effects()]
    assert kinds == ["tool_call", "block"]
