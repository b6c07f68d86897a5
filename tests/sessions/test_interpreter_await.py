from __future__ import annotations

from pathlib import Path

import pytest
from support.interpreter import RunningInterpreter


@pytest.fixture
def interpreter(interpreter: RunningInterpreter) -> RunningInterpreter:
    interpreter.run("import asyncio")
    return interpreter


@pytest.mark.parametrize(
    ("code", "output"),
    [
        ("await asyncio.sleep(0, 'slept')", "'slept'\n"),
        ("x = await asyncio.sleep(0, 4)\nx", "4\n"),
        ("x = 2\nx + await asyncio.sleep(0, 4)", "6\n"),
        ("async with asyncio.Lock() as held:\n    print('held', held)", "held None\n"),
        ("async def numbers():\n    yield 1\n    yield 2\nasync for n in numbers():\n    print(n)", "1\n2\n"),
        ("async def numbers():\n    yield 1\n[n async for n in numbers()]", "[1]\n"),
        ("await asyncio.sleep(0)\nasyncio.current_task() is not None", "True\n"),
        ("print('a')\nawait asyncio.sleep(0)\nprint('b')", "a\nb\n"),
        ("def f():\n    return 1\nawait asyncio.to_thread(f)", "1\n"),
        (
            "process = await asyncio.create_subprocess_exec('echo', 'child')\nawait process.wait()",
            "child\n0\n",
        ),
        ("async def f(): return 3\nasyncio.run(f())", "3\n"),
        ("loop = asyncio.new_event_loop()\nloop.run_until_complete(asyncio.sleep(0, 9))", "9\n"),
    ],
)
def test_await_works_as_in_a_notebook(interpreter: RunningInterpreter, code: str, output: str) -> None:
    ran = interpreter.run(code)
    assert (ran.output, ran.exit_code) == (output, 0)


def test_names_bound_by_a_block_that_awaits_are_globals(interpreter: RunningInterpreter) -> None:
    interpreter.run("x = await asyncio.sleep(0, 4)\ndef f():\n    return x")
    assert interpreter.run("f()").output == "4\n"


def test_blocks_that_await_share_a_loop(interpreter: RunningInterpreter) -> None:
    interpreter.run("first = asyncio.get_running_loop() if await asyncio.sleep(0, True) else None")
    assert interpreter.run("await asyncio.sleep(0)\nasyncio.get_running_loop() is first").output == "True\n"


def test_a_task_goes_on_while_another_block_awaits(interpreter: RunningInterpreter) -> None:
    interpreter.run(
        "event = asyncio.Event()\nasync def wait():\n    await event.wait()\n    return 'done'\n"
        "task = asyncio.create_task(wait())\nawait asyncio.sleep(0)"
    )
    assert interpreter.run("task.done()").output == "False\n"
    assert interpreter.run("event.set()\nawait task").output == "'done'\n"


def test_the_loop_stands_still_between_blocks(interpreter: RunningInterpreter) -> None:
    interpreter.run(
        "turns = 0\nasync def count():\n    global turns\n    while True:\n        turns += 1\n"
        "        await asyncio.sleep(0)\ntask = asyncio.create_task(count())\nawait asyncio.sleep(0)"
    )
    before = interpreter.run("turns").output
    assert interpreter.run("import time; time.sleep(0.01); turns").output == before


def test_the_code_runs_loops_of_its_own_before_and_after(fresh_interpreter: RunningInterpreter) -> None:
    own = "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    return 'own'\nasyncio.run(f())"
    for code in (own, own, "await f()", own, "await f()", own):
        assert fresh_interpreter.run(code).output == "'own'\n"
    assert fresh_interpreter.run("asyncio.get_running_loop().is_running()").output == "True\n"


def test_an_own_loop_inside_the_shared_one_is_refused_as_everywhere(interpreter: RunningInterpreter) -> None:
    ran = interpreter.run(
        "async def f(): pass\nawait asyncio.sleep(0)\nc = f()\ntry:\n    asyncio.run(c)\nfinally:\n    c.close()"
    )
    assert (ran.exit_code, "running event loop" in ran.output) == (1, True)


def test_a_loop_that_was_closed_is_replaced(interpreter: RunningInterpreter) -> None:
    interpreter.run("loop = asyncio.get_running_loop() if await asyncio.sleep(0, True) else None")
    interpreter.run("loop.close()")
    assert interpreter.run("await asyncio.sleep(0, 'fresh')").output == "'fresh'\n"


def test_a_loop_that_was_stopped_goes_on(interpreter: RunningInterpreter) -> None:
    ran = interpreter.run("asyncio.get_running_loop().stop()\nawait asyncio.sleep(100)")
    assert (ran.exit_code, ran.interrupted) == (1, False)
    assert interpreter.run("await asyncio.sleep(0, 'goes on')").output == "'goes on'\n"


_IN_A_CHILD = """
import os, warnings
# Python 3.12 warns of the fork where there are threads
warnings.simplefilter("ignore")
await asyncio.sleep(0)
if not (pid := os.fork()):
    try:
        {child}
    finally:
        os._exit(0)
os.waitpid(pid, 0)
await asyncio.sleep(0, "parent")
"""


@pytest.mark.parametrize(
    ("child", "output"),
    [
        ("print(await asyncio.sleep(0, 1), await asyncio.sleep(0, 2), flush=True)", "1 2\n"),
        ("print(asyncio.run(asyncio.sleep(0, 3)), flush=True)", "3\n"),
    ],
    ids=["the inherited loop", "a loop of its own"],
)
def test_a_forked_child_may_await(interpreter: RunningInterpreter, child: str, output: str) -> None:
    assert interpreter.run(_IN_A_CHILD.format(child=child)).output == f"{output}'parent'\n"
    assert interpreter.run("await asyncio.sleep(0, 'next')").output == "'next'\n"


def test_an_exception_shows_the_frames_of_the_code_only(fresh_interpreter: RunningInterpreter) -> None:
    fresh_interpreter.run("import asyncio")
    ran = fresh_interpreter.run("async def f():\n    await asyncio.sleep(0)\n    1 / 0\nawait f()")
    assert [line.strip() for line in ran.output.splitlines() if "File" in line] == [
        'File "<block 2>", line 4, in <module>',
        'File "<block 2>", line 3, in f',
    ]


def test_the_loop_is_not_made_before_it_is_needed(tmp_path: Path) -> None:
    with RunningInterpreter(tmp_path) as interpreter:
        interpreter.run("async def f():\n    pass")
        assert interpreter.run("import sys; 'asyncio' in sys.modules").output == "False\n"
