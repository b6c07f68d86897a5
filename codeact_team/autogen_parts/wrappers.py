"""Wrappers around what AutoGen's own agents use: their tools, workbenches, executors, memory, and a person's input."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeResult
from autogen_core.memory import MemoryContent, MemoryQueryResult, UpdateContextResult
from autogen_core.model_context import ChatCompletionContext, UnboundedChatCompletionContext
from autogen_core.models import LLMMessage
from autogen_core.tools import StaticWorkbench, ToolResult, ToolSchema
from pydantic import BaseModel, JsonValue, TypeAdapter

from codeact_team.aio import aclosing, streamed, until_cancelled
from codeact_team.approval.input_function import enter
from codeact_team.autogen_internals import is_of_mcp
from codeact_team.autogen_parts.part_effects import UNKNOWN, MemoryCall, PartBlock, PartCall, PersonInput
from codeact_team.effects import Door, Effect, current_door, perform
from codeact_team.tool_listing import ToolListing
from codeact_team.wrapper import Wrapper

T = TypeVar("T")

_RESULT = TypeAdapter(ToolResult)
_SCHEMAS: TypeAdapter[Any] = TypeAdapter(list[dict[str, Any]])
"""AutoGen's class for them knows less than servers say."""
_ANYTHING = TypeAdapter[Any](Any)
_NOTHING = TypeAdapter(None)
_MEMORIES = TypeAdapter(MemoryQueryResult)


class _Answered(str):
    """What a tool once returned, as text. It was not called again."""


class WrappedTool(Wrapper):
    """A tool whose calls pass the door."""

    async def run_json(
        self, args: Mapping[str, Any], cancellation_token: CancellationToken, call_id: str | None = None
    ) -> Any:
        do = partial(self.wrapped.run_json, args, cancellation_token, call_id)
        return await perform(_ToolRun(self, args), do, self._door)

    def return_value_as_string(self, value: Any) -> str:
        return value if isinstance(value, _Answered) else self.wrapped.return_value_as_string(value)


class _ToolRun(PartCall[Any]):
    """The call of a single tool. It may return anything; only the text that a model gets is kept."""

    def __init__(self, tool: WrappedTool, arguments: Mapping[str, Any]) -> None:
        super().__init__(tool.wrapped, tool.name, arguments, _ANYTHING)
        self._tool = tool

    def dump(self, outcome: Any) -> JsonValue:
        return self._tool.return_value_as_string(outcome)

    def load(self, data: JsonValue) -> Any:
        return _Answered(data)

    def unknown(self) -> Any:
        return _Answered(UNKNOWN)


class WrappedStreamTool(WrappedTool):
    """A tool that tells what it does meanwhile."""

    def run_json_stream(
        self, args: Mapping[str, Any], cancellation_token: CancellationToken, call_id: str | None = None
    ) -> AsyncGenerator[Any, None]:
        start = partial(self.wrapped.run_json_stream, args, cancellation_token, call_id)
        return _stream(_ToolRun(self, args), start, self._door)


class WrappedWorkbench(Wrapper):
    """A workbench whose calls pass the door."""

    async def list_tools(self) -> list[ToolSchema]:
        if isinstance(self.wrapped, StaticWorkbench):
            # they are in the config
            return await self.wrapped.list_tools()
        listing = ToolListing(self.wrapped, _SCHEMAS, [type(self.wrapped).__name__])
        return await perform(listing, self.wrapped.list_tools, self._door)

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        cancellation_token: CancellationToken | None = None,
        call_id: str | None = None,
    ) -> ToolResult:
        do = partial(self._call, name, arguments, cancellation_token, call_id)
        return await perform(PartCall(self.wrapped, name, arguments, _RESULT), do, self._door)

    async def _call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None,
        token: CancellationToken | None,
        call_id: str | None,
    ) -> ToolResult:
        if token is None or not is_of_mcp(self.wrapped):
            return await self.wrapped.call_tool(name, arguments, token, call_id)
        # whoever cancels the token would get the error of what cannot be cancelled
        own = CancellationToken()
        return await until_cancelled(self.wrapped.call_tool(name, arguments, own, call_id), token)

    def call_tool_stream(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        cancellation_token: CancellationToken | None = None,
        call_id: str | None = None,
    ) -> AsyncGenerator[Any | ToolResult, None]:
        start = partial(self.wrapped.call_tool_stream, name, arguments, cancellation_token, call_id)
        return _stream(PartCall(self.wrapped, name, arguments, _RESULT), start, self._door)


def _stream(
    effect: Effect[Any], start: Callable[[], AsyncGenerator[Any, None]], door: Door | None
) -> AsyncGenerator[Any, None]:
    """Perform an effect whose outcome is the last item of a stream, and yield what comes before as it comes."""

    async def work(emit: Callable[[Any], Awaitable[None]]) -> Any:
        async def do() -> Any:
            before: list[Any] = []
            async with aclosing(start()) as items:
                async for item in items:
                    for one in before:
                        await emit(one)
                    before = [item]
            (last,) = before
            return last

        return await perform(effect, do, door)

    return streamed(work)


class WrappedExecutor(Wrapper):
    """An executor whose blocks pass the door."""

    async def execute_code_blocks(
        self, code_blocks: list[CodeBlock], cancellation_token: CancellationToken
    ) -> CodeResult:
        do = partial(self.wrapped.execute_code_blocks, code_blocks, cancellation_token)

        async def again(blocks: list[CodeBlock]) -> CodeResult:
            return await self.wrapped.execute_code_blocks(blocks, cancellation_token)

        return await perform(PartBlock(self.wrapped, code_blocks, again), do, self._door)


class _Recalled(BaseModel):
    """What a memory has added to a conversation."""

    memories: MemoryQueryResult
    messages: list[LLMMessage]


_RECALLED = TypeAdapter(_Recalled)


class WrappedMemory(Wrapper):
    """A memory whose questions pass the door."""

    async def update_context(self, model_context: ChatCompletionContext) -> UpdateContextResult:
        said = await model_context.get_messages()

        async def do() -> _Recalled:
            # a copy, so that what is added is known, and can be added again
            copy = UnboundedChatCompletionContext(list(said))
            updated = await self.wrapped.update_context(copy)
            return _Recalled(memories=updated.memories, messages=(await copy.get_messages())[len(said) :])

        recalled = await self._perform("update_context", {"messages": said}, do, _RECALLED)
        for message in recalled.messages:
            await model_context.add_message(message)
        return UpdateContextResult(memories=recalled.memories)

    async def query(
        self, query: str | MemoryContent, cancellation_token: CancellationToken | None = None, **kwargs: Any
    ) -> MemoryQueryResult:
        do = partial(self.wrapped.query, query, cancellation_token, **kwargs)
        return await self._perform("query", {"query": query, **kwargs}, do, _MEMORIES)

    async def add(self, content: MemoryContent, cancellation_token: CancellationToken | None = None) -> None:
        do = partial(self.wrapped.add, content, cancellation_token)
        await self._perform("add", {"content": content}, do, _NOTHING)

    async def clear(self) -> None:
        await self._perform("clear", {}, self.wrapped.clear, _NOTHING)

    async def _perform(
        self, what: str, arguments: Mapping[str, Any], do: Callable[[], Awaitable[T]], form: TypeAdapter[T]
    ) -> T:
        name = f"{type(self.wrapped).__name__}.{what}"
        return await perform(MemoryCall(self.wrapped, name, arguments, form), do, self._door)


class WrappedInput:
    """An input function whose questions pass the door. An asynchronous one takes a cancellation token, too."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.wrapped = function
        self._door = current_door()

    async def ask(self, prompt: str, cancellation_token: CancellationToken | None) -> str:
        """Ask the person: AutoGen takes an asynchronous function, and no object that can be called."""
        do = partial(enter, self.wrapped, prompt, cancellation_token)
        asking = perform(PersonInput(prompt), do, self._door)
        return await (asking if cancellation_token is None else until_cancelled(asking, cancellation_token))
