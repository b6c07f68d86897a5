"""The tools of real MCP servers, over stdio and over streamable HTTP."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from autogen_core import CancellationToken
from autogen_core.tools import ToolOverride, ToolResult
from autogen_ext.models.replay import ReplayChatCompletionClient
from autogen_ext.tools.mcp import McpWorkbench, SseServerParams, StdioServerParams, StreamableHttpServerParams
from support.fork_server import forked_by_command
from support.mcp_server import PNG
from support.serving import LISTING_SERVER, SERVER, mcp_over_http
from support.variations import mostly_long

from codeact_team.core.execution import Artifact
from codeact_team.errors import WorkbenchError
from codeact_team.tools.sources import ToolFailed
from codeact_team.tools.toolbox import Offer, Toolbox

SECRET = "sk-0123456789"

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    # AutoGen 0.7.5 calls what mcp 1.30 has deprecated
    pytest.mark.filterwarnings("ignore:Use `streamable_http_client` instead:DeprecationWarning"),
]


def stdio(**environment: str) -> StdioServerParams:
    command, *rest = forked_by_command(SERVER)
    # a busy machine may take long to start the process that forks it
    return StdioServerParams(command=command, args=rest, env=environment or None, read_timeout_seconds=100)


def listing(*pages: list[dict[str, Any]], name: str = "lister", seconds: float = 20) -> StdioServerParams:
    """A server that only lists tools."""
    told = json.dumps([name, pages or [[]]])
    return StdioServerParams(
        command=sys.executable, args=["-I", "-S", LISTING_SERVER, told], read_timeout_seconds=seconds
    )


def listed(name: str, **properties: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object", "properties": properties}}


@asynccontextmanager
async def offered(*params: Any) -> AsyncGenerator[Offer]:
    toolbox = Toolbox([], [McpWorkbench(one) for one in params])
    try:
        yield await toolbox.offer()
    finally:
        await toolbox.stop()


async def call(offer: Offer, name: str, **arguments: Any) -> Any:
    tool = offer.find(name)
    assert tool is not None, [tool.name for tool in offer.tools]
    return list(await tool.call(tool.read(arguments), CancellationToken()))


def is_running(process: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def child_processes() -> set[int]:
    """Those of this process that still run."""
    children: set[str] = set()
    for thread in Path("/proc/self/task").iterdir():
        # it may just have ended
        with suppress(FileNotFoundError, ProcessLookupError):
            children.update((thread / "children").read_text().split())
    return {child for child in map(int, children) if is_running(child)}


@pytest.fixture(scope="module")
def earlier_objects() -> None:
    """What the garbage collector need not look at after each test."""
    gc.collect()
    # for good: a worker has frozen what there was when it was forked, which would be looked at again
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_left_over(earlier_objects: None) -> Generator[None]:
    """What a test leaves unclosed is its own fault, not that of a later one."""
    yield
    gc.collect()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def toolbox() -> AsyncGenerator[Toolbox]:
    """The server that most tests use, which none of them harms."""
    workbench = McpWorkbench(
        stdio(SHOP_KEY=SECRET),
        model_client=ReplayChatCompletionClient(["Forty-two."]),
        tool_overrides={"process_id": ToolOverride(name="which-one", description="Tell its process.")},
    )
    toolbox = Toolbox([], [workbench])
    yield toolbox
    await toolbox.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def desk(toolbox: Toolbox) -> Offer:
    return await toolbox.offer()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url() -> AsyncGenerator[str]:
    """The same server over HTTP."""
    async with mcp_over_http() as url:
        yield url


async def use(offer: Offer, transport: str) -> None:
    """What any transport must be able to do."""
    assert await call(offer, "order_desk.add", a=1) == [3]
    ordered = await call(offer, "order_desk.place_order", lines=[{"sku": "nut", "size": "large"}])
    assert ordered == [{"lines": [{"sku": "nut", "count": 1, "size": "large"}], "note": None}]
    with pytest.raises(ToolFailed, match="there is no such order"):
        await call(offer, "order_desk.fail")
    met = await asyncio.gather(
        *(call(offer, "order_desk.meet", place=transport, number=n, others=20) for n in range(20))
    )
    assert met == [[n] for n in range(20)]


async def test_tools_over_stdio(desk: Offer) -> None:
    await use(desk, "stdio")


async def test_tools_over_streamable_http(url: str) -> None:
    async with offered(StreamableHttpServerParams(url=url, headers={"Authorization": SECRET})) as offer:
        await use(offer, "http")


async def test_types_of_the_arguments_and_of_the_result_are_told(desk: Offer) -> None:
    """AutoGen's workbench drops the definitions that a schema refers to, and the schema of the result."""
    order, place = desk.find("order_desk.get_order"), desk.find("order_desk.place_order")
    assert order is not None
    assert place is not None
    assert order.declaration.stub() == (
        "def tools.order_desk.get_order(number: int) -> Order:\n"
        '    """Look up an order.\n\n    Args:\n        number: The order\'s number.\n\n'
        "    Order is a dict:\n        number (int)\n        lines (list[Line])\n        note (str | None, optional)\n\n"
        "    Line is a dict:\n        sku (str): The article.\n"
        "        count (int, optional): At least 1. At most 99. Default: 1.\n"
        "        size (Literal['small', 'large'], optional): Default: 'small'.\n"
        '    """'
    )
    assert place.declaration.line() == "tools.order_desk.place_order(lines, note=None)  # Place an order."
    with pytest.raises(ToolFailed, match=r"arguments\['lines'\]\[0\]\['size'\]: it is not one of"):
        place.read({"lines": [{"sku": "a", "size": "huge"}]})


async def test_structured_results_are_values(desk: Offer) -> None:
    (order,) = await call(desk, "order_desk.get_order", number=7)
    assert order == {"number": 7, "lines": [{"sku": "bolt", "count": 2, "size": "small"}], "note": None}
    add = desk.find("order_desk.add")
    assert add is not None
    assert add.declaration.returns == "int"


async def test_all_kinds_of_content_come_through(desk: Offer) -> None:
    """AutoGen's workbench raises for sound and for links, and forgets of what kind a file is."""
    assert await call(desk, "order_desk.many_things") == [
        "hello",
        Artifact("image/png", PNG),
        Artifact("audio/wav", b"RIFF"),
        Artifact("application/octet-stream", b"\x00\x01"),
        {"uri": "file:///a.txt", "mimeType": "text/plain", "text": "words"},
        {"type": "resource_link", "uri": "file:///b.txt", "name": "b"},
    ]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800"])
async def test_what_json_cannot_carry_is_refused_before_it_breaks_the_connection(
    desk: Offer, value: Any
) -> None:
    with pytest.raises(ToolFailed, match="cannot be sent to the tool's server"):
        await call(desk, "order_desk.echo", value=[value])
    assert await call(desk, "order_desk.echo", value="ü") == ["'ü'"]


async def test_all_pages_of_a_list_are_read_and_odd_names_mapped() -> None:
    """AutoGen's workbench reads the first."""
    pages = [[listed(f"tool {page}/{number}") for number in range(50)] for page in range(3)]
    odd = [listed("get-order"), listed("get_order"), listed("ToolError")]
    async with offered(listing(*pages, odd, name="my server!")) as offer:
        names = [tool.name for tool in offer.tools]
    assert names[:2] == ["my_server_.tool_0_0", "my_server_.tool_0_1"]
    assert names[149:] == [
        "my_server_.tool_2_49",
        "my_server_.get_order_2",
        "my_server_.get_order",
        "my_server_.ToolError_",
    ]


async def test_servers_of_the_same_name_are_numbered_and_a_tool_evades_them() -> None:
    def order_desk() -> str:
        """Tell."""
        return "flat"

    servers = [listing([listed(tool)], name="order-desk") for tool in ("ask", "tell")]
    toolbox = Toolbox([order_desk], [McpWorkbench(server) for server in servers])
    try:
        offer = await toolbox.offer()
        assert [tool.name for tool in offer.tools] == ["order_desk_", "order_desk.ask", "order_desk_2.tell"]
        assert await call(offer, "order_desk_") == ["flat"]
    finally:
        await toolbox.stop()


async def test_overrides_of_the_workbench_are_respected(desk: Offer) -> None:
    tool = desk.find("order_desk.which_one")
    assert tool is not None
    assert tool.declaration.summary == "Tell its process."
    (process,) = await call(desk, "order_desk.which_one")
    assert is_running(process)
    assert desk.find("order_desk.process_id") is None


async def test_a_broken_schema_names_the_tool_and_the_server() -> None:
    tools = [listed("good"), listed("bad", a={"type": "strin"})]
    with pytest.raises(WorkbenchError, match=r"MCP server 'python.*'.*the tool 'bad'.*\"strin\""):
        async with offered(listing(tools)):
            pass


async def test_the_offer_of_a_server_stays_the_same_object(toolbox: Toolbox) -> None:
    assert await toolbox.offer() is await toolbox.offer()


@pytest.mark.parametrize("by_token", [False, True])
async def test_a_cancelled_call_is_cancelled_in_the_server(desk: Offer, by_token: bool) -> None:
    tool = desk.find("order_desk.wait_for_ever")
    assert tool is not None
    token = CancellationToken()
    who = f"by_token={by_token}"
    calling = asyncio.ensure_future(tool.call(tool.read({"who": who}), token))
    await call(desk, "order_desk.when", event=f"{who} waits")
    _ = token.cancel() if by_token else calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    await call(desk, "order_desk.when", event=f"{who} has ended")


async def test_calls_that_are_cancelled_as_soon_as_they_begin_leave_the_server_usable(desk: Offer) -> None:
    """One that is cancelled while AutoGen's workbench hands it over ends the connection."""
    tool = desk.find("order_desk.add")
    assert tool is not None
    for turns in range(20):
        calling = asyncio.ensure_future(tool.call(tool.read({"a": 1}), CancellationToken()))
        for _ in range(turns):
            await asyncio.sleep(0)
        calling.cancel()
        await asyncio.wait({calling})
    assert await call(desk, "order_desk.add", a=1) == [3]


async def test_a_server_that_dies_fails_its_calls_and_starts_anew() -> None:
    toolbox = Toolbox([], [McpWorkbench(stdio())])
    try:
        offer = await toolbox.offer()
        waiting = asyncio.ensure_future(call(offer, "order_desk.wait_for_ever", who="he"))
        await call(offer, "order_desk.when", event="he waits")
        with pytest.raises(ToolFailed, match="the server has ended"):
            await call(offer, "order_desk.die")
        with pytest.raises(ToolFailed, match="the server has ended"):
            await waiting
        with pytest.raises(ToolFailed, match="the server has ended"):
            await call(offer, "order_desk.add", a=1)
        await toolbox.start()
        assert await call(await toolbox.offer(), "order_desk.add", a=1) == [3]
    finally:
        await toolbox.stop()


async def test_a_server_that_has_died_unnoticed_cannot_be_listed() -> None:
    before = child_processes()
    toolbox = Toolbox([], [McpWorkbench(listing())])
    try:
        await toolbox.offer()
        (process,) = child_processes() - before
        os.kill(process, signal.SIGKILL)
        with pytest.raises(WorkbenchError, match="does not list its tools: the server has ended"):
            await toolbox.offer()
        await toolbox.offer()
    finally:
        await toolbox.stop()


async def test_a_server_over_http_that_dies_fails_its_calls() -> None:
    async with mcp_over_http() as url:
        params = StreamableHttpServerParams(url=url)
        toolbox = Toolbox([], [McpWorkbench(params)])
        offer = await toolbox.offer()
    try:
        with pytest.raises(ToolFailed):
            await call(offer, "order_desk.add", a=1)
        with pytest.raises(WorkbenchError, match=r"http://127.0.0.1:\d+/mcp' does not"):
            await toolbox.offer()
    finally:
        await toolbox.stop()


async def test_a_server_that_is_slow_to_answer_names_the_limit() -> None:
    # the limit is one for the start, too: this server keeps it on a busy machine
    async with offered(listing([listed("ask")], seconds=3)) as offer:
        with pytest.raises(ToolFailed, match=r"no answer in time \(read_timeout_seconds"):
            await call(offer, "lister.ask")


async def test_a_workbench_that_runs_already_is_left_running() -> None:
    async with McpWorkbench(stdio()) as workbench:
        toolbox = Toolbox([], [workbench])
        offer = await toolbox.offer()
        (process,) = await call(offer, "order_desk.process_id")
        assert (await workbench.call_tool("process_id")).to_text() == str(process)
        await use(offer, "theirs")
        (order,) = await call(offer, "order_desk.get_order", number=7)
        assert order["lines"] == [{"sku": "bolt", "count": 2, "size": "small"}]
        await toolbox.stop()
        assert is_running(process)
        assert (await workbench.call_tool("add", {"a": 1})).to_text() == "3"


async def test_a_server_may_ask_the_model_of_its_workbench(desk: Offer) -> None:
    assert await call(desk, "order_desk.ask_model", question="What?") == ["Forty-two."]


async def test_stopping_ends_the_server() -> None:
    before = child_processes()
    toolbox = Toolbox([], [McpWorkbench(listing())])
    await toolbox.start()
    assert len(child_processes() - before) == 1
    await toolbox.stop()
    await toolbox.stop()
    assert child_processes() <= before


async def test_a_workbench_with_its_own_way_of_calling_keeps_it(url: str) -> None:
    class Loud(McpWorkbench):
        async def call_tool(
            self,
            name: str,
            arguments: Mapping[str, Any] | None = None,
            cancellation_token: CancellationToken | None = None,
            call_id: str | None = None,
        ) -> ToolResult:
            result = await super().call_tool(name, arguments, cancellation_token, call_id)
            return ToolResult(name=name, result=[*result.result, *result.result])

    toolbox = Toolbox([], [Loud(StreamableHttpServerParams(url=url))])
    try:
        offer = await toolbox.offer()
        assert await call(offer, "order_desk.add", a=1) == ["3", "3"]
        tool, token = offer.find("order_desk.wait_for_ever"), CancellationToken()
        assert tool is not None
        calling = asyncio.ensure_future(tool.call(tool.read({"who": "she"}), token))
        await call(offer, "order_desk.when", event="she waits")
        token.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
    finally:
        await toolbox.stop()


@pytest.mark.parametrize(
    ("params", "said"),
    mostly_long(
        [
            (
                StdioServerParams(command="no-such-server", args=["--key", SECRET]),
                r"'no-such-server' .*on the PATH",
            ),
            (StdioServerParams(command="false", env={"KEY": SECRET}), "'false' .*the server has ended"),
            (
                SseServerParams(url=f"http://127.0.0.1:1/sse?token={SECRET}"),
                r"'http://127.0.0.1:1/sse' .*ConnectError",
            ),
            (
                StreamableHttpServerParams(
                    url=f"http://user:{SECRET}@127.0.0.1:1/mcp", headers={"Authorization": SECRET}
                ),
                r"'http://127.0.0.1:1/mcp' .*ConnectError",
            ),
        ]
    ),
)
async def test_a_server_that_does_not_start_is_named_without_secrets(
    params: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="autogen_ext")
    running = Toolbox([], [McpWorkbench(listing()), McpWorkbench(params)])
    with pytest.raises(WorkbenchError, match=said) as raised:
        await running.start()
    assert SECRET not in str(raised.value)
    assert raised.value.__cause__ is None
    assert raised.value.__context__ is None
    assert SECRET not in caplog.text


async def test_a_wrong_path_on_a_server_is_an_error(url: str) -> None:
    params = StreamableHttpServerParams(url=f"{url}/wrong?token={SECRET}")
    with pytest.raises(WorkbenchError, match=r"/mcp/wrong' does not start: ") as raised:
        await Toolbox([], [McpWorkbench(params)]).start()
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("kind", ["stdio", "http"])
async def test_a_server_that_never_answers_is_given_up(kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/mcp"
        params = (
            StdioServerParams(command="sh", args=["-c", "cat >/dev/null"], read_timeout_seconds=0.2)
            if kind == "stdio"
            else StreamableHttpServerParams(url=url, timeout=0.2)
        )
        with pytest.raises(WorkbenchError, match="no answer in time"):
            await Toolbox([], [McpWorkbench(params)]).start()


async def test_a_start_that_is_cancelled_leaves_nothing_running(tmp_path: Path) -> None:
    notes = [tmp_path / "first", tmp_path / "second"]
    workbenches: list[McpWorkbench] = []
    for note in notes:
        os.mkfifo(note)
        # once it is greeted, as MCP's library leaves something unclosed if cancelled while it starts a program
        script = f"read greeting; echo $$ > {note}; while read more; do :; done"
        params = StdioServerParams(command="sh", args=["-c", script], read_timeout_seconds=100)
        workbenches.append(McpWorkbench(params))
    starting = asyncio.ensure_future(Toolbox([], workbenches).start())
    processes = [int(await asyncio.to_thread(note.read_text)) for note in notes]
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not any(map(is_running, processes))


async def test_if_one_server_does_not_start_the_other_is_stopped() -> None:
    before = child_processes()
    bad = McpWorkbench(StdioServerParams(command="no-such-server"))
    with pytest.raises(WorkbenchError, match="no-such-server"):
        await Toolbox([], [McpWorkbench(listing()), bad]).start()
    assert child_processes() <= before


async def test_the_error_of_a_tool_does_not_give_the_servers_secrets_away(desk: Offer) -> None:
    with pytest.raises(ToolFailed, match="no such order") as raised:
        await call(desk, "order_desk.fail", with_variable="SHOP_KEY")
    assert SECRET not in str(raised.value)
