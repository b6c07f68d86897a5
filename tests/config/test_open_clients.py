from __future__ import annotations

import gc
from pathlib import Path

import pytest
from autogen_ext.models.openai import OpenAIChatCompletionClient
from support.openai_server import Json, ScriptedServer, Text

from codeact_team.agents.codeact.agent import CodeActAgent
from codeact_team.agents.teams import round_robin_team
from codeact_team.config.dumping import dump_config
from codeact_team.executors.confined import ConfinedCommandLineCodeExecutor, ConfinedSessionCodeExecutor
from codeact_team.runs.opening import open_team


async def test_the_model_clients_of_a_team_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open connection is a ResourceWarning when it is collected, and that is an error here."""
    async with ScriptedServer([Text("no code"), Json({"accepted": True})]) as server:
        monkeypatch.setenv("OPENAI_API_KEY", "key-of-a-test")
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        client, config = OpenAIChatCompletionClient(model="gpt-4.1-2025-04-14"), tmp_path / "team.yaml"
        config.write_text(dump_config(round_robin_team(client, ConfinedCommandLineCodeExecutor())))
        await client.close()
        async with open_team(config) as team:
            result = await team.run(task="anything")
        assert len(server.requests) == 2
    assert result.stop_reason == "reflection accepted the work"
    del team
    gc.collect()


async def test_so_is_that_of_an_agent_that_acts_by_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ScriptedServer([Text("no code")]) as server:
        monkeypatch.setenv("OPENAI_API_KEY", "key-of-a-test")
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        client, config = OpenAIChatCompletionClient(model="gpt-4.1-2025-04-14"), tmp_path / "agent.yaml"
        executor = ConfinedSessionCodeExecutor(confinement="best_effort")
        config.write_text(dump_config(CodeActAgent("coder", client, executor)))
        await client.close()
        async with open_team(config) as agent:
            await agent.run(task="anything")
        assert len(server.requests) == 1
    del agent
    gc.collect()
