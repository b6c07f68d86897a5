"""One team, open for several tasks: what it remembers, and what a run that breaks off leaves of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from signal import SIGINT, SIGTERM
from typing import Any

import pytest
from autogen_agentchat.messages import BaseChatMessage
from recording import CONFINED, NO_HTTP_RETRIES, Recording, runner, use_model_at
from support.openai_server import HttpError, Json, ScriptedServer, Slow, Text

from codeact_team.core.effects import Event
from codeact_team.core.events import Opened, Output
from codeact_team.core.providers import Policy
from codeact_team.errors import ConfigError, EngineError
from codeact_team.journal.result import RunEnding
from codeact_team.runs import base as task_stream
from codeact_team.runs.chat import TeamChat

CODE = Text("```python\nprint('the answer is', 6 * 7)\n```")
SLEEPS = Text("```python\nprint('no' + 'w', flush=True)\nimport time\ntime.sleep(60)\n```")
ACCEPT = Json({"problems": [], "accepted": True, "next_step": ""})
CONFINED_TEAM = [CONFINED, NO_HTTP_RETRIES]


@asynccontextmanager
async def open_runner(config: str | Path, recording: Recording, **options: Any) -> AsyncGenerator[TeamChat]:
    opened = runner(config, recording, **options)
    async with opened.open():
        yield opened


def speakers(recording: Recording) -> list[str]:
    """Who said something, the task included, since the last call."""
    found = [message.source for message in recording.messages if isinstance(message, BaseChatMessage)]
    recording.messages.clear()
    return found


class Listening(Recording):
    """A recording that says when somebody has said ``text``, or code has written it, in however many pieces."""

    def __init__(self, text: str) -> None:
        super().__init__(lambda message: self._hear_text(message.to_text()))
        self.heard = asyncio.Event()
        self._text = text
        self._said = ""

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        if isinstance(event, Output):
            self._hear_text(event.text)

    def _hear_text(self, text: str) -> None:
        self._said += text
        if self._text in self._said:
            self._said = ""
            self.heard.set()

    async def stop(self, team: TeamChat) -> None:
        """Stop the team's run once the text was said, and once more, to no effect."""
        await self.heard.wait()
        self.heard.clear()
        assert team.stop(SIGINT)
        assert team.stop(SIGTERM)


async def test_each_task_is_a_run_of_its_own_in_one_conversation(monkeypatch: pytest.MonkeyPatch):
    async with ScriptedServer([CODE, ACCEPT, CODE, ACCEPT]) as server:
        use_model_at(server.base_url, monkeypatch)
        recording = Recording()
        async with open_runner("local-model", recording, overrides=CONFINED_TEAM) as team:
            results = [await team.run("First."), await team.run("Second.")]
        seen = json.dumps(server.requests[2]["messages"])
    assert [event.relaxations for event in recording.events if isinstance(event, Opened)] == [
        ["pids: 300 (default 256)"]
    ]
    assert recording.results == results
    assert [(result.ending, result.messages, result.usage.prompt_tokens) for result in results] == [
        (RunEnding.ACCEPTED, 5, 200)
    ] * 2
    assert all(said in seen for said in ("First.", "the answer is 42", "Second."))


async def test_a_team_begins_anew_after_a_run_that_was_stopped(monkeypatch: pytest.MonkeyPatch):
    # AutoGen waits for ever for the speaker whose turn broke off: the next run ended after one message
    async with ScriptedServer([CODE, ACCEPT, SLEEPS, CODE, ACCEPT]) as server:
        use_model_at(server.base_url, monkeypatch)
        recording = Listening("now")
        async with open_runner("local-model", recording, overrides=CONFINED_TEAM) as team:
            await team.run("First.")
            run = asyncio.create_task(team.run("Second."))
            await recording.stop(team)
            result = await run
            assert (result.ending, result.signal) == (RunEnding.STOPPED, SIGINT)
            recording.messages.clear()
            result = await team.run("Third.")
            assert speakers(recording) == ["user", "coder", "executor", "reflection"]
        seen = json.dumps(server.requests[3]["messages"])
    assert (result.ending, result.stop_reason) == (RunEnding.ACCEPTED, "reflection accepted the work")
    assert all(said in seen for said in ("First.", "Third."))


@pytest.mark.long
async def test_so_it_does_after_one_that_failed_whose_turns_do_not_count(monkeypatch: pytest.MonkeyPatch):
    at_most = "config.termination_condition.config.conditions.1.config.max_messages=5"
    async with ScriptedServer([CODE, HttpError(401), CODE, ACCEPT]) as server:
        use_model_at(server.base_url, monkeypatch)
        async with open_runner("local-model", Recording(), overrides=[*CONFINED_TEAM, at_most]) as team:
            await team.run("First.")
            result = await team.run("Second.")
    assert (result.ending, result.messages) == (RunEnding.ACCEPTED, 5)


async def test_code_that_was_stopped_does_not_run_again_with_the_next_message(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    once = Text(
        "```python\nopen('times', 'a').write('x')\nprint('no' + 'w', flush=True)\nimport time\ntime.sleep(60)\n```"
    )
    async with ScriptedServer([once, CODE, ACCEPT]) as server:
        use_model_at(server.base_url, monkeypatch)
        recording = Listening("now")
        work_dir = f"config.participants.executor.config.code_executor.config.work_dir={tmp_path}"
        async with open_runner("local-model", recording, overrides=[*CONFINED_TEAM, work_dir]) as team:
            run = asyncio.create_task(team.run("First."))
            await recording.stop(team)
            await run
            result = await team.run("Second.")
    assert result.ending is RunEnding.ACCEPTED
    assert (tmp_path / "times").read_text() == "x"


async def test_a_reset_forgets_the_conversation(monkeypatch: pytest.MonkeyPatch):
    async with ScriptedServer([CODE, ACCEPT, CODE, ACCEPT]) as server:
        use_model_at(server.base_url, monkeypatch)
        async with open_runner("local-model", Recording(), overrides=CONFINED_TEAM) as team:
            await team.run("First.")
            assert (await team.respond("/reset")).is_reset
            result = await team.run("Second.")
        assert "First." not in json.dumps(server.requests[2:])
    assert result.ending is RunEnding.ACCEPTED


async def test_where_nothing_runs_there_is_nothing_to_stop():
    async with open_runner("quickstart", Recording()) as team:
        assert not team.stop(SIGINT)


@pytest.mark.parametrize("depth", [0, 1, 2])
async def test_after_an_agent_that_does_not_listen_the_next_task_can_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, depth: int
):
    monkeypatch.setattr(task_stream, "STOP_GRACE", 0.2)
    config: dict[str, Any] = {"provider": "test_run.StubbornAgent", "config": {"name": "stubborn"}}
    for level in range(depth):
        settings = {"name": f"team_{level}", "participants": [config]}
        config = {"provider": "autogen_agentchat.teams.RoundRobinGroupChat", "config": settings}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    recording = Listening("no")
    async with open_runner(file, recording, policy=Policy.from_environment(allow=["test_run"])) as opened:
        for _ in range(2):
            recording.messages.clear()
            run = asyncio.create_task(opened.run("A task"))
            await recording.stop(opened)
            assert (await run).ending is RunEnding.STOPPED
            assert speakers(recording) == ["user", "stubborn"]


async def test_a_cancelled_run_stays_cancelled_though_it_was_stopped_before(monkeypatch: pytest.MonkeyPatch):
    async with ScriptedServer([Slow(60, CODE)]) as server:
        use_model_at(server.base_url, monkeypatch)
        async with open_runner("local-model", Recording(), overrides=CONFINED_TEAM) as team:
            run = asyncio.create_task(team.run("A task"))
            await server.wait_until(lambda server: len(server.requests) == 1)
            team.stop(SIGINT)
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run


async def start(config: str, recording: Recording) -> None:
    async with open_runner(config, recording) as team:
        await team.started()


async def test_what_cannot_start_is_known_before_the_first_task(monkeypatch: pytest.MonkeyPatch):
    use_model_at("http://127.0.0.1:9/v1", monkeypatch)
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere")
    with pytest.raises(EngineError, match="no container engine answers at unix:///nowhere"):
        await start("local-model", Recording())


async def test_a_bad_config_opens_nothing():
    recording = Recording()
    with pytest.raises(ConfigError, match="there is no such file"):
        await start("nowhere.yaml", recording)
    assert recording.events == []
