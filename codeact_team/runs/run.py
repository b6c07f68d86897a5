"""One run of a team, for the commands, for a batch, and for a program."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from autogen_agentchat.base import ChatAgent, Team
from autogen_agentchat.messages import TextMessage
from autogen_core import CancellationToken
from autogen_core.models import ChatCompletionClient

from codeact_team.agents.base import RememberingAgent
from codeact_team.agents.ledger import within_budgets
from codeact_team.agents.messages import describe_sandbox
from codeact_team.config.components import providers_in
from codeact_team.config.document import ConfigSource, Document
from codeact_team.config.loading import CheckedConfig, read_config
from codeact_team.config.open import executors_of, make_ready, make_runnable, span_settings
from codeact_team.config.overrides import ForEvery
from codeact_team.core.autogen_internals import components_in, time_limit
from codeact_team.core.executor_interface import StreamingCodeExecutor
from codeact_team.core.providers import Policy
from codeact_team.core.sandbox_description import noted_task
from codeact_team.core.scope import Scope
from codeact_team.errors import BudgetError, SettingError
from codeact_team.executors.workspace.directory import own_workspaces
from codeact_team.journal.blobs import DEFAULT_MIB
from codeact_team.journal.result import RunResult
from codeact_team.journal.run_directory import RunDirectory
from codeact_team.runs.base import Run
from codeact_team.runs.recording import Recording
from codeact_team.runs.run_files import RunFiles
from codeact_team.runs.summary import WorkEnd
from codeact_team.runs.work_dirs import claimed
from codeact_team.telemetry import spans as telemetry

logger = logging.getLogger(__name__)

TIME_LIMIT = "the time limit of"
"""The beginning of the stop reason of a run that got no more time: it can be resumed with the same config."""


def own_task(config: Document) -> str:
    """The task that a config with recorded models brings along, which is its description; empty if it brings none.

    Any other description is for people only: AutoGen fills it with a class's docstring.
    """
    is_recorded = any(
        provider.endswith(".ReplayChatCompletionClient") for provider in providers_in(config.data)
    )
    return str(config.data.get("description") or "").strip() if is_recorded else ""


def given_task(config: Document, task: str | None) -> str:
    """The task to run a config with: the user's, or else its own.

    Raises:
        SettingError: If there is no task.
    """
    if task is None:
        task = own_task(config)
    if not task.strip():
        raise SettingError(
            "there is no task: give it as the second argument, by --file FILE, or as `-` to read it from standard input"
        )
    return task.strip()


class TeamRun(Run):
    """Loads a team, or a single agent, and runs it.

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
        of_program: As of :class:`Run`.

    Attributes:
        document: Its config.
        files: Finds the files of the run, and copies them.
    """

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
        if policy is not None:
            self.options = policy.options
        if not isinstance(record, Recording):
            record = Recording(record, mib=record_mib, sync=sync)
        super().__init__(record, of_program=of_program)
        if out is not None:
            record.files_directory = os.path.abspath(os.path.expanduser(out))
        self.files: RunFiles = RunFiles(out, record)
        self._keeps_workspace = keeps_workspace
        self._workspace = record.workspace if keeps_workspace else None
        self._needs_note = False
        self._note = ""
        """The note about the sandboxes that the agents have read."""

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
                team = make_runnable(config)
            self._needs_note = any(map(_needs_note, components_in(team)))
            self.begin(team)
            await make_ready(self._scope, with_tools=self.recording.calls_tools)
            yield

    @asynccontextmanager
    async def opened_for_tasks(self, config: CheckedConfig) -> AsyncGenerator[None]:
        self.dispatcher.add_innermost(self.files.keep)
        self.dispatcher.listen(self.files.count)
        with self.files.opened():
            async with self.opened(config):
                yield

    async def _open_and_run(self, task: str | None, seconds: float | None) -> str | None:
        config = self.read()
        wanted = given_task(config.document, task)
        if not self._overrides and (waits := self.recording.still_waits()) is not None:
            self.park(waits)
            await asyncio.get_running_loop().create_future()
        async with self.opened_for_tasks(config):
            self.record(config, wanted)
            await self.started()
            return await self.work_on(wanted, seconds)

    async def started(self) -> None:
        """Wait until all that the open team needs has started, or raise why it cannot: before a model costs anything."""
        await self._scope.started(None if self.recording.calls_tools else self.executors)

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

    async def result_of(self, work: Coroutine[Any, Any, str | None]) -> RunResult:
        result = await super().result_of(work)
        result.files, result.file_notes = self.files.found, self.files.notes
        result.files_due = self.files.due
        self.dispatcher.emit(result)
        self.dispatcher.check()
        return result

    async def end_of(self, work: Coroutine[Any, Any, str | None]) -> WorkEnd:
        end = await super().end_of(work)
        if not end.came_by_itself:
            # some may not have read it
            self._note = ""
        return end


def _needs_note(part: object) -> bool:
    """Whether an agent with a model does not ask for the description of a sandbox itself."""
    if not isinstance(part, ChatAgent) or isinstance(part, RememberingAgent):
        return False
    return any(isinstance(inner, ChatCompletionClient) for inner in components_in(part))
