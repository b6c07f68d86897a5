"""All the tools of one agent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

from autogen_core import ComponentModel
from autogen_core.tools import Workbench

from codeact_team.aio import Turns, to_the_end
from codeact_team.autogen_internals import is_of_mcp
from codeact_team.autogen_parts import unwrap
from codeact_team.errors import SettingError, WorkbenchError
from codeact_team.tools.assembling import assemble
from codeact_team.tools.given_tools import Tool, read_tool
from codeact_team.tools.offer import Offer
from codeact_team.tools.python_tools import PythonTools
from codeact_team.tools.tool_sources import AnyWorkbench, Listing, ToolSource

T = TypeVar("T")


Ask = Callable[[list[str], Callable[[], Awaitable[Sequence[Listing]]]], Awaitable[Sequence[Listing]]]


async def _ask(_: list[str], listed: Callable[[], Awaitable[Sequence[Listing]]]) -> Sequence[Listing]:
    return await listed()


class Toolbox:
    """Tools, functions and workbenches, started, offered and stopped together.

    Args:
        tools: Tools, functions, and import paths, ``module:function``, of functions on this machine.
        workbenches: More tools. An MCP server that runs already is used as it is, and left running; everything else
            is started and stopped here.

    Raises:
        SettingError: If something is no tool, or two have the same name.
        ConfigError: If an import path leads to no function, or may not be followed.
    """

    def __init__(self, tools: Sequence[Tool] = (), workbenches: Sequence[Workbench] = ()) -> None:
        self._given = [read_tool(unwrap(tool)) for tool in tools]
        single = PythonTools([given.tool for given in self._given])
        assemble([(single, Listing(single.listed))])
        self._single = single
        self._workbenches = [unwrap(workbench) for workbench in workbenches]
        self._others = [*map(_source_of, self._workbenches)]
        self._sources: list[ToolSource] = [single, *self._others]
        self._changing = Turns()
        self._is_started = False
        self._listings: list[tuple[ToolSource, Listing]] = []
        self._offer: Offer | None = None

    async def start(self) -> None:
        """Start what does not run, and servers that have died. Idempotent.

        After a ``WorkbenchError``, what was started here is stopped.
        """
        async with self._changing:
            try:
                await _all(source.start() for source in self._sources)
            except BaseException:
                await to_the_end(self._stop())
                raise
            self._is_started = True

    async def stop(self) -> None:
        """Stop what was started here. Idempotent."""
        async with self._changing:
            await to_the_end(self._stop())

    async def be_started(self) -> None:
        """Start what does not run, unless that was done before: what has died since is not started anew."""
        if not self._is_started:
            await self.start()

    async def _stop(self) -> None:
        self._is_started = False
        await _all(source.stop() for source in self._sources)

    async def offer(self, ask: Ask = _ask) -> Offer:
        """Start what does not run, and return the tools there are now: the same object as long as they are the same.

        Args:
            ask: Asks the workbenches, given what they are called and what asks them; it may know what they will say.

        Raises:
            WorkbenchError: If they cannot be had: a server has died, or what it lists is broken.
            SettingError: If two tools that belong to no server have the same name.
        """
        listings: list[tuple[ToolSource, Listing]] = [(self._single, Listing(self._single.listed))]
        if self._others:
            listed = await ask([source.label for source in self._others], self._list)
            listings += zip(self._others, listed, strict=True)
        if self._offer is None or listings != self._listings:
            self._offer, self._listings = assemble(listings), listings
        return self._offer

    async def _list(self) -> Sequence[Listing]:
        await self.start()
        return await _all(source.list_tools() for source in self._others)

    def dump_tools(self) -> list[ComponentModel | str]:
        """Dump the single tools as components and import paths; one without such a form, as a live function, is an error."""
        return [given.dump() for given in self._given]

    def dump_workbenches(self) -> list[ComponentModel]:
        """Dump the workbenches as components; one without such a form is an error."""
        return [_dumped(workbench) for workbench in self._workbenches]


def _source_of(workbench: Workbench) -> ToolSource:
    if not isinstance(workbench, Workbench):  # pyright: ignore[reportUnnecessaryIsInstance]  # whatever is given
        raise SettingError(
            f"workbench: {workbench!r} is no workbench; a tool or a function belongs to 'tools'"
        )
    if is_of_mcp(workbench):
        from codeact_team.tools.mcp.server import McpServer

        return McpServer(cast("Any", workbench))
    return AnyWorkbench(workbench)


def _dumped(workbench: Workbench) -> ComponentModel:
    try:
        return workbench.dump_component()
    except Exception as error:  # whatever a workbench does about a form it does not have
        raise SettingError(
            f"workbench: a {type(workbench).__name__} cannot be dumped ({type(error).__name__}: {error})"
        ) from error


async def _all(work: Iterable[Awaitable[T]]) -> list[T]:
    """Finish all of it, and only then raise what went wrong."""
    outcomes = await asyncio.gather(*work, return_exceptions=True)
    if failures := [outcome for outcome in outcomes if isinstance(outcome, BaseException)]:
        if len(failures) > 1 and all(isinstance(failure, WorkbenchError) for failure in failures):
            raise WorkbenchError("; ".join(map(str, failures)))
        raise failures[0]
    return [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
