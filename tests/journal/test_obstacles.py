"""What is in the way of a run that is kept is told, and what is there stays readable."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
import stories
from killing import check, ends_of_blocks, is_kept, last_run, resume, start, told_as_unknown, under_way
from stories import Story, python
from support.command_line import in_this_process, lines
from support.openai_server import ScriptedServer
from support.small_disk import leave_free, small_disk

from codeact_team.journal.log import encode, read_log

STORY = Story(
    # what it prints is kept beside the journal
    stories.coder(),
    stories.step_by_step(
        python("open('log.txt', 'a').write('one\\n')\nprint('x' * 5000, tools.book(amount=5))"),
        python("open('log.txt', 'a').write('two\\nthree\\n')\nprint('second')"),
        python("final_answer(str(tools.book(amount=3)))"),
    ),
    "2",
    ["5", "3"],
    stories.LOG,
)


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a run that was killed after its second block, and one that is whole."""
    folder = tmp_path_factory.mktemp("before") / "there"
    folder.mkdir()
    with ScriptedServer.in_thread(STORY.reply) as server:
        start(folder, server, STORY, 0)
        blocks = ends_of_blocks([*read_log(last_run(folder).lines)])
        shutil.rmtree(folder / "work")
        (folder / "effects.txt").unlink()
        start(folder, server, STORY, blocks[1] + 1)
    # what was made in a directory that is there is resumed there only
    return folder.rename(folder.with_name("moved"))


@pytest.fixture
def killed(tmp_path: Path, before: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(before, tmp_path / "killed"))


def damage_line(run: Path) -> None:
    journal = run / "journal.jsonl"
    whole = journal.read_bytes().splitlines(keepends=True)
    whole[20] = whole[20].replace(b'"at"', b'"to"')
    journal.write_bytes(b"".join(whole))


def each_blob(do: Callable[[Path], object]) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        for path in (run / "blobs").rglob("*"):
            if path.is_file():
                do(path)

    return damage


def in_place_of_journal(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        journal = run / "journal.jsonl"
        journal.rename(run / "elsewhere.jsonl")
        make(journal)

    return damage


def change_config(old: str, new: str) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        config = run / "config.yaml"
        assert old in config.read_text()
        config.write_text(config.read_text().replace(old, new))

    return damage


def of_another_version(run: Path) -> None:
    about = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(about | {"format": 1}))


FOREIGN = b"".join(map(encode, [{"begin": 7}, {"given": [1]}, {"type": "result", "at": 1}]))
CHANGED = (
    "its config.yaml was changed since it began. Restore that file; to change a limit or the like, use -s"
)
OBSTACLES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a damaged line": (
        damage_line,
        "journal.jsonl:21: the journal is damaged here; everything before is intact",
    ),
    "torn blobs": (
        each_blob(lambda path: os.truncate(path, 100)),
        "was changed since it was written: its digest differs",
    ),
    "no blobs": (each_blob(Path.unlink), "cannot be read: No such file or directory"),
    "another version": (of_another_version, "has the format 1, and this version of codeact-team reads 3"),
    "a text": (
        in_place_of_journal(lambda path: path.write_text("Dear diary,\nwell.\n")),
        "is damaged at its end",
    ),
    "other JSON": (
        in_place_of_journal(lambda path: path.write_bytes(FOREIGN)),
        "has an entry that this version of codeact-team does not know",
    ),
    "nothing": (in_place_of_journal(lambda path: None), "cannot be read: No such file or directory"),
    "a link": (
        in_place_of_journal(lambda path: path.symlink_to("elsewhere.jsonl")),
        "journal.jsonl is a link to elsewhere.jsonl, which code may have planted: name its target",
    ),
    "a pipe": (in_place_of_journal(os.mkfifo), "cannot be read: it is not a regular file"),
    "a directory": (in_place_of_journal(Path.mkdir), "cannot be read: it is not a regular file"),
    "an agent of another name": (change_config("name: coder", "name: writer"), CHANGED),
    "another executor": (change_config("ConfinedSession", "DockerSession"), CHANGED),
    "no config": (lambda run: (run / "config.yaml").unlink(), "config.yaml cannot be read: No such file or"),
}


@pytest.mark.long
@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_what_is_wrong_is_told_and_the_rest_stays_readable(killed: Path, obstacle: str) -> None:
    damage, told = OBSTACLES[obstacle]
    run = last_run(killed).path
    damage(run)
    there = {*run.rglob("*")}
    looked = ["--run-dir", str(run.parent)]
    code = 0 if "config" in told else 2
    for options in ([], ["--json"], ["--html", str(killed / "page.html")]):
        shown = in_this_process("show", run.name, *options, *looked)
        assert shown.returncode == code, shown.stderr
        assert not code or "error: " in shown.stderr
    listed = lines(in_this_process("runs", "--json", *looked).stdout)
    assert [each["state"] for each in listed][1:] == ["answered"]
    with ScriptedServer.in_thread([]) as server:
        code, stdout, stderr = resume(killed, server)
    assert (code, stdout) == (2, "")
    assert told in " ".join(stderr.split())
    assert "Traceback" not in stderr
    # nothing was done, and nothing taken away
    assert (killed / "effects.txt").read_text() == "5\n"
    assert there <= {*run.rglob("*")}


@pytest.mark.long
@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_what_is_wrong_is_told_of_a_run_that_is_exported(killed: Path, obstacle: str) -> None:
    run = last_run(killed).path
    OBSTACLES[obstacle][0](run)
    log = killed / "log.json"
    told = in_this_process("export", run.name, str(log), "--run-dir", str(run.parent))
    assert (told.returncode, "error: " in told.stderr) in ((0, False), (2, True)), told.stderr
    assert log.exists() == (told.returncode == 0)


def test_what_is_beside_a_journal_may_lack_without_hiding_what_comes_after_it(killed: Path) -> None:
    run = last_run(killed).path
    each_blob(Path.unlink)(run)
    shown = in_this_process("show", run.name, "--run-dir", str(run.parent))
    assert "second" in shown.stdout
    assert "cannot be read: No such file or directory; this is left out" in shown.stderr


@pytest.mark.long
def test_who_asks_stays_the_same_and_a_limit_may_be_another(killed: Path) -> None:
    with ScriptedServer.in_thread(STORY.reply) as server:
        for change in (
            "config.name=writer",
            "config.code_executor.provider=codeact_team.DockerSessionCodeExecutor",
        ):
            code, _, stderr = resume(killed, server, 0, "after", "-s", change)
            assert (code, server.requests) == (2, [])
            assert "error: the run cannot go on with another " in stderr
        check(killed, STORY, *resume(killed, server, 0, "after", "-s", "config.max_steps=7"))


def test_a_prompt_that_was_changed_lets_nothing_be_done_twice(killed: Path) -> None:
    effects = (killed / "effects.txt").read_text()
    with ScriptedServer.in_thread(lambda _: stories.python("tools.book(amount=9)")) as server:
        change = "config.system_message=You write code. $tools"
        code, _, stderr = resume(killed, server, 0, "after", "-s", change)
    assert code == 2
    assert "error: the run cannot go on: coder acts differently from before" in stderr
    assert (killed / "effects.txt").read_text() == effects


@pytest.fixture
def mounted(tmp_path: Path) -> Generator[Path]:
    """A small file system of its own, where the runs are kept."""
    folder = tmp_path / "folder"
    with small_disk(folder / ".codeact-team", "1m"):
        yield folder


@pytest.mark.long
@pytest.mark.parametrize("pages", range(1, 14))
def test_a_run_goes_on_when_there_is_room_again(mounted: Path, pages: int) -> None:
    with ScriptedServer.in_thread(STORY.reply) as server:
        leave_free(mounted / ".codeact-team", pages)
        code, _, stderr = start(mounted, server, STORY, 0)
        assert (code, "No space left" in stderr or "no space left" in stderr) == (2, True), stderr
        assert "Traceback" not in stderr
        if not is_kept(mounted):
            assert not (mounted / "effects.txt").exists()
            return
        # neither is there enough to go on
        leave_free(mounted / ".codeact-team", 1)
        code, _, stderr = resume(mounted, server)
        assert (code, "o space left" in stderr) == (2, True), stderr
        unknown = told_as_unknown(mounted) + under_way(mounted)
        leave_free(mounted / ".codeact-team", 200)
        check(mounted, STORY, *resume(mounted, server), unknown=unknown)


def test_where_nothing_can_be_written_everything_can_be_read(mounted: Path, before: Path) -> None:
    kept = mounted / ".codeact-team"
    shutil.copytree(before / ".codeact-team", kept, dirs_exist_ok=True)
    subprocess.run(["mount", "-o", "remount,ro", kept], check=True)
    run = last_run(mounted).path
    for command in (["show", run.name], ["show", run.name, "--json"], ["runs", "--json"]):
        told = in_this_process(*command, "--run-dir", str(run.parent))
        assert (told.returncode, bool(told.stdout)) == (0, True), told.stderr
    with ScriptedServer.in_thread([]) as server:
        code, _, stderr = resume(mounted, server)
        assert (code, "cannot be opened: Read-only file system" in stderr) == (2, True)
        code, _, stderr = start(mounted, server, STORY, 0)
        assert code == 2
        assert re.search(r"the run cannot be recorded in \.codeact-team/runs/\S*: Read-only", stderr)
