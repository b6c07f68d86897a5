"""One run of a team, from its config to the last thing stopped."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from autogen_agentchat.base import ChatAgent, TaskResult, Team
from autogen_core import CancellationToken

from codeact_team.aio import to_the_end
from codeact_team.config.open import load_into
from codeact_team.execution import StreamingCodeExecutor
from codeact_team.providers import Policy
from codeact_team.runs.events import Ending, EventSink, RunResult
from codeact_team.runs.failures import explain
from codeact_team.runs.tally import Tally
from codeact_team.runs.tasks import given_task
from codeact_team.scope import Scope

logger = logging.getLogger(__name__)

STOP_GRACE = 5.0
"""Seconds that agents get to end their work when a run is stopped, before they are abandoned."""


async def run_team(
    source: str | os.PathLike[str],
    task: str | None,
    sink: EventSink,
    *,
    overrides: Sequence[str] = (),
    policy: Policy | None = None,
    stop_on: Sequence[signal.Signals] = (),
) -> RunResult:
    """Load a team, or a single agent, and run it on a task.

    Whatever goes wrong with the config, the model or the sandbox is told by the result. What the run has started is
    stopped before it returns, and also if it is cancelled.

    Args:
        source: Path of a YAML or JSON file, or the name of a shipped config, such as ``quickstart``.
        task: What to do; ``None`` for the task that the config brings along.
        sink: Is told what happens. If it raises, the run is stopped, and its error is raised from here.
        overrides: Changes to single values, such as ``config.max_turns=3``.
        policy: What may be loaded; by default AutoGen's and our components, and what the environment adds.
        stop_on: Signals that end the run; only in the main thread of a program. Once one has come, they are ignored
            for good, so that nothing cuts short what the program does at its end.
    """
    tally, began = Tally(), time.monotonic()
    telling = _Telling(sink, tally)
    work = asyncio.ensure_future(_open_and_stream(source, task, telling, overrides, policy))
    stop_reason = error = None
    with _stopped_by(stop_on, work) as stopped:
        try:
            stop_reason = await work
        except asyncio.CancelledError:
            if not stopped:
                raise
        except Exception as failure:
            if telling.failed:
                raise
            logger.debug("the run failed", exc_info=failure)
            error = explain(failure)
    result = RunResult(
        ending=_ending(tally, error, stopped),
        usage=tally.usage,
        messages=tally.messages,
        seconds=time.monotonic() - began,
        stop_reason=stop_reason,
        error=error,
        signal=stopped[0] if stopped else None,
    )
    sink.ended(result)
    return result


def _ending(tally: Tally, error: str | None, stopped: Sequence[signal.Signals]) -> Ending:
    if stopped:
        return Ending.STOPPED
    if error is not None:
        return Ending.FAILED
    return Ending.ACCEPTED if tally.accepted else Ending.NOT_ACCEPTED


class _Telling:
    """Counts messages and passes them on; knows whether it was the sink that failed."""

    def __init__(self, sink: EventSink, tally: Tally) -> None:
        self._sink = sink
        self._tally = tally
        self.failed = False

    def opened(self, scope: Scope) -> None:
        executors = [part for part in scope.owned if isinstance(part, StreamingCodeExecutor)]
        with self._noting_failure():
            self._sink.opened([loosening for executor in executors for loosening in executor.loosenings])

    def message(self, message: Any) -> None:
        self._tally.add(message)
        with self._noting_failure():
            self._sink.message(message)

    @contextmanager
    def _noting_failure(self) -> Generator[None]:
        try:
            yield
        except BaseException:
            self.failed = True
            raise


async def _open_and_stream(
    source: str | os.PathLike[str],
    task: str | None,
    telling: _Telling,
    overrides: Sequence[str],
    policy: Policy | None,
) -> str | None:
    wanted = given_task(source, task)
    async with Scope() as scope:
        runner = load_into(scope, source, overrides=overrides, policy=policy)
        telling.opened(scope)
        return await _stream(runner, wanted, telling)


async def _stream(runner: Team | ChatAgent, task: str, telling: _Telling) -> str | None:
    """Run the task; return why the team stopped."""
    token = CancellationToken()
    work = asyncio.ensure_future(_consume(runner, task, telling, token))
    try:
        return await asyncio.shield(work)
    except BaseException:
        await to_the_end(_end(work, token))
        raise


async def _consume(
    runner: Team | ChatAgent, task: str, telling: _Telling, token: CancellationToken
) -> str | None:
    stream, stop_reason = runner.run_stream(task=task, cancellation_token=token), None
    try:
        async for item in stream:
            if isinstance(item, TaskResult):
                stop_reason = item.stop_reason
            else:
                telling.message(item)
    except BaseException:
        # first the token: a stream that is closed waits for its agents
        token.cancel()
        with suppress(asyncio.CancelledError):
            await stream.aclose()
        raise
    return stop_reason


async def _end(work: asyncio.Future[Any], token: CancellationToken) -> None:
    # a cancelled stream waits for its agents, and only the token reaches these
    token.cancel()
    await asyncio.wait({work}, timeout=STOP_GRACE)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


@contextmanager
def _stopped_by(
    signals: Sequence[signal.Signals], work: asyncio.Future[Any]
) -> Generator[list[signal.Signals]]:
    """Cancel ``work`` at the first of ``signals``, which is then in the list."""
    received: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        if not received:
            work.cancel()
        received.append(number)

    loop = asyncio.get_running_loop()
    for number in signals:
        loop.add_signal_handler(number, stop, number)
    try:
        yield received
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
            if received:
                signal.signal(number, signal.SIG_IGN)
