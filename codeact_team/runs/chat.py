"""A chat: a team that stays open for one input of a person after the other, all of which are one recorded run."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import shlex
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from autogen_agentchat.base import Team
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeResult

from codeact_team.config.loading import CheckedConfig
from codeact_team.config.open import ask_model, clients_of, executors_of, make_runnable, with_items
from codeact_team.core.component_effects import DataGiven
from codeact_team.core.executor_interface import SessionCodeExecutor
from codeact_team.core.scope import Scope
from codeact_team.errors import JournalError
from codeact_team.journal.chat_input import RESET, UNDO, ChatInput
from codeact_team.journal.recorded_run import RecordedRun
from codeact_team.journal.result import MAX_FILES, Costs, RunFile, RunResult, merged
from codeact_team.journal.run_directory import RunDirectory
from codeact_team.journal.undoing import LastInput, last_input
from codeact_team.models.clients import ModelChosen
from codeact_team.runs.kept_runs import KeptRun
from codeact_team.runs.run import TeamRun
from codeact_team.runs.summary import WorkEnd
from codeact_team.tools.autogen_parts import PartBlock

_RUN = re.compile(r"/run\s+(?P<code>.+)", re.DOTALL)
_DATA = re.compile(r"/data\s+(?P<paths>.+)")
_MODEL = re.compile(r"/model\s+(?P<name>\S.*)")


def is_for_team(text: str) -> bool:
    """Whether an input is for the team: a task, or a command that :meth:`TeamChat.respond` knows."""
    return text in (RESET, UNDO) or _RUN.fullmatch(text) is not None or re.fullmatch(r"/\w+", text) is None


def data_input(paths: Sequence[str]) -> str:
    """The input that gives these files or directories to the code."""
    return f"/data {shlex.join(paths)}"


def model_input(name: str) -> str:
    """The input that has all model clients ask this model."""
    return f"/model {name}"


def _paths_in(text: str) -> Sequence[str]:
    return [os.path.expanduser(path) for path in shlex.split(text)]


@dataclass(frozen=True)
class ChatReply:
    """The reply to one input of a chat.

    Attributes:
        result: The result of a task.
        output: The result of Python code.
        error: The error, if the input failed.
        is_reset: Whether the conversation and the variables are forgotten.
        has_new_model: Whether another model is asked from now on.
    """

    result: RunResult | None = None
    output: CodeResult | None = None
    error: str | None = None
    is_reset: bool = False
    has_new_model: bool = False


class TeamChat(TeamRun):
    """Opens a team, and lets it work on each input of a person, until the person leaves.

    What the person enters is recorded like all else that a run asks for. A chat that is resumed gets it again, and does
    what it did, as far as it is recorded: the team remembers, and its variables are there.

    Attributes:
        ended_in: The directory of the chat that has ended, if it is kept.
        last: The result of the last task.
        spent: What all messages have cost, once it is open.
        models_before: The models that were asked before a person has changed that for the last time.
    """

    ended_in: RunDirectory | None = None
    last: RunResult | None = None
    models_before: Sequence[str] = ()
    spent: Costs
    _config: CheckedConfig
    _stays: bool = False
    """Whether it is kept without an input, too."""
    _seconds: float = 0.0
    """Seconds that the team has worked."""
    _messages: int = 0
    _files: Mapping[str, RunFile] = MappingProxyType({})
    """What the code has made and changed, by the path."""
    _inputs: int = 0

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Load the team, and at the end stop what it has started. A new chat without an input is not kept.

        Raises:
            CodeActTeamError: As :func:`codeact_team.open_team`.
        """
        self.spent = Costs(in_all=True)
        self.dispatcher.listen(self.spent)
        with self.dispatcher:
            try:
                self._config = self.read()
                async with self.opened_for_tasks(self._config):
                    self.record(self._config, None, is_chat=True)
                    yield
            finally:
                await self._end(self.spent)

    async def _end(self, of_all: Costs) -> None:
        recorder, before = self.recording.recorder, self.recording.last_result
        is_kept = self._inputs > 0 or self.recording.is_resumed or self._stays
        if recorder is not None and self._inputs:
            last = self.last or self.summary.result(WorkEnd(), 0.0)
            # for those who list runs: the person has seen the result of each task
            in_all = replace(
                last,
                seconds=self._seconds,
                messages=self._messages,
                usage=of_all.usage,
                is_estimated=of_all.is_estimated,
                steps=of_all.steps,
                cost=of_all.cost,
                tools=[*of_all.tools.values()],
                missing_hosts=[*of_all.missing_hosts],
                files=[*self._files.values()][-MAX_FILES:],
            )
            recorder(in_all)
        elif recorder is not None and before is not None:
            # nothing has come of it since
            recorder(before)
        await self.recording.end()
        if recorder is not None and is_kept:
            self.ended_in = recorder.directory
        elif recorder is not None:
            KeptRun.read(recorder.directory).remove()

    async def next_input(self, ask: Callable[[], Awaitable[str]]) -> str:
        """The next input: of the record, or else of the person, whom ``ask`` asks.

        Raises:
            CancelledError: If ``ask`` has raised that, as the person leaves: the chat can be resumed there.
        """
        self.recording.set_stopping(False)
        text = await self.dispatcher.perform(ChatInput(), ask)
        self._inputs += 1
        return text

    async def made(self) -> Sequence[RunFile]:
        """The files that the code has made or changed since the chat was opened."""
        return await asyncio.to_thread(self.files.of_all, self.executors)

    async def save(self, out: str) -> Sequence[RunFile]:
        """Copy these files to a directory, which is made if it is missing.

        Raises:
            SettingError: If they cannot be copied there.
        """
        return await self.files.save_all(self.executors, out)

    @property
    def is_kept(self) -> bool:
        """Whether it is recorded."""
        return self.recording.recorder is not None

    async def recorded(self) -> RecordedRun:
        """The record of all inputs until now.

        Raises:
            JournalError: If it is not kept, or cannot be written.
        """
        if (recorder := self.recording.recorder) is None:
            raise JournalError("the chat is not kept, so what was said is not known: leave --no-record out")
        await recorder.written()
        return RecordedRun(recorder.directory)

    async def get_packages(self, packages: Sequence[str]) -> Sequence[str]:
        """Get packages for the code besides those that it has.

        Returns:
            The overrides with which the chat has them once it is resumed.

        Raises:
            ConfigError: If its code takes no packages, or not these.
            SandboxError: If they cannot be had.
        """
        config, changes = with_items(self._config, "packages", packages)
        async with Scope() as scope:
            make_runnable(config)
            for executor in executors_of(scope):
                await executor.prepare()
        self._stays = True
        return changes

    async def last_input(self) -> LastInput | None:
        """The input that :data:`UNDO` undoes, when the chat is resumed after it; ``None`` if there is none.

        Raises:
            JournalError: If the journal cannot be read.
        """
        if (recorder := self.recording.recorder) is None:
            return None
        await recorder.written()
        return await asyncio.to_thread(last_input, recorder.directory)

    @property
    def is_contained(self) -> bool:
        """Whether its code can reach nothing but its workspaces, once it has started."""
        return all(executor.is_contained for executor in self.executors)

    async def run(self, task: str, seconds: float | None = None) -> RunResult:
        """Have the team, which remembers the tasks before, work on a task. The result has the error, if any.

        Args:
            task: What to do.
            seconds: Wall-clock time that the team may work on it.
        """
        self.last = await self.result_of(self.work_on(task, seconds, stays_open=True))
        self._seconds += self.last.seconds
        self._messages += self.last.messages
        self._files = merged(self._files, self.last.files)
        return self.last

    async def respond(self, text: str, seconds: float | None = None) -> ChatReply:
        """Do what an input asks for: a task, ``/run`` with Python, ``/data`` with paths, ``/model`` with a name, or ``/reset``.

        The reply has the error, if any.

        Args:
            text: The input.
            seconds: As of :meth:`run`.
        """
        if (code := _RUN.fullmatch(text)) is not None:
            return await self._run_code(code["code"])
        if (data := _DATA.fullmatch(text)) is not None:
            try:
                paths = _paths_in(data["paths"])
            except ValueError as error:
                return ChatReply(error=f"/data takes paths as a shell does: {error}")
            return await self._add_data(paths)
        if (model := _MODEL.fullmatch(text)) is not None:
            return await self._ask_model(model["name"].strip())
        if text == RESET:
            end = await self._reset()
            return ChatReply(error=end.error, is_reset=end.came_by_itself)
        result = await self.run(text, seconds)
        return ChatReply(result, error=result.error)

    async def _run_code(self, code: str) -> ChatReply:
        session = next((part for part in self._scope.owned if isinstance(part, SessionCodeExecutor)), None)
        if session is None:
            return ChatReply(error="the team has no session whose variables live on")
        blocks = [CodeBlock(code=code, language="python")]
        results: list[CodeResult] = []

        async def run(blocks: list[CodeBlock]) -> CodeResult:
            return await session.execute_code_blocks(blocks, CancellationToken())

        async def work() -> None:
            effect = PartBlock(session, blocks, run)
            results.append(await self.dispatcher.perform(effect, partial(run, blocks)))

        end = await self.end_of(work())
        return ChatReply(output=results[0] if results else None, error=end.error)

    async def _add_data(self, paths: Sequence[str]) -> ChatReply:
        """Copy files into the workspaces of all executors."""
        if not self.executors:
            return ChatReply(error="the team runs no code that could read data")

        async def work() -> None:
            for path, executor in itertools.product(paths, self.executors):
                effect = DataGiven(executor, path, is_told=executor is self.executors[0])
                executor.know_data(await self.dispatcher.perform(effect, partial(executor.add_data, path)))

        end = await self.end_of(work())
        return ChatReply(error=end.error)

    async def _ask_model(self, name: str) -> ChatReply:
        team = self.team
        assert team is not None, "the team is not open"

        async def choose() -> Sequence[str]:
            before = sorted({client.model_name for client in clients_of(team)})
            for client in await asyncio.to_thread(ask_model, team, self._config, name):
                self._scope.at_end(client.close)
            return before

        async def work() -> None:
            self.models_before = await self.dispatcher.perform(ModelChosen(name, choose), choose)

        end = await self.end_of(work())
        return ChatReply(error=end.error, has_new_model=end.came_by_itself)

    async def _reset(self) -> WorkEnd:
        team = self.team
        assert team is not None, "the team is not open"
        self._note = ""
        return await self.end_of(
            team.reset() if isinstance(team, Team) else team.on_reset(CancellationToken())
        )
