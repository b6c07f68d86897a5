"""Files that a person gives to the code in the middle of a chat."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.command_line import codeact_team, local_model
from support.openai_server import ScriptedServer, Text
from support.terminal import on_a_terminal
from test_cli_chat import agent, ask, asked, codeact, leave
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
    assert "\nthe code has a copy of a b.csv now · 11 bytes\n" in done.stdout
    assert "the code has made no files" in done.stderr, "they are the person's"
    assert "2 {'a b.csv': 'day,amount\\n'}" in done.stdout
    assert "\nthe code has a copy of c.csv now · 3 bytes\n" in more.stdout
    assert "3 {'a b.csv': 'day,amount\\n', 'c.csv': 'id\\n'}" in more.stdout, (
        "with its variables, and the file as it was"
    )
    assert "a b.csv" not in told(server, 0)
    given = "a b.csv, 11 bytes\n    day,amount\n"
    assert told(server, 2).startswith(given)
    assert told(server, 4).startswith(f"{given}c.csv, 3 bytes\n    id\n")
    assert asked(server, 4)[-1] == "And now?", "the model reads no command"


def test_what_was_given_and_chosen_is_told_in_a_sentence_wherever_the_chat_is_shown(tmp_path: Path):
    (months := tmp_path / "months").mkdir()
    for month in range(3):
        (months / f"{month}.csv").write_text("day,amount\n")
    with ScriptedServer.in_thread([Text("Yes.")]) as server:
        command, variables = codeact(server)
        entered = "/data months\n/data nowhere.csv\n/model gpt-5.1\nReady?\n"
        quiet = codeact_team(*command, "-q", cwd=tmp_path, stdin=entered, **variables)
    given = "the code has a copy of months/ now · 3 files, 33 bytes"
    chosen = "gpt-5.1 is asked from now on, in place of gpt-4.1"
    missing = f"data: there is no nowhere.csv (looked for in {tmp_path})"
    assert quiet.stdout == "Yes.\n"
    told = [line for line in quiet.stderr.splitlines() if not line.startswith("warning: AutoGen")]
    assert told == [given, f"error: {missing}", chosen]
    shown = codeact_team("show", "last", cwd=tmp_path)
    assert shown.stdout.startswith(f"{given}\n{chosen}\n")
    assert shown.stderr == f"error: {missing}\n"
    for name in ("chat.html", "chat.md", "chat.ipynb"):
        assert codeact_team("export", "last", name, cwd=tmp_path).returncode == 0
        page = (tmp_path / name).read_text()
        assert [page.count(sentence) for sentence in (given, missing, chosen)] == [1, 1, 1], name
        assert "model_choice" not in page, name


@pytest.mark.long
def test_data_that_several_sandboxes_get_is_told_once(tmp_path: Path):
    (tmp_path / "a.csv").write_text("id\n")
    helper = json.loads(Path(tmp_path, agent(tmp_path)[1]).read_text())
    helpers = [{**helper, "config": {**helper["config"], "name": name}} for name in ("one", "other")]
    team = {
        "provider": "autogen_agentchat.teams.RoundRobinGroupChat",
        "config": {"participants": helpers, "max_turns": 2},
    }
    (tmp_path / "team.json").write_text(json.dumps(team))
    look = Text("```sh\ncat a.csv\n```")
    with ScriptedServer.in_thread([look, look]) as server:
        entered = "/data a.csv\nLook.\n"
        variables = local_model(server.base_url)
        done = codeact_team("chat", "team.json", cwd=tmp_path, stdin=entered, **variables)
    assert done.stdout.count("the code has a copy of a.csv now · 3 bytes\n") == 1
    assert done.stdout.count("\nid\n") == 2, done.stdout + done.stderr


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
