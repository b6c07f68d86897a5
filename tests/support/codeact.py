"""What the tests of the agent that acts by code share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from autogen_agentchat.messages import CodeExecutionEvent
from autogen_core.models import ChatCompletionClient
from support.agents import Item
from support.executing import why_not_confined
from support.openai_server import ScriptedServer

from codeact_team.agents.codeact.agent import CodeActAgent
from codeact_team.core.executor_interface import SessionCodeExecutor
from codeact_team.executors.confined import ConfinedSessionCodeExecutor


def py(code: str) -> str:
    """A model's reply that has this code run."""
    return f"```python\n{code}\n```"


def agent_of(
    model: ScriptedServer | ChatCompletionClient, executor: SessionCodeExecutor, **settings: Any
) -> CodeActAgent:
    client = model.client() if isinstance(model, ScriptedServer) else model
    return CodeActAgent("coder", client, executor, **settings)


def outputs(items: Sequence[Item]) -> list[str]:
    """What came of the code, as people read it."""
    return [item.result.output for item in items if isinstance(item, CodeExecutionEvent)]


@asynccontextmanager
async def own_session(**settings: Any) -> AsyncGenerator[ConfinedSessionCodeExecutor]:
    """An executor of the test's own; the test is skipped where the kernel cannot confine."""
    if (reason := await asyncio.to_thread(why_not_confined)) is not None:
        pytest.skip(reason)
    executor = ConfinedSessionCodeExecutor(**settings)
    try:
        yield executor
    finally:
        await executor.stop()
