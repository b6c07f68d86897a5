"""Files that a person gives to the code in the middle of a chat."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import codeact_team
from support.openai_server import ScriptedServer, Text
from support.terminal import on_a_terminal
from test_cli_chat import ask, asked, codeact, leave
from test_cli_chat_kept import ON, kill, python

COUNT = python(
    "import glob\nx = x + 1\nprint(x, {name: open(name).read() for name in sorted(glob.glob('*.csv'))})"
)


def told(server: ScriptedServer, request: int) -> str:
    """What a request has told the model of files."""
    return str(server.requests[request]["messages"][0]["content"]).rpartition("<output>\n")[2]


def test_files_that_are_given_in_a_chat_are_there_told_and_kept_with_it(tmp_path: Path):
    (tmp_path / "a b.csv").write_text("day,amount\n")
    (tmp_path / "c.csv").write_text("id\n")
    replies = [python("x = 1"), Text("Set."), COUNT, Text("One."), COUNT, Text("Two.")]
    with ScriptedServer.in_thread(replies) as server:
        command, variables = codeact(server)
        entered = "Set x.\n/data nowhere.csv\n/data 'a b.csv'\nAnd now?\n/files\n"
        done = codeact_team(*command, cwd=tmp_path, stdin=entered, **variables)
        (tmp_path / "a b.csv").write_text("changed since\n")
        more = codeact_team(*ON, "--data", "c.csv", cwd=tmp_path, stdin="And now?\n", **variables)
    assert "error: data: there is no nowhere.csv" in done.stderr
    assert "the code has a copy of a b.csv now · 11 bytes" in done.stderr
    assert "the code has made no files" in done.stderr, "they are the person's"
    assert "2 {'a b.csv': 'day,amount\\n'}" in done.stdout
    assert "the code has a copy of c.csv now · 3 bytes" in more.stderr
    assert "3 {'a b.csv': 'day,amount\\n', 'c.csv': 'id\\n'}" in more.stdout, (
        "with its variables, and the file as it was"
    )
    assert "a b.csv" not in told(server, 0)
    given = "a b.csv, 11 bytes\n    day,amount\n"
    assert told(server, 2).startswith(given)
    assert told(server, 4).startswith(f"{given}c.csv, 3 bytes\n    id\n")
    assert asked(server, 4)[-1] == "And now?", "the model reads no command"


@pytest.mark.long
@pytest.mark.parametrize("confined", [True, pytest.param(False, marks=pytest.mark.docker)])
def test_data_of_a_chat_survives_a_kill_and_is_undone(tmp_path: Path, *, confined: bool):
    (months := tmp_path / "months").mkdir()
    for month in range(30):
        (months / f"{month:02}.csv").write_text("day,amount\n")
    (tmp_path / "c.csv").write_text("id\n")
    replies = [python("x = 1"), Text("Set."), COUNT, Text("One."), COUNT, Text("Two.")]
    with ScriptedServer.in_thread(replies) as server:
        command, variables = codeact(server, confined=confined)
        with on_a_terminal(*command, cwd=tmp_path, **variables) as terminal:
            ask(terminal, "Set x.")
            terminal.wait_for("Set.\n\n── answered")
            ask(terminal, "/data months c.csv")
            terminal.wait_for("the code has a copy of c.csv now · 3 bytes")
            kill(terminal)
        with on_a_terminal(*ON, cwd=tmp_path, **variables) as terminal:
            terminal.wait_for("the code has a copy of c.csv now · 3 bytes")
            ask(terminal, "And now?")
            terminal.wait_for("\n2 {'c.csv': 'id\\n'}")
            terminal.wait_for("One.\n\n── answered")
            for _ in range(2):
                ask(terminal, "/undo")
                terminal.wait_for("the last message is undone")
            ask(terminal, "And now?")
            terminal.wait_for("\n2 {}\n")
            terminal.wait_for("Two.\n\n── answered")
            assert leave(terminal) == 0
    assert "months/, 30 files, 330 bytes\n    30 .csv: 00.csv to 29.csv; all begin with day,amount\n" in told(
        server, 2
    )
    assert "months" not in told(server, 4)
    replayed = codeact_team("replay", "last", cwd=tmp_path, XDG_STATE_HOME=str(tmp_path / "state"))
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
