"""Python code of a program runs in a living interpreter, and may call the program's functions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pytest
from autogen_core.tools import FunctionTool
from pydantic import JsonValue
from standalone_sandbox import each_kind, output
from support.variations import mostly_long

from codeact_team import AsyncSandbox, CallOutcome, Outcome, SettingError
from codeact_team.core.execution import CallAnswer, HostTools


def price(article: str) -> float:
    """The price of an article."""
    return {"bolt": 0.5, "gear": 12.0}[article]


async def stock(article: str) -> int:
    """How many there are."""
    await asyncio.sleep(0)
    return len(article)


@each_kind
async def test_variables_live_on_and_a_failure_is_a_result(sandbox: AsyncSandbox) -> None:
    await output(sandbox, "total = 55")
    failed = await sandbox.run_python("1 / 0")
    assert (failed.exit_code, failed.outcome) == (1, Outcome.COMPLETED)
    assert "ZeroDivisionError" in failed.output
    result = await sandbox.run_python("total + 1")
    assert result.output == "56\n"


async def test_code_calls_functions_by_their_names_or_by_others(sandbox: AsyncSandbox) -> None:
    both = "tools.price('gear') * tools.stock('gear')"
    assert await output(sandbox, both, tools=[price, stock]) == "48.0\n"
    assert await output(sandbox, both, tools={"price": price, "stock": stock}) == "48.0\n"
    tool = FunctionTool(stock, description="", name="count")
    assert await output(sandbox, "tools.count('bolt')", tools=[tool]) == "4\n"
    assert await output(sandbox, "tools.cost('bolt')", tools={"cost": price}) == "0.5\n"
    assert await output(sandbox, "tools.count('bolt')", tools={"count": tool}) == "4\n"
    # the functions of a call are gone with it
    assert "'tools' is not defined" in (await sandbox.run_python("tools.price('bolt')")).output


async def test_an_error_of_a_function_is_an_error_in_the_code(sandbox: AsyncSandbox) -> None:
    code = "try: tools.price('nut')\nexcept tools.ToolError as e: print(e)"
    assert await output(sandbox, code, tools=[price]) == "KeyError: 'nut'\n"


@pytest.mark.long
async def test_calls_are_limited_by_the_time_of_the_code_only(sandbox: AsyncSandbox) -> None:
    code = "sum(tools.price('bolt') for _ in range(1500))"
    assert await output(sandbox, code, tools=[price]) == "750.0\n"

    async def forever() -> None:
        """Take as long as it gets."""
        await asyncio.Event().wait()

    result = await sandbox.run_python("tools.forever()", tools=[forever], timeout=0.5)
    assert (result.outcome, result.state_lost) == (Outcome.TIMED_OUT, False)


class Echo(HostTools):
    """Answers any call with its name."""

    @property
    def declarations(self) -> Sequence[Mapping[str, JsonValue]]:
        return [{"name": "echo", "doc": "", "parameters": [], "returns": None, "takes_others": True}]

    @property
    def max_parallel(self) -> int:
        return 1

    async def call(
        self,
        name: str,
        arguments: dict[str, JsonValue],
        *,
        pause: Callable[[], AbstractContextManager[None]],
    ) -> CallAnswer:
        return CallAnswer(CallOutcome.OK, [f"{name} {arguments}"])


@pytest.mark.long
async def test_an_object_may_make_the_calls_itself(sandbox: AsyncSandbox) -> None:
    assert await output(sandbox, "print(tools.echo(a=1))", tools=Echo()) == "echo {'a': 1}\n"


@pytest.mark.parametrize(
    ("tools", "problem"),
    [
        pytest.param(price, "tools: a list or a mapping is expected, not function", marks=pytest.mark.long),
        pytest.param([print], "tools: <built-in function print> is not a function", marks=pytest.mark.long),
        ({"cost": FunctionTool(price, description="")}, "tools: the name 'cost' is given for a tool named 'price'"),
        pytest.param([price, price], "tools: there are two tools 'price'", marks=pytest.mark.long),
    ],
)  # fmt: skip
async def test_what_is_no_tool_is_refused(sandbox: AsyncSandbox, tools: Any, problem: str) -> None:
    with pytest.raises(SettingError) as raised:
        await sandbox.run_python("1", tools=tools)
    assert str(raised.value).startswith(problem)


async def test_output_comes_as_it_is_written_to_a_function_or_a_coroutine_function(
    sandbox: AsyncSandbox,
) -> None:
    pieces, threads = list[str](), set[threading.Thread]()
    answered = asyncio.Event()

    async def answer(piece: str) -> None:
        pieces.append(piece)
        answered.set()

    async def wait() -> bool:
        """Wait until the output has come."""
        await answered.wait()
        return True

    code = "print('first', flush=True)\ntools.wait()"
    assert await output(sandbox, code, tools=[wait], on_output=answer) == "first\nTrue\n"
    assert "".join(pieces) == "first\nTrue\n"

    def note(piece: str) -> None:
        pieces.append(piece)
        threads.add(threading.current_thread())

    pieces.clear()
    await output(sandbox, "print('second')", on_output=note)
    assert pieces == ["second\n"]
    assert threading.current_thread() not in threads


@pytest.mark.parametrize("error", mostly_long([OSError("full"), SystemExit(3), StopIteration()]))
async def test_what_a_callback_raises_stops_the_code(sandbox: AsyncSandbox, error: BaseException) -> None:
    def refuse(_: str) -> None:
        raise error

    with pytest.raises(Exception, match=r"full|SystemExit|StopIteration"):
        await sandbox.run_python("print(1, flush=True)\nwhile True: pass", on_output=refuse)
    assert await output(sandbox, "'next'") == "'next'\n"


@pytest.mark.long
async def test_code_may_have_less_time_than_the_setting_says(sandbox: AsyncSandbox) -> None:
    await output(sandbox, "kept = 1")
    result = await sandbox.run_python("import time\ntime.sleep(60)", timeout=0.5)
    assert (result.outcome, result.limit) == (Outcome.TIMED_OUT, "time (timeout: 0.5)")
    assert await output(sandbox, "kept") == "1\n"
    with pytest.raises(SettingError, match=r"^timeout is -1: "):
        await sandbox.run_python("1", timeout=-1)


async def test_a_call_that_is_cancelled_stops_the_code_and_keeps_the_variables(sandbox: AsyncSandbox) -> None:
    begun = asyncio.Event()

    async def note(_: str) -> None:
        begun.set()

    code = "kept = 2\nprint(kept, flush=True)\nwhile True: pass"
    running = asyncio.create_task(sandbox.run_python(code, on_output=note))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await output(sandbox, "kept") == "2\n"
