"""The command on a terminal: a pseudo-terminal stands for it, so what is read here is what a terminal would obey."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from pathlib import Path

from command_line import ACCEPT, COMMAND, CONFINED, environment, local_model
from support.openai_server import Json, ScriptedServer, Slow, Text

HOSTILE = "\x1b]0;pwned\x07\x1b[2J\x1b[31;5m\x9b1A[red]markup[/red]"
SHOWN = "␛]0;pwned␇␛[2J␛[31;5m\ufffd1A[red]markup[/red]"
OURS = re.compile(r"\x1b\[(?:[0-9;]*m|\?25[lh]|2K|1A)")
"""Colours; and what the sign of life needs to disappear again."""


def on_a_terminal(*arguments: str, cwd: Path, **variables: str) -> tuple[int, str]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=cwd,
        env=environment(TERM="xterm-256color", COLUMNS="100", LINES="40", **variables),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    output = b""
    try:
        while data := os.read(ours, 65536):
            output += data
    except OSError:
        # Linux's way to say that the other side is closed
        pass
    os.close(ours)
    return process.wait(timeout=30), output.decode()


def test_colours_and_a_sign_of_life_but_no_escape_sequence_of_others_reach_the_terminal(tmp_path: Path):
    code = f"print({HOSTILE!r})"
    replies = [
        Text(f"Look {HOSTILE}:\n```python\n{code}\n```\n"),
        Slow(1.2, Json({**ACCEPT, "next_step": HOSTILE})),
    ]
    with ScriptedServer.in_thread(replies) as server:
        exit_code, output = on_a_terminal(
            "run",
            "local-model",
            f"Say {HOSTILE}",
            "-s",
            CONFINED,
            cwd=tmp_path,
            **local_model(server.base_url),
        )
    assert exit_code == 0, output
    assert "\x1b[1;36m── coder\x1b[0m" in output
    assert "\x1b[96;49mprint" in output
    assert "\x1b[1;32m✓ Accepted.\x1b[0m" in output
    assert "working" in output
    assert output.count(SHOWN) == 4
    rest = OURS.sub("", output).replace("\r", "")
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", rest)


def test_no_colours_where_there_is_no_terminal_or_they_are_not_wanted(tmp_path: Path):
    piped = subprocess.run(
        [*COMMAND, "run", "quickstart"], cwd=tmp_path, env=environment(), capture_output=True, timeout=60
    )
    assert piped.returncode == 0
    assert b"\x1b" not in piped.stdout + piped.stderr
    _, output = on_a_terminal("run", "quickstart", cwd=tmp_path, NO_COLOR="1")
    assert not re.search(r"\x1b\[[0-9;]*3\dm", output)


def test_a_terminal_that_knows_ascii_only_gets_a_run_all_the_same(tmp_path: Path):
    exit_code, output = on_a_terminal(
        "run", "quickstart", cwd=tmp_path, PYTHONIOENCODING="ascii", PYTHONUTF8="0"
    )
    assert exit_code == 0, output
    assert "Accepted." in output
    output.encode("ascii")
