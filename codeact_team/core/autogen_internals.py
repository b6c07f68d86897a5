"""All that this package uses of AutoGen 0.7 although it is private there, and the repairs of AutoGen's defects.

Each use has a test in ``tests/autogen/test_autogen_internals.py``, which fails when AutoGen changes what it relies on.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import atexit
import importlib
import inspect
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import setitem
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from uuid import uuid4

from autogen_agentchat.agents import CodeExecutorAgent, UserProxyAgent
from autogen_agentchat.base import ChatAgent, OrTerminationCondition, Team, TerminationCondition
from autogen_agentchat.conditions import TimeoutTermination
from autogen_agentchat.teams import BaseGroupChat
from autogen_core import CancellationToken, ComponentBase, SingleThreadedAgentRuntime
from autogen_core._component_config import WELL_KNOWN_PROVIDERS as WELL_KNOWN_PROVIDERS
from autogen_core._component_config import ComponentFromConfig, _ConcreteComponent
from autogen_core.code_executor._func_with_reqs import import_to_str as import_to_str
from autogen_core.model_context import BufferedChatCompletionContext
from autogen_core.model_context._buffered_chat_completion_context import BufferedChatCompletionContextConfig
from autogen_core.models import ChatCompletionClient, ModelInfo
from autogen_core.tools import BaseTool, FunctionTool, StaticWorkbench, ToolOverride, Workbench
from autogen_ext.code_executors._common import build_python_functions_file as build_python_functions_file
from autogen_ext.code_executors._common import to_stub as to_stub
from pydantic import BaseModel

from codeact_team.errors import AnswerCutOffError

if TYPE_CHECKING:
    # these come with an extra
    from autogen_ext.tools.mcp import McpSessionActor, McpWorkbench
    from mcp import ClientSession
    from mcp.client.session import SamplingFnT

ComponentClass = type[_ConcreteComponent[BaseModel]]
"""A class that AutoGen can make from a config and dump to one."""

_WITH_MODEL_TABLE = tuple(f"autogen_ext.models.{maker}" for maker in ("openai", "anthropic", "ollama"))
_OURS = f"{__name__.partition('.')[0]}."
_PLAIN = frozenset({str, bytes, int, float, bool, type(None), dict, set})
"""Kinds of which there are many where no part is looked for."""
_EXTRA = "extra_content"
"""Where Gemini has the signature of the thought that led to a call of a tool."""


def tools_inside(workbench: Workbench) -> Mapping[str, BaseTool[Any, Any]]:
    """The tools of a workbench that is nothing but a list of them, by the names that it offers; of another one, none."""
    if not isinstance(workbench, StaticWorkbench):
        return {}
    names = {original: name for name, original in workbench._override_name_to_original.items()}
    return {names.get(tool.name, tool.name): tool for tool in workbench._tools}


def reads_past_versions(component: ComponentClass) -> bool:
    """Whether a component can be made from a config that an earlier version of it has dumped."""
    name = "_from_config_past_version"
    return getattr(component, name).__func__ is not getattr(ComponentFromConfig, name).__func__


def components_in(root: object) -> Iterator[ComponentBase[BaseModel]]:
    """Yield a component, or the components of a list, and all components in their attributes."""
    return (part for _, part in placed_components(root))


def placed_components(root: object) -> Iterator[tuple[str, ComponentBase[BaseModel]]]:
    """The same, each with its path from the root by the names of attributes, such as ``participants.0.model_client``."""
    seen: set[int] = set()
    queue: list[tuple[str, object]] = [("", root)]
    while queue:
        place, part = queue.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if is_component := isinstance(part, ComponentBase):
            yield place, part  # pyright: ignore[reportUnknownVariableType]
        if is_component or isinstance(part, list | tuple) or type(part).__module__.startswith(_OURS):
            queue += [(f"{place}.{slot.name}".strip("."), slot.value) for slot in slots_of(part)]  # pyright: ignore[reportUnknownArgumentType]


class Slot(NamedTuple):
    """Where a part is in an object.

    Attributes:
        name: The attribute, without the underscore of a private one; in a list, the index.
        value: The part.
        put: Puts another part there; a ``TypeError`` for a tuple.
    """

    name: str
    value: object
    put: Callable[[object], None]


def slots_of(holder: object) -> Iterator[Slot]:
    """The parts in the attributes of an object, or in a list, without values of plain kinds."""
    if isinstance(holder, list | tuple):
        for index, item in enumerate(cast("list[object]", holder)):
            if type(item) not in _PLAIN:
                yield Slot(str(index), item, partial(setitem, cast("list[object]", holder), index))
        return
    for name, value in [*getattr(holder, "__dict__", {}).items()]:
        if type(value) not in _PLAIN:
            yield Slot(name.strip("_"), value, partial(setattr, holder, name))


def model_table(component: type) -> Any:
    """AutoGen's module with the models that a model client knows; ``None`` where it knows none."""
    for base in component.__mro__:
        package = ".".join(base.__module__.split(".")[:3])
        if issubclass(base, ChatCompletionClient) and package in _WITH_MODEL_TABLE:
            return importlib.import_module(f"{package}._model_info")
    return None


def listed_model(component: type, model: str) -> ModelInfo | None:
    """Return a model's entry in the table of a client; ``None`` if the client has no table, or the model is not in it."""
    table = model_table(component)
    try:
        return None if table is None or _is_any_claude(table, model) else table.get_info(model)
    except (KeyError, ValueError):
        return None


def _is_any_claude(table: Any, model: str) -> bool:
    """Whether a table takes a model for the one that it takes all models for whose names begin with "claude"."""
    if not table.__name__.startswith("autogen_ext.models.anthropic.") or model.startswith("claude-2"):
        return False
    # what it has for "claude-2.0" it has for any name that begins so up to "-2"
    return table.get_info(model) is table.get_info("claude-2.0")


def function_of(tool: FunctionTool) -> Callable[..., Any]:
    """The function that a tool calls."""
    return tool._func


def approval_of(agent: CodeExecutorAgent) -> Callable[..., Any] | None:
    """The function that an agent asks before it runs code."""
    return agent._approval_func


def replace_input(
    agent: UserProxyAgent, function: Callable[[str, CancellationToken | None], Awaitable[str]]
) -> None:
    """Let an agent ask its person by another function."""
    agent.input_func = function
    # it was found out when the agent was made
    agent._is_async = True  # pyright: ignore[reportAttributeAccessIssue]


def is_of_mcp(workbench: object) -> bool:
    """Whether a workbench is AutoGen's for MCP: it ties to its token a coroutine, which cannot be cancelled."""
    return is_class_of_mcp(type(workbench))


def is_class_of_mcp(kind: type) -> bool:
    """Whether a class is AutoGen's workbench for MCP, or derived from it."""
    # where this was not imported, nothing is
    mcp: Any = sys.modules.get("autogen_ext.tools.mcp")
    return mcp is not None and issubclass(kind, mcp.McpWorkbench)


def actor_of(workbench: McpWorkbench) -> McpSessionActor | None:
    """Return the actor with the connection of a started workbench; ``None`` if it is stopped."""
    return workbench._actor


def overrides_of(workbench: McpWorkbench) -> Mapping[str, ToolOverride]:
    """Return the names and descriptions by which a workbench replaces its server's, by the server's names."""
    return workbench._tool_overrides


def sampling_of(workbench: McpWorkbench) -> SamplingFnT:
    """Return the function by which a workbench answers a server that wants to ask a model."""
    from autogen_ext.tools.mcp import McpSessionActor

    actor = McpSessionActor(workbench.server_params, workbench._model_client)
    # it would be kept as long as the process lives
    atexit.unregister(actor._sync_shutdown)
    return actor._sampling_callback


def next_request_number(session: ClientSession) -> int:
    """The number that the next request of a session will have: MCP's client tells none, and cancelling takes one."""
    return session._request_id


def repaired(loaded: Any) -> Any:
    """A component that AutoGen has loaded, as it should have: of the same class, with what the config says."""
    if type(loaded) is not BufferedChatCompletionContext:
        return loaded
    # AutoGen passes on what model_dump() makes of the messages: plain dicts, which no model client takes
    config = BufferedChatCompletionContextConfig.model_validate(
        {"buffer_size": loaded._buffer_size, "initial_messages": loaded._initial_messages}
    )
    return BufferedChatCompletionContext(config.buffer_size, config.initial_messages)


@dataclass
class AnswerState:
    """What is known of a client's answers.

    Attributes:
        had_reason: Whether the last streamed one gave a finish reason, in whatever words.
        kept: What the server wants to have back with its calls of tools, by their ids.
    """

    had_reason: bool = True
    kept: dict[str, object] = field(default_factory=dict[str, object])


def mend_answers(client: ChatCompletionClient) -> AnswerState:
    """Make a client of OpenAI's return what AutoGen drops of the answers of OpenAI's server, and of others that speak its protocol.

    These are the words of a refusal, as a filtered answer; words in parts; thoughts in a field of another name; calls of tools
    without numbers or ids, or beside words; and a finish reason beside the usage.

    Returns what AutoGen does not tell apart; of other clients, that nothing is wrong.
    """
    state = AnswerState()
    if not any(kind.__module__.startswith("autogen_ext.models.openai.") for kind in type(client).__mro__):
        return state
    inner: Any = getattr(client, "_client", None)
    chat: Any = getattr(inner, "chat", None)
    completions: Any = getattr(chat, "completions", None)
    for name in ("create", "parse"):
        ask = getattr(completions, name, None)
        if inspect.ismethod(ask):
            setattr(completions, name, _mending_answers(ask, state))
    if chat is not None:
        # by it AutoGen asks for structured answers, and `chat` is the same; all of `beta` is 900 classes, and takes a second
        inner.beta = SimpleNamespace(chat=chat)
    return state


def _mending_answers(ask: Callable[..., Awaitable[Any]], state: AnswerState) -> Callable[..., Awaitable[Any]]:
    async def mending(*arguments: Any, **options: Any) -> Any:
        _give_back(options.get("messages", ()), state)
        answer = await ask(*arguments, **options)
        if options.get("stream"):
            return _mended(answer, state)
        for choice in answer.choices or ():
            _mend(choice, choice.message)
            calls = _ToolCalls(state)
            calls.mend(choice, choice.message)
        return answer

    return mending


def _give_back(messages: Sequence[Any], state: AnswerState) -> None:
    """Put what the server had added to its calls of tools back where it was: Gemini refuses them without."""
    for message in messages if state.kept else ():
        for call in message.get("tool_calls", ()):
            if (extra := state.kept.get(call["id"])) is not None:
                call[_EXTRA] = extra


async def _mended(stream: Any, state: AnswerState) -> AsyncGenerator[Any]:
    refused = is_empty = had_reason = False
    calls, usage = _ToolCalls(state), None
    try:
        is_empty = "event-stream" in stream.response.headers.get("content-type", "")
        async for chunk in stream:
            is_empty = False
            if chunk.usage is not None:
                # AutoGen takes no finish reason from a chunk that has one, and the usage from the last chunk alone
                usage = chunk.model_copy(update={"choices": []})
                chunk.usage = None
            for choice in chunk.choices or ():
                refused = _mend(choice, choice.delta, refused)
                had_reason = had_reason or choice.finish_reason is not None
                calls.mend(choice, choice.delta)
                if choice.delta.content and choice.delta.tool_calls:
                    # AutoGen takes the words alone
                    words = choice.delta.model_copy(update={"tool_calls": None})
                    yield chunk.model_copy(update={"choices": [choice.model_copy(update={"delta": words})]})
                    choice.delta.content = None
            yield chunk
        if usage is not None:
            yield usage
    finally:
        await stream.close()
    # who reads it does so before anything else can happen
    state.had_reason = had_reason
    if is_empty:
        raise AnswerCutOffError("the model's server has sent an empty answer")


class _ToolCalls:
    """The calls of tools in one answer, which may come in pieces.

    AutoGen tells them apart by a number that Gemini does not give, and adds up the ids of the pieces.
    """

    def __init__(self, state: AnswerState) -> None:
        self._state = state
        self._begun: list[tuple[object, str]] = []
        """The server's number of each call, and its id."""

    def mend(self, choice: Any, said: Any) -> None:
        """Mend the calls in a message, or in a piece of one, and the finish reason that comes with it."""
        for piece in said.tool_calls or ():
            self._number(piece)
        if self._begun and choice.finish_reason == "stop":
            choice.finish_reason = "tool_calls"

    def _number(self, piece: Any) -> None:
        """Number a piece by its call, and let only the first one have the id."""
        number, is_named = getattr(piece, "index", None), bool(piece.function and piece.function.name)
        same = [place for place, (given, _) in enumerate(self._begun) if given == number]
        if not same or (
            is_named and (number is None or piece.id not in (None, "", self._begun[same[-1]][1]))
        ):
            same = [len(self._begun)]
            piece.id = piece.id or f"call_{uuid4().hex}"
            self._begun.append((number, piece.id))
        else:
            piece.id = None
        piece.index = same[-1]
        if (extra := _unknown_field(piece, _EXTRA)) is not None:
            self._state.kept[self._begun[piece.index][1]] = extra


def _mend(choice: Any, said: Any, refused: bool = False) -> bool:
    """Move a refusal to where the words of an answer are, and thoughts to where they are; returns whether it has been one."""
    _join_parts(said)
    thought = _unknown_field(said, "reasoning")
    if isinstance(thought, str) and _unknown_field(said, "reasoning_content") is None:
        # by Ollama, vLLM and OpenRouter
        said.reasoning_content = thought
    words = getattr(said, "refusal", None)
    if isinstance(words, str) and words and not said.content:
        said.content, refused = words, True
    if refused and choice.finish_reason == "stop":
        choice.finish_reason = "content_filter"
    return refused


def _unknown_field(part: BaseModel, name: str) -> object:
    """A field of a server's that OpenAI's library does not know."""
    return (part.model_extra or {}).get(name)


def _join_parts(said: Any) -> None:
    """Join a message in parts, as Mistral's thinking models write it, to the text and the reasoning that AutoGen takes."""
    parts: object = getattr(said, "content", None)
    if not isinstance(parts, list):
        return
    said.content = _text_of(cast("list[object]", parts), "text")
    if thought := _text_of(cast("list[object]", parts), "thinking"):
        said.reasoning_content = thought


def _text_of(parts: object, kind: str) -> str:
    if isinstance(parts, str):
        return parts
    if not isinstance(parts, list):
        return ""
    told = [cast("dict[str, object]", part) for part in cast("list[object]", parts) if isinstance(part, dict)]
    return "".join(_text_of(part.get(kind), "text") for part in told if part.get("type") == kind)


async def recover(runner: Team | ChatAgent) -> None:
    """Make the next task begin with the first speaker after a run that broke off.

    AutoGen's group chats keep the speaker whose turn broke off as one that still has to answer: the next run stops
    after its first speaker, and ``reset`` does not repair it. So the team gets a new runtime; the agents keep what they
    remember. Undelivered messages are dropped: they may hold code that has run already.
    """
    if not isinstance(runner, BaseGroupChat):
        return
    for participant in runner._participants:
        await recover(participant)
    if runner._termination_condition is not None:
        await runner._termination_condition.reset()
    # an agent that was abandoned may still be at work, for nobody
    runner._output_message_queue = asyncio.Queue()
    runner._runtime = SingleThreadedAgentRuntime(ignore_unhandled_exceptions=False)
    runner._initialized = False
    runner._is_running = False


def conditions_of(runner: Team | ChatAgent) -> Iterator[object]:
    """Yield the termination condition of a team and the conditions that it consists of; nothing for an agent."""
    return components_in(runner._termination_condition if isinstance(runner, BaseGroupChat) else None)


def time_limit(runner: Team | ChatAgent) -> float | None:
    """The seconds of a team's ``TimeoutTermination``, if it has one: AutoGen checks it only when an agent speaks."""
    return _seconds(runner._termination_condition) if isinstance(runner, BaseGroupChat) else None


def _seconds(condition: TerminationCondition | None) -> float | None:
    if isinstance(condition, TimeoutTermination):
        return condition._timeout_seconds
    if not isinstance(condition, OrTerminationCondition):
        return None
    found = map(_seconds, condition._conditions)
    return min((seconds for seconds in found if seconds is not None), default=None)


def has_worked(runner: Team | ChatAgent) -> bool:
    """Whether a team has worked on a task, and not been reset since; of an agent that is not known."""
    return isinstance(runner, BaseGroupChat) and runner._initialized


def settings_of(client: object) -> Mapping[str, Any]:
    """The settings with which a model client of AutoGen's was made, its key among them; of another client, none."""
    settings: object = getattr(client, "_raw_config", None)
    return cast("Mapping[str, Any]", settings) if isinstance(settings, Mapping) else {}


def base_url_of(client: object) -> object:
    """The address of the server that a model client of AutoGen's asks; ``None`` if it is not known."""
    return getattr(getattr(client, "_client", None), "base_url", None)


def sets_retries(client: object) -> bool:
    """Whether the settings of a model client of AutoGen's say how often it retries."""
    return "max_retries" in settings_of(client)


def leave_retries(client: object) -> None:
    """Keep a model client of AutoGen's from retrying by itself."""
    if isinstance(getattr(inner := getattr(client, "_client", None), "max_retries", None), int):
        setattr(inner, "max_retries", 0)  # noqa: B010 - of whichever class
