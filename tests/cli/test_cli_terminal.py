"""The command on a terminal: a pseudo-terminal stands for it, so what is read here is what a terminal would obey."""

from __future__ import annotations

import re
from pathlib import Path

from support.command_line import ACCEPT, CONFINED, codeact_team, local_model, talker
from support.openai_server import Json, ScriptedServer, Slow, Text
from support.terminal import on_a_terminal

HOSTILE = "\x1b]0;pwned\x07\x1b[2J\x1b[31;5m\x9b1A[red]markup[/red]"
SHOWN = "␛]0;pwned␇␛[2J␛[31;5m\ufffd1A[red]markup[/red]"
OURS = re.compile(r"\x1b\[(?:[0-9;]*m|\?25[lh]|2K|1A)")
"""Colours; and what the sign of life needs to disappear again."""


def test_colours_and_a_sign_of_life_but_no_escape_sequence_of_others_reach_the_terminal(tmp_path: Path):
    code = f"print({HOSTILE!r})"
    replies = [
        Text(f"Look {HOSTILE}:\n```python\n{code}\n```\n"),
        Slow(0.6, Json({**ACCEPT, "next_step": HOSTILE, "answer": HOSTILE})),
    ]
    with ScriptedServer.in_thread(replies) as server:
        command = ("run", "local-model", f"Say {HOSTILE}", "-s", CONFINED)
        with on_a_terminal(*command, cwd=tmp_path, **local_model(server.base_url)) as terminal:
            assert terminal.end() == 0, terminal.text
            output = terminal.raw
    assert "waiting for scripted-model 0:00:00" in output[output.index("✓ exit code 0") :]
    assert "\x1b[1;36m── coder\x1b[0m" in output
    assert "\x1b[96;49mprint" in output
    assert "\x1b[1;32m✓ Accepted.\x1b[0m" in output
    assert output.count(SHOWN) == 5
    rest = OURS.sub("", output).replace("\r", "")
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", rest)


def test_no_colours_where_there_is_no_terminal_or_they_are_not_wanted(tmp_path: Path):
    command = ["run", talker(tmp_path, ["```python\nprint(1)\n```"]), "A task"]
    piped = codeact_team(*command, cwd=tmp_path)
    assert "print(1)" in piped.stdout
    assert "\x1b" not in piped.stdout + piped.stderr
    with on_a_terminal(*command, cwd=tmp_path, NO_COLOR="1") as terminal:
        terminal.end()
    assert "print(1)" in terminal.text
    assert not re.search(r"\x1b\[[0-9;]*3\dm", terminal.raw)


def test_a_terminal_that_knows_ascii_only_gets_a_run_all_the_same(tmp_path: Path):
    command = ["run", talker(tmp_path, ["So sei es, für immer."]), "A task"]
    with on_a_terminal(*command, cwd=tmp_path, PYTHONIOENCODING="ascii", PYTHONUTF8="0") as terminal:
        assert terminal.end() == 0
    assert "?? helper\nSo sei es, f?r immer.\n" in terminal.text


def test_a_run_that_has_succeeded_says_where_it_is_kept_and_what_to_do_with_it(tmp_path: Path):
    with on_a_terminal("run", talker(tmp_path, ["Done."]), "A task", cwd=tmp_path) as terminal:
        assert terminal.end() == 0
    end = terminal.text.split("── answer · as shown above\n")[1]
    kept = r"kept in \.codeact-team/runs/\S+\ncodeact-team show last\n"
    assert re.fullmatch(kept, end)


def test_what_is_typed_while_work_goes_on_leaves_no_trace_and_later_it_does(tmp_path: Path):
    with ScriptedServer.in_thread([Slow(1.5, Text("Done."))]) as server:
        command = ("run", talker(tmp_path), "A task")
        with on_a_terminal(*command, cwd=tmp_path, **local_model(server.base_url)) as terminal:
            terminal.wait_for_raw("waiting for scripted-model")
            terminal.type("typed\n\n")
            assert terminal.end() == 0
            assert terminal.echoes
    assert "typed" not in terminal.raw
