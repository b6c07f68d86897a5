"""Code in a session that calls what it may not, or more than it may, or goes on when it should not."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from autogen_core import CancellationToken
from support.executing import LIVING, Kind, goes_on, usually
from support.host_tools import Offered, Pause, echo, forever
from support.in_sessions import output, said, streamed
from support.supervisor import REPORTS
from support.waiting import until

from codeact_team.core.execution import CallAnswer, ExecutionResult, Outcome, SessionResult
from codeact_team.executors.session import InterpreterCodeExecutor
from codeact_team.sandbox.base import UNCLEARED

pytestmark = usually("confined-session", among=LIVING)
GARBLED = "it sent something that could not be understood"


@pytest.mark.usefixtures("short_grace")
async def test_code_that_goes_on_calling_after_its_time_is_over_is_ended(
    hasty: InterpreterCodeExecutor,
) -> None:
    tools = Offered(forever=forever, echo=echo)
    code = """
while True:
    try:
        tools.forever()
    except BaseException:
        pass
"""
    result = await said(hasty, code, tools=tools)
    assert result.outcome is Outcome.TIMED_OUT
    assert (len(tools.began), tools.running) == (1, 0)
    assert await goes_on(hasty)
    assert await output(hasty, "tools.echo(value=1)", tools=tools) == "1\n"


async def test_what_calls_after_its_block_is_not_heard(session: InterpreterCodeExecutor) -> None:
    tools = Offered(echo=echo)
    code = REPORTS + (
        "import threading, time\nwhose, stop = token(), False\n"
        "def late():\n"
        "    while not stop:\n"
        '        write(67, whose + b\'{"id":1,"name":"echo","arguments":{}}\'); time.sleep(0.001)\n'
    )
    await output(session, code, "thread = threading.Thread(target=late); thread.start()", tools=tools)
    await asyncio.sleep(0.05)
    # a thread can know the tokens of blocks that have ended, and of none that is to come
    assert await output(session, "time.sleep(0.05); stop = True; thread.join()", tools=tools) == ""
    assert tools.began == []


@pytest.mark.parametrize(
    "attack",
    [
        'for n in range(10_000): write(67, token() + b\'{"id":%d,"name":"forever","arguments":{}}\' % n)',
        'for _ in range(2): write(67, token() + b\'{"id":7,"name":"forever","arguments":{}}\')',
        'for n in range(10): write(67, token() + b\'{"id":%d,"name":"forever","arguments":{}}\' % n + b\' \' * 1_000_000)',
        "while True: write(68, token() + b'{\"id\":1}')",
        'write(67, token() + b\'{"id":-1,"name":"forever","arguments":{}}\')',
        "write(67, token() + b'[' * 1_000_000)",
        "write(67, token())",
    ],
    ids=["flood", "replay", "bytes", "withdrawals", "negative", "nested", "empty"],
)
async def test_calls_that_the_interpreter_would_not_make_cost_the_session_and_nothing_else(
    session: InterpreterCodeExecutor, attack: str
) -> None:
    tools = Offered(forever=forever, echo=echo, max_parallel=5)
    result = await said(session, f"{REPORTS}\n{attack}\nimport time; time.sleep(600)", tools=tools)
    assert (result.outcome, result.state_lost) == (Outcome.LOST, True)
    # an engine that is busy may not tell in time that the interpreter has ended
    assert GARBLED in result.output or UNCLEARED in result.output
    assert tools.running == 0
    assert await output(session, "tools.echo(value=1)", tools=tools) == "1\n"


@pytest.mark.parametrize(
    "rest",
    [
        b'"name":"__class__","arguments":{}}',
        b'"name":"../x","arguments":{}}',
        b'"name":"' + b"x" * 10_000 + b'","arguments":{}}',
        b'"name":5,"arguments":{}}',
        b'"name":"echo","arguments":[1]}',
        b'"name":"echo","arguments":{"value":' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
        b'"name":"echo","arguments":{"value":' + b"9" * 100_000 + b"}}",
        b"",
    ],
    ids=["unknown", "path", "long", "number", "list", "nested", "huge", "cut"],
)
async def test_forged_calls_get_an_error(session: InterpreterCodeExecutor, rest: bytes) -> None:
    tools = Offered(echo=echo)
    # as long as nothing was called properly, nobody else reads the answers
    await session.restart()
    code = f"{REPORTS}\nwrite(67, token() + b'{{\"id\":5,' + {rest!r})\nimport json\njson.loads(answer()[2])"
    answer = await output(session, code, tools=tools)
    assert answer.startswith("{'id': 5, 'error': ")
    assert "'outcome': 'refused'" in answer
    assert tools.running == 0


async def test_one_session_cannot_reach_the_calls_of_another(
    session: InterpreterCodeExecutor, kind: Kind, tmp_path: Path
) -> None:
    other = kind.make(work_dir=tmp_path)
    assert isinstance(other, InterpreterCodeExecutor)
    mine, theirs = Offered(forever=forever), Offered(theirs=echo)
    token = CancellationToken()
    waiting = asyncio.ensure_future(said(session, "tools.forever()", tools=mine, token=token))
    try:
        await until(lambda: mine.running == 1)
        attack = (
            "for n in range(60):\n"
            "    write(68, token() + b'{\"id\":%d}' % n)\n"
            '    write(67, token() + b\'{"id":%d,"name":"forever","arguments":{}}\' % n)'
        )
        await said(other, f"{REPORTS}\n{attack}", tools=theirs)
        assert (mine.running, len(mine.began)) == (1, 1)
        assert len(theirs.began) > 0
    finally:
        token.cancel()
        await other.stop()
    assert (await waiting).outcome is Outcome.CANCELLED


async def test_a_killed_sandbox_ends_all_calls(kind: Kind, tmp_path: Path) -> None:
    before = kind.held()
    executor = kind.make(work_dir=tmp_path)
    assert isinstance(executor, InterpreterCodeExecutor)
    tools = Offered(forever=forever)
    code = "import asyncio\nawait asyncio.gather(*(tools.forever.aio() for _ in range(50)))"
    running = asyncio.ensure_future(said(executor, code, tools=tools))
    await until(lambda: tools.running == 20)
    await asyncio.to_thread(kind.lose, kind.held() - before)
    result = await running
    assert (result.outcome, result.state_lost) == (Outcome.LOST, True)
    assert (tools.running, tools.cancelled) == (0, 20)
    await executor.stop()


@pytest.mark.long
async def test_a_flood_of_output_and_large_answers_do_not_wait_for_each_other(
    session: InterpreterCodeExecutor,
) -> None:
    async def large(value: Any, _: Pause) -> CallAnswer:
        return CallAnswer(content=["x" * 3_000_000])

    code = """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(8) as pool:
    sizes = [pool.submit(lambda: len(tools.large(value="y" * 500_000))) for _ in range(20)]
    for _ in range(300): print("x" * 50_000)
sizes = {size.result() for size in sizes}
"""
    tools = Offered(large=large)
    last: str | ExecutionResult = ""
    async with aclosing(streamed(session, code, "sizes", tools=tools)) as items:
        async for item in items:
            last = item
            # nobody reads for a while
            await asyncio.sleep(0.01)
    assert isinstance(last, SessionResult)
    assert (last.exit_code, len(tools.began)) == (0, 20)
    assert last.output.endswith("{3000000}\n")
