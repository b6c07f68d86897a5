"""All tools that code may call, assembled from their sources, and called."""

from __future__ import annotations

import asyncio
import json
import logging
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

from autogen_core import CancellationToken, ComponentModel
from autogen_core.tools import Workbench
from pydantic import JsonValue

from codeact_team.core.aio import Turns, is_being_cancelled, to_the_end, until_cancelled
from codeact_team.core.autogen_internals import is_of_mcp
from codeact_team.core.providers import did_you_mean
from codeact_team.core.quoting import make_inert
from codeact_team.core.visibility import cut
from codeact_team.errors import SettingError, WorkbenchError
from codeact_team.tools.argument_checking import ArgumentChecker, describe_error
from codeact_team.tools.autogen_parts import unwrap
from codeact_team.tools.declarations import RESERVED, assign, declare
from codeact_team.tools.sources import (
    AnyWorkbench,
    ListedTool,
    Listing,
    Piece,
    PythonTools,
    Tool,
    ToolFailed,
    ToolSource,
    error_text,
    read_tool,
)

logger = logging.getLogger(__name__)

HANDFUL = 8
"""How many tools the model is shown whole. If there are more, it gets one line of each and looks up the rest."""

_MAX_LINES = 300
_MAX_NAME = 200


class OfferedTool:
    """A tool that code may call by the dotted path ``name`` below ``tools``.

    A ``ValueError``, ``TypeError`` or ``RecursionError`` says that its schema cannot be used.
    """

    def __init__(self, name: str, listed: ListedTool, source: ToolSource) -> None:
        self.name = name
        self._listed = listed
        self._source = source
        self._checker = ArgumentChecker(listed.schema)
        self.declaration = declare(name, listed)
        self.declared = self.declaration.declare()
        """See :attr:`codeact_team.core.execution.HostTools.declarations`."""
        self.size = len(json.dumps(self.declared))
        """How many bytes there are to tell of it."""

    def check(self, arguments: Mapping[str, JsonValue]) -> None:
        """Check what code passed; a ``ValueError`` says what is wrong and where."""
        self._checker.check(arguments)
        if self._source.wire_is_json:
            _check_strict(arguments)

    def understood(self, arguments: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        """Return the arguments as the tool gets them, as far as that is known, with its defaults for those left out.

        They may be found not to fit; a ``ToolFailed`` says so.
        """
        parameters = self.declaration.parameters
        defaults = {one.key: one.default[0] for one in parameters if one.default}
        complete = {**defaults, **self._source.understood(self._listed, arguments)}
        # in the order in which the tool has them
        return {one.key: complete[one.key] for one in parameters if one.key in complete} | complete

    async def call(
        self, arguments: dict[str, JsonValue], cancellation_token: CancellationToken
    ) -> Sequence[Piece]:
        """Call it with arguments that were checked; it is cancelled by the token, and with the caller's task.

        A ``ToolFailed`` says why it fails, in words for whoever wrote the call.
        """
        token = CancellationToken()
        _cancel_with(cancellation_token, token)
        try:
            return await until_cancelled(self._run(arguments, token), token)
        except asyncio.CancelledError:
            if not _asked_for(cancellation_token):
                raise ToolFailed("the tool was cancelled, and not by its caller") from None
            # a function in a thread can know only from its token
            _cancel(token)
            raise

    async def _run(
        self, arguments: dict[str, JsonValue], cancellation_token: CancellationToken
    ) -> Sequence[Piece]:
        try:
            return await self._source.call(self._listed, arguments, cancellation_token)
        except ToolFailed as failure:
            raise ToolFailed(error_text(str(failure))) from failure
        except (Exception, SystemExit) as error:  # whatever a tool raises; it must not end the host
            raise ToolFailed(error_text(describe_error(error))) from error


def _asked_for(cancellation_token: CancellationToken) -> bool:
    """Tell whether the token or the current task was cancelled, and not something within the tool."""
    return cancellation_token.is_cancelled() or is_being_cancelled()


class Offer:
    """Tools by the names that code has for them."""

    def __init__(self, tools: Sequence[OfferedTool]) -> None:
        self.tools = tools
        self.declarations = [tool.declared for tool in tools]
        """See :attr:`codeact_team.core.execution.HostTools.declarations`."""
        self._tools = {tool.name: tool for tool in tools}

    def find(self, name: str) -> OfferedTool | None:
        """Return the tool of this name."""
        return self._tools.get(name)

    def nearest(self, name: str) -> str:
        """Return the end of a sentence that names the tool most like ``name``, or nothing."""
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
                lines.append(f"# and {left} more: dir(tools) tells which")
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
        # what a tool has tied to its token is its own; AutoGen's McpWorkbench ties what cannot be cancelled
        logger.warning("what a tool does when it is cancelled has failed", exc_info=True)


def _check_strict(arguments: Mapping[str, JsonValue]) -> None:
    try:
        json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode()
    except ValueError as error:
        raise ValueError(
            f"the arguments cannot be sent to the tool's server: {cut(str(error), 300)}"
        ) from None


MAX_TOOLS = 5000
MAX_DECLARATIONS = 2 * 1024 * 1024
"""How many bytes the declarations of all tools may have."""

Listings = Sequence[tuple[ToolSource, Listing]]


def assemble(listings: Listings) -> Offer:
    """Offer all tools that are listed, unless two without a server have the same name, one is broken, or there are too many."""
    if sum(len(listing.tools) for _, listing in listings) > MAX_TOOLS:
        raise _largest(listings).error(f"more than {MAX_TOOLS:,} tools are too many; offer fewer")
    tools = [_offered(name, listed, source) for name, listed, source in _named(listings)]
    size = sum(tool.size for tool in tools)
    if size > MAX_DECLARATIONS:
        raise _largest(listings).error(
            f"what there is to tell of {len(tools)} tools has {size:,} bytes, of which {MAX_DECLARATIONS:,} are "
            "allowed; offer fewer tools"
        )
    return Offer(tools)


def _offered(name: str, listed: ListedTool, source: ToolSource) -> OfferedTool:
    try:
        return OfferedTool(name, listed, source)
    except (ValueError, TypeError, RecursionError) as error:
        raise source.error(f"the schema of the tool {listed.name[:100]!r} cannot be used: {error}") from error


def _largest(listings: Listings) -> ToolSource:
    return max(listings, key=lambda each: len(each[1].tools))[0]


def _named(listings: Listings) -> Iterator[tuple[str, ListedTool, ToolSource]]:
    """Give each tool the dotted path by which code calls it."""
    flat = [(tool, source) for source, listed in listings if listed.server is None for tool in listed.tools]
    _refuse_doubles(flat)
    servers = [each for each in listings if each[1].server is not None]
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
    """Finish all of it, and only then raise what went wrong."""
    outcomes = await asyncio.gather(*work, return_exceptions=True)
    if failures := [outcome for outcome in outcomes if isinstance(outcome, BaseException)]:
        if len(failures) > 1 and all(isinstance(failure, WorkbenchError) for failure in failures):
            raise WorkbenchError("; ".join(map(str, failures)))
        raise failures[0]
    return [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
