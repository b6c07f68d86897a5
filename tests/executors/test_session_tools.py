"""Functions of the host that code in a session calls: what comes of the calls, and that they end with the block."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from autogen_core import CancellationToken
from support.executing import Kind, one_interpreter
from support.host_tools import Offered, Pause, echo, forever
from support.in_sessions import output, said, streamed
from support.waiting import until

from codeact_team.core.execution import CallAnswer, CallOutcome, Outcome
from codeact_team.executors.session import InterpreterCodeExecutor

pytestmark = one_interpreter
INSIDE = "import os, threading\nlen(os.listdir('/proc/self/fd')), len(os.listdir('/proc/self/task'))"


async def test_code_calls_functions_of_the_host(session: InterpreterCodeExecutor) -> None:
    tools = Offered(echo=echo)
    code = "seen = [tools.echo(value=n) for n in range(5)]\nseen, tools.echo(value={'ä': [None, 1.5]})"
    assert await output(session, code, tools=tools) == "([0, 1, 2, 3, 4], {'ä': [None, 1.5]})\n"
    assert len(tools.began) == 6


async def test_calls_run_side_by_side_up_to_the_limit(session: InterpreterCodeExecutor) -> None:
    tools = Offered(echo=slow, max_parallel=7)
    code = """
import asyncio
from concurrent.futures import ThreadPoolExecutor
awaited = await asyncio.gather(*(tools.echo.aio(value=n) for n in range(100)))
with ThreadPoolExecutor(20) as pool:
    waited = list(pool.map(lambda n: tools.echo(value=n), range(100)))
awaited == waited == list(range(100))
"""
    assert await output(session, code, tools=tools) == "True\n"
    assert tools.most == 7


async def slow(value: Any, _: Pause) -> CallAnswer:
    await asyncio.sleep(0.005)
    return CallAnswer(content=[value])


async def test_a_failure_is_an_exception_of_the_code(session: InterpreterCodeExecutor) -> None:
    async def fail(*_: Any) -> CallAnswer:
        return CallAnswer(CallOutcome.FAILED, error="no such order")

    result = await said(session, "tools.fail()", tools=Offered(fail=fail))
    assert (result.exit_code, result.outcome, result.denied) == (1, Outcome.COMPLETED, False)
    assert "no such order" in result.output


async def test_that_a_call_was_not_approved_is_told_apart(session: InterpreterCodeExecutor) -> None:
    async def deny(*_: Any) -> CallAnswer:
        return CallAnswer(CallOutcome.DENIED, error="not on a Sunday")

    tools = Offered(deny=deny)
    result = await said(session, "tools.deny()", "print('not run')", tools=tools)
    assert (result.exit_code, result.outcome, result.denied) == (1, Outcome.COMPLETED, True)
    assert "not on a Sunday" in result.output
    handled = "try: tools.deny()\nexcept Exception as error: print(error)"
    result = await said(session, handled, tools=tools)
    assert (result.exit_code, result.denied) == (0, False)


async def test_each_execution_has_the_tools_it_is_offered(session: InterpreterCodeExecutor) -> None:
    one, other = Offered(one=echo), Offered(other=echo)
    for tools, names in ((one, "['one']"), (other, "['other']"), (one, "['one']")):
        listed = "[name for name in dir(tools) if name in ('one', 'other')]"
        assert await output(session, listed, tools=tools) == f"{names}\n"
    result = await said(session, "tools.one(value=1)")
    assert result.exit_code == 1
    assert one.began == []


async def test_a_fresh_interpreter_has_them_too(session: InterpreterCodeExecutor) -> None:
    tools = Offered(echo=echo)
    await output(session, "tools.echo(value=1)", tools=tools)
    assert (await said(session, "import os; os._exit(1)", tools=tools)).outcome is Outcome.LOST
    assert await output(session, "tools.echo(value=2)", tools=tools) == "2\n"
    await session.restart()
    assert await output(session, "tools.echo(value=3)", tools=tools) == "3\n"
    await session.stop()
    assert await output(session, "tools.echo(value=4)", tools=tools) == "4\n"


async def test_setup_runs_without_tools(kind: Kind, tmp_path: Path) -> None:
    executor = kind.make(work_dir=tmp_path)
    assert isinstance(executor, InterpreterCodeExecutor)
    executor.add_setup("had = 'tools' in dir()")
    tools = Offered(echo=echo)
    try:
        assert await output(executor, "had, tools.echo(value=1)", tools=tools) == "(False, 1)\n"
    finally:
        await executor.stop()


async def test_shell_blocks_run_beside_tools(session: InterpreterCodeExecutor) -> None:
    result = await said(session, "echo shell", tools=Offered(echo=echo), language="sh")
    assert result.output == "shell\n"


async def test_a_time_out_while_a_call_waits_ends_all_and_keeps_the_variables(
    hasty: InterpreterCodeExecutor,
) -> None:
    tools = Offered(forever=forever)
    code = """
kept = 1
import subprocess, threading
left = subprocess.Popen(["sleep", "600"], start_new_session=True)
def wait():
    try:
        tools.forever()
    except tools.ToolError:  # or it would be printed beside whatever block runs by then
        pass
threading.Thread(target=wait).start()
try:
    tools.forever()
finally:
    print("ends")
"""
    result = await said(hasty, code, tools=tools)
    assert (result.outcome, result.state_lost) == (Outcome.TIMED_OUT, False)
    assert "ends" in result.output
    assert (tools.running, tools.cancelled) == (0, 2)
    # what the block has started is ended only where the interrupt is known to have ended it
    assert await output(hasty, "kept, left.wait()") == "(1, -9)\n"


async def test_waiting_for_a_person_does_not_count_as_time_of_the_block(
    hasty: InterpreterCodeExecutor,
) -> None:
    async def ask(value: Any, pause: Pause) -> CallAnswer:
        with pause():
            await asyncio.sleep(1.2)
        return CallAnswer(content=[value])

    code = """
import asyncio
print(await asyncio.gather(tools.ask.aio(value=1), tools.ask.aio(value=2)))
await asyncio.sleep(600)
"""
    result = await said(hasty, code, tools=Offered(ask=ask))
    assert result.output.startswith("[1, 2]\n")
    assert result.outcome is Outcome.TIMED_OUT


async def test_the_seconds_of_a_block_are_without_those_that_a_person_takes(
    session: InterpreterCodeExecutor,
) -> None:
    asked = list[float]()

    async def ask(value: Any, pause: Pause) -> CallAnswer:
        with pause():
            began = time.monotonic()
            await asyncio.sleep(0.2)
            asked.append(time.monotonic() - began)
        return CallAnswer(content=[value])

    began = time.monotonic()
    result = await said(session, "print(tools.ask(value=1) + tools.ask(value=2))", tools=Offered(ask=ask))
    assert result.output == "3\n"
    assert result.seconds + sum(asked) <= time.monotonic() - began


async def test_a_stop_while_a_person_is_asked_stops(session: InterpreterCodeExecutor) -> None:
    async def ask(_value: Any, pause: Pause) -> CallAnswer:
        with pause():
            return await forever(None, pause)

    tools, token = Offered(ask=ask), CancellationToken()
    running = asyncio.ensure_future(said(session, "kept = 5\ntools.ask()", tools=tools, token=token))
    await until(lambda: tools.running == 1)
    token.cancel()
    result = await running
    assert (result.outcome, result.state_lost, tools.running) == (Outcome.CANCELLED, False, 0)
    assert await output(session, "kept") == "5\n"


async def test_calls_end_when_the_task_is_cancelled(session: InterpreterCodeExecutor) -> None:
    tools = Offered(forever=forever)
    running = asyncio.ensure_future(said(session, "kept = 6\ntools.forever()", tools=tools))
    await until(lambda: tools.running == 1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (tools.running, tools.cancelled) == (0, 1)
    assert await output(session, "kept") == "6\n"


async def test_calls_end_when_nobody_reads_on(session: InterpreterCodeExecutor) -> None:
    tools = Offered(forever=forever, echo=echo)
    code = """
import asyncio
try:
    print("up", end="")
    await asyncio.gather(*(tools.forever.aio() for _ in range(30)))
finally:
    after = "kept"
"""
    async with aclosing(streamed(session, code, tools=tools)) as items:
        assert await anext(items) == "up"
        reading = asyncio.ensure_future(anext(items))
        await until(lambda: tools.running == 20)
        reading.cancel()
        await asyncio.wait({reading})
    assert tools.running == 0
    assert await output(session, "after, tools.echo(value=1)", tools=tools) == "('kept', 1)\n"


async def test_calls_end_with_the_block_that_made_them(session: InterpreterCodeExecutor) -> None:
    async def beside(_value: object, _: Pause) -> CallAnswer:
        # the block ends with this call, and the thread may be slow to make its own
        await until(lambda: tools.running == 2)
        return CallAnswer()

    tools = Offered(forever=forever, beside=beside)
    code = """
import threading
def wait():
    try: tools.forever()
    except ToolError: ended.set()
ended, ToolError = threading.Event(), tools.ToolError
threading.Thread(target=wait).start()
tools.beside(value=1)
"""
    result = await said(session, code, tools=tools)
    assert result.outcome is Outcome.COMPLETED
    assert (tools.running, tools.cancelled) == (0, 1)
    assert await output(session, "ended.wait(10)") == "True\n"


async def test_whoever_reads_slowly_loses_nothing(session: InterpreterCodeExecutor) -> None:
    tools = Offered(echo=echo)
    code = "for n in range(200): print(tools.echo(value=n), 'x' * 5000)"
    said = ""
    async with aclosing(streamed(session, code, tools=tools)) as items:
        async for item in items:
            if isinstance(item, str):
                said += item
                await asyncio.sleep(0.002)
    assert [line.split()[0] for line in said.splitlines()] == [str(n) for n in range(200)]
    assert len(tools.began) == 200


async def test_a_restart_ends_the_calls_of_the_block_that_runs(session: InterpreterCodeExecutor) -> None:
    tools = Offered(forever=forever, echo=echo)
    running = asyncio.ensure_future(said(session, "tools.forever()", tools=tools))
    await until(lambda: tools.running == 1)
    await session.restart()
    assert (await running).outcome is Outcome.LOST
    assert tools.running == 0
    assert await output(session, "tools.echo(value=1)", tools=tools) == "1\n"


@pytest.mark.long
async def test_hundreds_of_calls_leave_nothing_behind(session: InterpreterCodeExecutor) -> None:
    def held() -> tuple[int, int, int]:
        return len(asyncio.all_tasks()), threading.active_count(), len(os.listdir("/proc/self/fd"))

    tools = Offered(echo=echo)
    code = "import asyncio\nfor n in range(50): tools.echo(value=n)\nawait asyncio.gather(*(tools.echo.aio(value=n) for n in range(50)))"
    await output(session, code + "\nNone", tools=tools)
    # what is counted from time to time is counted in a thread of the loop's pool
    await asyncio.to_thread(threading.active_count)
    before, inside = held(), await output(session, INSIDE, tools=tools)
    for _ in range(5):
        await output(session, code + "\nNone", tools=tools)
    assert held() == before
    assert await output(session, INSIDE, tools=tools) == inside


@pytest.mark.long
async def test_a_call_takes_no_polling_interval(session: InterpreterCodeExecutor) -> None:
    # designs that poll cost 50 to 250 ms for each call
    tools = Offered(echo=echo)
    await output(session, "tools.echo(value=0)", tools=tools)
    began = time.perf_counter()
    await output(session, "for n in range(200): tools.echo(value=n)", tools=tools)
    assert (time.perf_counter() - began) / 200 < 0.04
