"""Opens a team for a program, and records its tasks if the program wants that."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

from autogen_agentchat.base import ChatAgent, TaskResult, Team
from autogen_agentchat.messages import BaseChatMessage
from autogen_core import CancellationToken
from typing_extensions import TypeVar

from codeact_team.config.document import ConfigSource
from codeact_team.config.loading import read_config
from codeact_team.config.open import make_ready, make_runnable, span_settings
from codeact_team.config.overrides import ForEvery
from codeact_team.core.aio import streamed, until_cancelled
from codeact_team.core.effects import remembered
from codeact_team.core.providers import Policy
from codeact_team.core.scope import Scope
from codeact_team.core.settings import suggests
from codeact_team.core.wrapper import Wrapper
from codeact_team.errors import ConfigError, JournalError
from codeact_team.journal.blobs import DEFAULT_MIB
from codeact_team.journal.result import RunEnding
from codeact_team.journal.run_directory import RunDirectory
from codeact_team.runs.base import Item, Run
from codeact_team.runs.recording import refuse_elsewhere
from codeact_team.runs.run import TeamRun
from codeact_team.runs.summary import WorkEnd
from codeact_team.telemetry.spans import traced

logger = logging.getLogger(__name__)

TeamT = TypeVar("TeamT", bound=Team | ChatAgent, default=Team | ChatAgent)
_Task = str | BaseChatMessage | Sequence[BaseChatMessage] | None


@suggests
@asynccontextmanager
async def open_team(
    source: ConfigSource,
    *,
    overrides: Sequence[str | ForEvery] = (),
    policy: Policy | None = None,
    record: str | os.PathLike[str] | None = None,
    record_mib: int | None = DEFAULT_MIB,
    sync: bool = False,
    kind: type[TeamT] | None = None,
) -> AsyncGenerator[TeamT]:
    """Load a team, or a single agent, for the length of an ``async with``.

    At the end, everything that it started is stopped, and its model clients are closed.

    The answer to a task is the last message of a run, if the work was accepted:
    ``(await team.run(task=…)).messages[-1].to_text()``.

    Its sandboxes and tools have started by then: what cannot start is raised before a model costs anything.

    If the process has a global tracer provider of OpenTelemetry, the team's work is recorded as spans.

    All tasks that the program gives the team by ``run`` and ``run_stream`` are recorded in ``record``. A run that is there
    already, as the process was killed, is resumed: the program does the same again, and the journal answers what it knows.
    Models, tools and people are not asked twice. Another first task is refused: a new run needs a directory of its own.

    Args:
        source: As of :func:`load_config`, and so are ``overrides`` and ``policy``.
        overrides: Changes to the config.
        policy: What may be loaded.
        record: The directory of this run, made if it is missing, and for this user only. All tasks of the team are one
            run. ``None`` to record nothing.
        record_mib: The most MiB of the run that are recorded; ``None`` for any number. When they are used up, the run
            continues, but cannot be resumed.
        sync: Whether the record survives a power cut.
        kind: The class of the team or the agent, such as :class:`CodeActAgent`, for a program that needs more of it than AutoGen's
            interface. Default: any.

    Raises:
        ConfigError: If anything is wrong with the config, or it is neither a team nor an agent, or not of that kind.
        SandboxError: If the team needs what this machine does not have.
        JournalError: If the run cannot be recorded there, or not be resumed.
    """
    if record is None:
        config = read_config(source, overrides=overrides, policy=policy)
        with traced(*span_settings(config, source)):
            async with Scope() as scope:
                team = _of_kind(make_runnable(config), kind)
                await make_ready(scope)
                await scope.started()
                yield team
        return
    run = TeamRun(
        source,
        overrides=overrides,
        policy=policy,
        record=program_directory(record),
        record_mib=record_mib,
        sync=sync,
        of_program=True,
    )
    async with opened_team(run) as team:
        yield _of_kind(team, kind)


def _of_kind(team: Team | ChatAgent, kind: type[TeamT] | None) -> TeamT:
    if kind is not None and not isinstance(team, kind):
        raise ConfigError(f"it is a {type(team).__name__}, and a {kind.__name__} is expected")
    return cast("TeamT", team)


@asynccontextmanager
async def opened_team(run: TeamRun) -> AsyncGenerator[Team | ChatAgent]:
    """Within it, a team is open and recorded; gives the team that the program works with."""
    async with ended(run), AsyncExitStack() as stack:
        # what the program does outside of the team is no part of the run
        with remembered(run.dispatcher):
            await stack.enter_async_context(run.opened(config := run.read()))
            run.record(config, None)
            if not run.recording.is_resumed:
                # what the journal answers needs no sandbox
                await run.started()
            team = RecordedTeam(run)
        yield cast("Team", team)


@asynccontextmanager
async def ended(run: Run) -> AsyncGenerator[None]:
    """Within it, a program does a run, which has a result at the end, if it is recorded."""
    began, failure = time.monotonic(), None
    try:
        yield
        run.dispatcher.check()
    except BaseException as error:
        failure = error
        raise
    finally:
        if run.recording.place is not None:
            # a parked run raises its question to the program
            if failure is not None and not run.end.is_parked:
                run.end = WorkEnd.by(failure)
            result = run.summary.result(run.end, time.monotonic() - began)
            if not isinstance(failure, Exception | None):
                result.ending = RunEnding.STOPPED
            run.dispatcher.emit(result)
            await run.recording.end()


def program_directory(record: str | os.PathLike[str]) -> RunDirectory:
    """The directory in which a program records its run, be it new or there already. Blocks.

    Raises:
        JournalError: If the run that is there is not a program's, or was made in another directory.
    """
    # wherever the program goes meanwhile
    directory = RunDirectory(Path(record).absolute())
    if directory.is_begun:
        refuse_elsewhere(about := directory.about(), directory)
        if not about.is_of_program:
            raise JournalError(
                f"the run {about.id} was begun by `codeact-team run`, and is resumed by `codeact-team resume`: record this one elsewhere"
            )
    return directory


class RecordedTeam(Wrapper):
    """A team, or an agent, whose tasks are a run."""

    def __init__(self, run: Run) -> None:
        super().__init__(run.team)
        self._team_run = run
        self._token = CancellationToken()
        """Stops the agents at work."""
        if run.bypassing_parts:
            named = ", ".join(run.bypassing_parts)
            logger.warning("this run cannot be resumed, as these bypass its journal: %s", named)

    def _stop(self, token: CancellationToken) -> None:
        # a program may cancel its token after the task
        if token is self._token:
            self._team_run.recording.set_stopping(True)
            token.cancel()

    async def run(self, **settings: Any) -> TaskResult:
        result = None
        async for item in self.run_stream(**settings):
            result = item
        assert isinstance(result, TaskResult)
        return result

    def run_stream(self, *, task: _Task = None, **settings: Any) -> AsyncGenerator[Item, None]:
        return streamed(partial(self._work, task, settings))

    async def _work(
        self, task: _Task, settings: Mapping[str, Any], emit: Callable[[Item], Awaitable[None]]
    ) -> TaskResult:
        run = self._team_run
        await run.recording.check_task(_in_words(task))
        self._raise_if_parked()
        run.recording.set_stopping(False)
        self._token, abandoned = CancellationToken(), CancellationToken()
        stop = partial(self._stop, self._token)
        for token in (settings.get("cancellation_token"), abandoned):
            if token is not None:
                token.add_callback(stop)
        outer, run.work = run.work, asyncio.current_task()
        with remembered(run.dispatcher), run.span(_in_words(task)):
            try:
                items = self.wrapped.run_stream(task=task, **{**settings, "cancellation_token": self._token})
                result = await run.consume(
                    items, abandoned.cancel, lambda item: until_cancelled(emit(item), abandoned)
                )
                # an agent that is stopped may end in order
                self._raise_if_parked()
                await run.recording.finish(run.executors)
            except BaseException as error:
                run.end = WorkEnd.by(run.dispatcher.original_of(error))
                self._raise_if_parked()
                run.raise_failure()
                raise
            finally:
                run.work = outer
        run.end = WorkEnd(result.stop_reason)
        return result

    def _raise_if_parked(self) -> None:
        run = self._team_run
        if (parked := run.parked) is not None and (recorder := run.recording.recorder) is not None:
            run.end = WorkEnd("it waits for an answer", is_broken_off=True, is_parked=True)
            again = recorder.directory.about().starting_again
            raise JournalError(
                f"the run waits for an answer: codeact-team answer {parked.record}; then {again}"
            ) from None


def _in_words(task: _Task) -> str:
    match task:
        case None | str():
            return task or ""
        case BaseChatMessage():
            return task.to_text()
        case _:
            return "\n".join(message.to_text() for message in task)
