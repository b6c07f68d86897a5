"""What is kept of a run has a limit: the run goes on when that is used up, and says so once."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from autogen_core.code_executor import CodeBlock
from autogen_ext.models.replay import ReplayChatCompletionClient
from support.codeact import py
from support.cost import SHORT, longest_turn
from support.executing import why_not_confined
from support.recorded import journal_of, recorder, result

from codeact_team.agents.block_calls import AgentBlock
from codeact_team.agents.codeact.agent import CodeActAgent
from codeact_team.cli.options import RECORD_MIB
from codeact_team.core.aio import FairLock
from codeact_team.core.effects import Event
from codeact_team.core.execution import Artifact, ExecutionResult, Outcome, SessionResult
from codeact_team.core.executor_interface import RecordedFile
from codeact_team.errors import JournalError
from codeact_team.executors.confined import ConfinedSessionCodeExecutor
from codeact_team.executors.workspace.workspace import Location, SandboxWorkspace
from codeact_team.files.atomic import Directory
from codeact_team.files.opening import opened
from codeact_team.journal.blobs import DEFAULT_MIB, Blobs
from codeact_team.journal.log import read_log
from codeact_team.journal.recorded_run import RecordedRun
from codeact_team.journal.result import RunResult
from codeact_team.journal.run_directory import RunDirectory
from codeact_team.runs.opening import open_team

MIB = 1 << 20


def on_disk(directory: Path) -> int:
    """The bytes of the disk that a directory takes."""
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*"))


def sparse(size: int) -> bytes:
    data = bytearray(size)
    data[size // 2] = 1
    return bytes(data)


@pytest.mark.long
def test_the_holes_of_a_file_are_kept_as_holes(tmp_path: Path) -> None:
    blobs, data = Blobs(tmp_path / "blobs"), sparse(64 * MIB)
    digests = [blobs.keep(data[:size]) for size in (64 * MIB, 40 * MIB + 1, MIB)]
    assert on_disk(tmp_path) < MIB
    for digest, size in zip(digests, (64 * MIB, 40 * MIB + 1, MIB), strict=True):
        assert Blobs(tmp_path / "blobs").read(digest) == data[:size]


def test_a_file_with_many_small_holes_takes_no_more_than_it_did(tmp_path: Path) -> None:
    data = (b"x" + bytes(64 * 1024 - 1)) * 64
    blobs = Blobs(tmp_path / "blobs")
    assert blobs.read(blobs.keep(data)) == data
    assert on_disk(tmp_path) < MIB


def test_the_holes_of_a_file_that_comes_back_are_holes(tmp_path: Path) -> None:
    data = sparse(8 * MIB)
    with opened(tmp_path) as top, Directory(top).new_file("sparse") as new:
        for start in range(0, len(data), MIB):
            new.write(data[start : start + MIB])
        new.settle()
    assert (tmp_path / "sparse").read_bytes() == data
    assert on_disk(tmp_path) < MIB


def test_the_command_and_the_library_keep_as_much() -> None:
    assert RECORD_MIB == DEFAULT_MIB


async def recorded(directory: Path, blocks: list[str], *, mib: int) -> RunDirectory:
    """A run of an agent that runs some blocks and answers."""
    if (reason := why_not_confined()) is not None:
        pytest.skip(reason)
    model = ReplayChatCompletionClient([*map(py, blocks), "The answer."])
    config = CodeActAgent("coder", model, ConfinedSessionCodeExecutor()).dump_component().model_dump()
    async with open_team(config, record=directory, record_mib=mib) as team:
        ended = await team.run(task="Go.")
    assert ended.messages[-1].to_text() == "The answer."  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue]
    return RunDirectory(directory)


def files_in(run: RunDirectory) -> dict[str, Any]:
    blobs, found = Blobs(run.blobs), dict[str, Any]()
    for entry in read_log(run.lines):
        if "type" not in entry and (files := entry.get("files")) is not None:
            unpacked: Any = blobs.unpack(files)
            found |= unpacked["changed"]
    return found


async def test_files_that_there_is_no_room_for_are_not_kept_and_the_run_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make = "import os\nfor n in range({0}, {0} + 3): open(f'file-{{n}}', 'wb').write(os.urandom(300_000))"
    with caplog.at_level(logging.WARNING):
        run = await recorded(tmp_path / "run", [make.format(0), make.format(3)], mib=1)
    kept = {path: file["digest"] is not None for path, file in files_in(run).items()}
    assert sorted(kept) == [f"file-{number}" for number in range(6)]
    assert sum(kept.values()) == 2
    [told] = [line for line in caplog.messages if "--record-mib" in line]
    assert told.startswith("this run has nearly used up the 1 MiB that are kept of a run")
    assert on_disk(run.path) < MIB
    assert isinstance(RecordedRun(run).result(), RunResult)


async def test_a_run_whose_room_is_used_up_goes_on_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code = "import os\nprint(os.urandom(400_000).hex())"
    with caplog.at_level(logging.WARNING):
        run = await recorded(tmp_path / "run", [code] * 6, mib=2)
    assert len([line for line in caplog.messages if "it goes on, but nothing more is kept" in line]) == 1
    # one value may exceed it
    assert on_disk(run.path) < 4 * MIB
    told, problem = list[Event](), ""
    try:
        told.extend(RecordedRun(run).events())
    except JournalError as error:
        problem = str(error)
    assert isinstance(told[-1], RunResult)
    assert "the run had used up the 2 MiB that are kept of a run, and went on; this is left out" in problem
    with pytest.raises(JournalError, match=r"cannot go on: it had used up the 2 MiB that are kept of a run"):
        await recorded(tmp_path / "run", [code] * 6, mib=100)


async def test_what_was_not_kept_is_named_when_the_run_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code = "import os\nopen('large', 'wb').write(os.urandom(2 << 20))\nopen('small', 'w').write('x')"
    await recorded(tmp_path / "run", [code], mib=1)
    with caplog.at_level(logging.WARNING):
        await recorded(tmp_path / "run", [code], mib=1)
    assert any("missing now, as they were not kept: large" in line for line in caplog.messages)


def block(size: int) -> AgentBlock:
    async def never(_: list[CodeBlock]) -> Any:
        raise NotImplementedError

    asked = AgentBlock(None, [CodeBlock(code="pass", language="python")], never)  # pyright: ignore[reportArgumentType]
    asked.source = "coder"
    return asked


async def test_a_large_outcome_is_written_before_anybody_knows_it_and_in_order(tmp_path: Path) -> None:
    writer = recorder(tmp_path, "run")
    journal = journal_of(writer)

    async def large() -> ExecutionResult:
        return SessionResult(0, "x" * MIB, artifacts=[Artifact("text/html", b"<p>" * 2 * MIB)])

    async def small() -> ExecutionResult:
        return ExecutionResult(exit_code=0, output="x", outcome=Outcome.COMPLETED)

    for number in range(3):
        await journal.intercept(block(number), large)
        last = [*read_log(writer.directory.lines)][-1]
        assert "outcome" in last
        writer(result(answer="y" * MIB))
        await journal.intercept(block(number), small)
    writer(result())
    writer.close()
    entries = [*read_log(writer.directory.lines)]
    kinds = [("begin", "block"), ("end", "block"), ("type", "result"), ("begin", "block"), ("end", "block")]
    found = [next((key, entry[key]) for key in ("type", "begin", "end") if key in entry) for entry in entries]
    assert found == [*kinds * 3, ("type", "result")]


@pytest.mark.long
async def test_the_loop_goes_on_while_large_entries_are_written(tmp_path: Path) -> None:
    writer = recorder(tmp_path, "run")
    journal = journal_of(writer)
    artifacts = [Artifact("text/html", os.urandom(7 * MIB)) for _ in range(4)]

    async def large() -> ExecutionResult:
        return SessionResult(0, "x" * MIB, artifacts=artifacts)

    assert await longest_turn(journal.intercept(block(0), large)) < SHORT
    writer.close()


class ManyFiles(ConfinedSessionCodeExecutor):
    """Whose workspace has many files, and then none."""

    def __init__(self) -> None:
        self.files: dict[str, RecordedFile] = {}
        super().__init__()

    @property
    def workspace(self) -> SandboxWorkspace:
        return _Recorded(self.files)


class _Recorded(SandboxWorkspace):
    def __init__(self, files: dict[str, RecordedFile]) -> None:
        super().__init__(lambda: Location(None), FairLock())
        self._now = files

    async def record(self, keep: Any) -> dict[str, RecordedFile]:
        return self._now


@pytest.mark.long
async def test_no_line_of_a_journal_is_long_however_many_files_come_and_go(tmp_path: Path) -> None:
    writer, executor = recorder(tmp_path, "run"), ManyFiles()
    executor.files = {f"{number:0200}": RecordedFile(None, 0, False) for number in range(20_000)}

    async def come_and_go() -> None:
        await writer.record_files(executor, 1)
        executor.files = {}
        await writer.record_files(executor, 2)

    assert await longest_turn(come_and_go()) < SHORT
    writer.close()
    lines = writer.directory.lines.read_bytes().splitlines()
    assert max(map(len, lines)) < 2_000
    changed, gone = [json.loads(line)["files"] for line in lines if b'"files":' in line]
    blobs = Blobs(writer.directory.blobs)
    assert len(blobs.unpack(changed["changed"])) == 20_000  # pyright: ignore[reportArgumentType]
    assert blobs.unpack(gone["gone"]) == [f"{number:0200}" for number in range(20_000)]
