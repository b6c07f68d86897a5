"""The base of every run: its dispatcher, recording and result, and the ways in which its work ends early."""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from signal import Signals
from typing import Any

from autogen_agentchat.base import ChatAgent, TaskResult, Team
from autogen_agentchat.messages import BaseAgentEvent, BaseChatMessage

from codeact_team.config.loading import CheckedConfig
from codeact_team.config.open import what_is_open
from codeact_team.core.aio import aclosing, is_being_cancelled, to_the_end
from codeact_team.core.autogen_internals import recover
from codeact_team.core.effects import Dispatcher, Event, ListenerFailed, current_dispatcher, error_text
from codeact_team.core.events import RunBegan, RunEnded, RunParked, emit_message
from codeact_team.core.executor_interface import StreamingCodeExecutor
from codeact_team.errors import JournalError
from codeact_team.journal.result import RunResult
from codeact_team.runs.recording import Recording, RunConfig
from codeact_team.runs.summary import Summary, WorkEnd
from codeact_team.tools.autogen_parts import bypassing_parts

logger = logging.getLogger(__name__)

Item = BaseAgentEvent | BaseChatMessage | TaskResult

STOP_GRACE = 5.0
"""Seconds that agents get to end their work when a run is stopped, before they are abandoned."""


class Run(ABC):
    """A run of a team, of a single agent, or of a program's sandbox.

    Args:
        recording: Records it.
        of_program: Whether a program says what to do: the result counts all tasks, and the program's dispatcher receives the
            events as well.

    Attributes:
        dispatcher: Takes listeners, which receive at last a :class:`RunResult` for each task, and interceptors.
        team: The open team.
        bypassing_parts: Parts of it that bypass the dispatcher.
        options: The options of the command that ``resume`` needs again.
        work: What is under way.
        parked: The questions for which it waits.
        end: How the last task that a program has given ended.
    """

    team: Team | ChatAgent | None = None
    bypassing_parts: Sequence[str] = ()
    options: Sequence[str] = ()

    def __init__(self, recording: Recording, *, of_program: bool = False) -> None:
        recording.fail, recording.stop = self._fail, partial(self.stop, Signals.SIGINT)
        self.recording = recording
        self.summary: Summary = Summary(in_all=of_program)
        self._outer = current_dispatcher() if of_program else None
        self.dispatcher: Dispatcher = Dispatcher(recording.intercept, outer=self._outer)
        for listener in (recording, self.summary, self._stop_without_listener):
            self.dispatcher.listen(listener, essential=True)
        self.work: asyncio.Future[Any] | None = None
        self._stopped_by: Signals | None = None
        self._broken_off_by: str | None = None
        self.parked: RunParked | None = None
        self._journal_failure: JournalError | None = None
        self.end: WorkEnd = WorkEnd()

    @property
    @abstractmethod
    def executors(self) -> Sequence[StreamingCodeExecutor]:
        """The executors in which its code runs, once it is open."""

    def begin(self, team: Team | ChatAgent | None) -> None:
        """Begin with an open team, or without one: emits what is open.

        Raises:
            JournalError: If parts bypass the journal that is to answer them.
        """
        self.team = team
        if team is not None:
            self.bypassing_parts = bypassing_parts(team)
            self.recording.refuse_what_passes(self.bypassing_parts)
            self.summary.begin(team)
        self._opened = what_is_open(self.executors)
        self.dispatcher.emit(self._opened)
        self.dispatcher.check()

    def record(self, config: CheckedConfig | RunConfig, task: str | None, *, is_chat: bool = False) -> None:
        """Record from now on; as of :meth:`Recording.begin`."""
        described = config if isinstance(config, RunConfig) else RunConfig.of(config)
        self.recording.begin(
            described, task, self.executors, self._opened, self.park, self.dispatcher.numbers, is_chat=is_chat
        )

    def stop(self, number: Signals) -> bool:
        """Stop the run, or the reset, that is under way, and nothing else. Returns whether there is one."""
        if self.work is None:
            return False
        if self._stopped_by is None:
            self._stopped_by = number
            self.work.cancel()
        return True

    def break_off(self, reason: str) -> None:
        """End the run that is under way, whose work is not done. Interceptors may call this, in any thread.

        Args:
            reason: The :attr:`RunResult.stop_reason`.
        """
        if self.work is not None and self._broken_off_by is None:
            self._broken_off_by = reason
            self._cancel()

    def park(self, event: RunParked) -> None:
        """End the run that is under way: it waits for an answer."""
        self.parked = event
        self.dispatcher.emit(event)
        self.break_off(f"it waits for an answer: codeact-team answer {event.record}")

    def leave(self) -> None:
        """End the run, as the person leaves whom it asks something: the question stays open if the run is recorded."""
        if not self.recording.leave():
            self.stop(Signals.SIGINT)

    def raise_failure(self) -> None:
        """Raise the error by which a listener, or the journal, has ended the work under way, if one has."""
        self.dispatcher.check()
        if self._journal_failure is not None:
            raise self._journal_failure

    def _cancel(self) -> None:
        # an exception could be caught by whatever is on its way
        if self.work is not None:
            self.work.get_loop().call_soon_threadsafe(self.work.cancel)

    @contextmanager
    def span(self, task: str) -> Generator[None]:
        """Within it, what runs works on a task: emits its begin and its end."""
        failure: BaseException | None = None
        with self.dispatcher.span(
            lambda span: self.began(span, task), lambda span: RunEnded(span=span, error=error_text(failure))
        ):
            try:
                yield
            except BaseException as error:
                failure = self.dispatcher.original_of(error)
                raise

    def began(self, span: int, task: str) -> RunBegan:
        """The event of the begin of the work on a task."""
        return RunBegan(
            span=span,
            task=task,
            bypassing_parts=self.bypassing_parts,
            record=self.recording.place,
            options=self.options,
        )

    async def consume(
        self,
        items: AsyncGenerator[Item, None],
        stop: Callable[[], object],
        pass_on: Callable[[Item], Awaitable[object]] | None = None,
    ) -> TaskResult:
        """Emit the messages of a team at work, and return its result.

        A stream of AutoGen's that is cancelled waits for its agents, and only its token reaches these. So a caller that is
        cancelled gives them some time to end their work.

        Args:
            items: The stream of the team.
            stop: Cancels the token of the stream.
            pass_on: Receives each message, too.
        """

        async def work() -> TaskResult:
            result: TaskResult | None = None
            async with aclosing(items) as own:
                try:
                    async for item in own:
                        if isinstance(item, TaskResult):
                            result = item
                            continue
                        emit_message(item, self.dispatcher)
                        self.summary.add(item)
                        if pass_on is not None:
                            await pass_on(item)
                except BaseException:
                    # first this: a stream that is closed waits for its agents
                    stop()
                    with suppress(asyncio.CancelledError):
                        await items.aclose()
                    raise
            assert result is not None, "a run ends with its result"
            return result

        working = asyncio.ensure_future(work())
        try:
            return await asyncio.shield(working)
        except BaseException:
            stop()
            await to_the_end(_end(working))
            raise

    def _fail(self, error: JournalError) -> None:
        self._journal_failure = self._journal_failure or error
        self._cancel()

    def _stop_without_listener(self, event: Event) -> None:
        if isinstance(event, ListenerFailed) and event.essential:
            self._cancel()

    async def result_of(self, work: Coroutine[Any, Any, str | None]) -> RunResult:
        """Await some work, and sum up what it has come to. Raises as :meth:`end_of`."""
        began = time.monotonic()
        end = await self.end_of(work)
        return self.summary.result(end, time.monotonic() - began)

    async def end_of(self, work: Coroutine[Any, Any, str | None]) -> WorkEnd:
        """Await some work, which :meth:`stop` can stop. Raises only what an essential listener has raised."""
        self.work, self._stopped_by, self._broken_off_by = asyncio.ensure_future(work), None, None
        self._journal_failure = None
        end = WorkEnd()
        try:
            end = WorkEnd(await self.work)
        except asyncio.CancelledError:
            self.dispatcher.check()
            if is_being_cancelled() or not (self._stopped_by or self._broken_off_by or self._journal_failure):
                raise
            if self._stopped_by is None:
                end = WorkEnd(self._broken_off_by, is_broken_off=True)
        except Exception as failure:
            self.dispatcher.check()
            failure = self.dispatcher.original_of(failure)
            logger.debug("the run failed", exc_info=failure)
            end = WorkEnd.by(failure)
        finally:
            self.work = None
        if self._journal_failure is not None:
            end = WorkEnd.by(self._journal_failure)
        is_parked = self.parked is not None and end.is_broken_off
        end = replace(end, signal=self._stopped_by, is_parked=is_parked)
        if self.team is not None and not end.came_by_itself:
            await recover(self.team)
        return end


async def _end(work: asyncio.Future[Any]) -> None:
    await asyncio.wait({work}, timeout=STOP_GRACE)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
