"""Runs as archives and as Markdown: what they hold, and what reads them."""

from __future__ import annotations

import asyncio
import json
import zipfile
from pathlib import Path

import pytest
from support.command_line import codeact_team, in_this_process, talker
from support.recorded import recorder, result
from test_exported_notebooks import ANALYST, FIGURE, PNG, ran, said

from codeact_team import replay_run
from codeact_team.core.events import MessageSent, Opened, RunBegan
from codeact_team.core.execution import ArtifactReference
from codeact_team.journal.recorded_run import RecordedRun
from codeact_team.journal.result import RunEnding
from codeact_team.journal.run_directory import RunDirectory


def unzipped(archive: Path, name: str) -> Path:
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(archive.parent / "given")
    return archive.parent / "given" / name


def test_an_archive_has_the_run_without_the_paths_of_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    home, runs = tmp_path / "home" / "ada", tmp_path / "runs"
    monkeypatch.setenv("HOME", str(home))
    long = f"{home}/long: " + "text " * 1000
    events = RunBegan(span=1, task=f"Look at {home}."), *ran(2, f"open('{home}2')", output=long)
    writer = recorder(runs, "1", Opened(workspaces=[f"{home}/coding"]), *events, task=f"{home}/task")
    writer.blobs.keep(b"a file")
    writer.close()
    told = in_this_process("export", "1", str(tmp_path / "1.zip"), "--run-dir", str(runs))
    assert told.returncode == 0, told.stderr
    given = unzipped(tmp_path / "1.zip", "1")
    texts = [path.read_bytes() for path in given.rglob("*") if path.is_file()]
    assert not [text for text in texts if f"{home}/".encode() in text or f"{home}.".encode() in text]
    # which is somebody else's
    assert any(f"{home}2".encode() in text for text in texts)
    assert b"a file" in texts
    packed = RecordedRun(RunDirectory(given))
    assert packed.about.task == "~/task"
    opened, began, begun, ended = packed.events()
    assert isinstance(opened, Opened)
    assert isinstance(began, RunBegan)
    assert (opened.workspaces, began.task) == (["~/coding"], "Look at ~.")
    assert (begun.type, getattr(ended, "output", None)) == ("block_began", long.replace(str(home), "~"))
    assert len(list((given / "blobs").rglob("*"))) == len(list((runs / "1" / "blobs").rglob("*")))


def test_a_run_that_goes_on_is_not_packed_and_nothing_is_left_of_the_file(tmp_path: Path):
    writer = recorder(tmp_path / "runs", "1", RunBegan(span=1, task="Look."))
    told = in_this_process("export", "1", str(tmp_path / "1.zip"), "--run-dir", str(tmp_path / "runs"))
    writer.close()
    assert (told.returncode, "the run 1 still goes on" in told.stderr) == (2, True), told.stderr
    assert not (tmp_path / "1.zip").exists()


@pytest.mark.long
def test_an_archive_is_shown_and_replayed_by_somebody_else(tmp_path: Path):
    here, there = tmp_path / "ada", tmp_path / "bob"
    for place in (here, there):
        place.mkdir()
    (here / "agent.yaml").write_text(ANALYST.replace("sales.csv]", f"{here}/sales.csv]"))
    (here / "sales.csv").write_text("region,amount\nNorth,120\nSouth,80\n")
    secret = {"HOME": str(here), "SHOP_API_KEY": "s3cr3t-0123456789"}
    ran = codeact_team("run", "agent.yaml", "Say s3cr3t-0123456789.", cwd=here, **secret)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert codeact_team("export", "last", "run.zip", cwd=here, **secret).returncode == 0
    given = unzipped(here / "run.zip", next((here / ".codeact-team" / "runs").glob("2*")).name)
    for path in given.rglob("*"):
        assert not path.is_file() or str(here).encode() not in path.read_bytes(), path
        assert not path.is_file() or b"s3cr3t-" not in path.read_bytes(), path
    given = given.rename(there / "report")
    assert "It is 200." in codeact_team("show", "report", cwd=there, HOME=str(there)).stdout
    found = asyncio.run(replay_run(given, trusted=True))
    assert (found.difference, found.blocks) == (None, 5)
    refused = codeact_team("replay", "report", cwd=there, HOME=str(there))
    assert (refused.returncode, "was not recorded by you" in refused.stderr) == (2, True)


def test_markdown_has_the_figures_in_files_beside_it(tmp_path: Path):
    writer = recorder(
        tmp_path / "runs",
        "1",
        RunBegan(span=1, task="Draw."),
        said("I draw.\n```python\ndraw()\n```", "draw()"),
        *ran(2, "draw()", output="```\n", artifacts=[ArtifactReference.of(FIGURE)]),
        result(RunEnding.ANSWERED, answer="There."),
    )
    writer.blobs.keep(PNG)
    writer.close()
    told = in_this_process("export", "1", str(tmp_path / "a b.md"), "--run-dir", str(tmp_path / "runs"))
    assert told.returncode == 0, told.stderr
    assert (tmp_path / "a b.md").read_text() == (
        "> Draw.\n\nI draw.\n\n```python\ndraw()\n```\n\n````text\n```\n````\n\n![figure-1.png](<a b_files/figure-1.png>)\n\nThere.\n"
    )
    assert (tmp_path / "a b_files" / "figure-1.png").read_bytes() == PNG


def test_a_chat_has_each_message_in_order_and_none_that_was_undone(tmp_path: Path):
    talk = talker(tmp_path, ["One.", "Two.", "Three."])
    entered = "1?\n/undo\n3?\n"
    done = codeact_team("chat", talk, cwd=tmp_path, stdin=entered)
    assert done.returncode == 0, done.stderr
    codeact_team("chat", "--continue", cwd=tmp_path, stdin="4?\n")
    told = codeact_team("export", "last", "chat.md", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    text = (tmp_path / "chat.md").read_text()
    assert text.count("1?") == 0, text
    assert [line for line in text.splitlines() if line.startswith("> ")] == ["> 3?", "> 4?"]
    (tmp_path / "chat.ipynb").unlink(missing_ok=True)
    assert codeact_team("export", "last", "chat.ipynb", cwd=tmp_path).returncode == 0
    cells = json.loads((tmp_path / "chat.ipynb").read_text())["cells"]
    assert [cell["source"] for cell in cells[1:] if cell["source"].startswith(">")] == ["> 3?", "> 4?"]


def test_what_is_before_damage_is_written(tmp_path: Path):
    said_before = MessageSent.__name__
    writer = recorder(tmp_path / "runs", "1", RunBegan(span=1, task=said_before))
    writer.close()
    with open(writer.directory.lines, "ab") as file:
        file.write(b"damaged\n")
    for name in ("1.md", "1.ipynb", "1.html"):
        told = in_this_process("export", "1", str(tmp_path / name), "--run-dir", str(tmp_path / "runs"))
        assert (told.returncode, "the journal is damaged here" in told.stderr) == (2, True), told.stderr
        assert said_before in (tmp_path / name).read_text()
