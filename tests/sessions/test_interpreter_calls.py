from __future__ import annotations

import pytest
from support.calling import answer, works
from support.declarations import ECHO
from support.interpreter import RunningInterpreter

from codeact_team.session.protocol import MAX_CALL_BYTES, MAX_CALL_BYTES_AT_ONCE, MAX_CALLS_AT_ONCE, MIB


@pytest.fixture
def interpreter(interpreter: RunningInterpreter) -> RunningInterpreter:
    interpreter.declare(ECHO)
    interpreter.run("import asyncio, os, signal, sys, threading, time\nkept = 'kept'")
    return interpreter


def test_ids_are_never_used_again(interpreter: RunningInterpreter) -> None:
    numbers: list[int] = []
    for _ in range(3):
        interpreter.start("tools.echo(1), tools.echo(2)")
        for _ in range(2):
            numbers.append(interpreter.next_call().number)
            interpreter.answer(numbers[-1])
        interpreter.finish()
    assert numbers == sorted(set(numbers))


def test_threads_call_at_once(interpreter: RunningInterpreter) -> None:
    interpreter.start(
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(5) as pool:\n    print(list(pool.map(tools.echo, range(5))))"
    )
    for call in [interpreter.next_call() for _ in range(5)][::-1]:
        answer(interpreter, call)
    assert interpreter.finish().output == "[0, 1, 2, 3, 4]\n"


def test_calls_can_be_made_in_event_loops_of_the_codes_own(interpreter: RunningInterpreter) -> None:
    interpreter.start(
        "async def f(n): return await asyncio.gather(tools.echo.aio(n), tools.echo.aio(n + 1))\n"
        "results = []\n"
        "threads = [threading.Thread(target=lambda n=n: results.append(asyncio.run(f(n)))) for n in (0, 10)]\n"
        "for thread in threads: thread.start()\n"
        "results.append(asyncio.run(f(20)))\n"
        "for thread in threads: thread.join()\n"
        "sorted(results)"
    )
    for call in [interpreter.next_call() for _ in range(6)][::-1]:
        answer(interpreter, call)
    assert interpreter.finish().output == "[[0, 1], [10, 11], [20, 21]]\n"


def test_a_coroutine_needs_a_running_loop(interpreter: RunningInterpreter) -> None:
    output = interpreter.run("tools.echo.aio(1).send(None)").output
    assert output.endswith("RuntimeError: no running event loop\n")


def test_calls_that_exceed_the_window_wait_for_their_turn(interpreter: RunningInterpreter) -> None:
    count = 3 * MAX_CALLS_AT_ONCE
    interpreter.start(f"sum(await asyncio.gather(*(tools.echo.aio(n) for n in range({count}))))")
    held = [interpreter.next_call() for _ in range(MAX_CALLS_AT_ONCE)]
    assert interpreter.unanswered() == []
    # each answer lets in one more, in order
    for number in range(MAX_CALLS_AT_ONCE, count):
        answer(interpreter, held.pop())
        held.append(interpreter.next_call())
        assert held[-1].arguments["value"] == number
    for call in held:
        answer(interpreter, call)
    assert interpreter.finish().output == f"{sum(range(count))}\n"


def test_no_more_bytes_are_unanswered_than_allowed(interpreter: RunningInterpreter) -> None:
    interpreter.start(
        f"x = 'x' * {MAX_CALL_BYTES - 4096}\n"
        "len(await asyncio.gather(*(tools.echo.aio(x) for _ in range(10)), tools.echo.aio(1)))"
    )
    held = interpreter.unanswered()
    interpreter.unanswered_calls.clear()
    assert MAX_CALL_BYTES_AT_ONCE - MAX_CALL_BYTES < sum(call.size for call in held)
    for _ in range(len(held), 11):
        assert sum(call.size for call in held) <= MAX_CALL_BYTES_AT_ONCE
        interpreter.answer(held.pop(0).number)
        held.append(interpreter.next_call())
    for call in held:
        interpreter.answer(call.number)
    assert interpreter.finish().output == "11\n"


def test_a_cancelled_call_takes_up_room_until_it_is_answered(interpreter: RunningInterpreter) -> None:
    interpreter.start(
        f"tasks = [asyncio.create_task(tools.echo.aio(n)) for n in range({MAX_CALLS_AT_ONCE + 2})]\n"
        "await asyncio.sleep(0.01)\ntasks[0].cancel()\n"
        # it was not sent yet, and is not
        "tasks[-2].cancel()\nawait tasks[-1]"
    )
    first = interpreter.next_call()
    assert interpreter.wait_for_cancel() == first.number
    interpreter.unanswered_calls.clear()
    assert interpreter.unanswered() == []
    interpreter.refuse(first.number, "cancelled", "cancelled")
    last = interpreter.next_call()
    assert last.arguments["value"] == MAX_CALLS_AT_ONCE + 1
    answer(interpreter, last)
    assert interpreter.finish().output == f"{MAX_CALLS_AT_ONCE + 1}\n"
    assert interpreter.cancelled == []


def test_each_block_has_the_whole_window(interpreter: RunningInterpreter) -> None:
    code = (
        f"for n in range({MAX_CALLS_AT_ONCE}): asyncio.create_task(tools.echo.aio(n))\nawait asyncio.sleep(0)"
    )
    for _ in range(2):
        interpreter.start(code)
        for _ in range(MAX_CALLS_AT_ONCE):
            interpreter.next_call()
        interpreter.finish()
    assert works(interpreter)


def test_no_thread_of_the_runner_is_visible(interpreter: RunningInterpreter) -> None:
    interpreter.start("tools.echo(1)\nthreading.enumerate() == [threading.main_thread()]")
    answer(interpreter, interpreter.next_call())
    assert interpreter.finish().output == "True\n"


@pytest.mark.parametrize("count", [300, pytest.param(1000, marks=pytest.mark.long)])
def test_many_calls_leave_nothing_behind(interpreter: RunningInterpreter, count: int) -> None:
    code = f"x = 'x' * 10_000\nfor n in range({count // 2}):\n    tools.echo(x)\n    await tools.echo.aio(x)"

    def run() -> None:
        interpreter.start(code)
        for _ in range(count):
            answer(interpreter, interpreter.next_call())
        assert interpreter.finish().exit_code == 0

    run()
    before = interpreter.memory(), interpreter.open_descriptors()
    run()
    assert interpreter.open_descriptors() == before[1]
    assert interpreter.memory() - before[0] < 2 * MIB
