"""What a run makes and changes: told at its end, and copied to where the person wants it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recording import Recording, runner
from support.cost import SHORT, watched_turns

from codeact_team.core.effects import Event
from codeact_team.core.events import ArtifactKept, Opened, Output
from codeact_team.executors.confined import ConfinedCommandLineCodeExecutor
from codeact_team.journal.result import RunEnding, RunResult
from codeact_team.runs import run_files
from codeact_team.runs.recording import Recording as RunRecording
from codeact_team.runs.run_files import RunFiles

SHOWS = """```python
class Chart:
    def _repr_png_(self): return b'\\x89PNG\\r\\n\\x1a\\n'
class Table:
    def _repr_html_(self): return '<table>'
class Interactive:
    def _repr_html_(self): return '<div></div><script>draw()</script>'
open('report.txt', 'w').write('East')
display(Chart(), Interactive())
Table()
```"""


def analyst(name: str, replies: Sequence[str], **settings: Any) -> dict[str, Any]:
    client = "autogen_ext.models.replay.ReplayChatCompletionClient"
    return {
        "provider": "codeact_team.CodeActAgent",
        "config": {
            "name": name,
            "model_client": {"provider": client, "config": {"chat_completions": [*replies]}},
            "code_executor": {
                "provider": "codeact_team.ConfinedSessionCodeExecutor",
                "config": {"confinement": "best_effort", **settings},
            },
        },
    }


def saved(folder: Path, config: dict[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    return folder / "config.json"


async def run_one(
    folder: Path, replies: Sequence[str], out: Path | None = None, **settings: Any
) -> RunResult:
    source = saved(folder, analyst("analyst", replies, **settings))
    return await runner(source, Recording(), out=out).run_once("A task")


def told(result: RunResult) -> dict[str, tuple[str, str | None]]:
    return {file.path: (file.change.value, file.found_at) for file in result.files}


async def test_what_is_made_or_shown_is_told_and_copied(tmp_path: Path) -> None:
    recording, out = Recording(), tmp_path / "out"
    source = saved(tmp_path, analyst("analyst", [SHOWS, "East."]))
    result = await runner(source, recording, out=out).run_once("A task")
    assert (result.ending, result.file_notes) == (RunEnding.ANSWERED, [])
    assert told(result) == {name: ("made", str(out / name)) for name in os.listdir(out)}
    assert sorted(os.listdir(out)) == ["report.txt", "step-1-1.png", "step-1-2.html"]
    assert (out / "step-1-1.png").read_bytes() == b"\x89PNG\r\n\x1a\n"
    kept = [event for event in recording.events if isinstance(event, ArtifactKept)]
    assert [(event.agent, event.file, event.path, event.artifact.mime_type) for event in kept] == [
        ("analyst", "step-1-1.png", None, "image/png"),
        ("analyst", "step-1-2.html", None, "text/html"),
    ]


@pytest.mark.long
async def test_what_is_shown_in_attempts_side_by_side_is_kept_of_the_one_that_is_chosen(
    tmp_path: Path,
) -> None:
    out, config = tmp_path / "out", analyst("analyst", [SHOWS, SHOWS, "East.", "East."])
    config["config"]["attempts"] = 2
    result = await runner(saved(tmp_path, config), Recording(), out=out).run_once("A task")
    assert (result.ending, result.answer) == (RunEnding.ANSWERED, "East.")
    assert sorted(os.listdir(out)) == ["report.txt", "step-3-1.png", "step-3-2.html"]


SAVES = """```python
import matplotlib.pyplot as plt
plt.plot([1, 2])
plt.savefig("growth.png")
```"""


@pytest.mark.long
async def test_a_chart_that_code_has_saved_is_delivered_once(tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = await run_one(tmp_path, [SAVES, "The chart is in growth.png."], out)
    assert os.listdir(out) == ["growth.png"]
    assert (result.renamed, result.delivered_answer) == ("", "The chart is in growth.png.")


@pytest.mark.long
async def test_the_answer_is_followed_by_the_names_of_files_that_have_other_names_where_they_are(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "growth.png").write_text("a person's")
    (out / "a.txt").write_text("a person's")
    code = "```python\nfor name in ('growth.png', 'a.txt', 'xa.txt'): open(name, 'w').write('1')\n```"
    result = await run_one(tmp_path, [code, "The chart is in `growth.png`, and not in xa.txt."], out)
    line = f"growth.png is {out}/growth-2.png"
    assert result.answer == "The chart is in `growth.png`, and not in xa.txt."
    assert (result.renamed, result.delivered_answer) == (line, f"{result.answer}\n\n{line}")
    as_json = replace(result, answer='{"chart": "growth.png"}')
    # a program reads it
    assert (as_json.renamed, as_json.delivered_answer) == (line, as_json.answer)


async def test_a_workspace_that_stays_is_told_at_the_beginning_and_has_the_files(tmp_path: Path) -> None:
    recording, work_dir = Recording(), tmp_path / "coding"
    source = saved(tmp_path, analyst("analyst", [SHOWS, "East."], work_dir=str(work_dir)))
    result = await runner(source, recording).run_once("A task")
    [opened] = [event for event in recording.events if isinstance(event, Opened)]
    assert opened.workspaces == [str(work_dir)]
    assert told(result) == {name: ("made", str(work_dir / name)) for name in os.listdir(work_dir)}
    assert len(result.files) == 3
    # the same command again
    again = await run_one(tmp_path, [SHOWS, "East."], work_dir=str(work_dir))
    assert told(again) == {"report.txt": ("changed", str(work_dir / "report.txt"))}
    assert len(os.listdir(work_dir)) == 3


@pytest.mark.long
async def test_files_of_a_temporary_workspace_are_told_to_be_gone(tmp_path: Path) -> None:
    result = await run_one(tmp_path, [SHOWS, "East."])
    assert told(result)["report.txt"] == ("made", None)
    [note] = result.file_notes
    assert note.startswith(
        "the workspace was temporary, and these files are gone with it: copy them by `--out DIR`"
    )


async def test_a_run_that_fails_or_is_not_accepted_has_its_files(tmp_path: Path) -> None:
    failed = await run_one(tmp_path, ["```python\nopen('a', 'w')\n1 / 0\n```"], tmp_path / "failed")
    assert (failed.ending, list(told(failed))) == (RunEnding.FAILED, ["a"])
    assert os.listdir(tmp_path / "failed") == ["a"]


async def test_a_run_that_is_interrupted_has_what_was_there(tmp_path: Path) -> None:
    code = "```python\nimport time\nopen('a', 'w').write('1')\nprint('up', flush=True)\ntime.sleep(600)\n```"
    source = saved(tmp_path, analyst("analyst", [code]))

    def interrupt(event: Event) -> None:
        if isinstance(event, Output):
            running.stop(signal.SIGINT)

    running = runner(source, Recording(), out=tmp_path / "out")
    running.dispatcher.listen(interrupt)
    result = await running.run_once("A task")
    assert (result.ending, list(told(result))) == (RunEnding.STOPPED, ["a"])
    assert (tmp_path / "out" / "a").read_text() == "1"


async def test_each_message_of_a_chat_has_its_own_files(tmp_path: Path) -> None:
    two = "```python\nopen('two', 'w'); open('report.txt', 'a').write('!'); display(Chart(), Interactive()); Table()\n```"
    source = saved(tmp_path, analyst("analyst", [SHOWS, "East.", two, "Done.", "Nothing."]))
    chat = runner(source, Recording())
    async with chat.open():
        first, second, third = [await chat.run(task) for task in ("one", "two", "three")]
        there = {name for file in (*first.files, *second.files) for name in [Path(file.found_at or "")]}
        assert {name.name for name in there} <= {*os.listdir(there.pop().parent)}
    assert list(told(first)) == ["report.txt", "step-1-1.png", "step-1-2.html"]
    changes = {path: change for path, (change, _) in told(second).items()}
    made = dict.fromkeys(("step-2-1.png", "step-2-2.html", "two"), "made")
    assert changes == {"report.txt": "changed", **made}
    assert third.files == []
    assert [len(result.file_notes) for result in (first, second, third)] == [1, 0, 0]


@pytest.mark.parametrize("out", ["file/such", "file", "/proc/1/x"])
async def test_where_no_copies_can_be_written_nothing_is_opened(tmp_path: Path, out: str) -> None:
    (tmp_path / "file").touch()
    recording = Recording()
    source = saved(tmp_path, analyst("analyst", [SHOWS, "East."]))
    result = await runner(source, recording, out=tmp_path / out).run_once("A task")
    assert result.ending is RunEnding.FAILED
    assert str(tmp_path / out if out != "/proc/1/x" else out) in (result.error or "")
    assert recording.events == [result]


async def test_code_leads_the_copies_nowhere_else(tmp_path: Path) -> None:
    victim, out = tmp_path / "victim", tmp_path / "coding" / "out"
    victim.mkdir()
    out.mkdir(parents=True)
    code = (
        "```python\nimport os\nos.rename('out', 'moved')\nos.symlink('../victim', 'out')\nopen('a', 'w')\n```"
    )
    result = await run_one(tmp_path, [code, "Done."], out, work_dir=str(tmp_path / "coding"))
    assert told(result)["a"] == ("made", None)
    assert (result.files_due, result.exit_code) == (1, 2)
    assert os.listdir(victim) == []
    assert os.listdir(tmp_path / "coding" / "moved") == []


async def test_the_files_of_each_sandbox_stay_together(tmp_path: Path) -> None:
    team = {
        "provider": "autogen_agentchat.teams.RoundRobinGroupChat",
        "config": {
            "participants": [analyst("one", [SHOWS, "East."]), analyst("two", [SHOWS, "East."])],
            "max_turns": 2,
        },
    }
    out = tmp_path / "out"
    result = await runner(saved(tmp_path, team), Recording(), out=out).run_once("A task")
    assert [file.found_at for file in result.files if file.path == "report.txt"] == [
        str(out / "report.txt"),
        str(out / "sandbox-2" / "report.txt"),
    ]
    assert sorted(os.listdir(out / "sandbox-2")) == ["report.txt", "step-2-1.png", "step-2-2.html"]


@pytest.mark.long
async def test_more_files_are_copied_than_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_files, "MAX_FILES", 3)
    out = tmp_path / "out"
    code = "```python\nfor number in range(5): open(str(number), 'w')\n```"
    result = await run_one(tmp_path, [code, "Done."], out)
    assert (len(result.files), result.file_notes) == (3, ["2 more files are not listed here"])
    assert len(os.listdir(out)) == 5


@contextmanager
def deeper(top: Path, names: Sequence[str]) -> Generator[int]:
    """The last of directories inside one another, open: its path may be longer than a path may be."""
    folder = os.open(top, os.O_RDONLY)
    try:
        for name in names:
            os.mkdir(name, dir_fd=folder)
            folder, above = os.open(name, os.O_RDONLY, dir_fd=folder), folder
            os.close(above)
        yield folder
    finally:
        os.close(folder)


@pytest.mark.long
async def test_long_names_do_not_keep_the_loop_waiting(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    executor = ConfinedCommandLineCodeExecutor(work_dir=workspace, confinement="best_effort")
    files = RunFiles(tmp_path / "out", RunRecording(None))
    workspace.mkdir()
    async with executor:
        with deeper(workspace, [chr(0x4E00 + number) * 80 for number in range(60)]) as folder:
            for number in range(500):
                os.close(os.open(f".{number}", os.O_CREAT, dir_fd=folder))
        with files.opened():
            async with watched_turns() as turns, files.found_after(lambda: [executor], stays=True):
                pass
    assert len(files.found) == 500
    assert turns.longest < SHORT / 2


@pytest.mark.parametrize("keeps", [True, False])
def test_a_directory_for_files_is_made_with_its_parents_and_these_go_if_nothing_came(
    keeps: bool, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    files = RunFiles(tmp_path / "mine" / "a" / "b" / "out", RunRecording(None))
    files.make()
    with files.opened():
        if keeps:
            (tmp_path / "mine" / "a" / "b" / "out" / "chart.png").touch()
    assert [path.name for path in (tmp_path / "mine").rglob("*")] == (
        ["a", "b", "out", "chart.png"] if keeps else []
    )
