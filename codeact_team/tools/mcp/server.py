"""The tools of an MCP server, with all that AutoGen's workbench leaves out.

``McpWorkbench`` of AutoGen 0.7 loses the definitions of a schema, output schemas, structured content, what is neither
text nor a picture, and all but the first page of a list. So its session is asked directly. Needs the extra ``mcp``.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import cast

import anyio
from autogen_core import CancellationToken
from autogen_ext.tools.mcp import McpWorkbench, StdioServerParams
from mcp import ClientSession, McpError, types
from pydantic import JsonValue

from codeact_team.aio import to_the_end
from codeact_team.errors import WorkbenchError
from codeact_team.tools.content import Piece, ToolFailed, error_text, pieces_of_result
from codeact_team.tools.mcp.content import pieces_of_mcp, returned_schema, text_of
from codeact_team.tools.mcp.params import label_of, redact
from codeact_team.tools.mcp.session import McpSession
from codeact_team.tools.schemas import Schema
from codeact_team.tools.sources import ListedTool, ToolSource
from codeact_team.tools.text import describe_error, leaves

_MAX_PAGES = 200
_TIMED_OUT = 408
_LOST = (anyio.ClosedResourceError, anyio.BrokenResourceError, anyio.EndOfStream, ConnectionError)


class McpServer(ToolSource):
    """The tools of one server.

    One that somebody else has started is used as it is, and not stopped. One that was started here, and has died, is
    started anew by :meth:`start`.

    Args:
        workbench: How to reach it.
    """

    wire_is_json = True

    def __init__(self, workbench: McpWorkbench) -> None:
        self._workbench = workbench
        self._session = McpSession(workbench)
        self._ours = False
        self._lost = False
        self._outputs: dict[str, Schema] = {}

    @property
    def workbench(self) -> McpWorkbench:
        return self._workbench

    @property
    def label(self) -> str:
        return f"MCP server {label_of(self._workbench.server_params)!r}"

    @property
    def server(self) -> str:
        return self._session.server_name

    async def start(self) -> None:
        if self._session.is_open:
            if not self._ours or (self._session.is_alive and not self._lost):
                return
            await to_the_end(self._session.close())
        self._ours, self._lost = True, False
        try:
            await self._session.open()
            return
        except Exception as error:  # whatever the client of a server raises
            reason = self._reason(error)
        # without the original: it may hold what the label leaves out
        raise WorkbenchError(f"{self.label} does not start: {reason}")

    async def stop(self) -> None:
        if self._ours:
            self._ours = False
            await to_the_end(self._session.close())
        else:
            await to_the_end(self._session.release())

    async def list_tools(self) -> Sequence[ListedTool]:
        try:
            tools = await self._session.request(_list_all)
        except Exception as error:  # whatever the client of a server raises
            reason = self._reason(error)
        else:
            self._outputs = {tool.name: tool.outputSchema for tool in tools if tool.outputSchema is not None}
            return [self._listed(tool) for tool in tools]
        raise WorkbenchError(f"{self.label} does not list its tools: {reason}")

    async def call(
        self, tool: ListedTool, arguments: dict[str, JsonValue], cancellation_token: CancellationToken
    ) -> Sequence[Piece]:
        if type(self._workbench).call_tool is not McpWorkbench.call_tool:
            # somebody's own way of calling
            answer = await self._workbench.call_tool(tool.name, arguments, cancellation_token)
            try:
                return pieces_of_result(answer)
            except ToolFailed as failure:
                raise ToolFailed(redact(str(failure), self._workbench.server_params)) from None
        names = self._workbench._override_name_to_original  # pyright: ignore[reportPrivateUsage]
        name = names.get(tool.name, tool.name)
        try:
            call = _Call(name, arguments)
            result = await self._session.request(call.ask, call.call_off)
        except Exception as error:  # whatever the client of a server raises
            reason = self._reason(error)
        else:
            if result.isError:
                raise ToolFailed(redact(error_text(text_of(result)), self._workbench.server_params))
            return pieces_of_mcp(result, self._outputs.get(name))
        raise ToolFailed(reason)

    def _listed(self, tool: types.Tool) -> ListedTool:
        name, description = tool.name, tool.description or tool.title or ""
        override = self._workbench._tool_overrides.get(name)  # pyright: ignore[reportPrivateUsage]
        if override is not None:
            name = override.name or name
            description = description if override.description is None else override.description
        return ListedTool(name, description, tool.inputSchema, returned_schema(tool.outputSchema))

    def _reason(self, error: Exception) -> str:
        """What has gone wrong, without secrets; and take note if the server is gone."""
        params = self._workbench.server_params
        said: list[str] = []
        for leaf in leaves(error):
            code = leaf.error.code if isinstance(leaf, McpError) else 0
            if isinstance(leaf, _LOST) or code == types.CONNECTION_CLOSED:
                self._lost = True
                said.append("the server has ended, or closed the connection")
            elif isinstance(leaf, TimeoutError) or code == _TIMED_OUT:
                said.append(f"no answer in time ({_time_limits(params)} of its parameters)")
            elif isinstance(leaf, OSError) and isinstance(params, StdioServerParams):
                said.append(f"the command cannot be run: {leaf.strerror}; is it installed, and on the PATH?")
            elif isinstance(leaf, McpError):
                said.append(leaf.error.message)
            else:
                said.append(describe_error(leaf))
        return error_text(redact("; ".join(dict.fromkeys(said)), params))


def _time_limits(params: object) -> str:
    return "read_timeout_seconds" if isinstance(params, StdioServerParams) else "timeout, sse_read_timeout"


async def _list_all(session: ClientSession) -> list[types.Tool]:
    tools: list[types.Tool] = []
    cursor: str | None = None
    for _ in range(_MAX_PAGES):
        page = None if cursor is None else types.PaginatedRequestParams(cursor=cursor)
        request = types.ClientRequest(types.ListToolsRequest(params=page))
        result = await session.send_request(request, types.ListToolsResult)
        tools += result.tools
        if (cursor := result.nextCursor) is None:
            return tools
    raise ValueError(f"it lists its tools on more than {_MAX_PAGES} pages")


class _Call:
    """A call of a tool that can be called off."""

    def __init__(self, name: str, arguments: dict[str, JsonValue]) -> None:
        # not by session.call_tool: that checks the answer with regular expressions of the server, in this process
        params = types.CallToolRequestParams(name=name, arguments=cast("dict[str, object]", arguments))
        self._request = types.ClientRequest(types.CallToolRequest(params=params))
        self._number = 0

    async def ask(self, session: ClientSession) -> types.CallToolResult:
        # the number that the request gets, as nothing runs in between
        self._number = session._request_id  # pyright: ignore[reportPrivateUsage]
        return await session.send_request(self._request, types.CallToolResult)

    async def call_off(self, session: ClientSession) -> None:
        params = types.CancelledNotificationParams(requestId=self._number)
        cancelled = types.ClientNotification(types.CancelledNotification(params=params))
        # a server that is gone, or does not listen, need not know
        with suppress(McpError, *_LOST):
            # servers made with MCP's own library end if they hear of it before they have taken the request up
            await session.send_ping()
            await session.send_notification(cancelled)
