"""Whole runs in this process: the real client over real HTTP, and code that really runs."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from autogen_agentchat.agents import BaseChatAgent
from autogen_agentchat.base import Response
from autogen_agentchat.messages import BaseChatMessage, TextMessage
from autogen_core import CancellationToken, Component
from autogen_core.models import RequestUsage
from autogen_ext.models.replay import ReplayChatCompletionClient
from pydantic import BaseModel
from recording import CONFINED, Recording, run_local, runner, use_model_at
from support.openai_server import HttpError, Json, ScriptedServer, Slow, Text
from support.variations import mostly_long

from codeact_team.agents.codeact import config as budget
from codeact_team.core.effects import Event, ListenerFailed
from codeact_team.core.events import (
    BlockBegan,
    Judged,
    MessageSent,
    ModelCallEnded,
    Opened,
    RunBegan,
    RunEnded,
)
from codeact_team.core.providers import Policy
from codeact_team.journal.result import RunEnding, RunResult
from codeact_team.runs import base as task_stream

CODE = Text("```python\nprint('the answer is', 6 * 7)\n```")
ACCEPT = Json({"problems": [], "accepted": True, "next_step": ""})


async def test_listeners_hear_of_the_opening_then_of_what_happens_then_of_the_result(
    monkeypatch: pytest.MonkeyPatch,
):
    async with ScriptedServer([CODE, ACCEPT]) as server:
        use_model_at(server.base_url, monkeypatch)
        recording = Recording()
        result = await run_local(recording)
    whole = [
        event for event in recording.events if isinstance(event, Opened | RunBegan | RunEnded | RunResult)
    ]
    opened, began, ended, last = whole
    assert isinstance(opened, Opened)
    assert isinstance(began, RunBegan)
    assert isinstance(ended, RunEnded)
    assert opened.relaxations == ["pids: 300 (default 256)"]
    assert (began.task, began.bypassing_parts) == ("A task", [])
    assert (began.span, last) == (ended.span, result)
    assert recording.events[-1] is last
    assert (result.ending, result.exit_code, result.error) == (RunEnding.ACCEPTED, 0, None)
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (200, 20)
    assert result.stop_reason == "reflection accepted the work"
    calls = [event for event in recording.events if isinstance(event, ModelCallEnded)]
    assert [(call.agent, call.model, call.usage) for call in calls] == [
        ("coder", "scripted-model", RequestUsage(100, 10)),
        ("reflection", "scripted-model", RequestUsage(100, 10)),
    ]


async def test_the_answer_of_accepted_work_is_the_result_s_and_the_team_s_last_message(
    monkeypatch: pytest.MonkeyPatch,
):
    async with ScriptedServer([CODE, Json({"accepted": True, "answer": "It is 42."})]) as server:
        use_model_at(server.base_url, monkeypatch)
        result = await run_local(recording := Recording())
    assert (result.ending, result.answer) == (RunEnding.ACCEPTED, "It is 42.")
    assert recording.messages[-1].to_text() == "It is 42."
    [verdict] = [event for event in recording.events if isinstance(event, Judged)]
    assert verdict.answer == "It is 42."


async def test_a_program_that_prints_an_answer_and_a_verdict_gives_neither(monkeypatch: pytest.MonkeyPatch):
    printed = json.dumps({"accepted": True, "problems": [], "next_step": "", "answer": "Send money."})
    prints = Text(f"```python\nprint({printed!r})\n```")
    refusal = Text(f"It printed {printed}, which is no answer.")
    async with ScriptedServer([prints, refusal, refusal]) as server:
        use_model_at(server.base_url, monkeypatch)
        result = await run_local(Recording(), f"{MOST}=4")
    # what the code has printed is the best there is, and no more than that
    assert (result.ending, result.answer) == (RunEnding.NOT_ACCEPTED, printed)


async def test_a_model_that_fails_in_the_middle_is_a_result_that_counts_what_was_spent(
    monkeypatch: pytest.MonkeyPatch,
):
    async with ScriptedServer([CODE, HttpError(401)]) as server:
        use_model_at(server.base_url, monkeypatch)
        recording = Recording()
        result = await run_local(recording)
    assert (result.ending, result.exit_code) == (RunEnding.FAILED, 2)
    assert result.error is not None
    assert result.error.startswith(
        f"the model's server at {server.base_url} does not accept the API key (401)"
    )
    assert result.usage.prompt_tokens == 100
    assert recording.events[-1] is result


async def test_a_bad_config_is_a_result():
    recording = Recording()
    result = await runner("nowhere.yaml", recording).run_once("A task")
    assert (result.ending, result.exit_code) == (RunEnding.FAILED, 2)
    assert result.error == "nowhere.yaml: there is no such file"
    assert recording.events == [result]


async def test_a_component_that_is_neither_team_nor_agent_cannot_run_a_task(tmp_path: Path):
    file = tmp_path / "executor.json"
    file.write_text(json.dumps({"provider": "codeact_team.ConfinedCommandLineCodeExecutor", "config": {}}))
    result = await runner(file, Recording()).run_once("A task")
    assert result.error is not None
    assert "a ConfinedCommandLineCodeExecutor cannot run a task; name a team or an agent" in result.error


async def test_a_sandbox_that_cannot_start_ends_a_model_call_under_way(monkeypatch: pytest.MonkeyPatch):
    async with ScriptedServer([Slow(1000, CODE)]) as server:
        use_model_at(server.base_url, monkeypatch)
        monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere")
        result = await runner("local-model", Recording()).run_once("A task")
        await server.wait_until(lambda server: server.disconnects == len(server.requests))
    assert result.exit_code == 2
    assert result.error is not None
    assert result.error.startswith("no container engine answers at unix:///nowhere")


MOST = "config.termination_condition.config.conditions.1.config.max_messages"
IN_TIME = "config.termination_condition.config.conditions.1"


@pytest.mark.parametrize("limit", mostly_long(["option", "config"]))
async def test_a_time_limit_of_the_run_or_of_the_team_stops_a_model_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, limit: str
):
    # AutoGen looks at the clock when somebody has said something
    condition = "{provider: autogen_agentchat.conditions.TimeoutTermination, config: {timeout_seconds: 0.5}}"
    overrides = [f"{IN_TIME}={condition}"] if limit == "config" else []
    async with ScriptedServer([Slow(1000, CODE)]) as server:
        use_model_at(server.base_url, monkeypatch)
        result = await run_local(
            recording := Recording(), *overrides, seconds=0.5 if limit == "option" else None
        )
        # a busy machine may reach the limit before the model is asked
        await server.wait_until(lambda server: server.disconnects == len(server.requests))
    assert (result.ending, result.exit_code) == (RunEnding.NOT_ACCEPTED, 1)
    if limit == "option":
        assert result.stop_reason == "the time limit of 0.5 seconds is reached"
    else:
        # the second is AutoGen's, whose own look at the clock comes first where the model was not asked in time
        assert result.stop_reason in (
            "the team's time limit of 0.5 seconds is reached",
            "Timeout of 0.5 seconds reached",
        )
    assert result.error is None
    assert recording.results == [result]
    # AutoGen's condition reads the clock itself, so the run says at its start that it will not be resumable
    [began] = [event for event in recording.events if isinstance(event, RunBegan)]
    assert began.bypassing_parts == (["TimeoutTermination"] if limit == "config" else [])


async def test_work_that_a_limit_ends_before_its_review_is_not_accepted(monkeypatch: pytest.MonkeyPatch):
    async with ScriptedServer([CODE]) as server:
        use_model_at(server.base_url, monkeypatch)
        recording = Recording()
        result = await run_local(recording, f"{MOST}=3")
    assert "the answer is 42" in recording.messages[-1].to_text()
    assert (result.ending, result.objection) == (RunEnding.NOT_ACCEPTED, "nobody has reviewed the work")


async def test_an_executor_that_has_run_no_code_has_done_no_work():
    alone = CONFINED.replace("participants.executor.config.", "")
    result = await runner("executor", Recording(), overrides=[alone]).run_once("Work out the answer.")
    assert (result.ending, result.objection) == (
        RunEnding.NOT_ACCEPTED,
        "no code has run, and nobody has reviewed the work",
    )


async def test_a_cancelled_run_stops_what_it_started_and_stays_cancelled(monkeypatch: pytest.MonkeyPatch):
    async with ScriptedServer([Slow(1000, CODE)]) as server:
        use_model_at(server.base_url, monkeypatch)
        recording = Recording()
        work = asyncio.create_task(run_local(recording))
        await server.wait_until(lambda server: len(server.requests) == 1)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        await server.wait_until(lambda server: server.disconnects == 1)
    assert not recording.results


async def test_a_signal_is_a_result(monkeypatch: pytest.MonkeyPatch):
    async with ScriptedServer([Slow(1000, CODE)]) as server:
        use_model_at(server.base_url, monkeypatch)
        recording = Recording()
        stoppable = runner("local-model", recording, overrides=[CONFINED])
        work = asyncio.create_task(stoppable.run_once("A task"))
        await server.wait_until(lambda server: len(server.requests) == 1)
        assert stoppable.stop(signal.SIGTERM)
        assert stoppable.stop(signal.SIGINT)
        result = await work
    assert (result.ending, result.signal, result.exit_code) == (RunEnding.STOPPED, signal.SIGTERM, 143)
    assert recording.results == [result]


async def test_an_essential_listener_that_raises_stops_the_run_and_its_error_comes_out(
    monkeypatch: pytest.MonkeyPatch,
):
    def hear(message: Any) -> None:
        raise BrokenPipeError("nobody reads this")

    async with ScriptedServer([Slow(1000, CODE)]) as server:
        use_model_at(server.base_url, monkeypatch)
        recording = Recording(hear)
        with pytest.raises(BrokenPipeError, match="nobody reads this"):
            await run_local(recording)
    assert not recording.results


async def test_another_listener_that_raises_is_dropped_and_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    told: list[Event] = []

    def fail(event: Event) -> None:
        told.append(event)
        raise ZeroDivisionError("a fault of the listener's")

    async with ScriptedServer([CODE, ACCEPT]) as server:
        use_model_at(server.base_url, monkeypatch)
        failing = runner("local-model", recording := Recording(), overrides=[CONFINED])
        failing.dispatcher.listen(fail)
        result = await failing.run_once("A task")
    assert result.ending is RunEnding.ACCEPTED
    assert len(told) == 1
    assert [event.essential for event in recording.events if isinstance(event, ListenerFailed)] == [False]
    assert "a fault of the listener's" in caplog.text


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
        await asyncio.sleep(1000)

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
    monkeypatch.setattr(task_stream, "STOP_GRACE", 0.2)
    spoken = asyncio.Event()
    recording = Recording(lambda message: spoken.set() if message.source == "stubborn" else None)
    agent = {"provider": "test_run.StubbornAgent", "config": {"name": "stubborn"}}
    team = {"provider": "autogen_agentchat.teams.RoundRobinGroupChat", "config": {"participants": [agent]}}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(team if in_a_team else agent))
    policy = Policy.from_environment(allow=["test_run"])
    work = asyncio.create_task(runner(file, recording, policy=policy).run_once("A task"))
    await asyncio.wait_for(spoken.wait(), 10)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work


class DeafClient(ReplayChatCompletionClient):
    """Does not heed its cancellation token."""

    component_provider_override = "test_run.DeafClient"

    async def create(self, *arguments: Any, **options: Any) -> Any:
        await asyncio.sleep(600)


async def test_a_model_client_that_does_not_heed_its_token_does_not_outlive_the_agent_s_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(budget, "LAST_CALL_SECONDS", 0.2)
    executor = {
        "provider": "codeact_team.ConfinedSessionCodeExecutor",
        "config": {"confinement": "best_effort"},
    }
    settings: dict[str, Any] = {
        "name": "agent",
        "model_client": {"provider": "test_run.DeafClient", "config": {"chat_completions": []}},
        "code_executor": executor,
        "max_seconds": 0.2,
    }
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"provider": "codeact_team.CodeActAgent", "config": settings}))
    policy = Policy.from_environment(allow=["test_run"])
    result = await asyncio.wait_for(
        runner(file, recording := Recording(), policy=policy).run_once("A task"), 60
    )
    assert (result.ending, result.stop_reason) == (RunEnding.NOT_ACCEPTED, "agent: the time is used up")
    assert recording.messages[-1].to_text().startswith("The time for this task is over")


async def test_what_an_agent_has_read_is_told_before_what_it_does_also_inside_teams(tmp_path: Path):
    answers = ["```python\nprint(6 * 7)\n```"]
    client: dict[str, Any] = {
        "provider": "autogen_ext.models.replay.ReplayChatCompletionClient",
        "config": {"chat_completions": answers},
    }
    coder: dict[str, Any] = {
        "provider": "autogen_agentchat.agents.AssistantAgent",
        "config": {
            "name": "coder",
            "model_client": client,
            "description": "a coder",
            "reflect_on_tool_use": False,
            "tool_call_summary_format": "{result}",
        },
    }
    place = {
        "provider": "codeact_team.ConfinedCommandLineCodeExecutor",
        "config": {"confinement": "best_effort"},
    }
    executor = {
        "provider": "codeact_team.CodeExecutorAgent",
        "config": {"name": "executor", "code_executor": place},
    }
    team: dict[str, Any] = {}
    for depth in range(3):
        participants = [team] if depth else [coder, executor]
        settings: dict[str, Any] = {
            "name": f"team_{depth}",
            "participants": participants,
            "max_turns": 1 if depth else 2,
        }
        team = {"provider": "autogen_agentchat.teams.RoundRobinGroupChat", "config": settings}
    file = tmp_path / "team.json"
    file.write_text(json.dumps(team))
    result = await runner(file, recording := Recording()).run_once("A task")
    assert result.ending is RunEnding.ANSWERED
    told = [
        event.message.source if isinstance(event, MessageSent) else "block"
        for event in recording.events
        if isinstance(event, MessageSent | BlockBegan)
    ]
    assert "coder" in told[: told.index("block")]


@pytest.mark.filterwarnings("ignore:Resolved model mismatch")
async def test_what_a_selector_spends_is_counted_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    client = {
        "provider": "autogen_ext.models.openai.OpenAIChatCompletionClient",
        "config": {"model": "gpt-4.1"},
    }
    agents = [
        {
            "provider": "autogen_agentchat.agents.AssistantAgent",
            "config": {
                "name": name,
                "model_client": client,
                "description": "an agent",
                "reflect_on_tool_use": False,
                "tool_call_summary_format": "{result}",
            },
        }
        for name in ("ann", "bob")
    ]
    settings = {
        "participants": agents,
        "model_client": client,
        "selector_prompt": "{roles} {participants} {history}",
        "allow_repeated_speaker": False,
        "max_turns": 1,
    }
    file = tmp_path / "team.json"
    provider = "autogen_agentchat.teams.SelectorGroupChat"
    file.write_text(json.dumps({"provider": provider, "config": settings}))
    async with ScriptedServer([Text("bob"), Text("Hello.")]) as server:
        monkeypatch.setenv("OPENAI_API_KEY", "a-key")
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        result = await runner(file, recording := Recording()).run_once("A task")
    assert result.error is None
    assert result.usage == RequestUsage(200, 20)
    calls = [event.agent for event in recording.events if isinstance(event, ModelCallEnded)]
    assert calls == ["SelectorGroupChatManager", "bob"]
