"""What a model is told of the sandbox, as it really receives it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from autogen_core import CancellationToken
from support.agents import (
    FAILS,
    PRINTS_42,
    RETRY,
    Foreign,
    Streaming,
    answer,
    calls_of,
    contents,
    replay,
    turn,
    yes,
)
from support.codeact import agent_of, py
from support.openai_server import Json, ScriptedServer, Text
from support.wheels import use_index

from codeact_team.agents.code_executor import CodeExecutorAgent
from codeact_team.agents.messages import describe_sandbox
from codeact_team.core.effects import Dispatcher, Event
from codeact_team.core.events import DescriptionEnded
from codeact_team.core.execution import ExecutionResult
from codeact_team.core.sandbox_description import SandboxDescription
from codeact_team.errors import SandboxError
from codeact_team.executors.confined import ConfinedCommandLineCodeExecutor, ConfinedSessionCodeExecutor

TOLD = "The sandbox in which the code runs:\n- Python 3."


async def test_an_agent_that_acts_by_code_is_told_at_its_place(session: ConfinedSessionCodeExecutor):
    text = "First.\n$sandbox\nLast."
    async with ScriptedServer([Text("1"), Text("2")]) as server:
        await answer(agent_of(server, session))
        await answer(agent_of(server, session, system_message=text))
    default, own = (contents(request)[0] for request in server.requests)
    assert TOLD in default
    assert "$sandbox" not in default
    assert own.startswith(f"First.\n{TOLD}")
    assert own.endswith("\nLast.")


async def test_an_agent_that_repairs_code_is_told_when_its_model_is_asked(tmp_path: Path):
    replies = [Text(FAILS), Json(RETRY), Text(PRINTS_42), Text("It is 42.")]
    (tmp_path / "sales.csv").write_text("region,amount\n")
    async with ScriptedServer(replies) as server:
        executor = ConfinedCommandLineCodeExecutor(work_dir=tmp_path)
        agent = CodeExecutorAgent("e", executor, model_client=server.client(), max_retries_on_error=1)
        await turn(agent)
        await executor.stop()
    told = [contents(request)[0] for request in server.requests]
    assert all(TOLD in one and "sales.csv, 14 bytes" in one for one in told)
    assert len(set(told)) == 1


async def test_an_executor_of_others_is_not_described():
    model = replay("Hello.", "Hello.")
    for executor in (Foreign(), Streaming(ExecutionResult(0, ""))):
        await turn(CodeExecutorAgent("e", executor, model_client=model, approval_func=yes))
        assert await describe_sandbox(executor) == ""
    for call in model.create_calls:
        assert call["messages"][0].content == CodeExecutorAgent.DEFAULT_SYSTEM_MESSAGE


async def test_packages_that_cannot_be_had_are_an_error_before_a_model_is_paid(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    use_index(tmp_path, monkeypatch)
    model = replay("42")
    with pytest.raises(SandboxError, match="nowhere"):
        await turn(agent_of(model, ConfinedSessionCodeExecutor(packages=["nowhere"])))
    assert calls_of(model) == 0


async def test_it_passes_the_dispatcher_and_is_told(session: ConfinedSessionCodeExecutor):
    heard: list[Event] = []
    asked: list[Any] = []

    async def instead(effect: Any, do: Any) -> Any:
        if "describe" not in effect.request():
            return await do()
        asked.append(effect.request())
        return effect.load("As recorded.")

    with Dispatcher(instead) as dispatcher:
        dispatcher.listen(heard.append)
        async with ScriptedServer([Text(py("1")), Text("1")]) as server:
            await answer(agent_of(server, session))
    assert asked == [{"describe": "ConfinedSessionCodeExecutor"}]
    assert all("As recorded." in contents(request)[0] for request in server.requests)
    told = [event for event in heard if isinstance(event, DescriptionEnded)]
    assert [(event.agent, event.text) for event in told] == [("coder", "As recorded.")]
    assert json.dumps(asked)


async def test_a_turn_can_be_cancelled_while_a_sandbox_does_not_answer():
    asked, token = asyncio.Event(), CancellationToken()

    class Hanging(Streaming):
        async def describe(self) -> SandboxDescription | None:
            asked.set()
            await asyncio.Event().wait()

    agent = CodeExecutorAgent("e", Hanging(ExecutionResult(0, "")), model_client=replay("Hello."))
    working = asyncio.ensure_future(turn(agent, token=token))
    await asked.wait()
    token.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
