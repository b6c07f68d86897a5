"""MCP servers as sources of tools: connections, answers, and redaction of their secrets in errors.

``McpWorkbench`` of AutoGen 0.7 loses the definitions of a schema, output schemas, structured content, content that is neither
text nor a picture, and all but the first page of a list. So this module uses sessions of its own.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import logging
from collections.abc import Awaitable, Coroutine, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import PurePath
from typing import Any, TypeVar, cast
from urllib.parse import parse_qsl, urlsplit

import anyio
from autogen_core import CancellationToken
from autogen_ext.tools.mcp import McpServerParams, McpWorkbench, StdioServerParams
from mcp import ClientSession, McpError, types
from pydantic import BaseModel, JsonValue

from codeact_team.core.aio import to_the_end
from codeact_team.core.autogen_internals import actor_of, next_request_number, overrides_of, sampling_of
from codeact_team.core.execution import Artifact
from codeact_team.errors import WorkbenchError
from codeact_team.text.redaction import Redactor, add_secrets
from codeact_team.text.visibility import cut
from codeact_team.tools.mcp_transport import open_session
from codeact_team.tools.schemas import Schema, as_schema
from codeact_team.tools.sources import (
    Arguments,
    Catalog,
    ListedTool,
    Piece,
    ToolFailed,
    ToolSource,
    describe_error,
    error_text,
    leaves,
    mime_type,
    pieces_of_result,
)

T = TypeVar("T")
Answer = TypeVar("Answer", bound=BaseModel)

_LOST = (anyio.ClosedResourceError, anyio.BrokenResourceError, anyio.EndOfStream, ConnectionError)
"""Errors of a request whose connection is gone."""

logger = logging.getLogger(__name__)

_MAX_PAGES = 200
MAX_LISTED = 8 << 20
"""Bytes of all tools that a server lists."""
_CLOSE_SECONDS = 5
"""Seconds that a server may take to close before the connection is cut."""
_FAREWELL_SECONDS = 0.2
"""Seconds that cancellation notices may take to be sent when the connection is closed."""


class _Connection:
    """A connection to one server, which is opened and closed here.

    Its session is entered and left in one task, as MCP's client demands. Requests may come from any task of the same
    event loop, and run in parallel. They raise the errors of MCP's client.

    Attributes:
        server_name: What the server calls itself.
        problem: Why the connection was ended, if the server has sent what it may not; it continues "the server".
    """

    def __init__(self, workbench: McpWorkbench) -> None:
        self._workbench = workbench
        self._requests: set[asyncio.Future[Any]] = set()
        self._owner: asyncio.Task[None] | None = None
        self._session: ClientSession | None = None
        self._closing = asyncio.Event()
        self.server_name = ""
        self.problem: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether it was opened and not closed; its server may have died."""
        return self._session is not None

    async def open(self) -> None:
        """Connect, and wait for the first answer of the server. After an error nothing is left running."""
        params = self._workbench.server_params
        # for a program, the time-out of each request suffices
        seconds = None if isinstance(params, StdioServerParams) else params.timeout
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._owner = asyncio.ensure_future(self._own(ready))
        ending = asyncio.ensure_future(self._closing.wait())
        try:
            async with asyncio.timeout(seconds):
                await asyncio.wait({self._owner, ready, ending}, return_when=asyncio.FIRST_COMPLETED)
            if ending.done():
                raise ConnectionError("the server has sent what it may not")
        except BaseException:
            await to_the_end(_cancel({self._owner}))
            raise
        finally:
            await to_the_end(_cancel({ending}))
        if not ready.done():
            self._owner.result()

    async def _own(self, ready: asyncio.Future[None]) -> None:
        try:
            async with open_session(
                self._workbench.server_params, sampling_of(self._workbench), self._fail
            ) as session:
                self.server_name = (await session.initialize()).serverInfo.name
                self._session = session
                ready.set_result(None)
                try:
                    await self._closing.wait()
                finally:
                    self._session = None
                    # a session that ends does not wake up the tasks that wait for an answer
                    for request in self._requests:
                        request.cancel()
        except Exception as error:
            if not ready.done():
                raise
            logger.info("the connection to an MCP server has ended with an error: %s", type(error).__name__)

    def _fail(self, problem: str) -> None:
        self.problem = self.problem or problem
        self._closing.set()

    async def close(self) -> None:
        """Close the connection if it was opened here. Idempotent."""
        if (owner := self._owner) is None:
            return
        await self._finish_requests()
        self._closing.set()
        await asyncio.wait({owner}, timeout=_CLOSE_SECONDS)
        await _cancel({owner})
        self._owner = None

    async def list_tools(self) -> list[types.Tool]:
        """List the tools on all pages."""
        tools: list[types.Tool] = []
        size = 0
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            page = None if cursor is None else types.PaginatedRequestParams(cursor=cursor)
            result = await self._request(types.ListToolsRequest(params=page), types.ListToolsResult)
            tools += result.tools
            size += sum(len(tool.model_dump_json()) for tool in result.tools)
            if size > MAX_LISTED:
                raise ValueError(f"its tools have more than {MAX_LISTED >> 20} MiB")
            if (cursor := result.nextCursor) is None:
                return tools
        raise ValueError(f"it lists its tools on more than {_MAX_PAGES} pages")

    async def call_tool(self, name: str, arguments: dict[str, JsonValue]) -> types.CallToolResult:
        """Call a tool. If the caller is cancelled, the server is notified."""
        # not by session.call_tool, which checks the answer with regular expressions of the server in this process
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
            # the number that the request gets, as nothing runs in between
            number = next_request_number(session)
            return await session.send_request(types.ClientRequest(request), answer)

        asking = self._begin(ask())
        try:
            await asyncio.wait({asking})
        except asyncio.CancelledError:
            if number is not None and not asking.done():
                self._begin(_notify_cancelled(session, number))
            asking.cancel()
            raise
        if asking.cancelled():
            raise ConnectionError("the connection has ended")
        return asking.result()

    def _begin(self, request: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a request; it is cancelled at the latest when the connection ends."""
        task = asyncio.ensure_future(request)
        self._requests.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Future[Any]) -> None:
        self._requests.discard(task)
        if not task.cancelled():
            # possibly nobody else retrieves it
            task.exception()

    async def _finish_requests(self) -> None:
        if self._requests:
            await asyncio.wait(self._requests, timeout=_FAREWELL_SECONDS)
        await _cancel(self._requests)


async def _notify_cancelled(session: ClientSession, number: int) -> None:
    """Notify the server that a request was cancelled."""
    params = types.CancelledNotificationParams(requestId=number)
    cancelled = types.ClientNotification(types.CancelledNotification(params=params))
    # a server that is gone need not know
    with suppress(McpError, *_LOST):
        # a server of MCP's own library ends if the notification arrives before it has begun the request
        await session.send_ping()
        await session.send_notification(cancelled)


class _WorkbenchConnection(_Connection):
    """The workbench's own connection, for one that runs already, or whose class overrides ``call_tool``.

    AutoGen lists only the first page of tools, and does not notify a server of a cancellation.
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

        # a cancellation just before the answer would crash AutoGen's actor
        return await asyncio.shield(self._begin(ask()))


async def _cancel(tasks: set[asyncio.Future[Any]] | set[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(set(tasks))


_MASK = "***"
_SHORTEST_SECRET = 4
_MAX_SEGMENT = 20
_MAX_LABEL = 120


def label_of(params: McpServerParams) -> str:
    """Name a server by its command or URL, without any part that may be a secret."""
    if isinstance(params, StdioServerParams):
        return " ".join([PurePath(params.command).name, *_plain_arguments(params)])[:_MAX_LABEL]
    url = urlsplit(params.url)
    host = url.netloc.rpartition("@")[2]
    # some services have the key in the path
    path = "/".join(part if len(part) <= _MAX_SEGMENT else _MASK for part in url.path.split("/"))
    return f"{url.scheme}://{host}{path}"[:_MAX_LABEL]


def redactor_of(params: McpServerParams) -> Redactor:
    """Make a redactor of all that the parameters say and :func:`label_of` does not."""
    texts = dict.fromkeys(_unlabelled(params))
    # of "Bearer token" the token
    words = [word for text in texts for word in text.split()]
    secrets: dict[str, str] = {}
    add_secrets(secrets, "secret", dict.fromkeys([*texts, *words]))
    return Redactor(secrets, shortest=_SHORTEST_SECRET)


def _plain_arguments(params: StdioServerParams) -> list[str]:
    plain: list[str] = []
    for argument in params.args:
        # from the first option on, anything may be the value of one
        if argument.startswith("-") or "=" in argument or "://" in argument:
            break
        plain.append(argument)
    return plain


def _unlabelled(params: McpServerParams) -> Iterator[str]:
    if not isinstance(params, StdioServerParams):
        yield from map(str, (params.headers or {}).values())
        yield from _secret_parts(params.url)
        return
    for text in [*(params.env or {}).values(), *params.args[len(_plain_arguments(params)) :]]:
        # of `--key=value` the value
        for value in (text, text.partition("=")[2]):
            yield value
            yield from _secret_parts(value) if "://" in value else ()


def _secret_parts(text: str) -> list[str]:
    """The parts of a URL that its label leaves out."""
    url = urlsplit(text)
    parts = [url.query, url.fragment, url.username or "", url.password or ""]
    parts += [value for _, value in parse_qsl(url.query)]
    return parts + [part for part in url.path.split("/") if len(part) > _MAX_SEGMENT]


_WRAPPER = "result"


def _returned_schema(output: Schema | None) -> Schema | None:
    """Return the schema of the value that code gets from a tool with this output schema."""
    if output is None or not _is_wrapped(output):
        return output
    # the definitions stay at the root
    value = as_schema(as_schema(output["properties"])[_WRAPPER])
    return {**{key: output[key] for key in ("$defs", "definitions") if key in output}, **value}


def _is_wrapped(output: Schema) -> bool:
    """Whether this is the wrapper of MCP's own library around a value that is no object."""
    return output.get("type") == "object" and list(as_schema(output.get("properties"))) == [_WRAPPER]


def _pieces_of_mcp(result: types.CallToolResult, output: Schema | None) -> Sequence[Piece]:
    """Convert a tool's answer into the pieces for the code; :class:`ToolFailed` if its media cannot be decoded."""
    structured = cast("dict[str, JsonValue] | None", result.structuredContent)
    if structured is None:
        return [_piece(content) for content in result.content]
    value: JsonValue = structured
    if output is not None and _is_wrapped(output) and list(structured) == [_WRAPPER]:
        value = structured[_WRAPPER]
    # the text repeats it for clients without structured content
    return [
        value,
        *(_piece(content) for content in result.content if not isinstance(content, types.TextContent)),
    ]


def _text_of(result: types.CallToolResult) -> str:
    """Return the text of an error."""
    return "\n".join(content.text for content in result.content if isinstance(content, types.TextContent))


def _piece(content: types.ContentBlock) -> Piece:
    if isinstance(content, types.TextContent):
        return content.text
    if isinstance(content, types.ImageContent | types.AudioContent):
        return _artifact(content.mimeType, content.data)
    if isinstance(content, types.EmbeddedResource):
        resource = content.resource
        if isinstance(resource, types.BlobResourceContents):
            return _artifact(resource.mimeType, resource.blob)
        return _plain(resource)
    return _plain(content)


def _plain(model: BaseModel) -> JsonValue:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


def _artifact(kind: str | None, data: str) -> Artifact:
    try:
        return Artifact(mime_type(kind), base64.b64decode(data, validate=True))
    except binascii.Error as error:
        raise ToolFailed(f"the server sent media that is not base64 ({error})") from None


_TIMED_OUT = 408


class McpServer(ToolSource):
    """The tools of one server. If it was started here, :meth:`start` restarts it after it has died; others are left alone."""

    def __init__(self, workbench: McpWorkbench) -> None:
        self.label = f"MCP server {label_of(workbench.server_params)!r}"
        self._workbench = workbench
        self._calls_itself = type(workbench).call_tool is not McpWorkbench.call_tool
        self._connection = _Connection(workbench)
        self._lost = False

    @cached_property
    def _redactor(self) -> Redactor:
        return redactor_of(self._workbench.server_params)

    async def start(self) -> None:
        if self._connection.is_open and not self._lost:
            return
        await self.stop()
        theirs = self._calls_itself or actor_of(self._workbench) is not None
        self._connection = (_WorkbenchConnection if theirs else _Connection)(self._workbench)
        self._lost = False
        try:
            await self._connection.open()
            return
        except Exception as error:  # any, of the client
            reason = self._reason(error)
        # without its cause, whose text may hold a secret
        raise WorkbenchError(f"{self.label} does not start: {reason}")

    async def stop(self) -> None:
        await to_the_end(self._connection.close())

    async def list_tools(self) -> Catalog:
        try:
            tools = await self._connection.list_tools()
        except Exception as error:  # any, of the client
            reason = self._reason(error)
        else:
            return Catalog([self._listed(tool) for tool in tools], self._connection.server_name)
        raise WorkbenchError(f"{self.label} does not list its tools: {reason}")

    def read(self, tool: ListedTool, arguments: dict[str, JsonValue]) -> Arguments:
        try:
            # strict JSON, as another program reads it
            json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode()
        except ValueError as error:
            reason = cut(str(error), 300)
            raise ToolFailed(f"the arguments cannot be sent to the tool's server: {reason}") from None
        return Arguments(arguments)

    async def call(
        self, tool: ListedTool, arguments: Arguments, cancellation_token: CancellationToken
    ) -> Sequence[Piece]:
        if self._calls_itself:
            # a subclass has its own way of calling
            answer = await self._workbench.call_tool(tool.name, arguments.plain, cancellation_token)
            try:
                return pieces_of_result(answer)
            except ToolFailed as failure:
                raise ToolFailed(self._redactor.redact_text(str(failure))) from None
        overrides = overrides_of(self._workbench)
        name = next((name for name, new in overrides.items() if new.name == tool.name), tool.name)
        try:
            result = await self._connection.call_tool(name, arguments.plain)
        except Exception as error:  # any, of the client
            reason = self._reason(error)
        else:
            if result.isError:
                raise ToolFailed(self._redactor.redact_text(error_text(_text_of(result))))
            return _pieces_of_mcp(result, tool.output)
        raise ToolFailed(reason)

    def _listed(self, tool: types.Tool) -> ListedTool:
        name, description = tool.name, tool.description or tool.title or ""
        override = overrides_of(self._workbench).get(name)
        if override is not None:
            name = override.name or name
            description = description if override.description is None else override.description
        output = tool.outputSchema
        return ListedTool(name, description, tool.inputSchema, _returned_schema(output), output=output)

    def _reason(self, error: Exception) -> str:
        """Describe an error without secrets, and note whether the server is gone."""
        params = self._workbench.server_params
        is_program = isinstance(params, StdioServerParams)
        limits = "read_timeout_seconds" if is_program else "timeout, sse_read_timeout"
        reasons: list[str] = []
        for leaf in leaves(error):
            code = leaf.error.code if isinstance(leaf, McpError) else 0
            if isinstance(leaf, _LOST) or code == types.CONNECTION_CLOSED:
                self._lost = True
                problem = self._connection.problem or "has ended, or closed the connection"
                reasons.append(f"the server {problem}")
            elif isinstance(leaf, TimeoutError) or code == _TIMED_OUT:
                reasons.append(f"no answer in time ({limits} of its parameters)")
            elif isinstance(leaf, OSError) and is_program:
                reasons.append(
                    f"the command cannot be run: {leaf.strerror}; is it installed, and on the PATH?"
                )
            elif isinstance(leaf, McpError):
                reasons.append(leaf.error.message)
            else:
                reasons.append(describe_error(leaf))
        return error_text(self._redactor.redact_text("; ".join(dict.fromkeys(reasons))))
