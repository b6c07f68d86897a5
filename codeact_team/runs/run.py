"""One run of a team, from its config to the last thing stopped."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from codeact_team.config.open import load_into
from codeact_team.providers import Policy
from codeact_team.runs.events import EventSink, RunResult
from codeact_team.runs.streaming import stream
from codeact_team.runs.tasks import given_task
from codeact_team.runs.telling import Telling
from codeact_team.scope import Scope


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
    telling = Telling(sink)
    work = asyncio.ensure_future(_open_and_stream(source, task, telling, overrides, policy))
    with _stopped_by(stop_on, work) as stopped:
        end = await telling.end_of(work, stopped)
    return telling.ended(end)


async def _open_and_stream(
    source: str | os.PathLike[str],
    task: str | None,
    telling: Telling,
    overrides: Sequence[str],
    policy: Policy | None,
) -> str | None:
    wanted = given_task(source, task)
    async with Scope() as scope:
        runner = load_into(scope, source, overrides=overrides, policy=policy)
        telling.opened(scope)
        return await stream(runner, wanted, telling)


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
