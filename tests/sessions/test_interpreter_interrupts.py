from __future__ import annotations

import time

import pytest
from support.interpreter import RunningInterpreter


@pytest.fixture
def interpreter(interpreter: RunningInterpreter) -> RunningInterpreter:
    interpreter.run("import asyncio, os, re, signal, subprocess, sys, threading, time\nkept = 'kept'")
    return interpreter


_COROUTINE = "async def f():\n    print('ready')\n    {}\n"


@pytest.mark.parametrize(
    "code",
    [
        "print('ready')\nwhile True: pass",
        "print('ready')\ntime.sleep(1000)",
        "print('ready')\nsubprocess.run(['sleep', '1000'])",
        "print('ready')\nre.match('(a+)+b', 'a' * 60)",
        "print('ready')\nthreading.Event().wait()",
        "print('ready')\nawait asyncio.sleep(1000)",
        _COROUTINE.format("while True: pass") + "await f()",
        _COROUTINE.format("time.sleep(1000)") + "await f()",
        _COROUTINE.format("await asyncio.sleep(1000)") + "asyncio.run(f())",
        _COROUTINE.format("while True: pass") + "asyncio.run(f())",
        _COROUTINE.format("while True: pass") + "task = asyncio.create_task(f())\nawait asyncio.sleep(1000)",
        "class Slow:\n    def __repr__(self):\n        print('ready')\n        while True: pass\nSlow()",
        "class Slow(Exception):\n    def __str__(self):\n        print('ready')\n        while True: pass\nraise Slow",
        "class Slow:\n    def __repr__(self):\n        print('ready')\n        while True: pass\nfinal_answer(Slow())",
        "class Slow:\n    def _repr_html_(self):\n        print('ready')\n        while True: pass\nSlow()",
    ],
)
def test_an_interrupt_ends_the_block_and_keeps_the_state(interpreter: RunningInterpreter, code: str) -> None:
    interpreter.start(code)
    ran = interpreter.interrupt_when("ready\n")
    if "__str__" not in code:
        assert (ran.exit_code, ran.interrupted) == (130, True)
        assert ran.output.endswith("KeyboardInterrupt\n")
    assert "sessions" not in ran.output
    assert interpreter.run("kept").output == "'kept'\n"
    assert interpreter.run("await asyncio.sleep(0, 'shared')").output == "'shared'\n"
    assert interpreter.run("asyncio.run(asyncio.sleep(0, 'own'))").output == "'own'\n"


def test_an_interrupt_shows_where_the_code_was(interpreter: RunningInterpreter) -> None:
    interpreter.start("def f():\n    print('ready') or time.sleep(1000)\nf()")
    output = interpreter.interrupt_when("ready\n").output
    assert "File \"<block 2>\", line 2, in f\n    print('ready') or time.sleep(1000)\n" in output


def test_an_interrupt_cancels_what_is_awaited(interpreter: RunningInterpreter) -> None:
    interpreter.start(
        "asyncio.get_running_loop().call_later(0.01, print, 'ready')\n"
        "try:\n    await asyncio.sleep(1000)\nexcept asyncio.CancelledError:\n    print('cancelled')\n    raise"
    )
    ran = interpreter.interrupt_when("ready\n")
    assert (ran.exit_code, ran.interrupted) == (130, True)
    assert "cancelled\n" in ran.output


def test_a_cleanup_that_does_not_end_is_interrupted_again(interpreter: RunningInterpreter) -> None:
    interpreter.start(
        "try:\n    print('ready')\n    await asyncio.sleep(1000)\nfinally:\n    print('again')\n    time.sleep(1000)"
    )
    interpreter.interrupt_when_only("ready\n")
    ran = interpreter.interrupt_when("again\n")
    assert (ran.exit_code, ran.interrupted) == (130, True)
    assert interpreter.run("await asyncio.sleep(0, kept)").output == "'kept'\n"


def test_a_loop_that_hangs_is_interrupted_at_the_second_attempt(interpreter: RunningInterpreter) -> None:
    interpreter.start(
        "loop = asyncio.get_running_loop()\nloop.call_soon(print, 'ready')\nloop.call_soon(time.sleep, 1000)\n"
        "await asyncio.sleep(1000)"
    )
    interpreter.interrupt_when_only("ready\n")
    # the first one is over before the second one is sent
    time.sleep(0.1)
    interpreter.interrupt()
    assert interpreter.finish().interrupted
    assert interpreter.run("await asyncio.sleep(0, kept)").output == "'kept'\n"


def test_code_that_handles_its_interrupt_is_not_interrupted(interpreter: RunningInterpreter) -> None:
    interpreter.start(
        "try:\n    print('ready')\n    time.sleep(1000)\nexcept KeyboardInterrupt:\n    print('handled')"
    )
    ran = interpreter.interrupt_when("ready\n")
    assert (ran.exit_code, ran.interrupted, ran.output) == (0, False, "ready\nhandled\n")


def test_a_handler_of_the_code_is_used_while_its_block_runs_only(interpreter: RunningInterpreter) -> None:
    interpreter.start(
        "def own(number, frame):\n    print('own')\n    raise ValueError\nsignal.signal(signal.SIGINT, own)\n"
        "print('ready')\ntime.sleep(1000)"
    )
    ran = interpreter.interrupt_when("ready\n")
    assert (ran.exit_code, ran.interrupted) == (1, False)
    interpreter.interrupt()
    interpreter.start("print('ready')\ntime.sleep(1000)")
    assert interpreter.interrupt_when("ready\n").interrupted


@pytest.mark.parametrize("handler", ["SIG_DFL", "SIG_IGN", "default_int_handler"])
def test_a_signal_between_blocks_does_no_harm(interpreter: RunningInterpreter, handler: str) -> None:
    interpreter.run(f"signal.signal(signal.SIGINT, signal.{handler})")
    for _ in range(20):
        interpreter.interrupt()
    # it has read the next block by the time that this one runs
    assert interpreter.run("time.sleep(0.01)\nkept").output == "'kept'\n"


def test_signals_at_any_time_break_nothing(interpreter: RunningInterpreter) -> None:
    codes = ("x = 1", "print('out')", "await asyncio.sleep(0)", "1 / 0", "class A:\n    def f(self): pass\nA")
    for turn in range(300):
        interpreter.start(codes[turn % len(codes)])
        # spread over the whole of a block, from before it is read to after its report
        until = time.perf_counter() + (turn % 60) * 10e-6
        while time.perf_counter() < until:
            pass
        interpreter.interrupt()
        ran = interpreter.finish()
        assert ran.exit_code in ((130,) if ran.interrupted else (0, 1))
        # Python itself drops what is raised in the callback of a weak reference, and says so
        assert "sessions" not in ran.output or "Exception ignored in: " in ran.output
    assert interpreter.run("kept").output == "'kept'\n"
    assert interpreter.run("asyncio.run(asyncio.sleep(0, 'own'))").output == "'own'\n"
    assert interpreter.process.poll() is None


def test_an_interrupt_in_the_moment_in_which_a_block_has_awaited_all_is_not_felt_by_the_next(
    interpreter: RunningInterpreter,
) -> None:
    # comes when the block's last step is next
    ran = interpreter.run(
        "asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)\nawait asyncio.sleep(0)"
    )
    assert ran.interrupted
    assert interpreter.run("await asyncio.sleep(0.01, 'kept')").output == "'kept'\n"


def test_threads_that_the_block_has_started_are_ended(interpreter: RunningInterpreter) -> None:
    interpreter.start(
        "def spin():\n    while True: pass\nthread = threading.Thread(target=spin)\nthread.start()\n"
        "print('ready')\nthread.join()"
    )
    assert interpreter.interrupt_when("ready\n").interrupted
    assert interpreter.run("thread.join(10)\nthread.is_alive()").output == "False\n"


def test_a_pool_that_waits_for_its_threads_does_not_hold_up_the_interrupt(
    interpreter: RunningInterpreter,
) -> None:
    interpreter.start(
        "from concurrent.futures import ThreadPoolExecutor\ndef spin():\n    while True: pass\n"
        "with ThreadPoolExecutor() as pool:\n    print('ready')\n    pool.submit(spin).result()"
    )
    assert interpreter.interrupt_when("ready\n").interrupted


def test_threads_of_earlier_blocks_are_left_alone(interpreter: RunningInterpreter) -> None:
    interpreter.run(
        "stop = False\ndef work():\n    while not stop: time.sleep(0.001)\n"
        "thread = threading.Thread(target=work)\nthread.start()"
    )
    interpreter.start("print('ready')\ntime.sleep(1000)")
    assert interpreter.interrupt_when("ready\n").interrupted
    assert interpreter.run("time.sleep(0.05)\nthread.is_alive()").output == "True\n"
    assert interpreter.run("stop = True\nthread.join(10)\nthread.is_alive()").output == "False\n"


def test_idle_threads_of_a_pool_work_on(interpreter: RunningInterpreter) -> None:
    interpreter.start("await asyncio.to_thread(int)\nprint('ready')\nawait asyncio.sleep(1000)")
    assert interpreter.interrupt_when("ready\n").interrupted
    ran = interpreter.run("await asyncio.gather(*(asyncio.to_thread(int, n) for n in range(4)))")
    assert ran.output == "[0, 1, 2, 3]\n"


@pytest.mark.parametrize("lines", [4_000, pytest.param(15_000, marks=pytest.mark.long)])
def test_an_interrupt_while_code_is_compiled_ends_the_block(
    interpreter: RunningInterpreter, lines: int
) -> None:
    # long enough to be interrupted before the first line runs
    interpreter.start("print('ran')\n" + "x = [1, 2, 3]\n" * lines)
    time.sleep(lines / 150_000)
    interpreter.interrupt()
    ran = interpreter.finish()
    assert (ran.exit_code, ran.interrupted) in ((130, True), (0, False))
    assert interpreter.run("kept").output == "'kept'\n"
