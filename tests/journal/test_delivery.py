"""What came of a run is delivered: its answer is printed and written, its files are copied, or it can be resumed for that."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import stories
from killing import ALLOWED, last_run, launched, prepare, resume, start
from support.openai_server import AnyReply, Body, ScriptedServer
from support.small_disk import leave_free, small_disk
from support.waiting import is_below, until

from codeact_team.journal.log import read_log
from codeact_team.runs.resuming import wanted_by_its_user

STORY = stories.Story(
    stories.coder(settings=stories.CONFINED),
    stories.step_by_step(
        stories.python("open('report.txt', 'w').write('north\\n' * 2000)\ntools.book(amount=5)"),
        stories.python("final_answer('North. ' * 1000)"),
    ),
    "North. " * 1000,
    ["5"],
)
REPORT = "north\n" * 2000
WANTED = ("-o", "answer.txt", "--out", "out")


def got(folder: Path) -> tuple[str, str]:
    return (folder / "answer.txt").read_text().strip(), (folder / "out" / "report.txt").read_text()


@pytest.fixture
def full(tmp_path: Path) -> Generator[Path]:
    """A small file system without any room."""
    folder = tmp_path / "full"
    with small_disk(folder, "64k"):
        leave_free(folder, 0)
        yield folder


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("run_ended", marks=pytest.mark.long),
        "result",
        pytest.param("delivered", marks=pytest.mark.long),
    ],
)
def test_a_run_that_is_killed_between_its_end_and_its_delivery_is_delivered_by_resume(
    tmp_path: Path, kind: str
) -> None:
    with ScriptedServer.in_thread(STORY.reply) as server:
        alone, killed = tmp_path / "alone", tmp_path / "killed"
        alone.mkdir()
        killed.mkdir()
        assert start(alone, server, STORY, 0, "after", *WANTED)[0] == 0
        entries = {entry.get("type"): n for n, entry in enumerate(read_log(last_run(alone).lines), 1)}
        nth = entries[kind] if kind in entries else entries["result"] + 1
        when = "before" if kind == "delivered" else "after"
        code, stdout, _ = start(killed, server, STORY, nth, when, *WANTED)
        asked = len(server.requests)
        assert (code, stdout == "") == (-9, kind != "delivered")
        # to where it was told to when it began
        code, stdout, stderr = resume(killed, server)
        assert (code, stdout.strip(), len(server.requests)) == (0, STORY.answer.strip(), asked), stderr
        assert got(killed) == (STORY.answer.strip(), REPORT)
        assert (killed / "effects.txt").read_text() == "5\n"
        code, _, stderr = resume(killed, server)
        assert (code, "there is nothing to go on with" in stderr) == (2, True)


def test_where_a_run_of_somebody_else_wants_its_answer_is_not_known(tmp_path: Path) -> None:
    """It would overwrite files of whoever resumes it."""
    with ScriptedServer.in_thread(STORY.reply) as server:
        assert start(tmp_path, server, STORY, 0, "after", *WANTED)[0] == 0
    run = last_run(tmp_path)
    assert wanted_by_its_user(run) == (tmp_path / "answer.txt", tmp_path / "out")
    about = run.path / "run.json"
    about.write_text(about.read_text().replace("answer.txt", "other.txt"))
    assert wanted_by_its_user(run) == (None, None)


@pytest.mark.long
def test_files_for_which_there_was_no_room_are_copied_by_resume(tmp_path: Path, full: Path) -> None:
    with ScriptedServer.in_thread(STORY.reply) as server:
        code, stdout, stderr = start(tmp_path, server, STORY, 0, "after", "--out", str(full))
        assert (code, stdout.strip()) == (2, STORY.answer.strip())
        assert "report.txt is not copied: No space left on device" in stderr
        assert "error: 1 file was not copied; to try again: codeact-team resume" in stderr
        # neither is there room now
        assert resume(tmp_path, server, 0, "after", "--out", str(full))[0] == 2
        (full / "filler").unlink()
        code, _, stderr = resume(tmp_path, server, 0, "after", "--out", str(full))
        assert code == 0, stderr
        assert (full / "report.txt").read_text() == REPORT
        # and once more, where that is asked for
        assert resume(tmp_path, server, 0, "after", *WANTED)[0] == 0
        assert got(tmp_path) == (STORY.answer.strip(), REPORT)
        assert len(server.requests) == 2


@pytest.mark.long
def test_an_answer_for_which_there_was_no_room_is_written_by_resume(tmp_path: Path, full: Path) -> None:
    answer = full / "answer.txt"
    with ScriptedServer.in_thread(STORY.reply) as server:
        code, _, stderr = start(tmp_path, server, STORY, 0, "after", "-o", str(answer))
        assert code == 2
        assert "No space left on device; to try again: codeact-team resume" in stderr
        assert not answer.exists()
        (full / "filler").unlink()
        assert resume(tmp_path, server, 0, "after", "-o", str(answer))[0] == 0
        assert (answer.read_text().strip(), len(server.requests)) == (STORY.answer.strip(), 2)


def remove(place: Path) -> None:
    shutil.rmtree(place)


def replace(place: Path) -> None:
    place.rename(place.with_name("moved"))
    place.mkdir()


@pytest.mark.parametrize("change", [remove, pytest.param(replace, marks=pytest.mark.long)])
@pytest.mark.long
def test_what_is_wanted_in_a_directory_that_is_no_more_is_delivered_by_resume(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    wanted = tmp_path / "wanted"
    options = ("-o", "wanted/answer.txt", "--out", "wanted/out")

    def reply(body: Body) -> AnyReply:
        if stories.said_before(body) and not len(server.requests) > 2:
            change(wanted / "out")
            change(wanted)
        return STORY.reply(body)

    wanted.mkdir()
    with ScriptedServer.in_thread(reply) as server:
        code, stdout, stderr = start(tmp_path, server, STORY, 0, "after", *options)
        assert (code, stdout.strip()) == (2, STORY.answer.strip())
        assert "report.txt is not copied: the directory wanted/out was removed, or replaced" in stderr
        assert "the answer cannot be written to wanted/answer.txt" in stderr
        delivered = {path.name for path in tmp_path.rglob("*.txt") if ".codeact-team" not in path.parts}
        assert not delivered & {"report.txt", "answer.txt"}
        wanted.mkdir(exist_ok=True)
        code, _, stderr = resume(tmp_path, server, 0, "after", *options)
    assert code == 0, stderr
    assert got(wanted) == (STORY.answer.strip(), REPORT)
    assert len(server.requests) == 2


@pytest.mark.long
def test_a_file_that_is_gone_from_a_lasting_workspace_is_told_until_it_is_back(tmp_path: Path) -> None:
    story = stories.Story(stories.coder(), STORY.reply, STORY.answer)
    report, moved = tmp_path / "work" / "report.txt", tmp_path / "report.txt"
    with ScriptedServer.in_thread(story.reply) as server:
        assert start(tmp_path, server, story, 0)[0] == 0
        report.rename(moved)
        code, _, stderr = resume(tmp_path, server, 0, "after", "--out", "out")
        assert (code, "warning: report.txt is not copied: it has been removed" in stderr) == (2, True)
        assert not (tmp_path / "out").exists()
        moved.rename(report)
        assert resume(tmp_path, server, 0, "after", *WANTED)[0] == 0
    assert got(tmp_path) == (STORY.answer.strip(), REPORT)


@pytest.mark.long
def test_a_file_whose_content_was_not_kept_is_told_when_it_cannot_be_delivered(tmp_path: Path) -> None:
    # it holds a credential
    code = "open('key.txt', 'w').write('sk-of-the-' + 'test-0123456789')\nopen('other.txt', 'w')"
    story = stories.Story(
        stories.coder(settings=stories.CONFINED, tools=[]),
        stories.step_by_step(stories.python(code), stories.python("final_answer('Done.')")),
        "Done.",
    )
    with ScriptedServer.in_thread(story.reply) as server:
        assert start(tmp_path, server, story, 0)[0] == 0
        (workspace,) = (tmp_path / ".codeact-team" / "runs" / "workspaces").iterdir()
        (workspace / "key.txt").unlink()
        code, _, stderr = resume(tmp_path, server, 0, "after", *WANTED)
    assert code == 2
    assert "key.txt is not copied: it has been removed, or its content was not kept" in stderr
    assert os.listdir(tmp_path / "out") == ["other.txt"]


LARGE = stories.Story(
    stories.coder(settings=stories.CONFINED, tools=[]),
    stories.step_by_step(
        stories.python(
            "import os\nos.mkdir('a')\nfor n in range(2): open(f'a/{n}', 'wb').write(bytes([1 + n]) * (40 << 20))"
        ),
        stories.python("final_answer('Done.')"),
    ),
    "Done.",
)


@pytest.mark.long
def test_nothing_is_left_of_a_copy_in_which_a_run_was_killed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with small_disk(out, "200m"), ScriptedServer.in_thread(LARGE.reply) as server:
        prepare(tmp_path, LARGE)
        command = ("run", "config.json", "Go.", *ALLOWED, "--out", str(out))
        with launched(tmp_path, server, 0, "after", *command) as process:
            while (there := os.statvfs(out)).f_blocks - there.f_bfree < (45 << 20) // there.f_frsize:
                time.sleep(0)
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=60)
        assert {*os.listdir(out / "a")} <= {"0", "1"}
        code, _, stderr = resume(tmp_path, server, 0, "after", "--out", str(out))
        assert code == 0, stderr
        assert sorted(os.listdir(out / "a")) == ["0", "1"]
        assert {path.stat().st_size for path in (out / "a").iterdir()} == {40 << 20}


def cut_off(go: Path, settings: dict[str, Any]) -> stories.Story:
    """A file has its name when it is whole, which it is not before ``go`` says something; another one goes."""
    return stories.Story(
        stories.coder(settings={**settings, "readable": [str(go)]}, tools=[]),
        stories.step_by_step(
            stories.python("open('made.txt', 'w').write('made')\nopen('scratch.txt', 'w').write('scratch')"),
            stories.python(
                "import os\nopen('made.txt', 'a').write(' more')\nopen('partial.tmp', 'w').write('half')\n"
                f"try:\n    while not open({str(go)!r}).read():\n        pass\n"
                "except BaseException:\n    open('why.txt', 'w').write('stopped')\n    raise\n"
                "os.rename('partial.tmp', 'whole.txt')\nos.remove('scratch.txt')"
            ),
            stories.python("final_answer('Done.')"),
        ),
        "Done.",
    )


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(stories.IN_WORK, id="lasting"),
        pytest.param(stories.CONFINED, id="temporary", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize(
    "signals",
    [
        pytest.param([signal.SIGINT], id="INT"),
        pytest.param([signal.SIGTERM], id="TERM", marks=pytest.mark.long),
        pytest.param([signal.SIGHUP], id="HUP", marks=pytest.mark.long),
        pytest.param([signal.SIGINT, signal.SIGTERM, signal.SIGINT], id="impatience", marks=pytest.mark.long),
        pytest.param([signal.SIGINT, signal.SIGKILL], id="INT and KILL", marks=pytest.mark.long),
        pytest.param([], id="time limit", marks=pytest.mark.long),
    ],
)
@pytest.mark.long
def test_code_that_was_stopped_delivers_nothing_until_it_has_run_again(
    tmp_path: Path, signals: list[signal.Signals], settings: dict[str, Any]
) -> None:
    go = tmp_path / "go"
    go.touch()
    story = cut_off(go, settings)
    prepare(tmp_path, story)
    with ScriptedServer.in_thread(story.reply) as server:
        limit = [] if signals else ["--timeout", "5"]
        command = ("run", "config.json", "Go.", *ALLOWED, *limit, *WANTED)
        with launched(tmp_path, server, 0, "after", *command) as process:
            asyncio.run(until(lambda: is_below(tmp_path, "partial.tmp")))
            for number in signals:
                # it may have ended by the one before
                with suppress(ProcessLookupError):
                    process.send_signal(number)
                time.sleep(0.05)
            _, stderr = process.communicate(timeout=60)
        # of the block before, what the one that was stopped has not changed
        there = [path.name for path in (tmp_path / "out").glob("*")]
        assert there == ["scratch.txt"] or (signal.SIGKILL in signals and not there), stderr
        go.write_text("go")
        code, _, stderr = resume(tmp_path, server, 0, "after", *WANTED)
    assert code == 0, stderr
    files = {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
    assert files == {"made.txt": "made more", "whole.txt": "half"}
