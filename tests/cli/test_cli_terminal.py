"""The command on a terminal: a pseudo-terminal stands for it, so what is read here is what a terminal would obey."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from contextlib import suppress
from pathlib import Path

from command_line import ACCEPT, COMMAND, CONFINED, codeact_team, environment, local_model
from support.openai_server import Json, ScriptedServer, Slow, Text
from terminal import on_a_terminal

HOSTILE = "\x1b]0;pwned\x07\x1b[2J\x1b[31;5m\x9b1A[red]markup[/red]"
SHOWN = "␛]0;pwned␇␛[2J␛[31;5m\ufffd1A[red]markup[/red]"
OURS = re.compile(r"\x1b\[(?:[0-9;]*m|\?25[lh]|2K|1A)")
"""Colours; and what the sign of life needs to disappear again."""


def test_colours_and_a_sign_of_life_but_no_escape_sequence_of_others_reach_the_terminal(tmp_path: Path):
    code = f"print({HOSTILE!r})"
    replies = [
        Text(f"Look {HOSTILE}:\n```python\n{code}\n```\n"),
        Slow(1.2, Json({**ACCEPT, "next_step": HOSTILE})),
    ]
    with ScriptedServer.in_thread(replies) as server:
        command = ("run", "local-model", f"Say {HOSTILE}", "-s", CONFINED)
        with on_a_terminal(*command, cwd=tmp_path, **local_model(server.base_url)) as terminal:
            assert terminal.end() == 0, terminal.text
            output = terminal.raw
    assert "\x1b[1;36m── coder\x1b[0m" in output
    assert "\x1b[96;49mprint" in output
    assert "\x1b[1;32m✓ Accepted.\x1b[0m" in output
    assert "working" in output
    assert output.count(SHOWN) == 4
    rest = OURS.sub("", output).replace("\r", "")
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", rest)


def test_no_colours_where_there_is_no_terminal_or_they_are_not_wanted(tmp_path: Path):
    piped = codeact_team("run", "quickstart", cwd=tmp_path)
    assert piped.returncode == 0
    assert "\x1b" not in piped.stdout + piped.stderr
    with on_a_terminal("run", "quickstart", cwd=tmp_path, NO_COLOR="1") as terminal:
        assert terminal.end() == 0
    assert not re.search(r"\x1b\[[0-9;]*3\dm", terminal.raw)


def test_a_terminal_that_knows_ascii_only_gets_a_run_all_the_same(tmp_path: Path):
    ours, theirs = pty.openpty()
    variables = {"TERM": "xterm-256color", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    with subprocess.Popen(
        [*COMMAND, "run", "quickstart"],
        cwd=tmp_path,
        env=environment(**variables),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        output = b""
        # an error is Linux's way to say that the other side is closed
        with suppress(OSError):
            while data := os.read(ours, 65536):
                output += data
        os.close(ours)
    assert process.returncode == 0, output
    assert "Accepted." in output.decode("ascii")
