"""One run of a team, for the commands, for a batch, and for a program."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from signal import Signals
from typing import Any

from autogen_agentchat.base import ChatAgent, TaskResult, Team
from autogen_agentchat.messages import BaseAgentEvent, BaseChatMessage, TextMessage
from autogen_core import CancellationToken
from autogen_core.models import ChatCompletionClient

from codeact_team.agents.base import RememberingAgent
from codeact_team.agents.ledger import within_budgets
from codeact_team.agents.messages import describe_sandbox
from codeact_team.config.components import providers_in
from codeact_team.config.document import ConfigSource, Document
from codeact_team.config.loading import CheckedConfig, read_config
from codeact_team.config.open import executors_of, make_ready, make_runnable, span_settings, what_is_open
from codeact_team.config.overrides import ForEvery
from codeact_team.core.aio import aclosing, is_being_cancelled, to_the_end
from codeact_team.core.autogen_internals import components_in, recover, time_limit
from codeact_team.core.effects import (
    Dispatcher,
    Event,
    ListenerFailed,
    current_dispatcher,
    error_text,
)
from codeact_team.core.events import RunBegan, RunEnded, RunParked, emit_message
from codeact_team.core.executor_interface import StreamingCodeExecutor
from codeact_team.core.providers import Policy
from codeact_team.core.sandbox_description import noted_task
from codeact_team.core.scope import Scope
from codeact_team.errors import BudgetError, JournalError, SettingError
from codeact_team.executors.workspace.directory import own_workspaces
from codeact_team.runs.journal.blobs import DEFAULT_MIB
from codeact_team.runs.journal.run_directory import RunDirectory
from codeact_team.runs.recording import Recording
from codeact_team.runs.result import RunResult
from codeact_team.runs.run_files import RunFiles
from codeact_team.runs.summary import Summary, WorkEnd
from codeact_team.runs.work_dirs import claimed
from codeact_team.telemetry import spans as telemetry
from codeact_team.tools.autogen_parts import bypassing_parts

logger = logging.getLogger(__name__)

Item = BaseAgentEvent | BaseChatMessage | TaskResult

STOP_GRACE = 5.0
"""Seconds that agents get to end their work when a run is stopped, before they are abandoned."""

TIME_LIMIT = "the time limit of"
"""The beginning of the stop reason of a run that got no more time: it can be resumed with the same config."""


def given_task(config: Document, task: str | None) -> str:
    """The task to run a config with: the user's, or else its description, if its models replay a conversation.

    Any other description is for people only: AutoGen fills it with a class's docstring.

    Raises:
        SettingError: If there is no task.
    """
    providers = providers_in(config.data)
    if task is None and any(provider.endswith(".ReplayChatCompletionClient") for provider in providers):
        task = str(config.data.get("description") or "")
    if task is None or not task.strip():
        raise SettingError(
            "there is no task: give it as the second argument, by --file FILE, or as `-` to read it from standard input"
        )
    return task.strip()


class TeamRun:
    """Loads a team, or a single agent, and runs it: owns the dispatcher, the recording, and the result.

    :meth:`run_once` opens the team for one task. :class:`TeamChat` keeps it open for one after the other.
    :func:`codeact_team.open_team` gives a program the team, whose tasks are one run.

    Args:
        source: As of :func:`codeact_team.open_team`, and so are ``overrides`` and ``policy``; or a config that is read already.
        out: A directory that gets copies of the files that each run has made or changed; made if it is missing.
        record: The directory in which :meth:`run_once` records the run, in one of its own; or the run to resume; or a
            recording; ``None`` to record nothing.
        record_mib: The most MiB of a run that are recorded; ``None`` for any number.
        sync: Whether the record survives a power cut.
        keeps_workspace: Whether a workspace stays that no ``work_dir`` names, as long as the record of the run does; one that
            is named is refused while another such run works in it.
        of_program: Whether a program gives the team its tasks: the result counts all of them, and the program's dispatcher
            receives the events as well.

    Attributes:
        dispatcher: Takes listeners, which receive at last a :class:`RunResult` for each run, and interceptors.
        team: The open team.
        document: Its config.
        files: Finds the files of the run, and copies them.
    """

    team: Team | ChatAgent | None = None
    document: Document | None = None

    def __init__(
        self,
        source: ConfigSource | CheckedConfig,
        *,
        overrides: Sequence[str | ForEvery] = (),
        policy: Policy | None = None,
        out: str | os.PathLike[str] | None = None,
        record: Path | RunDirectory | Recording | None = None,
        record_mib: int | None = DEFAULT_MIB,
        sync: bool = False,
        keeps_workspace: bool = False,
        of_program: bool = False,
    ) -> None:
        self._source = source
        self._overrides = overrides
        self._policy = policy
        if not isinstance(record, Recording):
            record = Recording(record, mib=record_mib, sync=sync)
        record.fail, record.stop = self._fail, partial(self.stop, Signals.SIGINT)
        if out is not None:
            record.files_directory = os.path.abspath(os.path.expanduser(out))
        self.recording = record
        self.files = RunFiles(out, record)
        self._keeps_workspace = keeps_workspace
        self._workspace = record.workspace if keeps_workspace else None
        self.summary = Summary(in_all=of_program)
        self._outer = current_dispatcher() if of_program else None
        self.dispatcher = Dispatcher(record.intercept, outer=self._outer)
        for listener in (record, self.summary, self._stop_without_listener):
            self.dispatcher.listen(listener, essential=True)
        self._needs_note = False
        self._note = ""
        """What the agents know of the sandboxes."""
        self.work: asyncio.Future[Any] | None = None
        """What is under way."""
        self._stopped_by: Signals | None = None
        self._broken_off_by: str | None = None
        self.parked: RunParked | None = None
        self._journal_failure: JournalError | None = None

    @property
    def executors(self) -> list[StreamingCodeExecutor]:
        """The executors of the open team."""
        return executors_of(self._scope)

    async def run_once(
        self,
        task: str | None,
        *,
        seconds: float | None = None,
        deliver: Callable[[RunResult], object] = lambda _: None,
    ) -> RunResult:
        """Open the team, run it on one task, and stop what it has started. The result says what went wrong.

        Args:
            task: What to do; ``None`` for the task that the config brings along.
            seconds: Wall-clock time that the team may work.
            deliver: Brings the result to where it is wanted. A run that has ended without that, as the process was killed,
                is resumed to be delivered.

        Raises:
            Exception: What ``deliver`` raises.
        """
        with self.dispatcher:
            try:
                result = await self.result_of(self._open_and_run(task, seconds))
                deliver(result)
                recorder, is_done = self.recording.recorder, not result.files_due
                if recorder is not None and result.ending.is_success and is_done:
                    recorder.write(delivered=True)
                return result
            finally:
                await self.recording.end()

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

    def raise_failure(self) -> None:
        """Raise the error by which a listener, or the journal, has ended the work under way, if one has."""
        self.dispatcher.check()
        if self._journal_failure is not None:
            raise self._journal_failure

    def _cancel(self) -> None:
        # an exception could be caught by whatever is on its way
        if self.work is not None:
            self.work.get_loop().call_soon_threadsafe(self.work.cancel)

    def read(self) -> CheckedConfig:
        """Read the config. Raises as :func:`codeact_team.load_config`."""
        if isinstance(self._source, CheckedConfig):
            return self._source
        return read_config(self._source, overrides=self._overrides, policy=self._policy)

    @asynccontextmanager
    async def opened(self, config: CheckedConfig) -> AsyncGenerator[None]:
        """Within it, the team is open."""
        async with AsyncExitStack() as stack:
            if self._keeps_workspace:
                name = None if self._workspace is None else self._workspace.name
                stack.enter_context(claimed(config.document, name))
            self._scope = await stack.enter_async_context(Scope())
            telemetry.trace(self._outer or self.dispatcher, *span_settings(config, self._source))
            self.document = config.document
            with own_workspaces(self._workspace):
                self.team = make_runnable(config)
            self.bypassing_parts = bypassing_parts(self.team)
            self.recording.refuse_what_passes(self.bypassing_parts)
            self.summary.begin(self.team)
            self._needs_note = any(map(_needs_note, components_in(self.team)))
            self._opened = what_is_open(self.executors)
            self.dispatcher.emit(self._opened)
            self.dispatcher.check()
            await make_ready(self._scope, with_tools=self.recording.calls_tools)
            yield

    @asynccontextmanager
    async def opened_for_tasks(self, config: CheckedConfig) -> AsyncGenerator[None]:
        self.dispatcher.add_innermost(self.files.keep)
        self.dispatcher.listen(self.files.count)
        with self.files.opened():
            async with self.opened(config):
                yield

    def record(self, config: CheckedConfig, task: str | None, *, is_chat: bool = False) -> None:
        """Record the open team from now on; as of :meth:`Recording.begin`."""
        self.recording.begin(
            config, task, self.executors, self._opened, self.park, self.dispatcher.numbers, is_chat=is_chat
        )

    async def _open_and_run(self, task: str | None, seconds: float | None) -> str | None:
        config = self.read()
        wanted = given_task(config.document, task)
        if not self._overrides and (waits := self.recording.still_waits()) is not None:
            self.park(waits)
            await asyncio.get_running_loop().create_future()
        async with self.opened_for_tasks(config):
            self.record(config, wanted)
            return await self.work_on(wanted, seconds)

    async def work_on(
        self, task: str, seconds: float | None = None, *, stays_open: bool = False
    ) -> str | None:
        team = self.team
        assert team is not None, "the team is not open"
        with self.span(task):
            async with self.files.found_after(lambda: self.executors, stays=stays_open):
                async with within_budgets(team):
                    reason = await self._stop_reason(team, await self._noted(task), seconds)
                self.files.lack(await self.recording.finish(self.executors))
            self.files.remove_others(self.recording.copies)
            return reason

    @contextmanager
    def span(self, task: str) -> Generator[None]:
        """Within it, the team works on a task: emits its begin and its end."""
        failure: BaseException | None = None
        with self.dispatcher.span(
            lambda span: RunBegan(
                span=span,
                task=task,
                bypassing_parts=self.bypassing_parts,
                record=self.recording.place,
                options=() if self._policy is None else self._policy.options,
            ),
            lambda span: RunEnded(span=span, error=error_text(failure)),
        ):
            try:
                yield
            except BaseException as error:
                failure = self.dispatcher.original_of(error)
                raise

    async def _stop_reason(
        self, team: Team | ChatAgent, task: str | TextMessage, seconds: float | None
    ) -> str | None:
        """Let the team work; returns why it stopped, in its words.

        Raises:
            BudgetError: If it took longer than ``seconds``, or than a time limit of its own.
        """
        reached = TIME_LIMIT
        if (own := time_limit(team)) is not None and (seconds is None or own <= seconds):
            seconds, reached = own, "the team's time limit of"
        token = CancellationToken()

        def stop() -> None:
            self.recording.set_stopping(True)
            token.cancel()

        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                items = team.run_stream(task=task, cancellation_token=token)
                return (await self.consume(items, stop)).stop_reason
        except TimeoutError:
            if limit.expired():
                raise BudgetError(f"{reached} {seconds:g} seconds is reached") from None
            raise

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
                        self.summary.take(item)
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

    async def _noted(self, task: str) -> str | TextMessage:
        """The task, with news of the sandboxes if not all agents ask for that themselves."""
        if not self._needs_note:
            return task
        described = [await describe_sandbox(executor) for executor in self.executors]
        note = "\n\n".join(dict.fromkeys(filter(None, described)))
        if note in ("", self._note):
            return task
        self._note = note
        return noted_task(task, note)

    def _fail(self, error: JournalError) -> None:
        self._journal_failure = self._journal_failure or error
        self._cancel()

    def _stop_without_listener(self, event: Event) -> None:
        if isinstance(event, ListenerFailed) and event.essential:
            self._cancel()

    async def result_of(self, work: Coroutine[Any, Any, str | None]) -> RunResult:
        began = time.monotonic()
        end = await self.end_of(work)
        result = self.summary.result(end, time.monotonic() - began)
        result.files, result.file_notes = self.files.found, self.files.notes
        result.files_due = self.files.due
        self.dispatcher.emit(result)
        self.dispatcher.check()
        return result

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
            # some may not have read it
            self._note = ""
            await recover(self.team)
        return end


async def _end(work: asyncio.Future[Any]) -> None:
    await asyncio.wait({work}, timeout=STOP_GRACE)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


def _needs_note(part: object) -> bool:
    """Whether an agent with a model does not ask for the description of a sandbox itself."""
    if not isinstance(part, ChatAgent) or isinstance(part, RememberingAgent):
        return False
    return any(isinstance(inner, ChatCompletionClient) for inner in components_in(part))
