"""Wrappers of the parts of AutoGen's own agents, so that their effects go through the dispatcher.

The parts of a config are wrapped when it is loaded, others by :func:`wrap`. A dump does not show the wrappers. The agents of
this package unwrap tools, workbenches and executors, as they perform these effects themselves.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar, cast

from autogen_agentchat.agents import CodeExecutorAgent, UserProxyAgent
from autogen_agentchat.base import ChatAgent, Team
from autogen_agentchat.conditions import TimeoutTermination
from autogen_core import CancellationToken, ComponentBase
from autogen_core.code_executor import CodeBlock, CodeExecutor, CodeResult
from autogen_core.memory import Memory, MemoryContent, MemoryQueryResult, UpdateContextResult
from autogen_core.model_context import ChatCompletionContext, UnboundedChatCompletionContext
from autogen_core.models import ChatCompletionClient, LLMMessage
from autogen_core.tools import (
    BaseTool,
    FunctionTool,
    StaticWorkbench,
    StreamTool,
    TextResultContent,
    ToolResult,
    ToolSchema,
    Workbench,
)
from pydantic import BaseModel, JsonValue, TypeAdapter
from pydantic_core import to_jsonable_python

from codeact_team.core.aio import aclosing, streamed, until_cancelled
from codeact_team.core.autogen_internals import (
    approval_of,
    components_in,
    function_of,
    is_of_mcp,
    replace_input,
    slots_of,
)
from codeact_team.core.component_effects import CodeRun, ToolListing
from codeact_team.core.effects import Begin, Dispatcher, Effect, End, current_dispatcher, perform
from codeact_team.core.events import QuestionAnswered, QuestionAsked, ToolCallBegan, ToolCallEnded
from codeact_team.core.execution import CallOutcome
from codeact_team.core.wrapper import Wrapper
from codeact_team.models.clients import WrappedClient
from codeact_team.text.visibility import cut
from codeact_team.tools.approvals import enter

T = TypeVar("T")

_MAX_SHOWN = 300
_UNKNOWN = (
    "The run was interrupted while this was under way, and it was not done again: whether it was done is not known. Find out "
    "before you do it again."
)


class _PartCall(Effect[T]):
    """A tool of an AutoGen agent is called; ``part`` is the tool, or its workbench."""

    kind = "part_call"
    spends = ("tool_calls", "seconds")

    def __init__(
        self, part: object, name: str, arguments: Mapping[str, Any] | None, form: TypeAdapter[T]
    ) -> None:
        self.part = part
        self.form = form
        self._name = name
        self._arguments = arguments or {}

    def request(self) -> JsonValue:
        return {"tool": self._name, "arguments": self._plain_arguments()}

    @classmethod
    def began(cls, begin: Begin) -> ToolCallBegan:
        return ToolCallBegan(
            name=begin.request["tool"],
            arguments=cut(json.dumps(begin.request["arguments"], ensure_ascii=False), _MAX_SHOWN),
        )

    def unknown(self) -> Any:
        return ToolResult(name=self._name, result=[TextResultContent(content=_UNKNOWN)], is_error=True)

    def _plain_arguments(self) -> JsonValue:
        return to_jsonable_python(dict(self._arguments), fallback=repr)

    @classmethod
    def ended(cls, end: End) -> ToolCallEnded:
        event, result = ToolCallEnded(name=end.request["tool"], outcome=CallOutcome.OK), end.outcome
        if end.failure is not None:
            event.outcome = CallOutcome.CANCELLED if end.failure.is_cancellation else CallOutcome.FAILED
            event.error = "" if end.failure.is_cancellation else str(end.failure)
        elif isinstance(result, dict) and "is_error" in result and result["is_error"]:
            event.outcome = CallOutcome.FAILED
            event.error = cut(_RESULT.validate_python(result).to_text(), _MAX_SHOWN)
        return event


class _MemoryCall(_PartCall[T]):
    """A method of a memory is called."""

    kind = "memory_call"
    spends = ("seconds",)

    @classmethod
    def began(cls, begin: Begin) -> ToolCallBegan:
        event = super().began(begin)
        event.is_repeatable = True
        return event

    def unknown(self) -> None:
        """Nothing: the call can be made again, as a memory may hold something twice."""


class PartBlock(CodeRun[CodeResult]):
    """Code blocks of an AutoGen agent run."""

    kind = "part_block"
    form = TypeAdapter(CodeResult)

    def unknown(self) -> CodeResult:
        return CodeResult(exit_code=1, output=_UNKNOWN)


class PersonInput(Effect[str]):
    """A person is asked for input."""

    kind = "person_input"
    asks_person = True
    form = TypeAdapter(str)

    def __init__(self, prompt: str) -> None:
        self._prompt = prompt

    def request(self) -> JsonValue:
        return {"input": self._prompt}

    def to_text(self) -> str:
        """The prompt."""
        return self._prompt

    @classmethod
    def began(cls, begin: Begin) -> QuestionAsked:
        return QuestionAsked(text=begin.request["input"])

    @classmethod
    def ended(cls, end: End) -> QuestionAnswered:
        return QuestionAnswered(text=end.outcome or "", error=end.error)


_RESULT = TypeAdapter(ToolResult)
_SCHEMAS: TypeAdapter[Any] = TypeAdapter(list[dict[str, Any]])
"""Not AutoGen's class, which lacks some of what servers send."""
_ANYTHING = TypeAdapter[Any](Any)
_NOTHING = TypeAdapter(None)
_MEMORIES = TypeAdapter(MemoryQueryResult)


class _Recorded(str):
    """The recorded result of a tool as text; the tool was not called again."""


class WrappedTool(Wrapper):
    """A tool whose calls go through the dispatcher."""

    async def run_json(
        self, args: Mapping[str, Any], cancellation_token: CancellationToken, call_id: str | None = None
    ) -> Any:
        do = partial(self.wrapped.run_json, args, cancellation_token, call_id)
        return await perform(_ToolRun(self, args), do, self._dispatcher)

    def return_value_as_string(self, value: Any) -> str:
        return value if isinstance(value, _Recorded) else self.wrapped.return_value_as_string(value)


class _ToolRun(_PartCall[Any]):
    """The call of a single tool. Its value may be anything; only the text for the model is recorded."""

    def __init__(self, tool: WrappedTool, arguments: Mapping[str, Any]) -> None:
        super().__init__(tool.wrapped, tool.name, arguments, _ANYTHING)
        self._tool = tool

    def dump(self, outcome: Any) -> JsonValue:
        return self._tool.return_value_as_string(outcome)

    def load(self, data: JsonValue) -> Any:
        return _Recorded(data)

    def unknown(self) -> Any:
        return _Recorded(_UNKNOWN)


class WrappedStreamTool(WrappedTool):
    """A tool that reports its progress as a stream."""

    def run_json_stream(
        self, args: Mapping[str, Any], cancellation_token: CancellationToken, call_id: str | None = None
    ) -> AsyncGenerator[Any, None]:
        start = partial(self.wrapped.run_json_stream, args, cancellation_token, call_id)
        return _stream(_ToolRun(self, args), start, self._dispatcher)


class WrappedWorkbench(Wrapper):
    """A workbench whose calls go through the dispatcher."""

    async def list_tools(self) -> list[ToolSchema]:
        if isinstance(self.wrapped, StaticWorkbench):
            # its tools are in the config
            return await self.wrapped.list_tools()
        listing = ToolListing(self.wrapped, _SCHEMAS, [type(self.wrapped).__name__])
        return await perform(listing, self.wrapped.list_tools, self._dispatcher)

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        cancellation_token: CancellationToken | None = None,
        call_id: str | None = None,
    ) -> ToolResult:
        do = partial(self._call, name, arguments, cancellation_token, call_id)
        return await perform(_PartCall(self.wrapped, name, arguments, _RESULT), do, self._dispatcher)

    async def _call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None,
        token: CancellationToken | None,
        call_id: str | None,
    ) -> ToolResult:
        if token is None or not is_of_mcp(self.wrapped):
            return await self.wrapped.call_tool(name, arguments, token, call_id)
        # AutoGen links a future that cannot be cancelled, so that cancelling the caller's token would raise
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
        return _stream(_PartCall(self.wrapped, name, arguments, _RESULT), start, self._dispatcher)


def _stream(
    effect: Effect[Any], start: Callable[[], AsyncGenerator[Any, None]], dispatcher: Dispatcher | None
) -> AsyncGenerator[Any, None]:
    """Perform an effect whose outcome is the last item of a stream, and yield the items before as they come."""

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

        return await perform(effect, do, dispatcher)

    return streamed(work)


class WrappedExecutor(Wrapper):
    """An executor whose blocks go through the dispatcher."""

    async def execute_code_blocks(
        self, code_blocks: list[CodeBlock], cancellation_token: CancellationToken
    ) -> CodeResult:
        do = partial(self.wrapped.execute_code_blocks, code_blocks, cancellation_token)

        async def again(blocks: list[CodeBlock]) -> CodeResult:
            return await self.wrapped.execute_code_blocks(blocks, cancellation_token)

        return await perform(PartBlock(self.wrapped, code_blocks, again), do, self._dispatcher)


class _Recalled(BaseModel):
    """The additions of a memory to a conversation."""

    memories: MemoryQueryResult
    messages: list[LLMMessage]


_RECALLED = TypeAdapter(_Recalled)


class WrappedMemory(Wrapper):
    """A memory whose calls go through the dispatcher."""

    async def update_context(self, model_context: ChatCompletionContext) -> UpdateContextResult:
        before = await model_context.get_messages()

        async def do() -> _Recalled:
            # in a copy, so that the additions are known, and can be made again
            copy = UnboundedChatCompletionContext(list(before))
            updated = await self.wrapped.update_context(copy)
            return _Recalled(memories=updated.memories, messages=(await copy.get_messages())[len(before) :])

        recalled = await self._perform("update_context", {"messages": before}, do, _RECALLED)
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
        return await perform(_MemoryCall(self.wrapped, name, arguments, form), do, self._dispatcher)


class WrappedInput:
    """An input function whose questions go through the dispatcher. An async one takes a cancellation token, too."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.wrapped = function
        self._dispatcher = current_dispatcher()

    async def ask(self, prompt: str, cancellation_token: CancellationToken | None) -> str:
        """Ask the person. A method, as AutoGen takes an async function, but no callable object."""
        do = partial(enter, self.wrapped, prompt, cancellation_token)
        asking = perform(PersonInput(prompt), do, self._dispatcher)
        return await (asking if cancellation_token is None else until_cancelled(asking, cancellation_token))


_OURS = f"{__name__.partition('.')[0]}."
_WRAPPERS: Mapping[type, Callable[[Any], Any]] = {
    ChatCompletionClient: WrappedClient,
    StreamTool: WrappedStreamTool,
    BaseTool: WrappedTool,
    Workbench: WrappedWorkbench,
    CodeExecutor: WrappedExecutor,
    Memory: WrappedMemory,
}
_EFFECTFUL = tuple(_WRAPPERS)


def wrap(part: T) -> T:
    """Wrap a part of an AutoGen agent, so that its effects go through the dispatcher.

    For teams that are built in Python; the parts of a config are wrapped when it is loaded, and the agents of this
    package wrap their parts themselves. The wrapper does not own the part: its creator stops or closes it.

    Args:
        part: A model client, tool, workbench, executor or memory; or a ``UserProxyAgent``, whose input function is
            replaced. Anything else, and a part that is wrapped, is returned as it is.
    """
    if isinstance(part, Wrapper):
        return part
    if isinstance(part, UserProxyAgent) and not _is_wrapped_input(part):
        replace_input(part, WrappedInput(part.input_func).ask)
    for kind, wrapper in _WRAPPERS.items():
        if isinstance(part, kind):
            return wrapper(part)
    return part


@contextmanager
def wrapped_inside(root: Team | ChatAgent) -> Generator[None]:
    """Within it, the effects of AutoGen's agents in a team, or of an agent, go through the dispatcher.

    For a team that was built in Python, whose parts are wrapped in their places, and put back at the end. The agents of this
    package wrap their parts themselves.
    """
    undo: list[Callable[[], object]] = []
    wrappers: dict[int, object] = {}
    seen: set[int] = set()
    queue: list[object] = [root]
    while queue:
        holder = queue.pop()
        if id(holder) in seen or type(holder).__module__.startswith(_OURS):
            continue
        seen.add(id(holder))
        if isinstance(holder, UserProxyAgent) and not _is_wrapped_input(holder):
            undo += [
                partial(setattr, holder, name, getattr(holder, name)) for name in ("input_func", "_is_async")
            ]
            wrap(holder)
        for slot in slots_of(holder):
            part = slot.value
            if isinstance(part, _EFFECTFUL) and not isinstance(part, Wrapper) and _bypasses(part):
                slot.put(wrappers.setdefault(id(part), wrap(part)))
                undo.append(partial(slot.put, part))
            elif isinstance(part, list | ComponentBase):
                queue.append(part)  # pyright: ignore[reportUnknownArgumentType]
    try:
        yield
    finally:
        for put_back in reversed(undo):
            put_back()


def unwrap(part: T) -> T:
    """Remove the wrapper, for an agent that performs the effects itself. Anything else is returned as it is."""
    return cast("T", part.wrapped) if isinstance(part, Wrapper) else part


def _is_wrapped_input(agent: UserProxyAgent) -> bool:
    return isinstance(getattr(agent.input_func, "__self__", None), WrappedInput)


def bypassing_parts(root: object) -> list[str]:
    """Name the parts of a team whose effects bypass the dispatcher: with any, a run can be neither resumed nor replayed."""
    found: list[Any] = list(components_in(root))
    # the parts in a wrapper, or in an agent of this package, are used through it
    outer = [part for part in found if type(part).__module__.startswith(_OURS)]
    covered = {id(inner) for inner in components_in(outer) if isinstance(inner, _EFFECTFUL)}
    bypassing = [part for part in found if id(part) not in covered and _bypasses(part)]
    names = (f" {part.name!r}" if isinstance(getattr(part, "name", None), str) else "" for part in bypassing)
    return sorted({f"{type(part).__name__}{name}" for part, name in zip(bypassing, names, strict=True)})


def _bypasses(part: object) -> bool:
    if isinstance(part, StaticWorkbench):
        # its tools may be wrapped
        return False
    if isinstance(part, FunctionTool):
        # a handoff of AutoGen's only returns a fixed text
        return not function_of(part).__module__.startswith("autogen_agentchat.")
    if isinstance(part, _EFFECTFUL):
        # an agent as a tool: its parts are checked by themselves
        return not any(isinstance(found, ChatAgent | Team) for found in components_in(part))
    if isinstance(part, UserProxyAgent):
        return not _is_wrapped_input(part)
    if isinstance(part, CodeExecutorAgent):
        return approval_of(part) is not None
    foreign = not type(part).__module__.startswith(("autogen_agentchat.", _OURS))
    return isinstance(part, TimeoutTermination) or (foreign and isinstance(part, ChatAgent | Team))
