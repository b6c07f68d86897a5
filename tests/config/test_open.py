from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from autogen_agentchat.agents import UserProxyAgent
from autogen_agentchat.teams import RoundRobinGroupChat

from codeact_team.core.providers import DEFAULT_NAMESPACES, Policy
from codeact_team.errors import ConfigError
from codeact_team.runs.opening import open_team

Write = Callable[..., Path]
AddModule = Callable[[str, str], None]

EXECUTOR = """
import asyncio
from autogen_core import Component
from autogen_core.code_executor import CodeExecutor, CodeResult
from pydantic import BaseModel
from codeact_team.core.scope import register

events = []
started = asyncio.Event()

class Config(BaseModel):
    pass

class Executor(CodeExecutor, Component[Config]):
    component_config_schema = Config
    def __init__(self):
        register(self)
    async def start(self):
        events.append("start")
        started.set()
    async def stop(self):
        events.append("stop")
    async def restart(self):
        pass
    async def execute_code_blocks(self, code_blocks, cancellation_token):
        return CodeResult(0, "")
    @classmethod
    def _from_config(cls, config):
        return cls()
"""

TEAM = """\
provider: autogen_agentchat.teams.RoundRobinGroupChat
config:
  participants:
    - provider: autogen_agentchat.teams.RoundRobinGroupChat
      config:
        name: inner
        participants:
          - provider: autogen_agentchat.agents.CodeExecutorAgent
            config:
              name: executor
              code_executor: {provider: scoped_parts.Executor, config: {}}
              system_message: null
"""


# "a loaded team cannot run, because nothing starts its executor", in nested teams as well
@pytest.mark.filterwarnings("ignore:No approval function")
async def test_what_a_team_needs_is_started_and_stopped(write: Write, add_module: AddModule) -> None:
    add_module("scoped_parts", EXECUTOR)
    policy = Policy(DEFAULT_NAMESPACES | {"scoped_parts"})
    async with open_team(write(TEAM), overrides=["config.max_turns=1"], policy=policy) as team:
        assert isinstance(team, RoundRobinGroupChat)
        parts = sys.modules["scoped_parts"]
        await parts.started.wait()
        assert parts.events == ["start"]
    assert parts.events == ["start", "stop"]


async def test_a_single_agent_opens_too(write: Write) -> None:
    async with open_team(
        write("provider: autogen_agentchat.agents.UserProxyAgent\nconfig: {name: u}\n")
    ) as agent:
        assert isinstance(agent, UserProxyAgent)


async def test_what_cannot_run_a_task_is_refused(write: Write) -> None:
    with pytest.raises(
        ConfigError, match=r"team\.yaml: a ListMemory cannot run a task; name a team or an agent"
    ):
        async with open_team(write("provider: autogen_core.memory.ListMemory\nconfig: {}\n")):
            pass
