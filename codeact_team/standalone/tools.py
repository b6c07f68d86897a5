"""The tools that a program offers to the code of its sandbox."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias

from autogen_core import CancellationToken

from codeact_team.agents.agent_config import ToolLimits
from codeact_team.agents.tool_calls import AgentTools
from codeact_team.core.execution import HostTools
from codeact_team.errors import SettingError
from codeact_team.tools.sources import Tool, function_tool, read_tool

Tools: TypeAlias = Sequence[Tool] | Mapping[str, Tool] | HostTools
"""Functions and AutoGen's tools; or functions by the names that code calls them by; or an object that makes the calls."""

_SOURCE = "sandbox"
"""The caller of the tools, in events."""
_LIMITS = ToolLimits(timeout=86_400, max_calls=1_000_000_000)
"""In effect none: the time of the code ends its calls."""


@dataclass
class _Offered:
    """Tools as they were given, and how many calls of the sandbox use them now."""

    given: object
    tools: AgentTools
    users: int = 0


class OfferedTools:
    """The tools of the calls of one sandbox. Those of the latest call are kept, as reading them takes milliseconds."""

    def __init__(self) -> None:
        self._latest: _Offered | None = None

    @asynccontextmanager
    async def used(self, tools: Tools | None) -> AsyncGenerator[HostTools | None]:
        """Within it, code may call the tools.

        Raises:
            SettingError: If something is no tool, or two have the same name.
        """
        if tools is None or isinstance(tools, HostTools):
            yield tools
            return
        offered = await self._offered(tools)
        offered.users += 1
        try:
            yield await offered.tools.begin_turn(CancellationToken())
        finally:
            offered.users -= 1
            if offered is not self._latest:
                await _stop_unused(offered)

    async def stop(self) -> None:
        """Stop the threads of functions that are no coroutines. Idempotent."""
        latest, self._latest = self._latest, None
        await _stop_unused(latest)

    async def _offered(self, tools: Sequence[Tool] | Mapping[str, Tool]) -> _Offered:
        if isinstance(tools, str) or not isinstance(tools, Sequence | Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SettingError(f"tools: a list or a mapping is expected, not {type(tools).__name__}")
        given = dict(tools) if isinstance(tools, Mapping) else list(tools)
        if (latest := self._latest) is not None and latest.given == given:
            return latest
        named = [_named(name, tool) for name, tool in given.items()] if isinstance(given, dict) else given
        made = AgentTools(_SOURCE, tools=named, workbench=None, limits=_LIMITS, approval=(), handler=None)
        self._latest = offered = _Offered(given, made)
        await _stop_unused(latest)
        return offered


async def _stop_unused(offered: _Offered | None) -> None:
    if offered is not None and not offered.users:
        await offered.tools.stop()


def _named(name: str, tool: Tool) -> Tool:
    if callable(tool):
        return function_tool(tool, name)
    if (own := (given := read_tool(tool).tool).name) != name:
        raise SettingError(f"tools: the name {name!r} is given for a tool named {own!r}")
    return given
