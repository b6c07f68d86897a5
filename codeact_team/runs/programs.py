"""Records what a program has built: a team, an agent, or a sandbox."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from functools import cached_property
from typing import TypeVar, cast, overload

from autogen_agentchat.base import ChatAgent, Team

from codeact_team.config.document import Document
from codeact_team.config.dumping import credentials_of, dump_config
from codeact_team.core import places
from codeact_team.core.autogen_internals import has_worked, placed_components, settings_of
from codeact_team.core.effects import error_text, remembered, within
from codeact_team.core.events import RunEnded
from codeact_team.core.executor_interface import StreamingCodeExecutor
from codeact_team.core.scope import Scope
from codeact_team.core.wrapper import Wrapper
from codeact_team.errors import JournalError, SettingError
from codeact_team.executors.session import InterpreterCodeExecutor
from codeact_team.journal.blobs import DEFAULT_MIB
from codeact_team.runs.base import Run
from codeact_team.runs.opening import RecordedTeam, ended, program_directory
from codeact_team.runs.recording import Recording, RunConfig
from codeact_team.standalone.opening import SandboxOpening, Within
from codeact_team.telemetry import spans as telemetry
from codeact_team.text.redaction import secret_remover
from codeact_team.text.visibility import one_line
from codeact_team.tools.autogen_parts import wrapped_inside

TeamT = TypeVar("TeamT", bound=Team | ChatAgent)

_SANDBOX = "sandbox"
"""The place of a program's sandbox."""


@overload
def record_run(
    directory: str | os.PathLike[str],
    subject: SandboxOpening,
    *,
    record_mib: int | None = DEFAULT_MIB,
    sync: bool = False,
) -> SandboxOpening: ...


@overload
def record_run(
    directory: str | os.PathLike[str],
    subject: TeamT,
    *,
    record_mib: int | None = DEFAULT_MIB,
    sync: bool = False,
) -> AbstractAsyncContextManager[TeamT]: ...


def record_run(
    directory: str | os.PathLike[str],
    subject: SandboxOpening | Team | ChatAgent,
    *,
    record_mib: int | None = DEFAULT_MIB,
    sync: bool = False,
) -> SandboxOpening | AbstractAsyncContextManager[Team | ChatAgent]:
    """Record a team, an agent or a sandbox that a program has built, for the length of an ``async with``.

    All tasks that the program gives a team are one run, and so is all that it does with a sandbox. If the program is killed, it
    resumes the run by doing the same again: models, tools, people and processes are not asked twice, and the code of a
    sandbox runs again, with the recorded answers to its calls of tools. :func:`replay_run` does that as a test.

    At the end, this package's executors in a team are stopped; its model clients stay open.

    A team may have any agents, tools, workbenches, executors, model clients and memories of AutoGen, and of this package. It is
    refused if it has worked before, or something in it bypasses the journal, such as an agent of the program's own class.

    Args:
        directory: The directory of this run, made if it is missing, and for this user only. A run that is there is resumed.
        subject: A team or an agent; or what :func:`open_sandbox` returns, which ``with`` takes as well.
        record_mib: The most MiB of the run that are recorded; ``None`` for any number. When they are used up, the run
            continues, but cannot be resumed.
        sync: Whether the record survives a power cut.

    Returns:
        A context manager that gives the team, the agent or the sandbox to work with.

    Raises:
        JournalError: When it is entered, if the run cannot be recorded there, or not be resumed.
        SettingError: If it is none of these.
    """

    def recording() -> Recording:
        return Recording(program_directory(directory), mib=record_mib, sync=sync)

    if isinstance(subject, SandboxOpening):
        return subject.recorded(lambda: recorded_sandbox(BuiltRun(recording(), subject.executor)))
    if not isinstance(subject, Team | ChatAgent):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SettingError(
            f"a team, an agent, or what open_sandbox returns, can be recorded, not a {type(subject).__name__}"
        )
    return _recorded(recording, subject)


@asynccontextmanager
async def _recorded(
    recording: Callable[[], Recording], team: Team | ChatAgent
) -> AsyncGenerator[Team | ChatAgent]:
    async with recorded_team(BuiltRun(recording(), team)) as recorded:
        yield recorded


@asynccontextmanager
async def recorded_team(run: BuiltRun) -> AsyncGenerator[Team | ChatAgent]:
    """Within it, a team is recorded; gives the team that the program works with. Stops its executors at the end."""
    async with ended(run), Scope() as scope:
        for executor in run.executors:
            scope.register(executor)
        with run.opened():
            yield cast("Team", RecordedTeam(run))


@asynccontextmanager
async def recorded_sandbox(run: BuiltRun) -> AsyncGenerator[Within]:
    """Within it, a sandbox is recorded; gives what is entered for each thing that is done with it."""
    async with ended(run):
        with run.opened():
            failure, span = None, run.dispatcher.numbers.next()

            @contextmanager
            def enter() -> Generator[None]:
                with remembered(run.dispatcher), within(span):
                    yield

            # a program without an event loop enters and leaves in different contexts
            run.dispatcher.emit(run.began(span, ""))
            try:
                yield enter
            except BaseException as error:
                failure = error
                raise
            finally:
                run.dispatcher.emit(RunEnded(span=span, error=error_text(failure)))


class BuiltRun(Run):
    """The run of what a program has built.

    Args:
        recording: Records it.
        built: A team, an agent, or the executor of a sandbox.
    """

    def __init__(self, recording: Recording, built: Team | ChatAgent | InterpreterCodeExecutor) -> None:
        super().__init__(recording, of_program=True)
        self._built = built
        self._parts = dict(placed_components(built))

    @property
    def executors(self) -> Sequence[StreamingCodeExecutor]:
        parts = self._parts.values()
        return [
            part
            for part in parts
            if isinstance(part, StreamingCodeExecutor) and not isinstance(part, Wrapper)
        ]

    @contextmanager
    def opened(self) -> Generator[None]:
        """Within it, what runs is recorded.

        Raises:
            JournalError: If it cannot be.
        """
        team = self._built if isinstance(self._built, Team | ChatAgent) else None
        if team is not None and has_worked(team):
            raise JournalError(
                "the run cannot be recorded: its team has worked before, and that work is not recorded: build a new team, and "
                "record it from its first task on"
            )
        for place, part in self._parts.items():
            places.put(part, place or _SANDBOX)
        config = self.config
        telemetry.trace(self._outer or self.dispatcher, secret_remover(config.credentials), config.name)
        with ExitStack() as stack:
            with remembered(self.dispatcher):
                if team is not None:
                    stack.enter_context(wrapped_inside(team))
                self.begin(team)
                if self.bypassing_parts:
                    raise JournalError(
                        f"the run cannot be recorded: {', '.join(self.bypassing_parts)} would bypass its journal, so it "
                        "could not be resumed or replayed. Leave them out, or run it unrecorded"
                    )
                self.record(config, None)
            yield

    @cached_property
    def config(self) -> RunConfig:
        """Describes it, as far as its parts can be dumped."""
        built = self._built
        name = built.name if isinstance(built, ChatAgent) else type(built).__name__
        settings = {place: dict(settings_of(part)) for place, part in self._parts.items()}
        credentials = credentials_of(Document(name, settings), os.environ)
        try:
            written = dump_config(built)
        except Exception as error:  # whatever a part of it raises
            written = (
                f"# {name} was built by a program, and no config describes it: {one_line(str(error), 500)}\n"
            )
        return RunConfig(name, written, credentials, is_built=True)
