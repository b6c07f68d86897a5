"""Another model in the middle of a chat."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
from support.command_line import codeact_team, local_model, talker
from support.openai_server import AnyReply, HttpError, ScriptedServer, Text
from support.terminal import on_a_terminal
from test_cli_chat import ask, asked, codeact, leave
from test_cli_chat_kept import ON, kill, python

UNKNOWN = HttpError(404, "The model `smal` does not exist")


def models(server: ScriptedServer) -> list[object]:
    return [request["model"] for request in server.requests]


def test_another_model_is_asked_from_then_on_and_stays_with_the_chat(tmp_path: Path):
    replies: list[AnyReply] = [Text("One."), UNKNOWN, *map(Text, ("Three.", "Four.", "Five."))]
    with ScriptedServer.in_thread(replies) as server:
        variables = local_model(server.base_url)
        entered = "1?\n/model smal\n2?\n/model small\n3?\n"
        done = codeact_team("chat", talker(tmp_path), cwd=tmp_path, stdin=entered, **variables)
        more = codeact_team(*ON, cwd=tmp_path, stdin="4?\n", **variables)
        last = codeact_team(*ON, "--model", "large", cwd=tmp_path, stdin="5?\n", **variables)
        first = models(server)[0]
        again = f"to ask {first} again: /model {first}\n"
        assert models(server) == [first, "smal", "small", "small", "large"]
    error, advice = done.stderr.splitlines(keepends=True)
    assert f"\nsmal is asked from now on, in place of {first}\n" in done.stdout
    assert ("does not exist" in error, advice) == (True, again), "the error says how to go back"
    assert "Four." in more.stdout
    assert "\nlarge is asked from now on, in place of small\n" in last.stdout
    assert asked(server, 4) == ["1?", "One.", "2?", "3?", "Three.", "4?", "Four.", "5?"]
    replayed = codeact_team("replay", "last", cwd=tmp_path)
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr


def test_a_recorded_model_stays_and_the_chat_says_so(tmp_path: Path):
    command = ["chat", talker(tmp_path, ["Hi.", "Yes."])]
    done = codeact_team(*command, cwd=tmp_path, stdin="1?\n/model small\n2?\n")
    assert "does not take this: its answers are recorded" in done.stderr
    assert "Yes." in done.stdout


def test_a_team_that_asks_several_models_asks_one_and_undo_goes_back(tmp_path: Path):
    talks = json.loads((tmp_path / talker(tmp_path)).read_text())
    agents = [copy.deepcopy(talks) for _ in range(2)]
    for number, agent in enumerate(agents):
        agent["config"]["name"] = f"helper_{number}"
        agent["config"]["model_client"]["config"]["model"] = f"model-{number}"
    ends = {"provider": "autogen_agentchat.conditions.MaxMessageTermination", "config": {"max_messages": 3}}
    team = {
        "provider": "autogen_agentchat.teams.RoundRobinGroupChat",
        "config": {"participants": agents, "termination_condition": ends},
    }
    (tmp_path / "team.json").write_text(json.dumps(team))
    with ScriptedServer.in_thread([*map(Text, "abcdef")]) as server:
        entered = "1?\n/model one\n2?\n/undo\n/undo\n3?\n"
        variables = local_model(server.base_url)
        done = codeact_team("chat", "team.json", cwd=tmp_path, stdin=entered, **variables)
        assert models(server) == ["model-0", "model-1", "one", "one", "model-0", "model-1"]
    assert "\none is asked from now on, in place of model-0 and model-1\n" in done.stdout
    assert "to ask model-0 and model-1 again: /undo, until the last /model is undone\n" in done.stderr


@pytest.mark.long
def test_another_model_survives_a_kill_and_is_undone(tmp_path: Path):
    replies = [python("x = 1"), Text("Set."), python("print(x)"), Text("Shown."), Text("Back.")]
    with ScriptedServer.in_thread(replies) as server:
        command, variables = codeact(server)
        with on_a_terminal(
            *command, "-s", "config.model_client.config.model=first", cwd=tmp_path, **variables
        ) as terminal:
            ask(terminal, "Set x.")
            terminal.wait_for("Set.\n\n── answered")
            ask(terminal, "/model second")
            terminal.wait_for("second is asked from now on, in place of first")
            terminal.wait_for("\n> ")
            kill(terminal)
        with on_a_terminal(*ON, cwd=tmp_path, **variables) as terminal:
            terminal.wait_for("second is asked from now on")
            ask(terminal, "Show x.")
            terminal.wait_for("Shown.\n\n── answered")
            for undone in ("Show x.", "/model second"):
                ask(terminal, "/undo")
                terminal.wait_for(f"the last message is undone: {undone}")
            ask(terminal, "Back?")
            terminal.wait_for("Back.\n\n── answered")
            assert leave(terminal) == 0
    assert models(server) == ["first", "first", "second", "second", "first"]
