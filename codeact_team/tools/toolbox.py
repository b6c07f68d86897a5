"""The tools that code may call, assembled from their sources."""

from __future__ import annotations

import asyncio
import json
import logging
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar, cast

from autogen_core import CancellationToken, ComponentModel
from autogen_core.tools import Workbench
from pydantic import JsonValue

from codeact_team.core.aio import FairLock, is_being_cancelled, to_the_end, until_cancelled
from codeact_team.core.autogen_internals import is_of_mcp
from codeact_team.core.providers import did_you_mean
from codeact_team.errors import SettingError, WorkbenchError
from codeact_team.text.quoting import make_inert
from codeact_team.tools.autogen_parts import unwrap
from codeact_team.tools.declarations import RESERVED, Declaration, assign, declare
from codeact_team.tools.schemas import SchemaChecker
from codeact_team.tools.sources import (
    AnyWorkbench,
    Arguments,
    Catalog,
    ListedTool,
    Piece,
    PythonTools,
    Tool,
    ToolFailed,
    ToolSource,
    describe_error,
    error_text,
    read_tool,
)

logger = logging.getLogger(__name__)

HANDFUL = 8
"""Tools that a prompt shows whole. If there are more, it has one line of each, and the model looks up the rest."""

_MAX_LINES = 300
_MAX_NAME = 200


class OfferedTool:
    """A tool that code may call by the dotted path ``name`` below ``tools``.

    Attributes:
        declaration: Its description, as a prompt shows it.
        declared: The same for the sandbox; see :attr:`codeact_team.core.execution.HostTools.declarations`.
        size: The bytes of that as JSON.

    Raises:
        ValueError: If its schema cannot be used; also a ``TypeError`` or a ``RecursionError``.
    """

    def __init__(self, name: str, listed: ListedTool, source: ToolSource) -> None:
        self.name = name
        self._listed = listed
        self._source = source
        self._checker = SchemaChecker(listed.schema)
        self.declaration: Declaration = declare(name, listed)
        self.declared: dict[str, JsonValue] = self.declaration.declare()
        self.size: int = len(json.dumps(self.declared))

    def read(self, arguments: dict[str, JsonValue]) -> Arguments:
        """Check and read the arguments of a call; :class:`ToolFailed` says what does not fit and where."""
        try:
            self._checker.check(arguments)
        except ValueError as error:
            raise ToolFailed(str(error)) from None
        return self._source.read(self._listed, arguments)

    def received(self, arguments: Arguments) -> dict[str, JsonValue]:
        """The arguments as the tool gets them, in its order, with known defaults of those left out."""
        parameters = self.declaration.parameters
        defaults = {one.key: one.default[0] for one in parameters if one.default}
        complete = defaults | arguments.received()
        return {one.key: complete[one.key] for one in parameters if one.key in complete} | complete

    async def call(self, arguments: Arguments, cancellation_token: CancellationToken) -> Sequence[Piece]:
        """Call the tool; :class:`ToolFailed` says why it fails. The token and the caller's task cancel it."""
        token = CancellationToken()
        _cancel_with(cancellation_token, token)
        try:
            return await until_cancelled(self._call(arguments, token), token)
        except asyncio.CancelledError:
            if not (cancellation_token.is_cancelled() or is_being_cancelled()):
                raise ToolFailed("the tool was cancelled, and not by its caller") from None
            # a function in a thread can know only from its token
            _cancel(token)
            raise

    async def _call(self, arguments: Arguments, cancellation_token: CancellationToken) -> Sequence[Piece]:
        try:
            return await self._source.call(self._listed, arguments, cancellation_token)
        except (Exception, SystemExit) as error:  # a tool may raise anything; it must not end the host
            text = str(error) if isinstance(error, ToolFailed) else describe_error(error)
            raise ToolFailed(error_text(text)) from error


class Offer:
    """Tools by the names that code has for them, and their declarations for the sandbox."""

    def __init__(self, tools: Sequence[OfferedTool]) -> None:
        self.tools = tools
        self.declarations: list[dict[str, JsonValue]] = [tool.declared for tool in tools]
        self._tools = {tool.name: tool for tool in tools}

    def find(self, name: str) -> OfferedTool | None:
        """Return the tool of this name, if there is one."""
        return self._tools.get(name)

    def nearest(self, name: str) -> str:
        """Return the end of a sentence that suggests the tool with the most similar name; empty if there is none."""
        return did_you_mean(name[:_MAX_NAME], self._tools, cutoff=0.5)

    def describe(self) -> str:
        """Describe the tools for a prompt."""
        if not self._tools:
            return ""
        if len(self._tools) <= HANDFUL:
            intro = "These functions run outside the sandbox; call them as they are:"
            shown = "\n\n".join(tool.declaration.stub() for tool in self.tools)
        else:
            lines = [tool.declaration.line() for tool in self.tools[:_MAX_LINES]]
            if left := len(self._tools) - len(lines):
                lines.append(f"# and {left} more: dir(tools) lists them")
            example = f"help(tools.{self.tools[0].name})"
            intro = (
                f"These functions run outside the sandbox. Before you call one, read about it: `{example}`."
            )
            shown = "\n".join(lines)
        name = self.tools[0].name
        return (
            f"{intro}\n```python\n{make_inert(shown)}\n```\n"
            f"A call waits, and returns a value. To make several at once, use "
            f"`await asyncio.gather(tools.{name}.aio(...), tools.{name}.aio(...))`.\n"
            "A call that fails raises a `tools.ToolError`, which says why."
        )


def _cancel_with(parent: CancellationToken, token: CancellationToken) -> None:
    """Cancel ``token`` when ``parent`` is cancelled. ``parent`` does not keep it alive: a run makes thousands of calls."""
    reference = weakref.ref(token)

    def cancel() -> None:
        if (alive := reference()) is not None:
            _cancel(alive)

    parent.add_callback(cancel)


def _cancel(token: CancellationToken) -> None:
    try:
        token.cancel()
    except Exception:
        # callbacks of the tool's; AutoGen's McpWorkbench links a future that cannot be cancelled
        logger.warning("a tool's reaction to its cancellation has failed", exc_info=True)


_MAX_TOOLS = 5000
MAX_DECLARATIONS = 2 * 1024 * 1024
"""Bytes of all declarations together."""

Catalogs = Sequence[tuple[ToolSource, Catalog]]


def assemble(catalogs: Catalogs) -> Offer:
    """Offer all listed tools; an error if names collide, a schema is broken, or there are too many."""
    if sum(len(catalog.tools) for _, catalog in catalogs) > _MAX_TOOLS:
        raise _largest(catalogs).error(f"there are more than {_MAX_TOOLS:,} tools; offer fewer")
    tools: list[OfferedTool] = []
    size = 0
    for name, listed, source in _named(catalogs):
        try:
            tools.append(tool := OfferedTool(name, listed, source))
        except (ValueError, TypeError, RecursionError) as error:
            text = f"the schema of the tool {listed.name[:100]!r} cannot be used: {error}"
            raise source.error(text) from error
        # each takes its time
        size += tool.size
        if size > MAX_DECLARATIONS:
            raise _largest(catalogs).error(
                f"the descriptions of tools have more than {MAX_DECLARATIONS:,} bytes together: offer fewer tools"
            )
    return Offer(tools)


def _largest(catalogs: Catalogs) -> ToolSource:
    return max(catalogs, key=lambda each: len(each[1].tools))[0]


def _named(catalogs: Catalogs) -> Iterator[tuple[str, ListedTool, ToolSource]]:
    """Yield each tool with the dotted path by which code calls it."""
    flat = [(tool, source) for source, listed in catalogs if listed.server is None for tool in listed.tools]
    _refuse_doubles(flat)
    servers = [each for each in catalogs if each[1].server is not None]
    names = assign([listed.server or "" for _, listed in servers], "server", reserved=RESERVED)
    flat_names = assign([tool.name for tool, _ in flat], "tool", reserved=RESERVED.union(names))
    for name, (tool, source) in zip(flat_names, flat, strict=True):
        yield name, tool, source
    for server, (source, listed) in zip(names, servers, strict=True):
        tool_names = assign([tool.name for tool in listed.tools], "tool", reserved=RESERVED)
        for name, tool in zip(tool_names, listed.tools, strict=True):
            yield f"{server}.{name}", tool, source


def _refuse_doubles(flat: Sequence[tuple[ListedTool, ToolSource]]) -> None:
    found: dict[str, ToolSource] = {}
    for tool, source in flat:
        if (other := found.get(tool.name)) is not None:
            both = source.label if source is other else f"{other.label} and {source.label}"
            raise SettingError(f"tools: there are two tools {tool.name!r} ({both}); give one another name")
        found[tool.name] = source


T = TypeVar("T")


Listing = Callable[[], Awaitable[Sequence[Catalog]]]
Ask = Callable[[list[str], Listing], Awaitable[Sequence[Catalog]]]


class Toolbox:
    """Tools, functions and workbenches, started, offered and stopped together.

    Args:
        tools: Tools, functions, and import paths, ``module:function``, of functions on this machine.
        workbenches: Further tools. An MCP server that runs already is used as it is, and left running; all others are
            started and stopped here.

    Raises:
        SettingError: If one cannot be a tool, or two have the same name.
        ConfigError: If an import path leads to no function, or may not be followed.
    """

    def __init__(self, tools: Sequence[Tool] = (), workbenches: Sequence[Workbench] = ()) -> None:
        self._given = [read_tool(unwrap(tool)) for tool in tools]
        single = PythonTools([given.tool for given in self._given])
        assemble([(single, Catalog(single.listed))])
        self._single = single
        self._workbenches = [unwrap(workbench) for workbench in workbenches]
        self._others = [*map(_source_of, self._workbenches)]
        self._sources: list[ToolSource] = [single, *self._others]
        self._changing = FairLock()
        self._is_started = False
        self._catalogs: list[tuple[ToolSource, Catalog]] = []
        self._offer: Offer | None = None

    def __bool__(self) -> bool:
        """Whether any tools or workbenches were given."""
        return bool(self._given or self._workbenches)

    async def start(self) -> None:
        """Start all sources that do not run, and servers that have died. If one fails, all are stopped. Idempotent."""
        async with self._changing:
            try:
                await _all(source.start() for source in self._sources)
            except BaseException:
                await to_the_end(self._stop())
                raise
            self._is_started = True

    async def stop(self) -> None:
        """Stop all sources that were started here. Idempotent."""
        async with self._changing:
            await to_the_end(self._stop())

    async def ensure_started(self) -> None:
        """Start all sources, unless that was done before; a server that has died since is not restarted."""
        if not self._is_started:
            await self.start()

    async def _stop(self) -> None:
        self._is_started = False
        await _all(source.stop() for source in self._sources)

    async def offer(self, ask: Ask | None = None) -> Offer:
        """Start all sources, and return the tools there are now: the same object as long as they are the same.

        Args:
            ask: Lists the tools of the workbenches, given their labels and a function that does it; a record may answer instead.

        Raises:
            WorkbenchError: If they cannot be had: a server has died, or lists something broken.
            SettingError: If two tools that belong to no server have the same name.
        """
        catalogs: list[tuple[ToolSource, Catalog]] = [(self._single, Catalog(self._single.listed))]
        if self._others:
            labels = [source.label for source in self._others]
            listed = await (self._list() if ask is None else ask(labels, self._list))
            catalogs += zip(self._others, listed, strict=True)
        if self._offer is None or catalogs != self._catalogs:
            self._offer, self._catalogs = assemble(catalogs), catalogs
        return self._offer

    async def _list(self) -> Sequence[Catalog]:
        await self.start()
        return await _all(source.list_tools() for source in self._others)

    def dump_tools(self) -> list[ComponentModel | str]:
        """Dump the single tools as components and import paths; a :class:`SettingError` if one has no form."""
        return [given.dump() for given in self._given]

    def dump_workbenches(self) -> list[ComponentModel]:
        """Dump the workbenches as components; a :class:`SettingError` if one has no form."""
        return [_dumped(workbench) for workbench in self._workbenches]


def _source_of(workbench: Workbench) -> ToolSource:
    if not isinstance(workbench, Workbench):  # pyright: ignore[reportUnnecessaryIsInstance]  # unchecked user input
        raise SettingError(
            f"workbench: {workbench!r} is not a workbench; put tools and functions into 'tools'"
        )
    if is_of_mcp(workbench):
        from codeact_team.tools.mcp import McpServer

        return McpServer(cast("Any", workbench))
    return AnyWorkbench(workbench)


def _dumped(workbench: Workbench) -> ComponentModel:
    try:
        return workbench.dump_component()
    except Exception as error:  # any, of a workbench that cannot be dumped
        raise SettingError(
            f"workbench: a {type(workbench).__name__} cannot be dumped ({type(error).__name__}: {error})"
        ) from error


async def _all(work: Iterable[Awaitable[T]]) -> list[T]:
    """Wait until all is done, and only then raise the errors: all together if workbenches raised them, else the first."""
    outcomes = await asyncio.gather(*work, return_exceptions=True)
    if failures := [outcome for outcome in outcomes if isinstance(outcome, BaseException)]:
        if len(failures) > 1 and all(isinstance(failure, WorkbenchError) for failure in failures):
            raise WorkbenchError("; ".join(map(str, failures)))
        raise failures[0]
    return [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
