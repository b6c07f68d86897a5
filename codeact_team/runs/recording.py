"""Records a run."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import shlex
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from codeact_team.config.loading import CheckedConfig
from codeact_team.core.aio import to_the_end
from codeact_team.core.effects import Effect, Event, Numbers, Perform, emit
from codeact_team.core.events import Opened, OpenQuestion, RunParked
from codeact_team.core.executor_interface import ChangedFile, StreamingCodeExecutor
from codeact_team.errors import JournalError
from codeact_team.journal.blobs import DEFAULT_MIB
from codeact_team.journal.history import History
from codeact_team.journal.journal import Journal
from codeact_team.journal.recorded_run import RecordedRun
from codeact_team.journal.recorder import Record, Recorder
from codeact_team.journal.result import RunEnding, RunResult
from codeact_team.journal.resumption import Resumption
from codeact_team.journal.run_directory import ADVICE, About, RunDirectory, new_id
from codeact_team.journal.seal import key_file
from codeact_team.runs.foreign_runs import foreign_refused
from codeact_team.text.visibility import one_line, readable
from codeact_team.tools.approvals import AskedQuestion, current_handler

logger = logging.getLogger(__name__)

_FULL = (
    "the run in {} cannot go on: it had used up the {:,} MiB that are kept of a run, and nobody knows what it did after that. "
    "Begin a new one with a larger --record-mib; in Python, `record_mib`"
)
_VERSIONED = ("codeact-team", "autogen-core", "autogen-agentchat", "autogen-ext")


@dataclass(frozen=True)
class RunConfig:
    """Describes what runs, for its record.

    Attributes:
        name: The name of the config.
        written: Its text.
        credentials: What must not be written, by name.
        is_built: Whether a program has built it, and ``written`` is for people only.
    """

    name: str
    written: str
    credentials: Mapping[str, str]
    is_built: bool = False

    @classmethod
    def of(cls, config: CheckedConfig) -> RunConfig:
        """Describe a config."""
        return cls(config.document.name, config.written, config.credentials)


class Recording:
    """A listener and an interceptor that record a run from :meth:`begin` to :meth:`end`, if it is to be recorded.

    Args:
        runs: The directory in which a new run gets its own; or the directory of one run, which is resumed if it is there;
            ``None`` to record nothing.
        mib: The most MiB of the run that are recorded; ``None`` for any number. The run continues when they are used up.
        sync: Whether the record survives a power cut.
        shown: The names of the credentials that another user's run gets; ``None`` for a run of this user, which gets all.
        changes: The overrides of its config with which it is resumed, to be kept with it.

    Attributes:
        recorder: Writes the run, if it is recorded now.
        last_result: How the run had ended before it was resumed.
        copies: Where files of the run were copied to before it was resumed.
        fail: Ends the run by an error of its journal, whatever agents and code make of that.
        stop: Stops the work on an input of a chat, as a person does.
        answer_file: Where the answer of a new run is written to, which a resume does as well; an absolute path.
        files_directory: The same of its files.
    """

    def __init__(
        self,
        runs: Path | RunDirectory | None,
        *,
        mib: int | None = DEFAULT_MIB,
        sync: bool = False,
        shown: Collection[str] | None = None,
        changes: Sequence[str] = (),
    ) -> None:
        self._changes = changes
        # a new run has its name before it begins
        self._directory = RunDirectory(runs / new_id()) if isinstance(runs, Path) else runs
        self._is_new = isinstance(runs, Path)
        self._mib = mib
        self._sync = sync
        self._shown = shown
        self._journal: Journal | None = None
        self._resumption: Resumption | None = None
        self._first_task: str | None = None
        """The first task of the program's run that is resumed, until the program has given it again."""
        self._refused: JournalError | None = None
        self.recorder: Recorder | None = None
        self.last_result: RunResult | None = None
        self.copies: Sequence[str] = ()
        self.fail: Callable[[JournalError], object] = lambda _: None
        self.stop: Callable[[], object] = lambda: None
        self.answer_file: str | None = None
        self.files_directory: str | None = None

    @property
    def calls_tools(self) -> bool:
        """Whether the run really calls its tools."""
        return True

    @property
    def keeps_files(self) -> bool:
        """Whether the files that the code makes are the run's, and outlast it where its workspace does."""
        return True

    @property
    def place(self) -> str | None:
        """The directory of the run that is recorded now, if one is."""
        return None if self.recorder is None else str(self.recorder.directory.path)

    @property
    def is_resumed(self) -> bool:
        """Whether the run was there before."""
        return self._resumption is not None

    @property
    def repeats(self) -> bool:
        """Whether the work under way had ended before the run was resumed."""
        return self._resumption is not None and self._resumption.repeats

    def refuse_what_passes(self, parts: Sequence[str]) -> None:
        """Refuse to resume a run with parts that bypass its journal. Blocks.

        Raises:
            JournalError: If there are any.
        """
        if parts and self._begun() is not None:
            raise JournalError(
                f"the run cannot go on: these bypass its journal, so nobody knows what they have done: {', '.join(parts)}"
            )

    def still_waits(self) -> RunParked | None:
        """The questions of the run to resume, if nobody has answered one since, nor can be asked now. Blocks.

        Raises:
            JournalError: If its journal cannot be read.
        """
        if (directory := self._begun()) is None or current_handler() is not None:
            return None
        last = RecordedRun(directory).result()
        if last is None or last.ending is not RunEnding.PARKED:
            return None
        history = History(directory)
        questions = list(history.open.values())
        # standard input may answer a program's question; code whose outcome is unknown can continue
        can_go_on = any(each.is_lost or each.kind != AskedQuestion.kind for each in questions)
        if history.has_answers or can_go_on or not questions:
            return None
        return RunParked(record=str(directory.path), questions=questions)

    def _begun(self) -> RunDirectory | None:
        """The directory of the run to resume."""
        return self._directory if self._directory is not None and self._directory.is_begun else None

    @property
    def workspace(self) -> Path | None:
        """The directory for the workspace of the run, if it is recorded; not made."""
        return None if self._directory is None else self._directory.workspace

    def begin(
        self,
        config: RunConfig,
        task: str | None,
        executors: Sequence[StreamingCodeExecutor],
        opened: Opened,
        park: Callable[[RunParked], None],
        numbers: Numbers,
        *,
        is_chat: bool = False,
    ) -> None:
        """Record from now on, if anything is to be recorded. Blocks.

        Args:
            config: What runs.
            task: What it has to do; ``None`` if a program, or a person in a chat, gives it its tasks.
            executors: Where code runs; none of them may reach the directory.
            opened: An event that was emitted before.
            park: Ends the run that waits for a person who is not there.
            numbers: Those of its effects.
            is_chat: Whether a person gives it its tasks.

        Raises:
            JournalError: If it cannot be recorded.
        """
        if (directory := self._directory) is None:
            return
        _refuse_what_code_reaches(directory.path.parent if self._is_new else directory.path, executors)
        credentials = config.credentials
        if directory.is_begun:
            recorder = self._resume(directory, config, credentials, executors, numbers)
        else:
            about = About(
                id=directory.path.name,
                task=task,
                config=config.name,
                working_directory=os.getcwd(),
                versions=dict(_versions()),
                is_chat=is_chat,
                answer_file=self.answer_file,
                files_directory=self.files_directory,
                program=_this_program() if task is None and not is_chat else None,
                is_built=config.is_built,
            )
            recorder = self.recorder = Recorder.create(
                directory.path.parent,
                about,
                config.written,
                credentials,
                numbers,
                key=directory.key,
                mib=self._mib,
                sync=self._sync,
            )

        def park_run(questions: Sequence[OpenQuestion]) -> None:
            # before the run ends: code must not do anything more meanwhile
            recorder.is_stopping = True
            park(RunParked(record=str(recorder.directory.path), questions=questions))

        self._journal = Journal(self._resumption or Record(recorder), recorder.requests, park_run)
        recorder(opened)

    def _resume(
        self,
        directory: RunDirectory,
        config: RunConfig,
        credentials: Mapping[str, str],
        executors: Sequence[StreamingCodeExecutor],
        numbers: Numbers,
    ) -> Recorder:
        recorder, history = Recorder.reopen(
            directory, credentials, numbers, shown=self._shown, mib=self._mib, sync=self._sync
        )
        try:
            # nothing is written to a run that is refused, not even that it was
            if history.full_mib is not None:
                raise JournalError(_FULL.format(directory.path, history.full_mib))
            if history.chain is None and self._shown is None:
                raise foreign_refused(directory.path)
            resumption = Resumption(history, recorder, self.stop)
            resumption.begin(executors)
        except BaseException:
            recorder.close()
            raise
        self.recorder, self._resumption, self.copies = recorder, resumption, history.copies
        recorded = RecordedRun(directory)
        self.last_result = recorded.result()
        if recorded.about.is_of_program:
            self._first_task = recorded.task
            if recorder.redactor.restore(directory.config()) != config.written:
                logger.warning(
                    "the config has changed since this run began: requests that differ from the recorded ones are made again"
                )
        changed = {change.partition("=")[0]: change for change in self._changes}
        # what holds a credential has to be given anew
        kept: list[JsonValue] = [
            change for change in changed.values() if recorder.redactor.redact_text(change) == change
        ]
        recorder.write(resumed=dict(_versions()), **({"set": kept} if kept else {}))
        emit(history.resumed(str(directory.path)))
        return recorder

    async def check_task(self, task: str) -> None:
        """Refuse a first task of the program other than the one that the run to resume began with; the run stays as it was.

        Raises:
            JournalError: If it is another one.
        """
        if self._refused is None and self._first_task is not None and self.recorder is not None:
            if self.recorder.redactor.redact_text(task) != self._first_task:
                first, given = one_line(self._first_task, 80), one_line(task, 80)
                self._refused = JournalError(
                    f"the run in {self.place} began with the task {first!r}, and not with {given!r}. For a new run, "
                    "choose another directory for `record`; to resume that run, give it the same tasks from the first on"
                )
                if self.last_result is not None:
                    self.recorder(self.last_result)
                await self.end()
            self._first_task = None
        if self._refused is not None:
            raise self._refused

    def __call__(self, event: Event) -> None:
        if self.recorder is not None:
            self.recorder(event)

    async def intercept(self, effect: Effect[Any], do: Perform) -> Any:
        """An interceptor: see :meth:`Journal.intercept`.

        Raises:
            CancelledError: If the run is being stopped: the caller is being stopped, too.
        """
        recorder, journal = self.recorder, self._journal
        if recorder is None or journal is None:
            return await do()
        recorder.refuse_if_stopping()
        try:
            return await journal.intercept(effect, do)
        except JournalError as error:
            recorder.give_up(error)
            self.fail(error)
            raise

    def leave(self) -> bool:
        """Park the run, as the person leaves whom it asks; returns whether it can be."""
        return self._journal is not None and self._journal.leave()

    def set_stopping(self, is_stopping: bool) -> None:
        """Note whether the run is being stopped from outside, before anything is cancelled for that.

        What ends from then on is no outcome, and nothing new is done. A cancellation that belongs to the run, such as by a
        time limit of an agent's own, is an outcome like any other.
        """
        if self.recorder is not None:
            self.recorder.is_stopping = is_stopping

    async def finish(self, executors: Sequence[StreamingCodeExecutor]) -> Sequence[ChangedFile]:
        """The work is done. Returns as :meth:`Resumption.finish`; raises as :meth:`Recorder.written`."""
        lacking = () if self._resumption is None else await self._resumption.finish(executors)
        if self.recorder is not None:
            # the end waits for it without letting the loop go on
            await self.recorder.written()
        return lacking

    async def end(self) -> None:
        """Record nothing more, once all is written. Idempotent."""
        recorder, self.recorder, self._resumption, self._journal = self.recorder, None, None, None
        if recorder is not None:
            # the last entries may be large
            await to_the_end(asyncio.to_thread(recorder.close))


def refuse_elsewhere(about: About, directory: RunDirectory) -> None:
    """Refuse to resume a run in another directory than it was made in. Blocks.

    Raises:
        JournalError: If this is another one.
    """
    made_in = Path(about.working_directory)
    # without that directory, the run was carried to another machine
    if made_in.is_dir() and not made_in.samefile(os.curdir):
        path = directory.path.resolve()
        # from there, a run that is below it has a shorter name
        place = path.relative_to(made_in) if path.is_relative_to(made_in) else path
        command = about.program or "the program again"
        if not about.is_of_program:
            command = f"codeact-team resume {_shell(place)}"
        raise JournalError(
            f"the run {about.id} was made in {readable(str(made_in))}, to which paths in its config are relative; resume it there: "
            f"cd {_shell(made_in)} && {command}"
        )


def _this_program() -> str | None:
    """The command that starts this process, without its arguments, which may be secrets; ``None`` at an interactive prompt."""
    main = sys.modules["__main__"]
    if (spec := main.__spec__) is not None:
        return shlex.join(["python", "-m", spec.name.removesuffix(".__main__")])
    path: str | None = getattr(main, "__file__", None)
    return None if path is None else shlex.join(["python", readable(os.path.relpath(path))])


def _shell(path: Path) -> str:
    return shlex.quote(readable(str(path)))


@cache
def _versions() -> Mapping[str, str]:
    return {"python": platform.python_version(), **{name: version(name) for name in _VERSIONED}}


def _refuse_what_code_reaches(runs: Path, executors: Sequence[StreamingCodeExecutor]) -> None:
    """Refuse code that could change its own history, or make runs that are taken for this user's."""
    if (path := _reached(runs, executors)) is not None:
        raise JournalError(
            f"the run cannot be recorded in {runs}: its code can reach {path}, and so its own record. {ADVICE}"
        )
    try:
        key = key_file()
    except JournalError:
        return
    if (path := _reached(key, executors)) is not None:
        raise JournalError(
            f"the run cannot be recorded: its code can reach {path}, and so the key {key}, by which your runs are recognized. Let "
            "it reach less, or set XDG_STATE_HOME to another directory, or run it with --no-record"
        )


def _reached(target: Path, executors: Sequence[StreamingCodeExecutor]) -> Path | None:
    """A path that code can reach and that holds the target, or is in it."""
    # texts: there are many paths, and this is done for each run
    wanted = os.path.join(os.path.realpath(target), "")
    for executor in executors:
        for path in executor.reached:
            reached = os.path.join(os.path.realpath(path), "")
            if wanted.startswith(reached) or reached.startswith(wanted):
                return path
    return None
