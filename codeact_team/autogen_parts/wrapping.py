"""Put the wrappers around parts of a team, and find the parts that have none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, cast

from autogen_agentchat.agents import CodeExecutorAgent, UserProxyAgent
from autogen_agentchat.base import ChatAgent, Team
from autogen_agentchat.conditions import TimeoutTermination
from autogen_core.code_executor import CodeExecutor
from autogen_core.memory import Memory
from autogen_core.models import ChatCompletionClient
from autogen_core.tools import (
    BaseTool,
    FunctionTool,
    StaticWorkbench,
    StreamTool,
    Workbench,
)

from codeact_team.autogen_internals import approval_of, components_in, function_of, replace_input
from codeact_team.autogen_parts.wrappers import (
    WrappedExecutor,
    WrappedInput,
    WrappedMemory,
    WrappedStreamTool,
    WrappedTool,
    WrappedWorkbench,
)
from codeact_team.clients import WrappedClient
from codeact_team.wrapper import Wrapper

T = TypeVar("T")

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
    """Wrap a part of an agent of AutoGen's, so that what it does passes the door.

    For teams that are built in Python; the parts of a config are wrapped when it is loaded, and the agents of this
    package wrap what they are given themselves. Whoever made a part still stops or closes it.

    Args:
        part: A model client, tool, workbench, executor or memory; or a ``UserProxyAgent``, whose input function is
            replaced. What is wrapped already, and anything else, stays as it is.
    """
    if isinstance(part, Wrapper):
        return part
    if isinstance(part, UserProxyAgent) and not _is_wrapped_input(part):
        replace_input(part, WrappedInput(part.input_func).ask)
    for kind, wrapper in _WRAPPERS.items():
        if isinstance(part, kind):
            return wrapper(part)
    return part


def unwrap(part: T) -> T:
    """Take the wrapper off, for an agent that passes the door itself. Anything else stays as it is."""
    return cast("T", part.wrapped) if isinstance(part, Wrapper) else part


def _is_wrapped_input(agent: UserProxyAgent) -> bool:
    return isinstance(getattr(agent.input_func, "__self__", None), WrappedInput)


def past_the_door(root: object) -> list[str]:
    """Name the parts of a team that act past the door. With any of them, a run can be neither resumed nor replayed.

    Args:
        root: A team or an agent.

    Returns:
        For each such part its class and, if it has one, its name.
    """
    found: list[Any] = list(components_in(root))
    # what is in a wrapper, or in an agent of this package, is asked through it
    outer = [part for part in found if type(part).__module__.startswith(_OURS)]
    asked = {id(inner) for inner in components_in(outer) if isinstance(inner, _EFFECTFUL)}
    past = [part for part in found if id(part) not in asked and _goes_past(part)]
    return sorted({" ".join([type(part).__name__, *_name_of(part)]) for part in past})


def _goes_past(part: object) -> bool:
    if isinstance(part, StaticWorkbench):
        # its tools may be wrapped
        return False
    if isinstance(part, FunctionTool):
        # a handoff of AutoGen's only returns what it is told to
        return not function_of(part).__module__.startswith("autogen_agentchat.")
    if isinstance(part, _EFFECTFUL):
        # an agent as a tool: what that agent does passes the door
        return not any(isinstance(found, ChatAgent | Team) for found in components_in(part))
    if isinstance(part, UserProxyAgent):
        return not _is_wrapped_input(part)
    if isinstance(part, CodeExecutorAgent):
        return approval_of(part) is not None
    foreign = not type(part).__module__.startswith(("autogen_agentchat.", _OURS))
    return isinstance(part, TimeoutTermination) or (foreign and isinstance(part, ChatAgent | Team))


def _name_of(part: object) -> Iterator[str]:
    if isinstance(name := getattr(part, "name", None), str):
        yield repr(name)
