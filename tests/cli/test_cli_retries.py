"""Model calls that a server puts off: waited for as long as it says, and told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.command_line import codeact_team, lines, talker
from support.openai_server import HttpError, ScriptedServer, Text
from support.terminal import on_a_terminal
from support.variations import mostly_long

TOO_MANY = HttpError(429, "slow down", headers={"retry-after-ms": "30"})


def keys(server: ScriptedServer) -> dict[str, str]:
    return {"OPENAI_API_KEY": "a-key", "OPENAI_BASE_URL": server.base_url}


def agent(folder: Path) -> str:
    """A config for one that only talks, whose client retries as it does by default."""
    file = folder / talker(folder)
    config = json.loads(file.read_text())
    config["config"]["model_client"]["config"] = {"model": "gpt-4.1"}
    file.write_text(json.dumps(config))
    return file.name


def test_too_many_requests_are_waited_for_and_told(tmp_path: Path):
    with ScriptedServer.in_thread([*[TOO_MANY] * 5, Text("Done."), *[TOO_MANY] * 5, Text("Done.")]) as server:
        shown, told = (
            codeact_team("run", agent(tmp_path), "A task", *options, cwd=tmp_path, **keys(server))
            for options in ([], ["--json"])
        )
        assert server.unused == ()
    assert "Done." in shown.stdout
    assert shown.returncode == told.returncode == 0
    note = f"too many requests for the model's server at {server.base_url} (429): slow down; asked again in 0.0 s\n"
    assert shown.stderr.count(note) == 5
    put_off = [line for line in lines(told.stdout) if line["type"] == "model_call_put_off"]
    [call] = [line["span"] for line in lines(told.stdout) if line["type"] == "model_call_began"]
    assert [line["parent"] for line in put_off] == [call] * 5
    assert all(0 < line["seconds"] <= 0.03 for line in put_off)


@pytest.mark.parametrize(
    ("failure", "options", "requests"),
    mostly_long(
        [
            (TOO_MANY, ["--retries", "1"], 2),
            (TOO_MANY, ["--retries", "0"], 1),
            (HttpError(503, "down"), ["--retries", "1"], 2),
            # as the person has said of this client
            (TOO_MANY, ["-s", "config.model_client.config.max_retries=0"], 1),
            # waiting does not help
            (HttpError(429, "You exceeded your current quota"), [], 1),
        ],
        usual=2,
    ),
)
def test_a_failure_is_retried_as_often_as_is_wanted(
    failure: HttpError, options: list[str], requests: int, tmp_path: Path
):
    with ScriptedServer.in_thread([failure] * 9) as server:
        result = codeact_team("run", agent(tmp_path), "A task", *options, cwd=tmp_path, **keys(server))
        assert len(server.requests) == requests
    assert result.returncode in (2, 75)


@pytest.mark.long
def test_the_wait_ends_with_the_time_of_the_run(tmp_path: Path):
    later = HttpError(429, "slow down", headers={"x-ratelimit-reset-requests": "6m0s"})
    with ScriptedServer.in_thread([later]) as server:
        command = ("run", agent(tmp_path), "A task", "--timeout", "2")
        with on_a_terminal(*command, cwd=tmp_path, **keys(server)) as terminal:
            assert terminal.end() == 1
    assert "asked again in 360.0 s" in " ".join(terminal.text.split())
    assert (
        f"asked again in 0:06:00: too many requests for the model's server at {server.base_url}"
        in terminal.raw
    )
    assert "the time limit of 2 seconds is reached" in terminal.text.replace("\n", " ")


@pytest.mark.long
def test_a_chat_waits_as_well(tmp_path: Path):
    with ScriptedServer.in_thread([TOO_MANY, Text("Done.")]) as server:
        result = codeact_team("chat", agent(tmp_path), cwd=tmp_path, stdin="Hello\n", **keys(server))
        assert server.unused == ()
    assert (result.returncode, "Done." in result.stdout) == (0, True), result.stderr
