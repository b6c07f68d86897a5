"""What the tests of agents and teams share: executors of other people's making, and short ways to talk to an agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from autogen_agentchat.agents import ApprovalRequest, ApprovalResponse, BaseChatAgent
from autogen_agentchat.base import Response
from autogen_agentchat.messages import BaseAgentEvent, BaseChatMessage, TextMessage
from autogen_core import CancellationToken, Component, Image
from autogen_core.code_executor import CodeBlock, CodeExecutor, CodeResult
from autogen_core.models import ModelInfo
from autogen_ext.models.replay import ReplayChatCompletionClient
from PIL import Image as pillow
from pydantic import BaseModel
from support.executing import why_not_confined

from codeact_team.agents.observations import ExecutionRecord
from codeact_team.core.execution import ExecutionResult
from codeact_team.core.executor_interface import Emit, StreamingCodeExecutor
from codeact_team.executors.confined import ConfinedCommandLineCodeExecutor

Item = BaseAgentEvent | BaseChatMessage | Response

TASK = "Work out the answer."
RETRY = {"reason": "Print 42 instead.", "retry": True}
GIVE_UP = {"reason": "It cannot be done.", "retry": False}
PRINTS_42 = "Here:\n```python\nprint(42)\n```\n"
FAILS = "Here:\n```python\n1 / 0\n```\n"
TOOL_FIELDS = ("tools", "workbench", "tool_limits", "approval", "approval_timeout", "approval_handler")
"""The settings of each agent whose code may call tools."""


def user(text: str) -> TextMessage:
    return TextMessage(content=text, source="user")


def model_info(**overrides: Any) -> ModelInfo:
    """What a model can do: everything but what is overridden."""
    abilities: dict[str, Any] = {
        "vision": True,
        "function_calling": True,
        "json_output": True,
        "family": "unknown",
        "structured_output": True,
        "multiple_system_messages": True,
    }
    return ModelInfo(**abilities | overrides)


def replay(*replies: Any, **info: Any) -> ReplayChatCompletionClient:
    """A model that says these things, and can do everything but what ``info`` says otherwise."""
    return ReplayChatCompletionClient(list(replies), model_info=model_info(**info))


def calls_of(client: ReplayChatCompletionClient) -> int:
    return len(client.create_calls)


def yes(request: ApprovalRequest) -> ApprovalResponse:
    return ApprovalResponse(approved=True, reason="fine")


def no(request: ApprovalRequest) -> ApprovalResponse:
    return ApprovalResponse(approved=False, reason="too risky")


def picture() -> Image:
    return Image(pillow.new("RGB", (4, 4)))


async def turn(
    agent: BaseChatAgent, *messages: BaseChatMessage, token: CancellationToken | None = None
) -> list[Item]:
    """Everything the agent yields for these messages, or for the task."""
    asked = list(messages) or [user(TASK)]
    return [item async for item in agent.on_messages_stream(asked, token or CancellationToken())]


async def answer(
    agent: BaseChatAgent, *messages: BaseChatMessage, token: CancellationToken | None = None
) -> TextMessage:
    """The agent's response to these messages, or to the task."""
    message = (await response(agent, *messages, token=token)).chat_message
    assert isinstance(message, TextMessage)
    return message


async def response(
    agent: BaseChatAgent, *messages: BaseChatMessage, token: CancellationToken | None = None
) -> Response:
    items = await turn(agent, *messages, token=token)
    assert isinstance(items[-1], Response)
    return items[-1]


def record_of(message: BaseChatMessage) -> ExecutionRecord:
    record = ExecutionRecord.from_metadata(message.metadata)
    assert record is not None
    return record


def summary(items: Sequence[Item]) -> list[tuple[str, str]]:
    """What was yielded: the type and the text of each."""
    return [
        (f"Response:{type(item.chat_message).__name__}", item.chat_message.to_text())
        if isinstance(item, Response)
        else (type(item).__name__, item.to_text())
        for item in items
    ]


def contents(request: Mapping[str, Any]) -> list[str]:
    """The texts of the messages in a request to a model, without the roles."""
    return [str(message["content"]) for message in request["messages"]]


class Settings(BaseModel):
    pass


class Foreign(CodeExecutor, Component[Settings]):
    """Another's executor, with AutoGen's interface and no more: does what it is told, one ``reply`` per call."""

    component_config_schema = Settings
    component_provider_override = "support.agents.Foreign"

    def __init__(self, *replies: CodeResult | Exception) -> None:
        self._replies = list(replies)
        self.executed: list[CodeBlock] = []

    async def execute_code_blocks(
        self, code_blocks: list[CodeBlock], cancellation_token: CancellationToken
    ) -> CodeResult:
        self.executed += code_blocks
        reply = self._replies.pop(0) if self._replies else CodeResult(exit_code=0, output="42\n")
        if isinstance(reply, Exception):
            raise reply
        return CodeResult(exit_code=reply.exit_code, output=reply.output)

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def restart(self) -> None: ...

    def _to_config(self) -> Settings:
        return Settings()

    @classmethod
    def _from_config(cls, config: Settings) -> Foreign:
        return cls()


class Calling(Foreign):
    """Another's executor that runs a function of the test's: ``await work(token)``."""

    def __init__(self, work: Callable[[CancellationToken], Awaitable[CodeResult]]) -> None:
        super().__init__()
        self._work = work
        self.started = asyncio.Event()

    async def execute_code_blocks(
        self, code_blocks: list[CodeBlock], cancellation_token: CancellationToken
    ) -> CodeResult:
        self.executed += code_blocks
        self.started.set()
        return await self._work(cancellation_token)


class Streaming(StreamingCodeExecutor):
    """A streaming executor that emits and returns, or raises, what it is told, and counts its starts."""

    def __init__(
        self, *items: str | ExecutionResult | Exception, languages: Sequence[str] = ("python", "sh")
    ) -> None:
        self._items = items
        self._languages = languages
        self.starts = self.restarted = 0
        self.executed: list[CodeBlock] = []

    @property
    def supported_languages(self) -> Sequence[str]:
        return self._languages

    @property
    def relaxations(self) -> Sequence[str]:
        return ()

    async def run_code_blocks(
        self,
        code_blocks: list[CodeBlock],
        cancellation_token: CancellationToken,
        *,
        user: object | None = None,
        emit: Emit | None = None,
    ) -> ExecutionResult:
        self.executed += code_blocks
        *output, end = self._items
        for chunk in output:
            assert isinstance(chunk, str)
            if emit is not None:
                await emit(chunk)
        if isinstance(end, ExecutionResult):
            return end
        assert isinstance(end, Exception)
        raise end

    async def start(self) -> None:
        self.starts += 1

    async def stop(self) -> None: ...

    async def restart(self) -> None:
        self.restarted += 1


@asynccontextmanager
async def confined(work_dir: Path, **settings: Any) -> AsyncGenerator[ConfinedCommandLineCodeExecutor]:
    """A real executor that is not started yet; the test is skipped where the kernel cannot confine."""
    if (reason := why_not_confined()) is not None:
        pytest.skip(reason)
    executor = ConfinedCommandLineCodeExecutor(work_dir=work_dir, **settings)
    try:
        yield executor
    finally:
        await executor.stop()
