"""``run --quiet``: the answer is all that is printed."""

from __future__ import annotations

from pathlib import Path

from support.command_line import (
    CONFINED,
    codeact_team,
    limited_talker,
    local_model,
    run_code,
    talker,
)
from support.openai_server import HttpError, ScriptedServer, Slow, Text


def test_an_accepted_answer_is_all_of_the_output(tmp_path: Path):
    looser = ("-s", "config.code_executor.config.pids=300")
    result = run_code("print('It is', 6 * 7)", "--quiet", "-o", "answer.txt", *looser, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "It is 42\n"
    assert (tmp_path / "answer.txt").read_text() == "It is 42\n"
    # what is loose, somebody has to know all the same
    assert "the sandbox is looser than its default: pids: 300" in result.stderr


def test_an_answer_cannot_steer_the_terminal(tmp_path: Path):
    result = codeact_team("run", talker(tmp_path, ["It is \x1b[2J42."]), "A task", "-q", cwd=tmp_path)
    assert result.stdout == "It is ␛[2J42.\n"


def test_what_nobody_has_accepted_is_labelled_beside_the_output(tmp_path: Path):
    result = codeact_team("run", limited_talker(tmp_path, "It is 42."), "A task", "-q", cwd=tmp_path)
    assert result.returncode == 1
    assert result.stdout == "It is 42.\n"
    assert "warning: not accepted · best answer so far · " in result.stderr


def test_without_an_answer_nothing_is_printed(tmp_path: Path):
    with ScriptedServer.in_thread([Slow(60, Text("Too late."))]) as server:
        command = ["run", talker(tmp_path), "A task", "-q", "--timeout", "0.3"]
        result = codeact_team(*command, cwd=tmp_path, **local_model(server.base_url))
    assert (result.returncode, result.stdout) == (1, "")
    assert "warning: not accepted · no answer · the time limit of 0.3 seconds is reached" in result.stderr


def test_errors_and_exit_codes_are_as_ever(tmp_path: Path):
    with ScriptedServer.in_thread([HttpError(500, "down")]) as server:
        command = ["run", talker(tmp_path), "A task", "-q"]
        result = codeact_team(*command, cwd=tmp_path, **local_model(server.base_url))
    assert (result.returncode, result.stdout) == (75, "")
    assert f"error: the model's server at {server.base_url} failed (500): down" in result.stderr
    assert "no answer" not in result.stderr


def test_quiet_and_json_exclude_each_other(tmp_path: Path):
    result = codeact_team("run", talker(tmp_path), "Hello", "-q", "--json", "-s", CONFINED, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert "error: --json prints all events, and --quiet the answer only" in result.stderr
