from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import pytest
from autogen_core.models import ChatCompletionClient
from support.codeact import agent_of as codeact_of
from support.executing import why_not_confined
from support.openai_server import ScriptedServer

from codeact_team.agents.code_executor import CodeExecutorAgent
from codeact_team.agents.codeact.agent import CodeActAgent
from codeact_team.executors.confined import ConfinedSessionCodeExecutor


@dataclass
class Shared:
    executor: ConfinedSessionCodeExecutor
    needs_restart: bool = False


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Generator[Shared]:
    """An executor for all tests of a worker."""
    if (reason := why_not_confined()) is not None:
        pytest.skip(reason)
    executor = ConfinedSessionCodeExecutor(work_dir=tmp_path_factory.mktemp("workspace"), timeout=30)
    yield Shared(executor)
    asyncio.run(executor.stop())


@pytest.fixture
async def session(shared: Shared) -> ConfinedSessionCodeExecutor:
    """The worker's executor, whose interpreter may hold what earlier tests have left in it."""
    if shared.needs_restart:
        await shared.executor.restart()
        shared.needs_restart = False
    return shared.executor


@pytest.fixture
async def fresh_session(shared: Shared) -> ConfinedSessionCodeExecutor:
    """The worker's executor with a fresh interpreter, which serves no later test."""
    await shared.executor.restart()
    shared.needs_restart = True
    return shared.executor


def executor_of(
    model: ScriptedServer | ChatCompletionClient, executor: Any, **settings: Any
) -> CodeExecutorAgent:
    client = model.client() if isinstance(model, ScriptedServer) else model
    return CodeExecutorAgent("coder", executor, model_client=client, **settings)


@pytest.fixture(params=[executor_of, codeact_of], ids=["executor", "codeact"])
def agent_of(request: pytest.FixtureRequest) -> Callable[..., CodeExecutorAgent | CodeActAgent]:
    """Makes an agent of a model, a session and settings."""
    return request.param
