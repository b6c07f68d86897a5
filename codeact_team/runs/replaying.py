"""Replays a recorded run without a model."""

from __future__ import annotations

import asyncio
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from autogen_agentchat.base import ChatAgent, Team
from autogen_core.code_executor import CodeExecutor, CodeResult
from autogen_core.models import ChatCompletionClient

from codeact_team.config.components import DIRECTORY_FIELDS
from codeact_team.config.document import ConfigSource
from codeact_team.config.loading import CheckedConfig, read_config
from codeact_team.config.models import NO_KEY, missing_key
from codeact_team.config.overrides import ForEvery
from codeact_team.core.aio import is_being_cancelled
from codeact_team.core.autogen_internals import ComponentClass
from codeact_team.core.effects import Effect, Perform
from codeact_team.core.events import ChangedRequest, Replayed
from codeact_team.core.providers import Policy
from codeact_team.errors import JournalError, SettingError
from codeact_team.journal.differences import difference
from codeact_team.journal.history import History
from codeact_team.journal.journal import Journal
from codeact_team.journal.recorded_run import RecordedRun
from codeact_team.journal.replay import Replay
from codeact_team.journal.result import RunEnding, RunResult
from codeact_team.journal.run_directory import RunDirectory
from codeact_team.runs.base import Run
from codeact_team.runs.chat import TeamChat
from codeact_team.runs.foreign_runs import Confirm, config_of, environment_for, foreign_refused, shown_to
from codeact_team.runs.opening import opened_team
from codeact_team.runs.programs import BuiltRun, recorded_sandbox, recorded_team
from codeact_team.runs.recording import Recording
from codeact_team.runs.run import TeamRun
from codeact_team.runs.summary import WorkEnd
from codeact_team.sandbox.temporary import TemporaryDirectory
from codeact_team.standalone.opening import SandboxOpening
from codeact_team.text.redaction import Redactor, credentials_of_environment


class _Placeholders(Mapping[str, str]):
    """An environment in which every variable is set: one that is missing has a value in place of a key.

    As ``get`` does not have it, defaults count before that.

    Args:
        environ: What is there.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def __getitem__(self, name: str) -> str:
        return self._environ.get(name, NO_KEY)

    def get(self, key: str, default: Any = None) -> Any:
        return self._environ.get(key, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._environ)

    def __len__(self) -> int:
        return len(self._environ)


def _elsewhere(
    config: CheckedConfig, directory: Path, *, was_in: Path, asks_models: bool
) -> tuple[CheckedConfig, Mapping[str, str]]:
    """A config whose code works in new directories, which begin empty. Blocks.

    Args:
        config: What it says itself.
        directory: What holds the new ones.
        was_in: From which its relative paths lead.
        asks_models: Whether its model clients need the keys that they lack.

    Returns:
        The config, and the new directories and those that they stand for, each with the path of the latter from ``was_in``.
    """
    names: dict[str, str] = {}

    def change(component: ComponentClass, settings: dict[str, Any]) -> None:
        if issubclass(component, CodeExecutor):
            # the files are as at the start of the run
            settings.pop("data", None)
            for name in DIRECTORY_FIELDS:
                if (given := settings.get(name)) is not None:
                    settings[name] = _new_one(was_in / str(given), directory, was_in, names)
        elif issubclass(component, ChatCompletionClient) and not asks_models:
            if missing_key(component, settings, os.environ) is not None:
                settings["api_key"] = NO_KEY

    return config.with_settings(change), names


def _new_one(known: Path, directory: Path, was_in: Path, names: dict[str, str]) -> str:
    name = os.path.relpath(known, was_in)
    new = directory / f"workspace-{list(dict.fromkeys([*names.values(), name])).index(name)}"
    new.mkdir(exist_ok=True)
    names[str(known)] = names[str(new)] = name
    return str(new)


logger = logging.getLogger(__name__)


class Replaying(Recording):
    """A recording that answers from another run's journal, and writes nothing."""

    def __init__(self) -> None:
        super().__init__(None)

    def answer_from(self, replay: Replay | None) -> None:
        """Answer from a replay from now on, or really perform what is asked."""
        self._journal = None if replay is None else Journal(replay, replay.requests)

    @property
    def calls_tools(self) -> bool:
        return self._journal is None

    @property
    def keeps_files(self) -> bool:
        return False

    def refuse_what_passes(self, parts: Sequence[str]) -> None:
        if parts and self._journal is not None:
            raise JournalError(
                f"the run cannot be replayed: these bypass its journal, and would really act again: {', '.join(parts)}"
            )

    async def intercept(self, effect: Effect[Any], do: Perform) -> Any:
        try:
            return await (do() if self._journal is None else self._journal.intercept(effect, do))
        except JournalError as error:
            self.fail(error)
            raise


class ReplayedRun(ABC):
    """A recorded run that is about to be replayed; made by :func:`replayed`.

    Attributes:
        runner: Runs it.
        replay: What answers it.
    """

    def __init__(self, run: RecordedRun, runner: Run, replaying: Replaying, replay: Replay) -> None:
        self.runner = runner
        self.replay = replay
        self._run = run
        self._replaying = replaying
        replaying.answer_from(replay)

    @abstractmethod
    async def run(self) -> RunResult:
        """Replay it. Raises what the team cannot be opened for."""

    def found(self, result: RunResult) -> Replayed:
        """Return the first difference of the replay and its counts, given its result. Blocks."""
        replay = self.replay
        told, is_whole = replay.difference, replay.difference is None
        if told is None and replay.is_stopped:
            is_whole = False
            if replay.end_of_record is not None and self._had_succeeded():
                told = f"{replay.end_of_record}; when it was recorded, it had its answer by now"
        elif told is None:
            told = self._other_end(result)
        return Replayed(
            record=str(self._run.directory.path),
            blocks=replay.blocks,
            answered=replay.answered,
            changed=[ChangedRequest(agent, kind, times) for (agent, kind), times in replay.changed.items()],
            difference=told,
            is_whole=is_whole,
            block=None if replay.difference is None else replay.blocks + 1,
        )

    def _had_succeeded(self) -> bool:
        last = self._run.result()
        return last is not None and last.ending.is_success

    def _other_end(self, result: RunResult) -> str | None:
        last = self._run.result()
        if last is None or last.ending in (RunEnding.FAILED, RunEnding.STOPPED):
            return None
        if last.ending is not result.ending:
            return f"when it was recorded, the run ended as {last.ending}, and now as {result.ending}"
        told = difference(CodeResult(0, last.answer or ""), CodeResult(0, result.answer or ""))
        return None if told is None else f"the answer of the run:\n{told}"


class ReplayedTeam(ReplayedRun):
    """A run of a task, or a chat.

    Attributes:
        task: What it had to do; ``None`` for a chat.
    """

    def __init__(
        self, run: RecordedRun, task: str | None, runner: TeamChat, replaying: Replaying, replay: Replay
    ) -> None:
        super().__init__(run, runner, replaying, replay)
        self.task = task
        self.chat = runner

    async def run(self) -> RunResult:
        """Replay it. Raises what the team cannot be opened for."""
        if self.task is not None:
            return await self.chat.run_once(self.task)
        async with self.chat.open():
            return await self.again()

    async def again(self) -> RunResult:
        """Replay it within the open team, which may continue then."""
        chat = self.chat
        if self.task is not None:
            return await chat.run(self.task)

        async def leave() -> str:
            raise asyncio.CancelledError

        while not (self.replay.is_stopped or (chat.last is not None and chat.last.signal)):
            try:
                text = await chat.next_input(leave)
            except asyncio.CancelledError:
                if is_being_cancelled():
                    raise
                break
            await chat.respond(text)
        return chat.last or chat.summary.result(WorkEnd(), 0.0)

    def go_live(self) -> None:
        """Let what is asked from now on be really asked."""
        self._replaying.answer_from(None)


Program: TypeAlias = Callable[[Any], Awaitable[object]]
"""A coroutine function that works with a team, an agent or a sandbox."""


class _ReplayedProgram(ReplayedRun):
    """A run of which a program says what to do.

    Args:
        opened: Opens what runs, as the program gets it.
        program: Does what the program did; ``None`` to give a team the recorded tasks.
        redactor: Fills in the credentials in these.
    """

    def __init__(
        self,
        run: RecordedRun,
        runner: Run,
        replaying: Replaying,
        replay: Replay,
        opened: Callable[[], AbstractAsyncContextManager[Any]],
        program: Program | None,
        redactor: Redactor,
    ) -> None:
        super().__init__(run, runner, replaying, replay)
        self._opened = opened
        self._program = program
        self._redactor = redactor

    async def run(self) -> RunResult:
        return await self.runner.result_of(self._work())

    async def _work(self) -> str | None:
        async with self._opened() as subject:
            await (self._give_tasks(subject) if self._program is None else self._program(subject))
        return self.runner.end.stop_reason

    async def _give_tasks(self, team: Team | ChatAgent) -> None:
        for task in self._run.tasks():
            await team.run(task=str(self._redactor.restore(task)))


@contextmanager
def replayed(
    directory: RunDirectory,
    *,
    config: ConfigSource | None = None,
    overrides: Sequence[str | ForEvery] = (),
    policy: Policy | None = None,
    until: int | None = None,
    beyond_workspace: bool = False,
    confirm: Confirm | None = None,
    program: Program | None = None,
) -> Generator[ReplayedRun]:
    """Make a run ready to be replayed, in directories of its own, which are gone at the end. Blocks.

    Args:
        directory: Where the run is kept.
        config: What runs instead of the config that it had then.
        overrides: Changes to its config.
        policy: What may be loaded.
        until: How many calls of code run, after which it may go on with its models; ``None`` for all.
        beyond_workspace: Whether code may run again that can reach more than its workspace.
        confirm: Asks a person whether a run is replayed that this user has not recorded; ``None`` where nobody can be asked.
        program: As of :class:`_ReplayedProgram`, for a run of a program.

    Raises:
        JournalError: If the run cannot be read, or nobody has confirmed it.
        ConfigError: If its config cannot be used.
    """
    run = RecordedRun(directory)
    about = run.about
    if about.is_built:
        raise JournalError(
            f"the run {about.id} is of a team that a program has built, which no config describes: replay it in the program, by "
            "`replay_run(directory, team)`"
        )
    shown = shown_to(directory, confirm, runs_config=config is None)
    environ = os.environ if config is not None else environment_for(shown, overrides)
    environ = environ if until is not None else _Placeholders(environ)
    redactor = Redactor(credentials_of_environment(os.environ), about.nonce, shown)
    source = config_of(run, redactor, shown) if config is None else config
    checked = read_config(source, overrides=overrides, policy=policy, environ=environ)
    with TemporaryDirectory() as place:
        was_in = Path(about.working_directory)
        moved, names = _elsewhere(checked, place, was_in=was_in, asks_models=until is not None)
        replaying = Replaying()
        kind = TeamRun if about.is_of_program else TeamChat
        runner = kind(moved, record=replaying, of_program=about.is_of_program)
        all_secrets = Redactor(checked.credentials, about.nonce, shown)
        history = _history_of(directory, shown)
        replay = Replay(
            history,
            all_secrets,
            names,
            runner.break_off,
            until=until,
            beyond_workspace=beyond_workspace,
        )
        if isinstance(runner, TeamChat):
            task = None if about.task is None else str(redactor.restore(about.task))
            yield ReplayedTeam(run, task, runner, replaying, replay)
        else:
            yield _ReplayedProgram(
                run, runner, replaying, replay, partial(opened_team, runner), program, redactor
            )


@contextmanager
def _replayed_program(
    directory: RunDirectory,
    subject: Team | ChatAgent | SandboxOpening,
    program: Program | None = None,
    *,
    confirm: Confirm | None = None,
) -> Generator[_ReplayedProgram]:
    """Make a run of what a program has built ready to be replayed with the same, built anew. Blocks.

    Raises:
        JournalError: If the run cannot be read, or is none of a program, or its workspaces would be overwritten.
        SettingError: If a sandbox is to be replayed without its program.
    """
    run = RecordedRun(directory)
    if not run.about.is_of_program:
        raise JournalError(f"the run {run.about.id} was not made by a program: replay it without a team")
    shown = shown_to(directory, confirm, runs_config=False)
    replaying = Replaying()
    opened: Callable[[], AbstractAsyncContextManager[Any]]
    if isinstance(subject, SandboxOpening):
        if program is None:
            raise SettingError("to replay a sandbox, give the function of the program that works with it")
        runner = BuiltRun(replaying, subject.executor)
        opened = partial(subject.recorded, partial(recorded_sandbox, runner))
    else:
        runner = BuiltRun(replaying, subject)
        opened = partial(recorded_team, runner)
    redactor = Redactor(runner.config.credentials, run.about.nonce, shown)
    history = _history_of(directory, shown)
    names = _workspaces_of(runner, history, Path(run.about.working_directory))
    replay = Replay(history, redactor, names, runner.break_off)
    yield _ReplayedProgram(run, runner, replaying, replay, opened, program, redactor)


def _history_of(directory: RunDirectory, shown: Collection[str] | None) -> History:
    history = History(directory)
    if history.chain is None and shown is None:
        raise foreign_refused(directory.path)
    if history.full_mib is not None:
        logger.warning(
            "the record ends before the run did: it had used up the %s MiB that are kept of a run",
            f"{history.full_mib:,}",
        )
    return history


def _workspaces_of(runner: BuiltRun, history: History, was_in: Path) -> Mapping[str, str]:
    """The directories in which code works now, each with the name of the recorded one that it stands for."""
    lasting = [
        executor.workspace.path
        for executor in runner.executors
        if executor.workspace.path is not None and not executor.workspace.is_own
    ]
    recorded = [name for name in history.files if not name.startswith("@")]
    if same := [name for name in recorded for path in lasting if path.resolve() == (was_in / name).resolve()]:
        raise JournalError(
            f"the run cannot be replayed in {same[0]}, where it was recorded: the files there would be overwritten. Build the "
            "team for the replay with another `work_dir`"
        )
    if len(lasting) != len(recorded):
        raise JournalError(
            f"the run cannot be replayed: its code has worked in {len(recorded)} directories of `work_dir`, and the team "
            f"for the replay has {len(lasting)}: give it as many"
        )
    # in the order of their use, which is the order of the executors, as a rule
    return dict(zip(map(str, lasting), recorded, strict=True))


async def replay_run(
    run: str | os.PathLike[str],
    subject: Team | ChatAgent | SandboxOpening | None = None,
    program: Program | None = None,
    *,
    config: ConfigSource | None = None,
    overrides: Sequence[str | ForEvery] = (),
    policy: Policy | None = None,
    trusted: bool = False,
) -> Replayed:
    """Run a recorded run once more, without its models and tools, and compare what its code comes to.

    What models, tools, processes and people have answered then is answered again. Code runs for real, in new directories with
    the files of then, until it comes to something else.

    Args:
        run: The directory in which it is kept.
        subject: For a run that :func:`record_run` has recorded: the same team, agent or ``open_sandbox(…)``, built anew.
        program: For a program's run: a coroutine function that does the same again with the team, the agent or the open
            sandbox. Default: a team gets the recorded tasks.
        config: What runs instead of the config that it had then, as of :func:`load_config`.
        overrides: Changes to its config, such as another image.
        policy: What may be loaded.
        trusted: Whether a run is replayed that this user has not recorded on this machine, such as one that belongs to the
            tests of a repository. It is refused otherwise.

    Returns:
        What was found; its ``difference`` is ``None`` if all is as it was.

    Raises:
        CodeActTeamError: If it cannot run.
    """
    # a credential reaches no one: models and tools are not called, and no code runs that could reach a network
    confirm: Confirm | None = (lambda foreign: foreign.names) if trusted else None
    directory = RunDirectory(Path(run))
    if subject is not None and (config is not None or overrides or policy is not None):
        raise SettingError(
            "config, overrides and policy apply to runs of a config only: change what the program builds instead"
        )
    replaying = (
        replayed(
            directory, config=config, overrides=overrides, policy=policy, confirm=confirm, program=program
        )
        if subject is None
        else _replayed_program(directory, subject, program, confirm=confirm)
    )
    with replaying as ready:
        result = await ready.run()
        if result.error is not None:
            raise JournalError(f"the run {run} cannot be replayed: {result.error}")
        return ready.found(result)
