"""What a person is asked before a run goes on that somebody else has recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.command_line import codeact_team, talker
from support.openai_server import HttpError, ScriptedServer, Text
from support.terminal import on_a_terminal

KEY = "a-key-of-this-machine-0123456789"


@pytest.mark.parametrize("allowed", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_person_is_asked_for_the_whole_and_then_for_each_key(tmp_path: Path, allowed: bool) -> None:
    failing = "config.model_client.config.chat_completions=[]"
    codeact_team(
        "run", talker(tmp_path, ["Hello."]), f"Say {KEY}.", "-s", failing, cwd=tmp_path, MY_API_KEY=KEY
    )
    assert KEY not in next((tmp_path / ".codeact-team" / "runs").glob("2*/run.json")).read_text()
    with on_a_terminal(
        "resume", "last", cwd=tmp_path, XDG_STATE_HOME=str(tmp_path / "other"), MY_API_KEY=KEY
    ) as terminal:
        terminal.wait_for("Go on with this run?")
        assert "its config" in terminal.text
        assert "provider: autogen_agentchat" in terminal.text
        terminal.type("y", "\r")
        terminal.wait_for("Give MY_API_KEY of this machine")
        terminal.type("y" if allowed else "n", "\r")
        terminal.end()
        assert (f"Say {KEY}" in terminal.text) == allowed


@pytest.mark.parametrize("ending", ["y", pytest.param("n", marks=pytest.mark.long)])
def test_what_is_longer_than_the_screen_is_paged_and_agreed_to_only_at_its_end(
    tmp_path: Path, ending: str
) -> None:
    failing = "config.model_client.config.chat_completions=[]"
    task = "\n".join(f"line_{number}" for number in range(1, 60))
    codeact_team("run", talker(tmp_path, ["Hello."]), task, "-s", failing, cwd=tmp_path)
    with on_a_terminal("resume", "last", cwd=tmp_path, XDG_STATE_HOME=str(tmp_path / "other")) as terminal:
        terminal.wait_for("lines shown. Enter for more, n no >")
        assert "line_59" not in terminal.text
        terminal.type("y", "\r")
        terminal.wait_for("there is more to read before it can be allowed")
        if ending == "n":
            terminal.type("\x7f", "n", "\r")
            terminal.end()
            assert "line_59" not in terminal.text
            return
        terminal.type("\x7f", "\r")
        terminal.wait_for("line_59")
        terminal.wait_for("72 of ")
        assert "Go on with this run?" not in terminal.text
        terminal.type("\r")
        terminal.wait_for("Go on with this run?")
        terminal.type("n", "\r")
        terminal.end()


def test_a_line_break_in_a_run_s_name_is_shown_and_breaks_no_line(tmp_path: Path) -> None:
    failing = "config.model_client.config.chat_completions=[]"
    codeact_team("run", talker(tmp_path, ["Hello."]), "Greet.", "-s", failing, cwd=tmp_path)
    runs = tmp_path / ".codeact-team" / "runs"
    (run,) = runs.glob("2*")
    run.rename(runs / "odd\nerror: all is lost")
    listed = codeact_team("runs", cwd=tmp_path)
    refused = codeact_team("resume", "odd", cwd=tmp_path, XDG_STATE_HOME=str(tmp_path / "other"))
    for told in (listed, refused):
        assert "odd\u2424error: all is lost" in told.stdout + told.stderr
        assert "\nerror: all is lost" not in told.stdout + told.stderr
    with on_a_terminal("resume", "odd", cwd=tmp_path, XDG_STATE_HOME=str(tmp_path / "other")) as terminal:
        terminal.wait_for("Go on with this run?")
        assert "odd\u2424error: all is lost" in terminal.text
        terminal.type("n", "\r")
        terminal.end()


@pytest.mark.parametrize("allowed", [pytest.param(True, marks=pytest.mark.long), False])
def test_each_variable_that_its_config_refers_to_is_given_by_its_name(tmp_path: Path, allowed: bool) -> None:
    failing = "config.model_client.config.chat_completions=[]"
    codeact_team(
        *(
            "run",
            talker(tmp_path, ["Hello."]),
            "Greet.",
            "-s",
            failing,
            "-s",
            "config.description=${MY_WORD}",
        ),
        cwd=tmp_path,
        MY_WORD="a word of this machine",
    )
    assert "${MY_WORD}" in next((tmp_path / ".codeact-team" / "runs").glob("2*/config.yaml")).read_text()
    other = {"XDG_STATE_HOME": str(tmp_path / "other"), "MY_WORD": "a word of this machine"}
    with on_a_terminal("resume", "last", cwd=tmp_path, **other) as terminal:
        terminal.wait_for("Go on with this run?")
        terminal.type("y", "\r")
        terminal.wait_for("Give MY_WORD of this machine")
        terminal.type("y" if allowed else "n", "\r")
        terminal.end()
        assert ("the environment variable MY_WORD is not set" in " ".join(terminal.text.split())) != allowed


@pytest.mark.parametrize("allowed", [pytest.param(True, marks=pytest.mark.long), False])
def test_a_server_that_its_config_names_gets_a_key_of_this_machine_only_if_that_is_given(
    tmp_path: Path, allowed: bool
) -> None:
    document = json.loads((tmp_path / talker(tmp_path, [])).read_text())
    with ScriptedServer.in_thread([HttpError(400), Text("Hello.")]) as server:
        document["config"]["model_client"] = {
            "provider": "autogen_ext.models.openai.OpenAIChatCompletionClient",
            "config": {"model": "gpt-4o", "base_url": server.base_url, "max_retries": 0},
        }
        (tmp_path / "asking.json").write_text(json.dumps(document))
        codeact_team("run", "asking.json", "Greet.", cwd=tmp_path, OPENAI_API_KEY="k-one")
        began = len(server.requests)
        other = {"XDG_STATE_HOME": str(tmp_path / "other"), "OPENAI_API_KEY": KEY}
        with on_a_terminal("resume", "last", cwd=tmp_path, **other) as terminal:
            terminal.wait_for("Go on with this run?")
            terminal.type("y", "\r")
            terminal.wait_for("Give OPENAI_API_KEY of this machine")
            terminal.type("y" if allowed else "n", "\r")
            terminal.end()
            assert ("sends OPENAI_API_KEY to http://127.0.0.1" in " ".join(terminal.text.split())) != allowed
        assert (len(server.requests) > began) == allowed
