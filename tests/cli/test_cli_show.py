"""``codeact-team show``: a run that was recorded, or is, on the screen, as JSON and as a page."""

from __future__ import annotations

import base64
import os
import re
import signal
from pathlib import Path

import pytest
from support.command_line import COMMAND, codeact_team, environment, in_this_process, lines, run_code
from support.fork_server import start
from support.openai_server import ScriptedServer, Text
from support.recorded import recorder, result
from support.thoughts import thought
from test_cli_json import agent, variables

from codeact_team.core.events import RunBegan
from codeact_team.journal.result import RunEnding

PIECES = ("words", "output")


@pytest.mark.parametrize("config", [pytest.param("quickstart", marks=pytest.mark.long), "quickstart-codeact"])
def test_a_run_is_shown_as_it_looked(config: str, tmp_path: Path):
    ran = codeact_team("run", config, cwd=tmp_path)
    shown = codeact_team("show", "last", cwd=tmp_path)
    assert (ran.returncode, shown.returncode) == (0, 0), shown.stderr
    assert shown.stdout == ran.stdout
    assert shown.stderr == ran.stderr


def test_programs_get_the_events_of_a_run_but_for_pieces(tmp_path: Path):
    ran = run_code("print(6 * 7)", "--json", cwd=tmp_path)
    shown = codeact_team("show", "last", "--json", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    told = [event for event in lines(ran.stdout) if event["type"] not in PIECES]
    assert ran.returncode == 0, ran.stderr
    assert len(told) < len(lines(ran.stdout))
    assert lines(shown.stdout) == told


def test_a_run_that_goes_on_is_followed_until_it_ends(tmp_path: Path):
    os.mkfifo(tmp_path / "page")
    with ScriptedServer.in_thread(
        [Text("```python\nprint(tools.fetch('one'))\n```"), Text("It is there.")]
    ) as server:
        settings = environment(**variables(server, tmp_path))
        with start([*COMMAND[1:], *agent(tmp_path)], cwd=tmp_path, environment=settings) as run:
            assert run.stdout is not None
            while b"tool_call_began" not in run.stdout.readline():
                pass
            with start(
                [*COMMAND[1:], "show", "last", "--follow"], cwd=tmp_path, environment=settings
            ) as show:
                assert show.stdout is not None
                while b"tools.fetch" not in (line := show.stdout.readline()):
                    assert line
                so_far = codeact_team("show", "last", cwd=tmp_path)
                (tmp_path / "page").write_text("a page")
                shown, said = show.communicate(timeout=60)
            run.communicate(timeout=60)
    assert "the run goes on; --follow shows what happens as it does" in so_far.stderr
    assert (run.returncode, show.returncode) == (0, 0), said
    assert "a page\n✓ exit code 0\n" in shown.decode()
    assert shown.decode().endswith("── answer\nIt is there.\n")


def test_following_stops_by_ctrl_c(tmp_path: Path):
    writer = recorder(tmp_path / "runs", "run", RunBegan(span=1, task="Look."), thought("Well."))
    arguments = [*COMMAND[1:], "show", "last", "--follow", "--json", "--run-dir", "runs"]
    with start(arguments, cwd=tmp_path, environment=environment()) as show:
        assert show.stdout is not None
        while b"Well." not in (line := show.stdout.readline()):
            assert line
        show.send_signal(signal.SIGINT)
        _, said = show.communicate(timeout=60)
    writer.close()
    assert (show.returncode, said) == (130, b"error: interrupted\n")


def test_a_run_without_an_end_and_one_that_failed_say_so(tmp_path: Path):
    runs = tmp_path / "runs"
    recorder(runs, "1", thought("Well.")).close()
    recorder(runs, "2", result(RunEnding.FAILED, error="the key is wrong")).close()
    crashed, failed = (in_this_process("show", name, "--run-dir", str(runs)) for name in "12")
    assert (crashed.returncode, failed.returncode) == (0, 0)
    assert "warning: the run has no end" in crashed.stderr
    assert failed.stderr == "error: the key is wrong\n"


def test_a_page_is_written_all_at_once(tmp_path: Path):
    runs, page = tmp_path / "runs", tmp_path / "page.html"
    events = RunBegan(span=1, task="Look."), result(answer="There it is.")
    recorder(runs, "1", *events, task="Look.").close()
    arguments = ("show", "last", "--run-dir", str(runs), "--html")
    told = in_this_process(*arguments, str(page))
    assert (told.returncode, told.stdout) == (0, ""), told.stderr
    assert told.stderr == f"the page is {page}\n"
    text = page.read_text()
    assert "<title>Look.</title>" in text
    assert re.search(r"<h2>Answer</h2>\s*<div class=\"prose\"><p>There it is.</p>", text)
    assert sorted(os.listdir(tmp_path)) == ["page.html", "runs"]
    again = in_this_process(*arguments, str(page))
    assert again.stderr == f"the page is {page}; it replaces the file that was there\n"
    refused = in_this_process(*arguments, str(tmp_path / "missing" / "page.html"))
    assert refused.returncode == 2
    assert "page.html: No such file or directory" in refused.stderr
    os.mkfifo(tmp_path / "pipe")
    assert "pipe: it is not a file" in in_this_process(*arguments, str(tmp_path / "pipe")).stderr


@pytest.mark.long
def test_what_a_session_has_shown_is_on_the_page(tmp_path: Path):
    picture = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8
    code = f"class Picture:\n    def _repr_png_(self):\n        return {picture!r}\n\nPicture()"
    with ScriptedServer.in_thread([Text(f"```python\n{code}\n```"), Text("It is there.")]) as server:
        ran = codeact_team(*agent(tmp_path), cwd=tmp_path, **variables(server, tmp_path))
    assert ran.returncode == 0, ran.stderr
    told = codeact_team("show", "last", "--html", "page.html", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    page = (tmp_path / "page.html").read_text()
    assert f'<img src="data:image/png;base64,{base64.b64encode(picture).decode()}"' in page
    assert "step-1-1.png · image/png · 2.1 kB" in page


def test_what_is_whole_of_a_damaged_run_is_shown(tmp_path: Path):
    runs, page = tmp_path / "runs", tmp_path / "page.html"
    writer = recorder(runs, "1", RunBegan(span=1, task="Look."), thought("Well."))
    writer.close()
    with open(writer.directory.lines, "ab") as file:
        file.write(b"damaged\n")
    for arguments in ([], ["--json"], ["--follow", "--json"], ["--html", str(page)]):
        told = in_this_process("show", "1", "--run-dir", str(runs), *arguments)
        assert told.returncode == 2
        assert "journal.jsonl:3: the journal is damaged here; everything before is intact" in told.stderr
        assert "--json" not in arguments or "Well." in told.stdout
    assert "Well." in page.read_text()


def test_what_cannot_be_meant_is_said(tmp_path: Path):
    runs = tmp_path / "runs"
    recorder(runs, "1").close()
    both = in_this_process("show", "1", "--run-dir", str(runs), "--html", "page.html", "--json")
    assert both.returncode == 2
    assert "--html writes a page of what has happened: leave --follow and --json out" in both.stderr
    none = in_this_process("show", "2", "--run-dir", str(runs))
    assert (none.returncode, "there is no run '2'" in none.stderr) == (2, True)
