"""``--model`` and ``--base-url``: any config with any model at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import ACCEPT, CODE, FAILS, RETRY, codeact_team, lines, talker
from support.openai_server import Json, ScriptedServer, Text
from support.variations import mostly_long

SANDBOX = "config.participants.executor.config.code_executor.config"
QUICKLY = ("-s", f"{SANDBOX}.confinement=best_effort", "-s", f"{SANDBOX}.packages=[]")


def test_one_model_behind_one_url_works_for_all_of_a_team_without_a_key(tmp_path: Path):
    with ScriptedServer.in_thread([Text(FAILS), Json(RETRY), Text(CODE), Json(ACCEPT)]) as server:
        options = ("--model", "qwen3", "--base-url", server.base_url, "--json")
        result = codeact_team("run", "team-confined", "6 * 7?", *options, *QUICKLY, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert [request["model"] for request in server.requests] == ["qwen3"] * 4
    assert {event["model"] for event in lines(result.stdout) if event["type"] == "model_call_began"} == {
        "qwen3"
    }
    # what is assumed of a model that nobody knows is said once, with what to do about it
    assert result.stderr.count("AutoGen does not know the model 'qwen3'") == 1
    assert (
        "it is taken for one with function_calling, json_output; model_info says otherwise" in result.stderr
    )


def test_a_chat_has_them_too(tmp_path: Path):
    with ScriptedServer.in_thread([Text("Hello.")]) as server:
        command = ("chat", talker(tmp_path), "--model", "gpt-4.1", "--base-url", server.base_url)
        result = codeact_team(*command, cwd=tmp_path, stdin="Hi")
    assert result.returncode == 0, result.stderr
    assert "Hello." in result.stdout
    assert server.requests[0]["model"] == "gpt-4.1"
    # the server answers with that name, where AutoGen's tables have one with a date
    assert "mismatch" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    mostly_long(
        [
            (
                ("run", "quickstart", "--model", "gpt-4.1"),
                "its answers are recorded, and no model is asked; `team` and `team-confined` ask one",
            ),
            (
                ("run", "team", "task", "--base-url", "localhost:11434"),
                "the URL of a server begins with http:// or https://",
            ),
            (
                ("run", "team", "task", "--model", "qwen3"),
                "AutoGen does not know the model 'qwen3'",
            ),
        ]
    ),
)
def test_what_cannot_work_is_an_error_that_names_the_option(
    tmp_path: Path, arguments: tuple[str, ...], said: str
):
    result = codeact_team(*arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith(f"error: {arguments[-2]}: ")
    assert said in result.stderr
    assert result.stdout == ""
