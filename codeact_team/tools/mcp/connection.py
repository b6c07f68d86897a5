"""Connections to MCP servers: one that is opened here, or the one that a running workbench of AutoGen's has."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar, cast

import anyio
from autogen_ext.tools.mcp import McpWorkbench, StdioServerParams, create_mcp_server_session
from mcp import ClientSession, McpError, types
from pydantic import BaseModel, JsonValue

from codeact_team.aio import to_the_end
from codeact_team.autogen_internals import actor_of, next_request_number, sampling_of

T = TypeVar("T")
Answer = TypeVar("Answer", bound=BaseModel)

LOST = (anyio.ClosedResourceError, anyio.BrokenResourceError, anyio.EndOfStream, ConnectionError)
"""What a request raises whose connection is gone."""

logger = logging.getLogger(__name__)

_MAX_PAGES = 200
_CLOSE_SECONDS = 5
"""How long a server may take to be closed before the connection is cut."""
_FAREWELL_SECONDS = 0.2
"""How long a server may take to hear that nobody waits for an answer any more."""


class Connection:
    """A connection to one server, which is opened and closed here.

    Its session is entered and left in one task, as MCP's client demands. Requests may come from any task of the same
    event loop, and that is how calls run side by side. They raise whatever MCP's client raises.
    """

    def __init__(self, workbench: McpWorkbench) -> None:
        self._workbench = workbench
        self._requests: set[asyncio.Future[Any]] = set()
        self._owner: asyncio.Task[None] | None = None
        self._session: ClientSession | None = None
        self._closing = asyncio.Event()
        self.server_name = ""
        """What the server calls itself."""

    @property
    def is_open(self) -> bool:
        """Whether it was opened and not closed; its server may have died."""
        return self._session is not None

    async def open(self) -> None:
        """Connect, and wait until the server has answered. After an error nothing is left running."""
        params = self._workbench.server_params
        # for a program, the time-out of each request is limit enough
        seconds = None if isinstance(params, StdioServerParams) else params.timeout
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._owner = asyncio.ensure_future(self._own(ready))
        try:
            async with asyncio.timeout(seconds):
                await asyncio.wait({self._owner, ready}, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            await to_the_end(_cancel({self._owner}))
            raise
        if not ready.done():
            self._owner.result()

    async def _own(self, ready: asyncio.Future[None]) -> None:
        try:
            async with create_mcp_server_session(
                self._workbench.server_params, sampling_callback=sampling_of(self._workbench)
            ) as session:
                self.server_name = (await session.initialize()).serverInfo.name
                self._session = session
                ready.set_result(None)
                try:
                    await self._closing.wait()
                finally:
                    self._session = None
                    # a session that ends does not tell those who wait for an answer
                    for request in self._requests:
                        request.cancel()
        except Exception as error:
            if not ready.done():
                raise
            logger.info("the connection to an MCP server has ended with an error: %s", type(error).__name__)

    async def close(self) -> None:
        """Stop what was started here. Idempotent."""
        if (owner := self._owner) is None:
            return
        await self._finish_requests()
        self._closing.set()
        await asyncio.wait({owner}, timeout=_CLOSE_SECONDS)
        await _cancel({owner})
        self._owner = None

    async def list_tools(self) -> list[types.Tool]:
        """The server's tools, of all pages."""
        tools: list[types.Tool] = []
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            page = None if cursor is None else types.PaginatedRequestParams(cursor=cursor)
            result = await self._request(types.ListToolsRequest(params=page), types.ListToolsResult)
            tools += result.tools
            if (cursor := result.nextCursor) is None:
                return tools
        raise ValueError(f"it lists its tools on more than {_MAX_PAGES} pages")

    async def call_tool(self, name: str, arguments: dict[str, JsonValue]) -> types.CallToolResult:
        """Call a tool. If the caller is cancelled, the server is told."""
        # not by session.call_tool: that checks the answer with regular expressions of the server, in this process
        params = types.CallToolRequestParams(name=name, arguments=cast("dict[str, object]", arguments))
        return await self._request(types.CallToolRequest(params=params), types.CallToolResult)

    async def _request(
        self, request: types.ListToolsRequest | types.CallToolRequest, answer: type[Answer]
    ) -> Answer:
        if (session := self._session) is None:
            raise ConnectionError("there is no connection")
        number: int | None = None

        async def ask() -> Answer:
            nonlocal number
            # the one that the request gets, as nothing runs in between
            number = next_request_number(session)
            return await session.send_request(types.ClientRequest(request), answer)

        asking = self._begin(ask())
        try:
            await asyncio.wait({asking})
        except asyncio.CancelledError:
            if number is not None and not asking.done():
                self._begin(_call_off(session, number))
            asking.cancel()
            raise
        if asking.cancelled():
            raise ConnectionError("the connection has ended")
        return asking.result()

    def _begin(self, request: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start what ends with the connection at the latest."""
        task = asyncio.ensure_future(request)
        self._requests.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Future[Any]) -> None:
        self._requests.discard(task)
        if not task.cancelled():
            # it may be that nobody else looks at it
            task.exception()

    async def _finish_requests(self) -> None:
        if self._requests:
            await asyncio.wait(self._requests, timeout=_FAREWELL_SECONDS)
        await _cancel(self._requests)


async def _call_off(session: ClientSession, number: int) -> None:
    """Tell the server that nobody waits for an answer any more."""
    params = types.CancelledNotificationParams(requestId=number)
    cancelled = types.ClientNotification(types.CancelledNotification(params=params))
    # a server that is gone, or does not listen, need not know
    with suppress(McpError, *LOST):
        # servers made with MCP's own library end if they hear of it before they have taken the request up
        await session.send_ping()
        await session.send_notification(cancelled)


class WorkbenchConnection(Connection):
    """The connection that a workbench has itself: one that somebody runs already, or that has its own way of calling.

    AutoGen lists only the first page of tools, and does not tell a server that a call was cancelled.
    """

    _ours = False

    @property
    def is_open(self) -> bool:
        return actor_of(self._workbench) is not None

    async def open(self) -> None:
        if self.is_open:
            return
        self._ours = True
        await self._workbench.start()
        try:
            await self.list_tools()
        except BaseException:
            await to_the_end(self.close())
            raise

    async def close(self) -> None:
        await self._finish_requests()
        if self._ours and self.is_open:
            self._ours = False
            await self._workbench.stop()

    async def list_tools(self) -> list[types.Tool]:
        listed: types.ListToolsResult = await self._ask("list_tools")
        if (greeting := self._workbench.initialize_result) is not None:
            self.server_name = greeting.serverInfo.name
        return listed.tools

    async def call_tool(self, name: str, arguments: dict[str, JsonValue]) -> types.CallToolResult:
        return await self._ask("call_tool", {"name": name, "kargs": arguments})

    async def _ask(self, what: str, arguments: dict[str, Any] | None = None) -> Any:
        if (actor := actor_of(self._workbench)) is None:
            raise ConnectionError("there is no connection")

        async def ask() -> Any:
            try:
                answering: Awaitable[Any] = await actor.call(what, cast("Any", arguments))
            except RuntimeError as error:
                raise ConnectionError("the connection has ended") from error
            return await answering

        # to be cancelled while it is about to answer would crash AutoGen's actor
        return await asyncio.shield(self._begin(ask()))


async def _cancel(tasks: set[asyncio.Future[Any]] | set[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(set(tasks))
