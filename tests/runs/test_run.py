"""Whole runs in this process: the real client over real HTTP, and code that really runs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from autogen_agentchat.agents import BaseChatAgent
from autogen_agentchat.base import Response
from autogen_agentchat.messages import BaseChatMessage, TextMessage
from autogen_core import CancellationToken, Component
from pydantic import BaseModel
from recording import CONFINED, Recording, run_local, use_model_at
from support.openai_server import HttpError, Json, ScriptedServer, Slow, Text

from codeact_team.providers import Policy
from codeact_team.runs import Ending, run_team, streaming

CODE = Text("```python\nprint('the answer is', 6 * 7)\n```")
ACCEPT = Json({"problems": [], "accepted": True, "next_step": ""})


async def test_a_sink_hears_of_the_opening_then_each_message_then_the_end(monkeypatch: pytest.MonkeyPatch):
    async with ScriptedServer([CODE, ACCEPT]) as server:
        use_model_at(server.base_url, monkeypatch)
        sink = Recording()
        result = await run_local(sink)
    assert sink.told[:2] == ["opened", "message"]
    assert sink.told[-1] == "ended"
    assert sink.told.count("opened") == sink.told.count("ended") == 1
    assert sink.loosenings == ["confinement: best_effort"]
    assert sink.results == [result]
    assert (result.ending, result.exit_code, result.error) == (Ending.ACCEPTED, 0, None)
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (200, 20)
    assert result.stop_reason == "reflection accepted the work"


async def test_a_model_that_fails_in_the_middle_is_a_result_that_counts_what_was_spent(
    monkeypatch: pytest.MonkeyPatch,
):
    async with ScriptedServer([CODE, HttpError(401)]) as server:
        use_model_at(server.base_url, monkeypatch)
        sink = Recording()
        result = await run_local(sink)
    assert (result.ending, result.exit_code) == (Ending.FAILED, 2)
    assert result.error is not None
    assert result.error.startswith("the model's server does not accept the API key (401)")
    assert result.usage.prompt_tokens == 100
    assert sink.told[-1] == "ended"


async def test_a_bad_config_is_a_result():
    sink = Recording()
    result = await run_team("nowhere.yaml", "A task", sink)
    assert (result.ending, result.exit_code) == (Ending.FAILED, 2)
    assert result.error == "nowhere.yaml: there is no such file"
    assert sink.told == ["ended"]


async def test_a_component_that_is_neither_team_nor_agent_cannot_run_a_task(tmp_path: Path):
    file = tmp_path / "executor.json"
    file.write_text(json.dumps({"provider": "codeact_team.ConfinedCommandLineCodeExecutor", "config": {}}))
    result = await run_team(file, "A task", Recording())
    assert result.error is not None
    assert "a ConfinedCommandLineCodeExecutor cannot run a task; name a team or an agent" in result.error


async def test_a_sandbox_that_cannot_start_ends_a_model_call_under_way(monkeypatch: pytest.MonkeyPatch):
    async with ScriptedServer([Slow(60, CODE)]) as server:
        use_model_at(server.base_url, monkeypatch)
        monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere")
        began = time.monotonic()
        result = await run_team("local-model", "A task", Recording())
        assert time.monotonic() - began < 5
        await server.wait_until(lambda server: server.disconnects == len(server.requests))
    assert result.exit_code == 2
    assert result.error is not None
    assert result.error.startswith("no container engine answers at unix:///nowhere")


async def test_a_cancelled_run_stops_what_it_started_and_stays_cancelled(monkeypatch: pytest.MonkeyPatch):
    async with ScriptedServer([Slow(60, CODE)]) as server:
        use_model_at(server.base_url, monkeypatch)
        sink = Recording()
        work = asyncio.create_task(run_local(sink))
        await server.wait_until(lambda server: len(server.requests) == 1)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        await server.wait_until(lambda server: server.disconnects == 1)
    assert "ended" not in sink.told


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_is_a_result(monkeypatch: pytest.MonkeyPatch, number: signal.Signals):
    before = signal.getsignal(number)
    async with ScriptedServer([Slow(60, CODE)]) as server:
        use_model_at(server.base_url, monkeypatch)
        sink = Recording()
        stop = (signal.SIGINT, signal.SIGTERM)
        work = asyncio.create_task(
            run_team("local-model", "A task", sink, overrides=[CONFINED], stop_on=stop)
        )
        await server.wait_until(lambda server: len(server.requests) == 1)
        try:
            os.kill(os.getpid(), number)
            result = await work
            assert [signal.getsignal(each) for each in stop] == [signal.SIG_IGN] * 2
        finally:
            for each in stop:
                signal.signal(each, before if each is number else signal.SIG_DFL)
    assert (result.ending, result.signal, result.exit_code) == (Ending.STOPPED, number, 128 + number)
    assert sink.results == [result]


async def test_a_sink_that_raises_stops_the_run_and_its_error_comes_out(monkeypatch: pytest.MonkeyPatch):
    def hear(message: Any) -> None:
        raise BrokenPipeError("nobody reads this")

    async with ScriptedServer([Slow(60, CODE)]) as server:
        use_model_at(server.base_url, monkeypatch)
        sink = Recording(hear)
        with pytest.raises(BrokenPipeError, match="nobody reads this"):
            await run_local(sink)
    assert "ended" not in sink.told


class StubbornConfig(BaseModel):
    name: str


class StubbornAgent(BaseChatAgent, Component[StubbornConfig]):
    """Does not listen when it is told to stop."""

    component_config_schema = StubbornConfig
    component_provider_override = "test_run.StubbornAgent"

    def __init__(self, name: str) -> None:
        super().__init__(name, "an agent")

    @property
    def produced_message_types(self) -> list[type[BaseChatMessage]]:
        return [TextMessage]

    async def on_messages(self, messages: Any, cancellation_token: CancellationToken) -> Response:
        raise AssertionError("streamed instead")

    async def on_messages_stream(
        self, messages: Any, cancellation_token: CancellationToken
    ) -> AsyncGenerator[Any, None]:
        yield TextMessage(content="no", source=self.name)
        await asyncio.sleep(60)

    async def on_reset(self, cancellation_token: CancellationToken) -> None: ...

    @classmethod
    def _from_config(cls, config: StubbornConfig) -> StubbornAgent:
        return cls(config.name)

    def _to_config(self) -> StubbornConfig:
        return StubbornConfig(name=self.name)


@pytest.mark.parametrize("in_a_team", [False, True])
async def test_an_agent_that_does_not_listen_is_abandoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_a_team: bool
):
    monkeypatch.setattr(streaming, "STOP_GRACE", 0.2)
    spoken = asyncio.Event()
    sink = Recording(lambda message: spoken.set() if message.source == "stubborn" else None)
    agent = {"provider": "test_run.StubbornAgent", "config": {"name": "stubborn"}}
    team = {"provider": "autogen_agentchat.teams.RoundRobinGroupChat", "config": {"participants": [agent]}}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(team if in_a_team else agent))
    policy = Policy.from_environment(allow=["test_run"])
    work = asyncio.create_task(run_team(file, "A task", sink, policy=policy))
    await asyncio.wait_for(spoken.wait(), 10)
    began = time.monotonic()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert time.monotonic() - began < 2
