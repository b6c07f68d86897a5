"""Agents of others are told of the sandbox with the task, once in a conversation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from recording import CONFINED, NO_HTTP_RETRIES, Recording, run_local, runner, use_model_at
from support.openai_server import HttpError, Json, ScriptedServer, Text

from codeact_team.core.events import RunBegan

TALK = Text("```python\nprint(6 * 7)\n```")
ACCEPT = Json({"problems": [], "accepted": True, "next_step": ""})
NOTE = "The sandbox in which the code runs:"
WORK_DIR = "config.participants.executor.config.code_executor.config.work_dir"


def told(request: dict[str, Any]) -> int:
    """How often a model is told of the sandbox."""
    return str(request["messages"]).count(NOTE)


@pytest.mark.long
async def test_a_coder_of_autogens_is_told_with_the_task(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "sales.csv").write_text("1")
    async with ScriptedServer([TALK, ACCEPT]) as server:
        use_model_at(server.base_url, monkeypatch)
        recording = Recording()
        result = await run_local(recording, f"{WORK_DIR}={tmp_path}")
    assert result.exit_code == 0
    coder = server.requests[0]["messages"]
    assert "network" not in coder[0]["content"]
    assert coder[1]["content"].startswith(f"A task\n\n{NOTE}")
    assert "sales.csv, 1 bytes" in coder[1]["content"]
    [began] = [event for event in recording.events if isinstance(event, RunBegan)]
    assert began.task == "A task"


async def test_an_agent_that_asks_itself_is_told_once(monkeypatch: pytest.MonkeyPatch):
    fails = Text("```python\n1 / 0\n```")
    async with ScriptedServer([fails, Json({"reason": "Multiply.", "retry": True}), TALK, ACCEPT]) as server:
        use_model_at(server.base_url, monkeypatch)
        await run_local(Recording())
    assert [told(request) for request in server.requests] == [1, 1, 1, 1]
    assert [message["role"] for message in server.requests[1]["messages"] if NOTE in str(message)] == [
        "system"
    ]


@pytest.mark.long
async def test_it_is_told_again_when_it_may_be_forgotten_or_has_changed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    replies = [TALK, ACCEPT, TALK, ACCEPT, TALK, ACCEPT, HttpError(400), TALK, ACCEPT]
    async with ScriptedServer(replies) as server:
        use_model_at(server.base_url, monkeypatch)
        team = runner("local-model", Recording(), overrides=[CONFINED, NO_HTTP_RETRIES])
        async with team.open():
            await team.run("One")
            await team.run("Two")
            await team.respond("/reset")
            await team.run("Three")
            await team.run("Four")
            await team.run("Five")
    # the coder's, of the first two runs, of the third after a reset, and of the last after one that broke off
    assert [told(server.requests[number]) for number in (0, 2, 4, 7)] == [1, 1, 1, 2]


async def test_agents_that_ask_themselves_get_the_task_as_it_is(monkeypatch: pytest.MonkeyPatch):
    async with ScriptedServer([Text("42")]) as server:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        recording = Recording()
        overrides = [f"config.code_executor.config.{setting}" for setting in ("work_dir=null", "packages=[]")]
        await runner("codeact-confined", recording, overrides=overrides).run_once("A task")
    assert recording.messages[0].to_text() == "A task"
    assert server.requests[0]["messages"][-1]["content"] == "A task"
