"""What the model of an agent is told of the sandbox: asked from the executor, as an effect that passes the door."""

from __future__ import annotations

import asyncio
from functools import partial

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeExecutor
from pydantic import JsonValue, TypeAdapter

from codeact_team.aio import is_being_cancelled, until_cancelled
from codeact_team.effects import Door, Effect, perform
from codeact_team.events import SandboxDescribed
from codeact_team.executor_interface import StreamingCodeExecutor


class Description(Effect[str]):
    """A sandbox is asked what there is to know of it; the outcome is a text for a model."""

    kind = "description"
    form = TypeAdapter(str)

    def __init__(self, source: str, executor: CodeExecutor) -> None:
        self.source = source
        self.part = executor

    def request(self) -> JsonValue:
        return {"describe": type(self.part).__name__}

    def began(self, span: int) -> SandboxDescribed:
        return SandboxDescribed(span=span, agent=self.source)

    def ended(self, span: int, outcome: str | None, error: BaseException | None) -> SandboxDescribed:
        return SandboxDescribed(span=span, agent=self.source, text=outcome or "")


async def describe_sandbox(executor: CodeExecutor, source: str = "", door: Door | None = None) -> str:
    """What a model can be told of an executor's sandbox; empty where nothing is known.

    Args:
        executor: Any of AutoGen's.
        source: The agent that asks.
        door: The one that the agent remembers.

    Raises:
        ValueError: If there is data that cannot be given to the code.
        SandboxError: If what the sandbox needs cannot be had, such as packages.
    """
    if not isinstance(executor, StreamingCodeExecutor):
        return ""
    effect = Description(source, executor)
    return await perform(effect, partial(_ask, executor), door)


async def describe_for_turn(
    executor: CodeExecutor, source: str, door: Door | None, cancellation_token: CancellationToken
) -> str:
    """The same for an agent's turn; nothing if that is cancelled meanwhile, as whatever comes next notices."""
    try:
        return await until_cancelled(describe_sandbox(executor, source, door), cancellation_token)
    except asyncio.CancelledError:
        if not cancellation_token.is_cancelled() or is_being_cancelled():
            raise
        return ""


async def _ask(executor: StreamingCodeExecutor) -> str:
    description = await executor.describe()
    return "" if description is None else description.to_text()
