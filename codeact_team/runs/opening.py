"""Opens a team for a program, and keeps what happens, if it wants that."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

from autogen_agentchat.base import ChatAgent, TaskResult, Team
from autogen_agentchat.messages import BaseAgentEvent, BaseChatMessage
from autogen_core import CancellationToken

from codeact_team.config.document import ConfigSource
from codeact_team.config.loading import CheckedConfig, read_config
from codeact_team.config.open import executors_of, make_ready, make_runnable, span_settings, what_is_open
from codeact_team.config.open import open_team as open_unrecorded
from codeact_team.config.overrides import ForEvery
from codeact_team.core.aio import aclosing, streamed, until_cancelled
from codeact_team.core.effects import Dispatcher, current_dispatcher, error_text, remembered
from codeact_team.core.events import RunBegan, RunEnded, RunParked, emit_message
from codeact_team.core.executor_interface import StreamingCodeExecutor
from codeact_team.core.providers import Policy
from codeact_team.core.scope import Scope
from codeact_team.core.wrapper import Wrapper
from codeact_team.errors import JournalError
from codeact_team.runs.journal.blobs import DEFAULT_MIB
from codeact_team.runs.journal.run_directory import About, RunDirectory
from codeact_team.runs.recording import Recording, refuse_elsewhere
from codeact_team.runs.result import RunEnding
from codeact_team.runs.summary import Summary, WorkEnd
from codeact_team.runs.team_runner import stopped_in_order
from codeact_team.telemetry import spans as telemetry
from codeact_team.tools.autogen_parts import bypassing_parts

logger = logging.getLogger(__name__)

Task = str | BaseChatMessage | Sequence[BaseChatMessage] | None
Message = BaseAgentEvent | BaseChatMessage
Item = Message | TaskResult


@asynccontextmanager
async def open_team(
    source: ConfigSource,
    *,
    overrides: Sequence[str | ForEvery] = (),
    policy: Policy | None = None,
    record: str | os.PathLike[str] | None = None,
    record_mib: int | None = DEFAULT_MIB,
    sync: bool = False,
) -> AsyncGenerator[Team | ChatAgent]:
    """Load a team, or a single agent, and stop at the end whatever it started; its model clients are closed.

    The answer to a task is the last message of a run, where the work was accepted:
    ``(await team.run(task=…)).messages[-1].to_text()``.

    What its sandboxes need is there, such as packages; the sandboxes themselves start in the background.

    Where the process has a global tracer provider of OpenTelemetry, what the team does becomes spans.

    What happens in ``run`` and ``run_stream`` is kept in ``record``. Where a run is there already, as the process was
    killed, it goes on: the program does the same again, and what the journal knows is answered from there. Models, tools
    and people are not asked twice.

    Args:
        source: As of :func:`load_config`, and so are ``overrides`` and ``policy``.
        overrides: Changes to the config.
        policy: What may be loaded.
        record: The directory of this run, made if it is missing, and for this user only. All tasks of the team are one
            run. ``None`` to keep nothing.
        record_mib: How many MiB of the run are kept at most; ``None`` for any number. It goes on when they are used up, but
            cannot be resumed then.
        sync: Whether all that is kept survives a power cut, too.

    Raises:
        ConfigError: If anything is wrong with the config, or it is neither a team nor an agent.
        SandboxError: If the team needs what this machine does not have.
        JournalError: If the run cannot be kept there, or not go on.
    """
    if record is None:
        async with open_unrecorded(source, overrides=overrides, policy=policy) as team:
            yield team
        return
    read = partial(read_config, source, overrides=overrides, policy=policy)
    recording = Recording(directory := _directory(record), mib=record_mib, sync=sync)
    async with _recorded(read, source, directory, recording) as team:
        yield team


@asynccontextmanager
async def _recorded(
    read: Callable[[], CheckedConfig], source: ConfigSource, directory: RunDirectory, recording: Recording
) -> AsyncGenerator[Team | ChatAgent]:
    if directory.is_begun:
        _refuse_other(directory.about())
    dispatcher, summary = (
        Dispatcher(recording.intercept, outer=(outer := current_dispatcher())),
        Summary(in_all=True),
    )
    for listener in (recording, *summary.listeners):
        dispatcher.listen(listener, essential=True)
    began, end, failure = time.monotonic(), WorkEnd, None
    try:
        async with Scope() as scope:
            # what the program does beside the team is no part of the run
            with remembered(dispatcher):
                config = read()
                telemetry.trace(outer or dispatcher, *span_settings(config, source))
                team = make_runnable(config)
                summary.begin(team)
                await make_ready(scope)
                executors = executors_of(scope)
                recorded = _RecordedTeam(team, dispatcher, recording, executors, summary.take)
                end = recorded.end
                recorded.require_dispatcher()
                recording.begin(
                    config, None, executors, what_is_open(executors), recorded.park, dispatcher.numbers
                )
            yield cast("Team", recorded)
        dispatcher.check()
    except BaseException as error:
        failure = error
        raise
    finally:
        if recording.place is not None:
            # what comes of a run that is parked is raised to the program
            if not (last := end()).is_parked and failure is not None:
                last = WorkEnd.by(failure)
            result = summary.result(last, time.monotonic() - began)
            if not isinstance(failure, Exception | None):
                result.ending = RunEnding.STOPPED
            dispatcher.emit(result)
            await recording.end()


def _directory(record: str | os.PathLike[str]) -> RunDirectory:
    # wherever the program goes meanwhile
    return RunDirectory(Path(record).absolute())


def _refuse_other(about: About) -> None:
    refuse_elsewhere(about)
    if about.task is not None:
        raise JournalError(
            f"the run {about.id} was begun by `codeact-team run`, and goes on by `codeact-team resume`: keep this one elsewhere"
        )


class _RecordedTeam(Wrapper):
    """A team, or an agent, whose runs go through a dispatcher, which emits their events.

    Args:
        wrapped: The team.
        dispatcher: The dispatcher.
        recording: What records it.
        executors: Where its code runs.
        take: Called with each message that comes out of it.
    """

    def __init__(
        self,
        wrapped: Team | ChatAgent,
        dispatcher: Dispatcher,
        recording: Recording,
        executors: Sequence[StreamingCodeExecutor],
        take: Callable[[Message], object],
    ) -> None:
        super().__init__(wrapped)
        self._take = take
        self._dispatcher = dispatcher
        self._recording = recording
        self._executors = executors
        self._bypassing_parts = bypassing_parts(wrapped)
        self._end = WorkEnd()
        self._token = CancellationToken()
        """Stops the agents at work."""
        self._parked: RunParked | None = None

    def require_dispatcher(self) -> None:
        """Refuse to go on with a run if the team acts past its journal; say so if it begins.

        Raises:
            JournalError: If it is refused.
        """
        self._recording.refuse_what_passes(self._bypassing_parts)
        if self._bypassing_parts:
            named = ", ".join(self._bypassing_parts)
            logger.warning("this run cannot be resumed, as these act past what is recorded: %s", named)

    def end(self) -> WorkEnd:
        """How the last task ended."""
        return self._end

    def park(self, event: RunParked) -> None:
        """End the task that is under way: it waits for an answer."""
        self._parked = event
        self._dispatcher.emit(event)
        self._stop(self._token)

    def _stop(self, token: CancellationToken) -> None:
        """Stop the agents that this token cancels, if they are still at work: the program does not want their work now."""
        if token is self._token:
            self._recording.set_stopping(True)
            token.cancel()

    async def run(self, **settings: Any) -> TaskResult:
        result = None
        async for item in self.run_stream(**settings):
            result = item
        assert isinstance(result, TaskResult)
        return result

    def run_stream(self, *, task: Task = None, **settings: Any) -> AsyncGenerator[Item, None]:
        return streamed(partial(self._run, task, settings))

    async def _run(
        self, task: Task, settings: Mapping[str, Any], emit: Callable[[Item], Awaitable[None]]
    ) -> TaskResult:
        dispatcher, failure = self._dispatcher, None
        self._raise_if_parked()
        self._recording.set_stopping(False)
        self._token, abandoned = CancellationToken(), CancellationToken()
        stop = partial(self._stop, self._token)
        if (wanted := settings.get("cancellation_token")) is not None:
            wanted.add_callback(stop)
        abandoned.add_callback(stop)
        with (
            remembered(dispatcher),
            dispatcher.span(
                lambda span: RunBegan(
                    span=span,
                    task=_in_words(task),
                    bypassing_parts=self._bypassing_parts,
                    record=self._recording.place,
                ),
                lambda span: RunEnded(span=span, error=error_text(failure)),
            ),
        ):
            try:
                items = self.wrapped.run_stream(task=task, **{**settings, "cancellation_token": self._token})
                result = await stopped_in_order(self._pass_on(items, emit, abandoned), abandoned.cancel)
                # an agent that is stopped may end in order
                self._raise_if_parked()
                await self._recording.finish(self._executors)
            except BaseException as error:
                failure = dispatcher.original_of(error)
                self._end = WorkEnd.by(failure)
                self._raise_if_parked()
                raise
        self._end = WorkEnd(result.stop_reason)
        return result

    def _raise_if_parked(self) -> None:
        if self._parked is not None:
            self._end = WorkEnd("it waits for an answer", is_broken_off=True, is_parked=True)
            raise JournalError(
                f"the run waits for an answer: codeact-team answer {self._parked.record}; then run the program again"
            ) from None

    async def _pass_on(
        self,
        items: AsyncGenerator[Item, None],
        emit: Callable[[Item], Awaitable[None]],
        abandoned: CancellationToken,
    ) -> TaskResult:
        result: TaskResult | None = None
        async with aclosing(items) as own:
            async for item in own:
                if isinstance(item, TaskResult):
                    result = item
                else:
                    emit_message(item, self._dispatcher)
                    self._take(item)
                    await until_cancelled(emit(item), abandoned)
        assert result is not None, "a run ends with its result"
        return result


def _in_words(task: Task) -> str:
    match task:
        case None | str():
            return task or ""
        case BaseChatMessage():
            return task.to_text()
        case _:
            return "\n".join(message.to_text() for message in task)
