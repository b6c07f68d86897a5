"""Several users of one executor: nobody's block ends by another's doing, and whoever loses something hears of it."""

from __future__ import annotations

import asyncio
import gc
import sys
import warnings
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from support.executing import one_interpreter, one_part, run

from codeact_team.core.execution import ExecutionResult, Outcome, SessionResult
from codeact_team.executors.base import SandboxedCodeExecutor
from codeact_team.executors.confined import ConfinedCommandLineCodeExecutor

WAITS = r"""
import os, time
os.write(1, b"up\n")
while not os.path.exists("go"):
    time.sleep(0.01)
os.unlink("go")
print("done")
"""


class User:
    """An agent, as an executor knows it."""


async def run_as(user: object, executor: SandboxedCodeExecutor, code: str) -> SessionResult:
    blocks = [CodeBlock(code=code, language="python")]
    stream = executor.execute_code_blocks_stream(blocks, CancellationToken(), user=user)
    result = [item async for item in stream][-1]
    assert isinstance(result, ExecutionResult)
    return result  # pyright: ignore[reportReturnType]


@asynccontextmanager
async def running(
    user: object, executor: SandboxedCodeExecutor
) -> AsyncGenerator[AsyncGenerator[object, None]]:
    """A block of the user's that runs until there is a file ``go``."""
    blocks = [CodeBlock(code=WAITS, language="python")]
    stream = executor.execute_code_blocks_stream(blocks, CancellationToken(), user=user)
    async with aclosing(stream) as items:
        assert await anext(items) == "up\n"
        yield items


@one_part
async def test_a_release_waits_for_the_block_of_another_and_leaves_the_rest_to_them(
    executor: SandboxedCodeExecutor, work_dir: Path
) -> None:
    # all four ended the block
    one, other = User(), User()
    await run_as(one, executor, "1")
    async with running(other, executor) as items:
        releasing = asyncio.create_task(executor.release(one))
        await asyncio.sleep(0.05)
        assert not releasing.done()
        (work_dir / "go").touch()
        result = [item async for item in items][-1]
    assert isinstance(result, ExecutionResult)
    assert (result.exit_code, result.outcome, result.output) == (0, Outcome.COMPLETED, "up\ndone\n")
    assert not await releasing
    assert await executor.release(other), "nobody is left who counts on anything"


@one_part
async def test_a_cancelled_call_leaves_the_queue_at_once(
    executor: SandboxedCodeExecutor, work_dir: Path
) -> None:
    # it waited for its turn first
    token = CancellationToken()
    async with running(User(), executor) as items:
        waiting = asyncio.create_task(run(executor, "print('ran')", "2", token=token))
        behind = asyncio.create_task(run(executor, "print('behind')"))
        await asyncio.sleep(0)
        token.cancel()
        result = await waiting
        assert result.outcome is Outcome.CANCELLED
        assert "ran" not in result.output
        assert not behind.done()
        (work_dir / "go").touch()
        assert [item async for item in items][-1].output == "up\ndone\n"  # type: ignore[attr-defined]
    assert (await behind).output == "behind\n"


async def test_a_command_line_executor_that_is_cancelled_before_it_has_started_says_so() -> None:
    # it asked for the path of a workspace that it did not have
    executor = ConfinedCommandLineCodeExecutor()
    token = CancellationToken()
    token.cancel()
    result = await run(executor, "print(1)", token=token)
    assert (result.outcome, result.output) == (Outcome.CANCELLED, "Code execution was cancelled.")
    token = CancellationToken()
    starting = asyncio.create_task(run(executor, "print(1)", token=token))
    await asyncio.sleep(0.005)
    token.cancel()
    assert (await starting).outcome is Outcome.CANCELLED
    assert (await run(executor, "print(1)")).output == "1\n"
    await executor.stop()


@one_interpreter
async def test_each_user_hears_once_of_variables_that_another_has_lost(
    executor: SandboxedCodeExecutor,
) -> None:
    # whoever ran the next block heard of it, and nobody else
    guilty, one, other, late = User(), User(), User(), User()
    for user in (guilty, one, other):
        await run_as(user, executor, "kept = 1")
    assert (await run_as(guilty, executor, "import os; os._exit(3)")).state_lost
    for user in (one, other):
        told = await run_as(user, executor, "'kept' in dir()")
        assert told.state_lost
        assert "exit code 3" in told.output
        assert told.output.endswith("False\n")
    for user in (guilty, one, other, late):
        again = await run_as(user, executor, "'kept' in dir()")
        assert (again.output, again.state_lost) == ("False\n", False)


@one_interpreter
async def test_a_restart_is_told_to_those_who_did_not_ask_for_it(executor: SandboxedCodeExecutor) -> None:
    one, other = User(), User()
    await run(executor, "kept = 1")
    for user in (one, other):
        await run_as(user, executor, "kept = 1")
    await executor.restart()
    assert "it was restarted" in (await run_as(one, executor, "1")).output
    assert (await run(executor, "1")).output == "1\n"
    assert await executor.release(other) is False
    assert (await run_as(other, executor, "1")).output == "1\n", "it counted on nothing any more"


@one_interpreter
async def test_who_resets_in_the_middle_of_their_own_block_ends_it(
    executor: SandboxedCodeExecutor,
) -> None:
    # whoever holds the stream may be the one who resets
    user = User()
    async with running(user, executor) as items:
        assert await asyncio.wait_for(executor.release(user), 20)
        result = [item async for item in items][-1]
    assert isinstance(result, SessionResult)
    assert result.state_lost
    assert (await run_as(user, executor, "1")).output == "1\n"


@one_part
@pytest.mark.parametrize("is_held", [True, False], ids=["held", "dropped"])
def test_a_stream_that_is_abandoned_as_the_loop_ends_is_closed_in_silence(
    executor: SandboxedCodeExecutor, caplog: pytest.LogCaptureFixture, is_held: bool
) -> None:
    # async generator ignored GeneratorExit, and: asynchronous generator is already running
    held: list[object] = []

    async def abandon() -> None:
        blocks = [CodeBlock(code=WAITS, language="python")]
        stream = executor.execute_code_blocks_stream(blocks, CancellationToken())
        if is_held:
            held.append(stream)
        async for _ in stream:
            break

    with warnings.catch_warnings(record=True) as caught, unraisable() as ignored:
        asyncio.run(abandon())
        gc.collect()
    assert not caught
    assert not ignored
    assert not [record for record in caplog.records if record.name == "asyncio"]
    # the code has ended, and the executor is there for the next loop
    assert asyncio.run(run(executor, "print('next')")).output == "next\n"


@contextmanager
def unraisable() -> Generator[list[object]]:
    """What Python can only print."""
    ignored: list[object] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "unraisablehook", ignored.append)
        yield ignored
