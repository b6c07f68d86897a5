"""The tools of an MCP server, with all that AutoGen's workbench leaves out.

``McpWorkbench`` of AutoGen 0.7 loses the definitions of a schema, output schemas, structured content, what is neither
text nor a picture, and all but the first page of a list. So servers are asked in a session of our own.
"""

from __future__ import annotations

from collections.abc import Sequence

from autogen_core import CancellationToken
from autogen_ext.tools.mcp import McpWorkbench, StdioServerParams
from mcp import McpError, types
from pydantic import JsonValue

from codeact_team.aio import to_the_end
from codeact_team.autogen_internals import actor_of, overrides_of
from codeact_team.errors import WorkbenchError
from codeact_team.tools.error_texts import describe_error, leaves
from codeact_team.tools.mcp.connection import LOST, Connection, WorkbenchConnection
from codeact_team.tools.mcp.redaction import label_of, redact
from codeact_team.tools.mcp.structured_content import pieces_of_mcp, returned_schema, text_of
from codeact_team.tools.returned_values import Piece, ToolFailed, error_text, pieces_of_result
from codeact_team.tools.tool_sources import ListedTool, Listing, ToolSource

_TIMED_OUT = 408


class McpServer(ToolSource):
    """The tools of one server.

    One that somebody else has started is used as it is, and not stopped. One that was started here, and has died, is
    started anew by :meth:`start`.
    """

    wire_is_json = True

    def __init__(self, workbench: McpWorkbench) -> None:
        self.label = f"MCP server {label_of(workbench.server_params)!r}"
        self._workbench = workbench
        self._calls_itself = type(workbench).call_tool is not McpWorkbench.call_tool
        self._connection = Connection(workbench)
        self._lost = False

    async def start(self) -> None:
        if self._connection.is_open and not self._lost:
            return
        await self.stop()
        theirs = self._calls_itself or actor_of(self._workbench) is not None
        self._connection = (WorkbenchConnection if theirs else Connection)(self._workbench)
        self._lost = False
        try:
            await self._connection.open()
            return
        except Exception as error:  # whatever the client of a server raises
            reason = self._reason(error)
        # without the original: it may hold what the label leaves out
        raise WorkbenchError(f"{self.label} does not start: {reason}")

    async def stop(self) -> None:
        await to_the_end(self._connection.close())

    async def list_tools(self) -> Listing:
        try:
            tools = await self._connection.list_tools()
        except Exception as error:  # whatever the client of a server raises
            reason = self._reason(error)
        else:
            return Listing([self._listed(tool) for tool in tools], self._connection.server_name)
        raise WorkbenchError(f"{self.label} does not list its tools: {reason}")

    async def call(
        self, tool: ListedTool, arguments: dict[str, JsonValue], cancellation_token: CancellationToken
    ) -> Sequence[Piece]:
        if self._calls_itself:
            # somebody's own way of calling
            answer = await self._workbench.call_tool(tool.name, arguments, cancellation_token)
            try:
                return pieces_of_result(answer)
            except ToolFailed as failure:
                raise ToolFailed(redact(str(failure), self._workbench.server_params)) from None
        overrides = overrides_of(self._workbench)
        name = next((name for name, new in overrides.items() if new.name == tool.name), tool.name)
        try:
            result = await self._connection.call_tool(name, arguments)
        except Exception as error:  # whatever the client of a server raises
            reason = self._reason(error)
        else:
            if result.isError:
                raise ToolFailed(redact(error_text(text_of(result)), self._workbench.server_params))
            return pieces_of_mcp(result, tool.output)
        raise ToolFailed(reason)

    def _listed(self, tool: types.Tool) -> ListedTool:
        name, description = tool.name, tool.description or tool.title or ""
        override = overrides_of(self._workbench).get(name)
        if override is not None:
            name = override.name or name
            description = description if override.description is None else override.description
        output = tool.outputSchema
        return ListedTool(name, description, tool.inputSchema, returned_schema(output), output=output)

    def _reason(self, error: Exception) -> str:
        """What has gone wrong, without secrets; and take note if the server is gone."""
        params = self._workbench.server_params
        is_program = isinstance(params, StdioServerParams)
        limits = "read_timeout_seconds" if is_program else "timeout, sse_read_timeout"
        said: list[str] = []
        for leaf in leaves(error):
            code = leaf.error.code if isinstance(leaf, McpError) else 0
            if isinstance(leaf, LOST) or code == types.CONNECTION_CLOSED:
                self._lost = True
                said.append("the server has ended, or closed the connection")
            elif isinstance(leaf, TimeoutError) or code == _TIMED_OUT:
                said.append(f"no answer in time ({limits} of its parameters)")
            elif isinstance(leaf, OSError) and is_program:
                said.append(f"the command cannot be run: {leaf.strerror}; is it installed, and on the PATH?")
            elif isinstance(leaf, McpError):
                said.append(leaf.error.message)
            else:
                said.append(describe_error(leaf))
        return error_text(redact("; ".join(dict.fromkeys(said)), params))
