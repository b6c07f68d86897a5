from __future__ import annotations

import signal

import pytest
from support.calling import answer, interrupted, works
from support.declarations import ECHO
from support.interpreter import RunningInterpreter

_ENDED = "ToolError: the block that made this call has ended"


@pytest.fixture
def interpreter(fresh_interpreter: RunningInterpreter) -> RunningInterpreter:
    """One of its own for each test: threads that a test leaves behind would disturb the next."""
    fresh_interpreter.declare(ECHO)
    fresh_interpreter.run("import asyncio, os, signal, sys, threading, time\nkept = 'kept'")
    return fresh_interpreter


_OWN_LOOP = """
async def f():
    async with asyncio.timeout(0.01):
        await tools.echo.aio(1)
try: asyncio.run(f())
except TimeoutError: pass
"""
_ALARM = """
def handle(*_): raise TimeoutError
signal.signal(signal.SIGALRM, handle)
try: tools.echo(1)
except TimeoutError: pass
"""


@pytest.mark.parametrize(
    "code",
    [
        "try: await asyncio.wait_for(tools.echo.aio(1), 0.01)\nexcept asyncio.TimeoutError: pass",
        pytest.param(
            "task = asyncio.create_task(tools.echo.aio(1))\nawait asyncio.sleep(0.01)\ntask.cancel()\nawait asyncio.sleep(0)",
            marks=pytest.mark.long,
        ),
        pytest.param(_OWN_LOOP, marks=pytest.mark.long),
        _ALARM,
    ],
)
def test_a_call_that_nobody_waits_for_any_more_is_cancelled(
    interpreter: RunningInterpreter, code: str
) -> None:
    interpreter.start(f"{code}\ntools.echo(2)")
    first = interpreter.next_call()
    if code == _ALARM:
        interpreter.process.send_signal(signal.SIGALRM)
    assert interpreter.wait_for_cancel() == first.number
    second = interpreter.next_call()
    # it is answered all the same
    interpreter.refuse(first.number, "cancelled", "cancelled")
    answer(interpreter, second)
    ran = interpreter.finish()
    assert (ran.exit_code, ran.output) == (0, "2\n")


@pytest.mark.parametrize(
    "code",
    ["tools.echo(1)", pytest.param("async def f(): tools.echo(1)\nawait f()", marks=pytest.mark.long)],
)
def test_an_interrupt_ends_a_wait_even_if_no_answer_comes(interpreter: RunningInterpreter, code: str) -> None:
    interpreter.start(f"print('ready')\n{code}")
    call = interpreter.next_call()
    ran = interrupted(interpreter)
    assert (ran.exit_code, ran.interrupted) == (130, True)
    assert ran.output.endswith("KeyboardInterrupt\n")
    assert "codeact_team" not in ran.output
    assert interpreter.cancelled == [call.number]
    assert works(interpreter)


@pytest.mark.parametrize(
    "code",
    [
        "await tools.echo.aio(1)",
        pytest.param("asyncio.run(tools.echo.aio(1))", marks=pytest.mark.long),
        pytest.param(
            "await asyncio.gather(*(tools.echo.aio(1) for _ in range(100)))", marks=pytest.mark.long
        ),
    ],
)
def test_an_interrupt_cancels_the_calls_that_are_awaited(interpreter: RunningInterpreter, code: str) -> None:
    interpreter.start(f"print('ready')\n{code}")
    ran = interrupted(interpreter, interpreter.next_call())
    assert (ran.exit_code, ran.interrupted) == (130, True)
    assert ran.output.endswith("KeyboardInterrupt\n")
    assert "codeact_team" not in ran.output
    assert works(interpreter)


def test_an_interrupt_wakes_the_threads_that_wait(interpreter: RunningInterpreter) -> None:
    # leaving the pool waits for its threads
    interpreter.start(
        "print('ready')\nfrom concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor() as pool:\n    list(pool.map(tools.echo, range(3)))"
    )
    calls = [interpreter.next_call() for _ in range(3)]
    assert interrupted(interpreter, *calls[:1]).interrupted
    assert works(interpreter)


def test_interrupts_at_any_time_break_nothing(interpreter: RunningInterpreter) -> None:
    codes = (
        "while True: tools.echo({'a': [1]})",
        "while True: await tools.echo.aio({'a': [1]})",
        "while True:\n    try: tools.echo(b'')\n    except TypeError: pass",
        "while True: repr(tools.echo)",
    )
    for turn in range(40):
        code = codes[turn % len(codes)]
        interpreter.start(f"print('ready')\n{code}")
        for _ in range(turn if "{" in code else 0):
            answer(interpreter, interpreter.next_call())
        ran = interrupted(interpreter, *([interpreter.next_call()] if "{" in code else []))
        assert (ran.exit_code, ran.interrupted) == (130, True)
        assert "codeact_team" not in ran.output
    assert works(interpreter)


def test_the_end_of_a_block_ends_its_calls(interpreter: RunningInterpreter) -> None:
    interpreter.start(
        "failed = []\ndef f():\n    for _ in range(2):\n        try: tools.echo(1)\n"
        "        except tools.ToolError as error: failed.append(f'{type(error).__name__}: {error}')\n"
        "thread = threading.Thread(target=f)\nthread.start()\n"
        "task = asyncio.create_task(tools.echo.aio(2))\nawait asyncio.sleep(0.01)"
    )
    for _ in range(2):
        interpreter.next_call()
    assert interpreter.finish().exit_code == 0
    ran = interpreter.run("thread.join()\nprint(failed[0])\nawait task")
    assert ran.output.startswith(f"{_ENDED}\n")
    assert ran.output.endswith(f"tools.{_ENDED}\n")
    assert works(interpreter)


@pytest.mark.parametrize(
    "ending",
    [
        "1 / 0",
        pytest.param("sys.exit(3)", marks=pytest.mark.long),
        pytest.param("raise KeyboardInterrupt", marks=pytest.mark.long),
    ],
)
def test_calls_end_however_the_block_does(interpreter: RunningInterpreter, ending: str) -> None:
    interpreter.start(
        "failed = []\ndef f():\n    try: tools.echo(1)\n    except tools.ToolError as error: failed.append(str(error))\n"
        f"thread = threading.Thread(target=f)\nthread.start()\ntools.echo(2)\n{ending}"
    )
    calls = [interpreter.next_call() for _ in range(2)]
    answer(interpreter, next(call for call in calls if call.arguments["value"] == 2))
    assert interpreter.finish().exit_code != 0
    assert interpreter.run("thread.join()\nfailed").output == f"['{_ENDED.partition(': ')[2]}']\n"


def test_between_blocks_nothing_is_sent(interpreter: RunningInterpreter) -> None:
    interpreter.run(
        "failed = []\nended = threading.Event()\ndef f():\n    while not failed:\n"
        "        try: tools.echo(1)\n        except tools.ToolError as error: failed.append(str(error))\n"
        "    ended.set()\n"
        "def later():\n    time.sleep(0.1)\n    f()\n"
        "threading.Thread(target=later).start()"
    )
    assert interpreter.unanswered() == []
    assert (
        interpreter.run("ended.wait(10)\nfailed").output
        == "['tools can be called only while a block runs']\n"
    )


_LOOP = """
go = threading.Event()
said = []
def loop():
    while go.wait():
        go.clear()
        try: said.append(tools.echo(1))
        except tools.ToolError as error: said.append(error)
"""
_START = {
    "thread": "threading.Thread(target=loop, daemon=True).start()",
    "raw": "import _thread\n_thread.start_new_thread(loop, ())",
    "task of a pool": "from concurrent.futures import ThreadPoolExecutor\nThreadPoolExecutor().submit(loop)",
}


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(start, id=name, marks=[pytest.mark.long] if name == "raw" else [])
        for name, start in _START.items()
    ],
)
def test_a_thread_may_not_call_once_the_block_that_started_it_has_ended(
    interpreter: RunningInterpreter, start: str
) -> None:
    # it called the tools of whatever block came next
    interpreter.start(f"{_LOOP}\n{start}\ngo.set()\nwhile not said: time.sleep(0.001)\nprint(said.pop())")
    answer(interpreter, interpreter.next_call())
    assert interpreter.finish().output == "1\n"
    ran = interpreter.run("go.set()\nwhile not said: time.sleep(0.001)\nsaid.pop()")
    assert "the block that started it has ended" in ran.output
    # nor is what it has anybody else's
    interpreter.start(
        f"{start}\ngo.set(); time.sleep(0.05); go.set()\nwhile 1 not in said: time.sleep(0.001)"
    )
    answer(interpreter, interpreter.next_call())
    assert interpreter.finish().exit_code == 0


@pytest.mark.parametrize(
    ("pool", "call"),
    [
        ("from concurrent.futures import ThreadPoolExecutor as Pool", "pool.submit(tools.echo, 1).result()"),
        pytest.param(
            "from multiprocessing.pool import ThreadPool as Pool",
            "pool.map(tools.echo, [1])[0]",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "Pool = lambda _: None", "await asyncio.to_thread(tools.echo, 1)", marks=pytest.mark.long
        ),
    ],
    ids=["executor", "multiprocessing", "to_thread"],
)
def test_the_threads_of_a_pool_may_call_for_each_block_that_gives_them_work(
    interpreter: RunningInterpreter, pool: str, call: str
) -> None:
    interpreter.run(f"{pool}\npool = Pool(1)")
    for _ in range(3):
        interpreter.start(call)
        answer(interpreter, interpreter.next_call())
        ran = interpreter.finish()
        assert (ran.exit_code, ran.output) == (0, "1\n")
