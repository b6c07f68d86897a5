"""What is told of a run: each message to its sink, and at the end what the run amounts to."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from signal import Signals

from autogen_agentchat.messages import BaseAgentEvent, BaseChatMessage

from codeact_team.execution import StreamingCodeExecutor
from codeact_team.runs.events import Ending, EventSink, RunResult
from codeact_team.runs.failures import explain
from codeact_team.runs.tally import Tally
from codeact_team.scope import Scope

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class End:
    """How the work of a run came to its end.

    Attributes:
        stop_reason: Why the team stopped, in its own words.
        error: What went wrong, explained.
        signal: What stopped it.
    """

    stop_reason: str | None = None
    error: str | None = None
    signal: Signals | None = None

    @property
    def came_by_itself(self) -> bool:
        """Whether the team ended its work, well or not."""
        return self.error is None and self.signal is None


class Telling:
    """Counts the messages of one run and passes them on; knows whether it was the sink that failed."""

    def __init__(self, sink: EventSink) -> None:
        self._sink = sink
        self._tally = Tally()
        self._began = time.monotonic()
        self._failed = False

    def opened(self, scope: Scope) -> None:
        """Tell that the team is loaded."""
        executors = [part for part in scope.owned if isinstance(part, StreamingCodeExecutor)]
        with self._noting_failure():
            self._sink.opened([loosening for executor in executors for loosening in executor.loosenings])

    def message(self, message: BaseAgentEvent | BaseChatMessage) -> None:
        """Tell a message."""
        self._tally.add(message)
        with self._noting_failure():
            self._sink.message(message)

    async def end_of(self, work: asyncio.Future[str | None], stopped: Sequence[Signals]) -> End:
        """Await the run's work and tell how it ended, where it was not its sink that failed.

        Args:
            work: Returns why the team stopped.
            stopped: The signals that have cancelled it, by the time it ends.
        """
        stop_reason = error = None
        try:
            stop_reason = await work
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not stopped or (task is not None and task.cancelling()):
                raise
        except Exception as failure:
            if self._failed:
                raise
            logger.debug("the run failed", exc_info=failure)
            error = explain(failure)
        return End(stop_reason, error, stopped[0] if stopped else None)

    def ended(self, end: End) -> RunResult:
        """Tell that the run is over."""
        result = RunResult(
            ending=self._ending(end),
            usage=self._tally.usage,
            messages=self._tally.messages,
            seconds=time.monotonic() - self._began,
            stop_reason=end.stop_reason or self._tally.cut_short,
            error=end.error,
            signal=end.signal,
            tools=self._tally.tools,
        )
        self._sink.ended(result)
        return result

    def _ending(self, end: End) -> Ending:
        if end.signal is not None:
            return Ending.STOPPED
        if end.error is not None:
            return Ending.FAILED
        return Ending.ACCEPTED if self._tally.accepted else Ending.NOT_ACCEPTED

    @contextmanager
    def _noting_failure(self) -> Generator[None]:
        try:
            yield
        except BaseException:
            self._failed = True
            raise
