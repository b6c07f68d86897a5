"""Runs a team on tasks."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from signal import Signals
from typing import Any, TypeVar, cast

from autogen_agentchat.base import ChatAgent, TaskResult, Team
from autogen_agentchat.messages import BaseAgentEvent, BaseChatMessage, TextMessage
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeResult
from autogen_core.models import ChatCompletionClient

from codeact_team.agents.base import RememberingAgent
from codeact_team.agents.ledger import within_budgets
from codeact_team.agents.messages import describe_sandbox
from codeact_team.config.document import Document
from codeact_team.config.loading import CheckedConfig, read_config
from codeact_team.config.open import executors_of, make_ready, make_runnable, span_settings, what_is_open
from codeact_team.config.overrides import ForEvery
from codeact_team.core.aio import is_being_cancelled, to_the_end
from codeact_team.core.autogen_internals import components_in, recover, time_limit
from codeact_team.core.effects import Dispatcher, Effect, Event, Interceptor, Listener, Perform, error_text
from codeact_team.core.events import RunBegan, RunEnded, RunParked, emit_message
from codeact_team.core.executor_interface import SessionCodeExecutor
from codeact_team.core.providers import Policy
from codeact_team.core.sandbox_description import noted_task
from codeact_team.core.scope import Scope
from codeact_team.errors import JournalError, SettingError
from codeact_team.runs.journal.blobs import DEFAULT_MIB
from codeact_team.runs.journal.run_directory import RunDirectory
from codeact_team.runs.recording import Recording
from codeact_team.runs.result import RunEnding, RunResult
from codeact_team.runs.run_files import RunFiles
from codeact_team.runs.summary import Summary, WorkEnd
from codeact_team.telemetry import spans as telemetry
from codeact_team.tools.autogen_parts import PartBlock, bypassing_parts


def given_task(config: Document, task: str | None) -> str:
    """The task to run a config with: what the user gives, or else its description, if its models replay a conversation.

    Any other description is for people only: AutoGen fills it with a class's docstring.

    Raises:
        SettingError: If there is no task.
    """
    if task is None:
        data = config.data
        if _is_recorded(data):
            task = str(data.get("description") or "")
    if task is None or not task.strip():
        raise SettingError(
            "there is no task: give it as the second argument, by --file FILE, or as `-` to read it from standard input"
        )
    return task.strip()


def _is_recorded(value: Any) -> bool:
    """Whether a model in this part of a document replays a recorded conversation."""
    if isinstance(value, dict):
        mapping = cast(dict[str, Any], value)
        provider = mapping.get("provider")
        if isinstance(provider, str) and provider.endswith(".ReplayChatCompletionClient"):
            return True
        return any(map(_is_recorded, mapping.values()))
    return isinstance(value, list) and any(map(_is_recorded, cast(list[Any], value)))


T = TypeVar("T")

STOP_GRACE = 5.0
"""Seconds that agents get to end their work when a run is stopped, before they are abandoned."""


TIME_LIMIT = "the time limit of"
"""How it begins why a run has stopped that got no more time; to go on, it needs no other config."""


class TimeLimitReached(Exception):
    """A time limit has stopped a run; the text says which."""


async def stream(
    runner: Team | ChatAgent,
    task: str | BaseChatMessage,
    dispatcher: Dispatcher,
    take: Callable[[BaseAgentEvent | BaseChatMessage], object],
    stopping: Callable[[], object],
    *,
    seconds: float | None,
) -> str | None:
    """Run the task, emit each message, and return why the team stopped.

    Args:
        runner: The team, or a single agent.
        task: What to do.
        dispatcher: Where the messages are told.
        take: Called with each message.
        stopping: Called before the agents are cancelled, where nobody waits for their work any more.
        seconds: Wall-clock time that they may work; ``None`` for any.

    Raises:
        TimeLimitReached: If it took longer than ``seconds``, or than a time limit of the team's own; its agents have been
            stopped.
    """
    reached = TIME_LIMIT
    if (own := time_limit(runner)) is not None and (seconds is None or own <= seconds):
        seconds, reached = own, "the team's time limit of"
    token = CancellationToken()

    def stop() -> None:
        stopping()
        token.cancel()

    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await stopped_in_order(_consume(runner, task, dispatcher, take, token, stop), stop)
    except TimeoutError:
        if limit.expired():
            raise TimeLimitReached(f"{reached} {seconds:g} seconds is reached") from None
        raise


async def stopped_in_order(work: Awaitable[T], stop: Callable[[], object]) -> T:
    """Await the work of agents; where whoever awaits it is cancelled, call ``stop``, and give them time to end it.

    A stream of AutoGen's that is cancelled waits for its agents, and only its token reaches these.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except BaseException:
        stop()
        await to_the_end(_end(task))
        raise


async def _consume(
    runner: Team | ChatAgent,
    task: str | BaseChatMessage,
    dispatcher: Dispatcher,
    take: Callable[[BaseAgentEvent | BaseChatMessage], object],
    token: CancellationToken,
    stop: Callable[[], object],
) -> str | None:
    messages, stop_reason = runner.run_stream(task=task, cancellation_token=token), None
    try:
        async for item in messages:
            if isinstance(item, TaskResult):
                stop_reason = item.stop_reason
            else:
                emit_message(item, dispatcher)
                take(item)
    except BaseException:
        # first this: a stream that is closed waits for its agents
        stop()
        with suppress(asyncio.CancelledError):
            await messages.aclose()
        raise
    return stop_reason


async def _end(work: asyncio.Future[Any]) -> None:
    await asyncio.wait({work}, timeout=STOP_GRACE)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


logger = logging.getLogger(__name__)


class TeamRunner:
    """Loads a team, or a single agent, and runs it on tasks.

    Either :meth:`run_once` does all of it, or :meth:`open` opens the team for any number of calls of :meth:`run`. What
    happens is told to listeners, at last a :class:`RunResult` for each run.

    Args:
        source: As of :func:`codeact_team.open_team`, and so are ``overrides`` and ``policy``; or a config that is read already.
        out: A directory that gets copies of the files that each run has made or changed; made if it is missing.
        record: The directory in which :meth:`run_once` keeps the run, in one of its own; or the run that it goes on with;
            ``None`` to keep nothing; or what keeps it.
        record_mib: How many MiB of a run are kept at most; ``None`` for any number.
        sync: Whether what is kept survives a power cut.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | CheckedConfig,
        *,
        overrides: Sequence[str | ForEvery] = (),
        policy: Policy | None = None,
        out: str | os.PathLike[str] | None = None,
        record: Path | RunDirectory | Recording | None = None,
        record_mib: int | None = DEFAULT_MIB,
        sync: bool = False,
    ) -> None:
        self._source = source
        self._overrides = overrides
        self._policy = policy
        if not isinstance(record, Recording):
            record = Recording(record, mib=record_mib, sync=sync)
        self._recording = record
        self._files = RunFiles(out, record.cut_off, record.note_copies)
        self._dispatcher = Dispatcher(self._record, self._files.keep)
        self.listen(self._recording, essential=True)
        self.listen(self._files.count)
        self._summary = Summary()
        for listener in self._summary.listeners:
            self.listen(listener, essential=True)
        self._team: Team | ChatAgent | None = None
        self._must_note = False
        self._note = ""
        """What the agents were told of the sandboxes."""
        self._work: asyncio.Future[str | None] | None = None
        self._stopped_by: Signals | None = None
        self._broken_off_by: str | None = None
        self._is_parked = False
        self._journal_failure: JournalError | None = None

    def listen(self, listener: Listener, *, essential: bool = False) -> None:
        """Tell ``listener`` what happens. If it is essential and raises, the run stops at once with its error."""
        told = partial(self._tell_essential, listener) if essential else listener
        self._dispatcher.listen(told, essential=essential)

    def add_innermost(self, interceptor: Interceptor) -> None:
        """Let ``interceptor`` stand behind all others, for what is really done and not answered by a journal."""
        self._dispatcher.add_innermost(interceptor)

    def make_out(self) -> None:
        """Make the directory for copies now, if there is to be one.

        Raises:
            SettingError: If it cannot be made, or not be written.
        """
        self._files.make()

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Load the team, and at the end stop what it has started.

        Raises:
            CodeActTeamError: As :func:`codeact_team.open_team`.
        """
        with self._dispatcher:
            async with self._loaded(self._read()):
                yield

    async def started(self) -> None:
        """Wait until everything that the open team needs has started, or raise why it cannot."""
        for part in self._scope.owned:
            await part.start()

    async def run(self, task: str) -> RunResult:
        """Run the open team, which remembers the tasks before. Whatever goes wrong is told by the result."""
        return await self._result_of(self._stream(task, stays_open=True))

    async def run_once(
        self,
        task: str | None,
        *,
        seconds: float | None = None,
        deliver: Callable[[RunResult], object] = lambda _: None,
    ) -> RunResult:
        """Open the team, run it on one task, and stop what it has started. Whatever goes wrong is told by the result.

        Args:
            task: What to do; ``None`` for the task that the config brings along.
            seconds: Wall-clock time that the team may work.
            deliver: Brings the result to where it is wanted. A run that has ended without that, as the process was killed,
                is resumed to be delivered.

        Raises:
            Exception: What ``deliver`` raises.
        """
        with self._dispatcher:
            try:
                result = await self._result_of(self._load_and_stream(task, seconds))
                deliver(result)
                if result.ending is RunEnding.ACCEPTED and not result.files_due:
                    self._recording.delivered()
                return result
            finally:
                await self._recording.end()

    def break_off(self, reason: str) -> None:
        """End the run that is under way, whose work is not done. Whoever intercepts effects may call this, from anywhere.

        Args:
            reason: Why, as :attr:`RunResult.stop_reason` has it.
        """
        if (work := self._work) is not None and self._broken_off_by is None:
            self._broken_off_by = reason
            # an exception could be caught by whatever is on its way
            work.get_loop().call_soon_threadsafe(work.cancel)

    def _park(self, event: RunParked) -> None:
        self._is_parked = True
        self._dispatcher.emit(event)
        self.break_off(f"it waits for an answer: codeact-team answer {event.record}")

    async def run_code(self, code: str) -> tuple[CodeResult | None, WorkEnd]:
        """Run Python of a person's in the first session of the open team; what came of it, if anything, and how it ended."""
        session = next((part for part in self._scope.owned if isinstance(part, SessionCodeExecutor)), None)
        if session is None:
            return None, WorkEnd(error="the team has no session whose variables live on")
        results: list[CodeResult] = []

        async def run(blocks: list[CodeBlock]) -> CodeResult:
            return await session.execute_code_blocks(blocks, CancellationToken())

        async def work() -> None:
            blocks = [CodeBlock(code=code, language="python")]
            results.append(
                await self._dispatcher.perform(PartBlock(session, blocks, run), partial(run, blocks))
            )

        end = await self._end_of(work())
        return (results[0] if results else None), end

    async def reset(self) -> WorkEnd:
        """Forget the conversation, and what the code has left in its interpreter."""
        return await self._end_of(self._reset())

    def stop(self, number: Signals) -> bool:
        """Stop the run, or the reset, that is under way, and nothing else; whether there is one."""
        if self._work is None:
            return False
        if self._stopped_by is None:
            self._stopped_by = number
            self._work.cancel()
        return True

    @asynccontextmanager
    async def _loaded(self, config: CheckedConfig) -> AsyncGenerator[None]:
        with self._files.opened():
            async with Scope() as self._scope:
                await self._load(config)
                yield

    def _read(self) -> CheckedConfig:
        if isinstance(self._source, CheckedConfig):
            return self._source
        return read_config(self._source, overrides=self._overrides, policy=self._policy)

    async def _load(self, config: CheckedConfig) -> None:
        telemetry.trace(self._dispatcher, *span_settings(config, self._source))
        self._team = make_runnable(config)
        self._recording.refuse_what_passes(bypassing_parts(self._team))
        self._summary.begin(self._team)
        self._must_note = any(map(_needs_note, components_in(self._team)))
        self._opened = what_is_open(executors_of(self._scope))
        self._dispatcher.emit(self._opened)
        self._dispatcher.check()
        await make_ready(self._scope, with_tools=self._recording.calls_tools)

    async def _load_and_stream(self, task: str | None, seconds: float | None) -> str | None:
        config = self._read()
        wanted = given_task(config.document, task)
        if not self._overrides and (waits := self._recording.still_waits()) is not None:
            self._park(waits)
            await asyncio.get_running_loop().create_future()
        async with self._loaded(config):
            self._recording.begin(
                config, wanted, executors_of(self._scope), self._opened, self._park, self._dispatcher.numbers
            )
            return await self._stream(wanted, seconds)

    async def _stream(
        self, task: str, seconds: float | None = None, *, stays_open: bool = False
    ) -> str | None:
        team = self._team
        assert team is not None, "the team is not open"
        bypassing = bypassing_parts(team)
        failure: BaseException | None = None
        with self._dispatcher.span(
            lambda span: RunBegan(
                span=span, task=task, bypassing_parts=bypassing, record=self._recording.place
            ),
            lambda span: RunEnded(span=span, error=error_text(failure)),
        ):
            try:
                async with self._files.found_after(partial(executors_of, self._scope), stays=stays_open):
                    stopping = partial(self._recording.set_stopping, True)
                    async with within_budgets(team):
                        noted = await self._noted(task)
                        reason = await stream(
                            team, noted, self._dispatcher, self._summary.take, stopping, seconds=seconds
                        )
                    self._files.lack(await self._recording.finish(executors_of(self._scope)))
                self._files.remove_others(self._recording.copies)
                return reason
            except BaseException as error:
                failure = self._dispatcher.original_of(error)
                raise

    async def _noted(self, task: str) -> str | TextMessage:
        """The task, with what is new to know of the sandboxes where not all agents ask for that themselves."""
        if not self._must_note:
            return task
        told = [await describe_sandbox(executor) for executor in executors_of(self._scope)]
        note = "\n\n".join(dict.fromkeys(filter(None, told)))
        if note in ("", self._note):
            return task
        self._note = note
        return noted_task(task, note)

    async def _reset(self) -> None:
        team = self._team
        assert team is not None, "the team is not open"
        self._note = ""
        await (team.reset() if isinstance(team, Team) else team.on_reset(CancellationToken()))

    async def _record(self, effect: Effect[Any], do: Perform) -> Any:
        """Intercept for the journal; where that fails the run ends, whatever agents and code make of the error."""
        try:
            return await self._recording.intercept(effect, do)
        except JournalError as error:
            self._journal_failure = self._journal_failure or error
            if self._work is not None:
                self._work.get_loop().call_soon_threadsafe(self._work.cancel)
            raise

    def _tell_essential(self, listener: Listener, event: Event) -> None:
        try:
            listener(event)
        except Exception:
            if self._work is not None:
                self._work.get_loop().call_soon_threadsafe(self._work.cancel)
            raise

    async def _result_of(self, work: Coroutine[Any, Any, str | None]) -> RunResult:
        began = time.monotonic()
        end = await self._end_of(work)
        end = replace(end, is_parked=self._is_parked and end.is_broken_off)
        result = self._summary.result(end, time.monotonic() - began)
        result.files, result.file_notes = self._files.found, self._files.notes
        result.files_due = self._files.due
        self._dispatcher.emit(result)
        self._dispatcher.check()
        return result

    async def _end_of(self, work: Coroutine[Any, Any, str | None]) -> WorkEnd:
        """Await some work, which :meth:`stop` can stop. What an essential listener has raised comes out of it."""
        self._work, self._stopped_by, self._broken_off_by = asyncio.ensure_future(work), None, None
        self._journal_failure = None
        end = WorkEnd()
        try:
            end = WorkEnd(await self._work)
        except TimeLimitReached as reason:
            end = WorkEnd(str(reason), is_broken_off=True)
        except asyncio.CancelledError:
            self._dispatcher.check()
            if is_being_cancelled() or not (self._stopped_by or self._broken_off_by or self._journal_failure):
                raise
            if self._stopped_by is None:
                end = WorkEnd(self._broken_off_by, is_broken_off=True)
        except Exception as failure:
            self._dispatcher.check()
            failure = self._dispatcher.original_of(failure)
            logger.debug("the run failed", exc_info=failure)
            end = WorkEnd.by(failure)
        finally:
            self._work = None
        if self._journal_failure is not None:
            end = WorkEnd.by(self._journal_failure)
        end = replace(end, signal=self._stopped_by)
        if self._team is not None and not end.came_by_itself:
            # some may not have read it
            self._note = ""
            await recover(self._team)
        return end


def _needs_note(part: object) -> bool:
    """Whether this is an agent with a model that does not ask itself what there is to know of a sandbox."""
    if not isinstance(part, ChatAgent) or isinstance(part, RememberingAgent):
        return False
    return any(isinstance(inner, ChatCompletionClient) for inner in components_in(part))
