"""All the tools of an agent as one workbench."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar, cast

from autogen_core import CancellationToken, ComponentModel, Image
from autogen_core.tools import (
    ImageResultContent,
    ParametersSchema,
    TextResultContent,
    ToolResult,
    ToolSchema,
    Workbench,
)
from pydantic import BaseModel

from codeact_team.aio import Turns, to_the_end
from codeact_team.errors import SettingError, WorkbenchError
from codeact_team.execution import Artifact
from codeact_team.tools.assembling import Listing, assemble
from codeact_team.tools.content import Piece, ToolFailed
from codeact_team.tools.functions import Tool, read_tools
from codeact_team.tools.offer import Offer
from codeact_team.tools.sources import AnyWorkbench, SingleTools, ToolSource

T = TypeVar("T")


class ToolboxState(BaseModel):
    """What the workbenches in a toolbox have saved."""

    type: Literal["ToolboxState"] = "ToolboxState"
    workbenches: list[dict[str, Any]]


class Toolbox(Workbench):
    """Tools, functions and workbenches as one workbench.

    Args:
        tools: Tools, functions, and import paths, ``module:function``, of functions on this machine.
        workbenches: More tools. An MCP server that runs already is used as it is, and left running; everything else
            is started and stopped here.

    Raises:
        SettingError: If something is no tool, or two have the same name.
        ConfigError: If an import path leads to no function, or may not be followed.
    """

    def __init__(self, tools: Sequence[Tool] = (), workbenches: Sequence[Workbench] = ()) -> None:
        self._given = read_tools(tools)
        single = SingleTools([given.tool for given in self._given])
        assemble([(single, single.listed)])
        self._workbenches = list(workbenches)
        self._sources: list[ToolSource] = [single, *map(_source_of, workbenches)]
        self._changing = Turns()
        self._listings: list[Listing] = []
        self._offer: Offer | None = None

    async def start(self) -> None:
        """Start what does not run; also anew, a server that has died. Idempotent.

        Raises:
            WorkbenchError: If something does not start. What was started here is stopped then.
        """
        async with self._changing:
            starting = asyncio.gather(*(source.start() for source in self._sources), return_exceptions=True)
            try:
                failures = [outcome for outcome in await starting if outcome is not None]
                if failures:
                    raise _one_of(failures)
            except BaseException:
                await to_the_end(self._stop())
                raise

    async def stop(self) -> None:
        """Stop what was started here. Idempotent."""
        async with self._changing:
            await to_the_end(self._stop())

    async def _stop(self) -> None:
        await _all(source.stop() for source in self._sources)

    async def offer(self) -> Offer:
        """The tools there are now, the same object as long as they are the same; what does not run is started.

        Raises:
            WorkbenchError: If they cannot be had: a server has died, or what it lists is broken.
            SettingError: If two tools that belong to no server have the same name.
        """
        await self.start()
        listed = await _all(source.list_tools() for source in self._sources)
        listings = list(zip(self._sources, listed, strict=True))
        if self._offer is None or listings != self._listings:
            self._offer, self._listings = assemble(listings), listings
        return self._offer

    async def list_tools(self) -> list[ToolSchema]:
        """The tools by the names that code has for them, dotted for those of a server."""
        return [
            ToolSchema(
                name=tool.name,
                description=tool.declaration.doc,
                parameters=cast("ParametersSchema", tool.schema),
            )
            for tool in (await self.offer()).tools
        ]

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        cancellation_token: CancellationToken | None = None,
        call_id: str | None = None,
    ) -> ToolResult:
        """Call a tool by the name that code has for it. Values become JSON."""
        offer = await self.offer()
        given = dict(arguments or {})
        try:
            if (tool := offer.find(name)) is None:
                raise ToolFailed(f"there is no tool {name!r}{offer.nearest(name)}")
            tool.check(given)
            pieces = await tool.call(given, cancellation_token or CancellationToken())
        except (ToolFailed, ValueError) as error:
            return ToolResult(name=name, result=[TextResultContent(content=str(error))], is_error=True)
        return ToolResult(name=name, result=[_result_content(piece) for piece in pieces])

    async def reset(self) -> None:
        """Reset all parts."""
        await _all(source.workbench.reset() for source in self._sources)

    async def save_state(self) -> Mapping[str, Any]:
        states = await _all(source.workbench.save_state() for source in self._sources)
        return ToolboxState(workbenches=[dict(state) for state in states]).model_dump()

    async def load_state(self, state: Mapping[str, Any]) -> None:
        """Load what :meth:`save_state` gave.

        Raises:
            ValueError: If it is not of a toolbox with the same workbenches.
        """
        states = ToolboxState.model_validate(state).workbenches
        if len(states) != len(self._sources):
            raise ValueError(
                f"this is the state of {len(states) - 1} workbenches, not of {len(self._sources) - 1}"
            )
        parts = zip(self._sources, states, strict=True)
        await _all(source.workbench.load_state(part) for source, part in parts)

    def dump_tools(self) -> list[ComponentModel | str]:
        """The single tools for a config: components and import paths.

        Raises:
            SettingError: If one has no form there, such as a live function.
        """
        return [given.dump() for given in self._given]

    def dump_workbenches(self) -> list[ComponentModel]:
        """The workbenches for a config.

        Raises:
            SettingError: If one has no form there.
        """
        return [_dumped(workbench) for workbench in self._workbenches]


def _source_of(workbench: Workbench) -> ToolSource:
    if not isinstance(workbench, Workbench):  # pyright: ignore[reportUnnecessaryIsInstance]  # whatever is given
        raise SettingError(
            f"workbench: {workbench!r} is no workbench; a tool or a function belongs to 'tools'"
        )
    # where this was not imported, nothing is of its classes
    mcp: Any = sys.modules.get("autogen_ext.tools.mcp")
    if mcp is not None and isinstance(workbench, mcp.McpWorkbench):
        from codeact_team.tools.mcp import McpServer

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
    """Do all of it, and only then raise what went wrong."""
    outcomes = await asyncio.gather(*work, return_exceptions=True)
    if failures := [outcome for outcome in outcomes if isinstance(outcome, BaseException)]:
        raise _one_of(failures)
    return [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]


def _one_of(failures: Sequence[BaseException]) -> BaseException:
    """One error that says everything."""
    if len(failures) > 1 and all(isinstance(failure, WorkbenchError) for failure in failures):
        return WorkbenchError("; ".join(map(str, failures)))
    return failures[0]


def _result_content(piece: Piece) -> TextResultContent | ImageResultContent:
    if isinstance(piece, Artifact):
        if piece.mime_type.startswith("image/"):
            return ImageResultContent(content=Image.from_base64(base64.b64encode(piece.data).decode()))
        return TextResultContent(content=f"[{piece.mime_type}, {len(piece.data):,} bytes]")
    return TextResultContent(content=piece if isinstance(piece, str) else json.dumps(piece))
