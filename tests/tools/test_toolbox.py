"""Tools and workbenches as one: what is offered, how calls go, how it starts and stops."""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from datetime import date
from typing import Annotated, Any

import pytest
from autogen_core import CancellationToken, Image
from autogen_core.tools import (
    BaseTool,
    FunctionTool,
    ImageResultContent,
    ParametersSchema,
    StaticWorkbench,
    TextResultContent,
    ToolResult,
    ToolSchema,
    Workbench,
)
from PIL import Image as Pictures
from pydantic import BaseModel, JsonValue

from codeact_team.core.execution import Artifact
from codeact_team.errors import SettingError, WorkbenchError
from codeact_team.text.markdown import extract_code
from codeact_team.tools.sources import ToolFailed
from codeact_team.tools.toolbox import HANDFUL, MAX_DECLARATIONS, Offer, Toolbox


class Line(BaseModel):
    sku: str
    day: date = date(2026, 11, 20)


class Tree(BaseModel):
    name: str
    children: list[Tree] = []


class Recorder(Workbench):
    """A workbench that is not AutoGen's, with tools that can change."""

    def __init__(self, names: list[str], *, about: str = "", broken: bool = False) -> None:
        self.names = names
        self._about = about
        self.done: list[str] = []
        self._broken = broken

    async def list_tools(self) -> list[ToolSchema]:
        parameters = ParametersSchema(
            type="object", properties={"text": {"type": "string"}}, required=["text"]
        )
        return [
            ToolSchema(name=name, description=f"About {name}.{self._about}", parameters=parameters)
            for name in self.names
        ]

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        cancellation_token: CancellationToken | None = None,
        call_id: str | None = None,
    ) -> ToolResult:
        text = (arguments or {})["text"]
        parts = [TextResultContent(content=part) for part in text.split(",")]
        if name == "draw":
            return ToolResult(
                name=name, result=[*parts, ImageResultContent(content=Image(Pictures.new("RGB", (1, 1))))]
            )
        return ToolResult(name=name, result=[*parts], is_error=text == "bad")

    async def start(self) -> None:
        if self._broken:
            raise OSError("no such device")
        self.done.append("start")

    async def stop(self) -> None:
        self.done.append("stop")

    async def reset(self) -> None:
        pass

    async def save_state(self) -> Mapping[str, Any]:
        return {}

    async def load_state(self, state: Mapping[str, Any]) -> None:
        pass


def order(lines: list[Line], note: str | None = None) -> list[Line]:
    """Order."""
    return lines


def grow(tree: Tree) -> Tree:
    """Let a tree grow."""
    return Tree(name="root", children=[tree])


async def call(offer: Offer, name: str, **arguments: JsonValue) -> Any:
    tool = offer.find(name)
    assert tool is not None
    return list(await tool.call(tool.read(arguments), CancellationToken()))


async def test_values_come_back_as_python_values() -> None:
    offer = await Toolbox([order, grow]).offer()
    assert await call(offer, "order", lines=[{"sku": "a"}]) == [[{"sku": "a", "day": "2026-11-20"}]]
    grown: dict[str, Any] = {"name": "root", "children": [{"name": "leaf", "children": []}]}
    assert await call(offer, "grow", tree={"name": "leaf"}) == [grown]


async def test_a_workbench_answers_in_text_and_pictures() -> None:
    offer = await Toolbox([], [Recorder(["say", "draw"])]).offer()
    assert await call(offer, "say", text="a") == ["a"]
    assert await call(offer, "say", text="a,b") == ["a", "b"]
    text, picture = await call(offer, "draw", text="a")
    assert text == "a"
    assert isinstance(picture, Artifact)
    with pytest.raises(ToolFailed, match=r"^bad$"):
        await call(offer, "say", text="bad")


async def test_the_offer_is_the_same_object_as_long_as_the_tools_are_the_same() -> None:
    workbench = Recorder(["say"])
    toolbox = Toolbox([order], [workbench])
    offer = await toolbox.offer()
    assert await toolbox.offer() is offer
    assert offer.declarations is offer.declarations
    workbench.names.append("draw")
    changed = await toolbox.offer()
    assert changed is not offer
    assert [tool.name for tool in changed.tools] == ["order", "say", "draw"]


async def test_an_unknown_name_leads_to_the_nearest() -> None:
    offer = await Toolbox([order, grow]).offer()
    assert offer.find("ordre") is None
    assert offer.nearest("ordre") == "; did you mean 'order'?"
    assert offer.nearest("x" * 1_000_000) == ""


async def test_names_that_mean_something_else_are_mapped() -> None:
    offer = await Toolbox([], [Recorder(["get-it", "class", "ToolError", "Media"])]).offer()
    assert [tool.name for tool in offer.tools] == ["get_it", "class_", "ToolError_", "Media_"]
    assert await call(offer, "get_it", text="a") == ["a"]


async def test_two_workbenches_with_a_tool_of_the_same_name_are_refused() -> None:
    toolbox = Toolbox([order], [Recorder(["say", "order"])])
    with pytest.raises(SettingError, match=r"two tools 'order' \(tools and workbench Recorder\)"):
        await toolbox.offer()


async def test_there_is_a_limit_to_what_is_told_of_all_tools() -> None:
    names = [f"say{number}" for number in range(MAX_DECLARATIONS // 3000)]
    toolbox = Toolbox([order], [Recorder(names, about="x" * 4000)])
    with pytest.raises(WorkbenchError, match=r"workbench Recorder: .* offer fewer tools"):
        await toolbox.offer()


async def test_there_is_a_limit_to_the_number_of_tools() -> None:
    with pytest.raises(WorkbenchError, match=r"workbench Recorder: there are more than 5,000 tools"):
        await Toolbox([order], [Recorder([f"say{number}" for number in range(5000)])]).offer()


@pytest.mark.long
def test_without_an_mcp_server_its_library_is_not_imported() -> None:
    code = "import sys, codeact_team.tools.toolbox as toolbox; toolbox.Toolbox(); assert 'mcp' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


async def test_a_handful_of_tools_is_described_whole() -> None:
    offer = await Toolbox([order, grow]).offer()
    described = offer.describe()
    assert "def tools.order(lines: list[Line], note: str | None = None) -> list[Line]:" in described
    assert "tools.order.aio(" in described
    assert "tools.ToolError" in described
    assert len(extract_code(described, ["python"]).blocks) == 1


async def test_of_many_tools_the_prompt_has_a_line_each() -> None:
    offer = await Toolbox([order], [Recorder([f"say{number}" for number in range(HANDFUL)])]).offer()
    lines = offer.describe().splitlines()
    assert "tools.order(lines, note=None)  # Order." in lines
    assert "tools.say0(text)  # About say0." in lines
    assert "help(tools.order)" in lines[0]


async def test_of_very_many_tools_the_prompt_counts_the_rest() -> None:
    offer = await Toolbox([], [Recorder([f"say{number}" for number in range(1000)])]).offer()
    assert "# and 700 more: dir(tools) lists them" in offer.describe()
    assert await Toolbox().offer() is not offer
    assert (await Toolbox().offer()).describe() == ""


async def test_an_exception_is_a_failure_with_its_text_and_without_its_traceback() -> None:
    def find(number: int) -> str:
        """Find."""
        raise LookupError(f"there is no order {number}")

    with pytest.raises(ToolFailed) as raised:
        await call(await Toolbox([find]).offer(), "find", number=3)
    assert str(raised.value) == "LookupError: there is no order 3"


async def test_a_group_of_exceptions_is_a_failure_that_names_its_members() -> None:
    async def find() -> str:
        """Find."""
        raise ExceptionGroup("several", [ValueError("a"), ExceptionGroup("more", [KeyError("b")])])

    with pytest.raises(ToolFailed, match=r"^ValueError: a; KeyError: 'b'$"):
        await call(await Toolbox([find]).offer(), "find")


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_tool_cannot_end_the_host(is_async: bool) -> None:
    def leave() -> str:
        """Leave."""
        raise SystemExit(3)

    async def leave_async() -> str:
        """Leave."""
        raise SystemExit(3)

    offer = await Toolbox([FunctionTool(leave_async if is_async else leave, "Leave", name="leave")]).offer()
    with pytest.raises(ToolFailed, match=r"SystemExit|exit"):
        await call(offer, "leave")


async def test_an_exhausted_iterator_in_a_tool_is_a_failure() -> None:
    """A future cannot hold a StopIteration: AutoGen's own tool waits for ever."""

    def first(items: list[int]) -> int:
        """The first."""
        return next(iter(items))

    with pytest.raises(ToolFailed, match="StopIteration"):
        await asyncio.wait_for(call(await Toolbox([first]).offer(), "first", items=[]), 10)


async def test_arguments_that_only_the_tool_can_judge_are_a_failure_in_a_line() -> None:
    def find(day: date) -> str:
        """Find."""
        return day.isoformat()

    offer = await Toolbox([find]).offer()
    assert await call(offer, "find", day="2026-11-20") == ["2026-11-20"]
    with pytest.raises(ToolFailed, match=r"^day: Input should be a valid date[^\n]*$"):
        await call(offer, "find", day="tomorrow")


async def test_functions_that_block_run_side_by_side() -> None:
    """AutoGen runs them in the few threads of the loop."""
    together = threading.Barrier(20, timeout=10)

    def meet(number: int) -> int:
        """Meet."""
        together.wait()
        return number

    toolbox = Toolbox([meet])
    offer = await toolbox.offer()
    met = await asyncio.gather(*(call(offer, "meet", number=number) for number in range(20)))
    assert met == [[number] for number in range(20)]
    await toolbox.stop()


async def test_a_function_in_a_thread_sees_the_context_of_the_call() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="")

    def look() -> str:
        """Look."""
        return variable.get()

    toolbox = Toolbox([look])
    variable.set("here")
    assert await call(await toolbox.offer(), "look") == ["here"]
    await toolbox.stop()


@pytest.mark.parametrize("by_token", [False, True])
async def test_a_cancelled_call_stops_the_tool(by_token: bool) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def wait() -> str:
        """Wait."""
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    tool = (await Toolbox([wait]).offer()).find("wait")
    assert tool is not None
    token = CancellationToken()
    calling = asyncio.ensure_future(tool.call(tool.read({}), token))
    await began.wait()
    _ = token.cancel() if by_token else calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert ended.is_set()


async def test_a_function_in_a_thread_learns_from_its_token_that_nobody_waits() -> None:
    began, ended = threading.Event(), threading.Event()

    def wait(cancellation_token: CancellationToken) -> str:
        """Wait."""
        began.set()
        while not cancellation_token.is_cancelled():
            time.sleep(0.001)
        ended.set()
        return ""

    toolbox = Toolbox([wait])
    tool = (await toolbox.offer()).find("wait")
    assert tool is not None
    assert tool.declaration.parameters == []
    calling = asyncio.ensure_future(tool.call(tool.read({}), CancellationToken()))
    await asyncio.to_thread(began.wait, 10)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert await asyncio.to_thread(ended.wait, 10)
    await toolbox.stop()


async def test_a_tool_that_cancels_itself_fails() -> None:
    async def give_up() -> str:
        """Give up."""
        raise asyncio.CancelledError

    with pytest.raises(ToolFailed, match="not by its caller"):
        await call(await Toolbox([give_up]).offer(), "give_up")


async def test_the_token_of_a_run_keeps_nothing_of_its_calls() -> None:
    offer = await Toolbox([order]).offer()
    tool = offer.find("order")
    assert tool is not None
    token = CancellationToken()
    assert await tool.call(tool.read({"lines": []}), token) == [[]]
    (callback,) = token._callbacks  # pyright: ignore[reportPrivateUsage]
    (reference, *_) = [cell.cell_contents for cell in callback.__closure__ or ()]
    assert reference() is None


async def test_a_call_is_logged_as_autogen_logs_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="autogen_core.events")
    await call(await Toolbox([order]).offer(), "order", lines=[{"sku": "a"}])
    (record,) = [record for record in caplog.records if record.name == "autogen_core.events"]
    logged = json.loads(record.getMessage())
    assert logged["tool_name"] == "order"
    assert json.loads(logged["result"]) == [[{"sku": "a", "day": "2026-11-20"}]]


async def test_starting_and_stopping_twice_is_starting_and_stopping_once() -> None:
    workbench = Recorder(["say"])
    toolbox = Toolbox([order], [workbench])
    await toolbox.stop()
    await asyncio.gather(toolbox.start(), toolbox.start())
    await toolbox.offer()
    await toolbox.stop()
    await toolbox.stop()
    await toolbox.start()
    assert workbench.done == ["start", "stop", "start"]


async def test_if_one_part_does_not_start_the_others_are_stopped() -> None:
    good = Recorder(["say"])
    with pytest.raises(WorkbenchError, match="workbench Recorder does not start: OSError: no such device"):
        await Toolbox([], [good, Recorder([], broken=True)]).start()
    assert good.done == ["start", "stop"]


async def test_all_parts_that_do_not_start_are_named() -> None:
    with pytest.raises(WorkbenchError, match=r"Recorder does not start.*; workbench Recorder does not start"):
        await Toolbox([], [Recorder([], broken=True), Recorder([], broken=True)]).start()


async def test_a_tool_with_a_schema_of_its_own_and_a_run_of_its_own_keeps_both() -> None:
    class Odd(BaseTool[BaseModel, BaseModel]):
        def __init__(self) -> None:
            super().__init__(BaseModel, BaseModel, "odd", "Odd.")

        @property
        def schema(self) -> ToolSchema:
            parameters = ParametersSchema(
                type="object", properties={"n": {"type": "integer"}}, required=["n"]
            )
            return ToolSchema(name="odd", description="Odd.", parameters=parameters)

        async def run(self, args: BaseModel, cancellation_token: CancellationToken) -> BaseModel:
            raise NotImplementedError

        async def run_json(
            self, args: Mapping[str, Any], cancellation_token: CancellationToken, call_id: str | None = None
        ) -> Any:
            return args["n"] + 1

    assert await call(await Toolbox([Odd()]).offer(), "odd", n=1) == [2]


async def test_pictures_are_announced_as_media() -> None:
    def draw(size: Annotated[int, "Its size"]) -> Image:
        """Draw."""
        return Image(Pictures.new("RGB", (size, size)))

    toolbox = Toolbox([draw])
    offer = await toolbox.offer()
    assert offer.tools[0].declaration.returns == "Media"
    (picture,) = await call(offer, "draw", size=2)
    assert isinstance(picture, Artifact)
    await toolbox.stop()


async def test_the_tools_of_a_static_workbench_answer_as_autogen_does() -> None:
    offer = await Toolbox([], [StaticWorkbench([FunctionTool(order, "Order.")])]).offer()
    (text,) = await call(offer, "order", lines=[])
    assert text == "[]"
