"""Teams that get their sandboxes from a pool: they do, and tell, the same as without one."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from autogen_agentchat.base import TaskResult
from recording import CONFINED, NO_HTTP_RETRIES, Recording, runner, use_model_at
from support.openai_server import Body, Json, ScriptedServer, Text

from codeact_team.config.open import open_pool
from codeact_team.core.events import SandboxStarted
from codeact_team.executors import warm_sandboxes as memory
from codeact_team.journal.recorded_run import RecordedRun
from codeact_team.journal.result import RunEnding
from codeact_team.journal.run_directory import RunDirectory
from codeact_team.runs.opening import open_team

SETTINGS = [CONFINED, NO_HTTP_RETRIES]


@pytest.fixture(autouse=True)
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[ScriptedServer]:
    def reply(body: Body) -> Text | Json:
        if "response_format" in body:
            return Json({"problems": [], "accepted": True, "next_step": ""})
        return Text("```python\nprint('the answer is', 6 * 7)\n```")

    async with ScriptedServer(reply) as server:
        use_model_at(server.base_url, monkeypatch)
        yield server


async def test_a_run_tells_the_same_and_goes_on_from_its_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: ScriptedServer
) -> None:
    async def recorded(name: str) -> tuple[list[str], list[str], list[SandboxStarted]]:
        async with open_team("local-model", overrides=SETTINGS, record=tmp_path / name) as team:
            result = await team.run(task="Go.")
        assert isinstance(result, TaskResult)
        events = list(RecordedRun(RunDirectory(tmp_path / name)).events())
        started = [event for event in events if isinstance(event, SandboxStarted)]
        for event in started:
            event.at = 0
        said = [message.to_text() for message in result.messages]
        # the sandbox starts beside the rest
        return said, sorted(event.type for event in events), started

    alone = await recorded("alone")
    async with open_pool("local-model", overrides=SETTINGS, size=1) as pool:
        await pool.filled()
        monkeypatch.setattr(memory, "available", lambda: 0)
        assert await recorded("warm") == alone
        assert pool.ready == 0
        asked = len(server.requests)
        said, _, started = await recorded("warm")
        assert (said, len(started), len(server.requests)) == (alone[0], 1, asked)


async def test_a_run_of_the_command_gets_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_pool("local-model", overrides=SETTINGS, size=1) as pool:
        await pool.filled()
        monkeypatch.setattr(memory, "available", lambda: 0)
        result = await runner("local-model", Recording(), overrides=SETTINGS).run_once("Go.")
        assert (result.ending, pool.ready) == (RunEnding.ACCEPTED, 0)


async def test_a_team_whose_workspace_lasts_is_left_alone(tmp_path: Path) -> None:
    place = "config.participants.executor.config.code_executor.config.work_dir"
    async with open_pool("local-model", overrides=[*SETTINGS, f"{place}={tmp_path}"]) as pool:
        await pool.filled()
        assert pool.ready == 0
