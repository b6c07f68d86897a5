"""Replays a recorded run without a model."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from autogen_core.code_executor import CodeExecutor, CodeResult
from autogen_core.models import ChatCompletionClient

from codeact_team.config.components import DIRECTORY_FIELDS
from codeact_team.config.document import ConfigSource
from codeact_team.config.dumping import credentials_of
from codeact_team.config.loading import CheckedConfig, read_config
from codeact_team.config.models import NO_KEY, missing_key
from codeact_team.config.overrides import ForEvery
from codeact_team.core.aio import is_being_cancelled
from codeact_team.core.autogen_internals import ComponentClass
from codeact_team.core.effects import Effect, Perform
from codeact_team.core.events import ChangedRequest, Replayed
from codeact_team.core.providers import Policy
from codeact_team.core.redaction import Redactor, credentials_of_environment
from codeact_team.errors import JournalError
from codeact_team.runs.chat import TeamChat
from codeact_team.runs.journal.differences import difference
from codeact_team.runs.journal.history import History
from codeact_team.runs.journal.recorded_run import RecordedRun
from codeact_team.runs.journal.replay import Replay
from codeact_team.runs.journal.run_directory import RunDirectory
from codeact_team.runs.recording import (
    Confirm,
    Recording,
    config_of,
    environment_for,
    foreign_refused,
    shown_to,
)
from codeact_team.runs.result import RunEnding, RunResult
from codeact_team.runs.summary import WorkEnd
from codeact_team.sandbox.temporary import TemporaryDirectory


class Placeholders(Mapping[str, str]):
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


def elsewhere(
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
            # the files are those of the start of the run
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
    """Stands in the place of what records a run, and answers from what is recorded of another one."""

    def __init__(self) -> None:
        super().__init__(None)
        self.replay: Replay | None = None
        """What answers; ``None`` where nothing does any more."""

    @property
    def calls_tools(self) -> bool:
        return self.replay is None

    @property
    def keeps_files(self) -> bool:
        return False

    def refuse_what_passes(self, parts: Sequence[str]) -> None:
        if parts and self.replay is not None:
            raise JournalError(
                f"the run cannot be replayed: {', '.join(parts)} act past its journal, and would really act again"
            )

    async def intercept(self, effect: Effect[Any], do: Perform) -> Any:
        try:
            return await (do() if self.replay is None else self.replay.intercept(effect, do))
        except JournalError as error:
            self.fail(error)
            raise


class ReplayedRun:
    """A recorded run that is about to be replayed; made by :func:`replayed`.

    Attributes:
        task: What it had to do; ``None`` for a chat.
        runner: Runs it.
        replay: What answers it.
    """

    def __init__(
        self, run: RecordedRun, task: str | None, runner: TeamChat, replaying: Replaying, replay: Replay
    ) -> None:
        self.task = task
        self.runner = runner
        self.replay = replay
        self._run = run
        self._replaying = replaying
        replaying.replay = replay

    async def run(self) -> RunResult:
        """Replay it. Raises what the team cannot be opened for."""
        if self.task is not None:
            return await self.runner.run_once(self.task)
        async with self.runner.open():
            return await self.again()

    async def again(self) -> RunResult:
        """Replay it within the open team, which may continue then."""
        chat = self.runner
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
            await chat.take(text)
        return chat.last or chat.summary.result(WorkEnd(), 0.0)

    def go_live(self) -> None:
        """Let what is asked from now on be really asked."""
        self._replaying.replay = None

    def found(self, result: RunResult) -> Replayed:
        """What the replay has found, given how it has ended. Blocks."""
        replay = self.replay
        told, is_whole = replay.difference, replay.difference is None
        if told is None and replay.is_stopped:
            is_whole = False
            if replay.end_of_record is not None and self._had_succeeded():
                told = f"{replay.end_of_record}; then it had its answer by now"
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
            return f"then the run ended as {last.ending}, and now as {result.ending}"
        told = difference(CodeResult(0, last.answer or ""), CodeResult(0, result.answer or ""))
        return None if told is None else f"the answer of the run:\n{told}"


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

    Raises:
        JournalError: If the run cannot be read, or nobody has confirmed it.
        ConfigError: If its config cannot be used.
    """
    run = RecordedRun(directory)
    about = run.about
    if about.is_of_program:
        raise JournalError(
            f"the run {about.id} is a program's, which gave the team its tasks: it cannot be replayed"
        )
    shown = shown_to(directory, confirm, runs_config=config is None)
    environ = os.environ if config is not None else environment_for(shown, overrides)
    environ = environ if until is not None else Placeholders(environ)
    redactor = Redactor(credentials_of_environment(os.environ), about.nonce, shown)
    source = config_of(run, redactor, shown) if config is None else config
    checked = read_config(source, overrides=overrides, policy=policy, environ=environ)
    with TemporaryDirectory() as place:
        was_in = Path(about.working_directory)
        moved, names = elsewhere(checked, place, was_in=was_in, asks_models=until is not None)
        replaying = Replaying()
        runner = TeamChat(moved, record=replaying)
        all_secrets = Redactor(credentials_of(checked.document, os.environ), about.nonce, shown)
        history = History(directory)
        if history.chain is None and shown is None:
            raise foreign_refused(directory.path)
        if history.full_mib is not None:
            logger.warning(
                "the record ends before the run did: it had used up the %s MiB that were kept of it",
                f"{history.full_mib:,}",
            )
        replay = Replay(
            history,
            all_secrets,
            names,
            runner.break_off,
            until=until,
            beyond_workspace=beyond_workspace,
        )
        task = None if about.task is None else str(redactor.restore(about.task))
        yield ReplayedRun(run, task, runner, replaying, replay)


async def replay_run(
    run: str | os.PathLike[str],
    *,
    config: ConfigSource | None = None,
    overrides: Sequence[str | ForEvery] = (),
    policy: Policy | None = None,
    trusted: bool = False,
) -> Replayed:
    """Run a recorded run once more, without its models and tools, and compare what its code comes to.

    What models, tools and people have answered then is answered again. Code runs for real, in new directories with the files
    of then, until it comes to something else.

    Args:
        run: The directory in which it is kept.
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
    with replayed(directory, config=config, overrides=overrides, policy=policy, confirm=confirm) as ready:
        result = await ready.run()
        if result.error is not None:
            raise JournalError(f"the run {run} cannot be replayed: {result.error}")
        return ready.found(result)
