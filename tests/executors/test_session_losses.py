"""How a session loses what its blocks have left behind: each loss is explained, and the next block runs."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest
from support.executing import LIVING, Kind, usually
from support.in_sessions import output, said, streamed, until_it_says
from support.variations import mostly_long

from codeact_team.core.execution import Outcome, SessionResult
from codeact_team.executors.session import InterpreterCodeExecutor

LOST = "Variables, imports, functions and running processes are gone."


@pytest.mark.parametrize(
    ("code", "why"),
    mostly_long(
        [
            ("import os; os._exit(3)", "exit code 3"),
            ("import ctypes; ctypes.string_at(0)", "segmentation fault"),
            ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "signal 9"),
            ("import os; os.closerange(3, 4096)", "exit code"),
            (
                "import os\nfor fd in range(3, 30):\n    try: os.write(fd, b'forged' * 9)\n    except OSError: pass\ninput()",
                "not a report of this block",
            ),
        ],
        usual=2,
    ),
    ids=["ends itself", "segfault", "kills itself", "closes everything", "forges"],
)
@usually("confined-session", among=LIVING)
async def test_a_lost_interpreter_is_explained_and_replaced(
    session: InterpreterCodeExecutor, code: str, why: str
) -> None:
    result = await said(session, f"before = 1\nprint('before')\n{code}")
    assert (result.outcome, result.state_lost) == (Outcome.LOST, True)
    assert result.exit_code != 0
    # where nobody counts what the memory limit kills, a guess is called one
    assert result.limit is None or ("9" in why and result.limit.startswith("What killed it is not known."))
    assert result.output.startswith("before\n")
    assert why in result.output
    assert LOST in result.output
    after = await said(session, "'before' in dir()")
    assert (after.output, after.state_lost) == ("False\n", False)


@usually("confined-session", among=LIVING)
async def test_memory_is_named_as_the_reason(small: InterpreterCodeExecutor, kind: Kind) -> None:
    result = await said(small, "x = []\nwhile True: x.append(bytearray(1_000_000))")
    assert result.exit_code != 0
    assert result.limit is not None
    assert kind.fields["memory"] in result.limit
    assert await output(small, "1 + 1") == "2\n"


@usually("confined-session", among=LIVING)
async def test_an_interpreter_that_ends_between_blocks_is_explained_by_the_next(
    session: InterpreterCodeExecutor,
) -> None:
    await output(session, "import os, threading, time\nthreading.Timer(0.1, os._exit, [5]).start()")
    await asyncio.sleep(0.4)
    result = await said(session, "print('ran'); 'threading' in dir()")
    assert result.state_lost
    assert result.exit_code == 0
    assert "exit code 5" in result.output
    assert result.output.endswith("ran\nFalse\n")


@usually("confined-session", among=LIVING)
async def test_a_lost_sandbox_is_explained_and_replaced(kind: Kind, tmp_path: Path) -> None:
    before = kind.held()
    executor = kind.make(work_dir=tmp_path)
    assert isinstance(executor, InterpreterCodeExecutor)
    async with aclosing(streamed(executor, "import time; print('up'); time.sleep(60)")) as items:
        await until_it_says(items, "up\n")
        await asyncio.to_thread(kind.lose, kind.held() - before)
        result = [item async for item in items][-1]
    assert isinstance(result, SessionResult)
    assert (result.outcome, result.exit_code, result.state_lost) == (Outcome.LOST, 137, True)
    assert LOST in result.output
    assert await output(executor, "again = 1\nprint('again')") == "again\n"
    # also between two calls
    await asyncio.to_thread(kind.lose, kind.held() - before)
    result = await said(executor, "print('ran'); 'again' in dir()")
    assert result.state_lost
    assert "was lost" in result.output
    assert result.output.endswith("ran\nFalse\n")
    await executor.stop()
    assert kind.held() == before


@usually("confined-session", among=LIVING)
async def test_restart_keeps_the_sandbox_and_forgets_the_variables(kind: Kind, tmp_path: Path) -> None:
    executor = kind.make(work_dir=tmp_path, setup="ready = True")
    assert isinstance(executor, InterpreterCodeExecutor)
    await output(executor, "mine = 1", "open('kept', 'w').write('x')")
    await output(executor, "cd /tmp; export GONE=1; (sleep 60 &) ", language="sh")
    held = kind.held()
    await executor.restart()
    assert kind.held() == held
    assert await output(executor, "ready, 'mine' in dir()") == "(True, False)\n"
    assert await output(executor, 'ls kept; echo "$GONE"', language="sh") == "kept\n\n"
    assert "sleep" not in await output(executor, "cat /proc/[0-9]*/cmdline || :", language="sh")
    await executor.stop()


@usually("confined-session", among=LIVING)
async def test_a_flood_from_the_background_is_bounded_and_delays_nothing(kind: Kind) -> None:
    executor = kind.make()
    assert isinstance(executor, InterpreterCodeExecutor)
    await output(executor, "yes flood &", language="sh")
    for number in range(3):
        result = await said(executor, f"number = {number}")
        assert (result.outcome, result.names[0].preview) == (Outcome.COMPLETED, str(number))
        assert len(result.output) < 2_000_000
    await executor.restart()
    assert await output(executor, "print('calm')") == "calm\n"
    await executor.stop()


@pytest.mark.long
@pytest.mark.parametrize(
    "code", ["f() { f | f & }; f", "f() { f | f & }; f; sleep 1"], ids=["left behind", "waited for"]
)
@usually("confined-session", among=LIVING)
async def test_a_fork_bomb_ends_with_a_restart(small: InterpreterCodeExecutor, code: str) -> None:
    await said(small, code, language="sh")
    await said(small, "print('starved?')")
    await small.restart()
    assert await output(small, "print('next')") == "next\n"
    assert await output(small, "echo next", language="sh") == "next\n"


@usually("confined-session", among=LIVING)
async def test_output_that_is_forged_as_frames_is_output(session: InterpreterCodeExecutor) -> None:
    code = "import os, struct\nfor kind in range(256): os.write(1, struct.pack('>BI', kind, 0) * 3)\nos.write(2, b'\\n')"
    assert (await said(session, code)).outcome is Outcome.COMPLETED
    assert await output(session, "print('next')") == "next\n"


@usually("confined-session", among=LIVING)
async def test_garbage_on_the_way_to_the_supervisor_ends_the_interpreter_and_no_more(
    session: InterpreterCodeExecutor,
) -> None:
    code = """
import os, stat
for fd in range(3, 100):
    try:
        if stat.S_ISFIFO(os.fstat(fd).st_mode): os.write(fd, b"garbage" * 100)
    except OSError: pass
import time; time.sleep(1000)
"""
    result = await said(session, code)
    assert (result.outcome, result.state_lost) == (Outcome.LOST, True)
    assert "not a report of this block" in result.output
    assert await output(session, "print('next')") == "next\n"
