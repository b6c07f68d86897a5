"""Records a run, and decides whether a recorded run is this user's."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

from pydantic import JsonValue

from codeact_team.config.components import is_component
from codeact_team.config.document import Document, dotted, is_text, last_key, read_document, walk
from codeact_team.config.dumping import credentials_of
from codeact_team.config.loading import CheckedConfig
from codeact_team.config.models import SERVER_FIELDS, keys_for_a_server
from codeact_team.config.overrides import ForEvery, apply_overrides
from codeact_team.core.aio import to_the_end
from codeact_team.core.effects import Effect, Event, Numbers, Perform, emit
from codeact_team.core.events import Opened, RunParked
from codeact_team.core.executor_interface import ChangedFile, StreamingCodeExecutor
from codeact_team.core.files import opened, opened_file
from codeact_team.core.redaction import Redactor, credentials_of_environment, names_in_placeholders
from codeact_team.core.trees import files_below
from codeact_team.core.visibility import cut, one_line, readable, visible
from codeact_team.errors import JournalError
from codeact_team.runs.journal.blobs import DEFAULT_MIB
from codeact_team.runs.journal.history import History
from codeact_team.runs.journal.log import LogReader
from codeact_team.runs.journal.parking import Parking
from codeact_team.runs.journal.recorded_run import RecordedRun
from codeact_team.runs.journal.recorder import Recorder
from codeact_team.runs.journal.resumption import Resumption
from codeact_team.runs.journal.run_directory import ADVICE, About, RunDirectory, new_id
from codeact_team.runs.journal.seal import key_file
from codeact_team.runs.result import RunEnding, RunResult
from codeact_team.tools.approvals import AskedQuestion, current_handler

logger = logging.getLogger(__name__)

_FULL = (
    "the run in {} cannot go on: it had used up the {:,} MiB that were kept of it, and nobody knows what it has done after that. "
    "Begin a new one, which may keep more by --record-mib; in Python, by `record_mib`"
)
_VERSIONED = ("codeact-team", "autogen-core", "autogen-agentchat", "autogen-ext")


class Recording:
    """A listener and an interceptor that record a run from :meth:`begin` to :meth:`end`, if it is to be recorded.

    Args:
        runs: The directory that gets one for a new run; or that of the run itself, which is resumed if it is there; ``None``
            to record nothing.
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
        self._parking: Parking | None = None
        self._resumption: Resumption | None = None
        self._first_task: str | None = None
        """What the program's run to resume began with, until the program has begun with it again."""
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
                f"the run cannot go on: {', '.join(parts)} act past its journal, so nobody knows what they have done"
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
        config: CheckedConfig,
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
        credentials = credentials_of(config.document, os.environ)
        if directory.is_begun:
            recorder = self._resume(directory, config, credentials, executors, numbers)
        else:
            about = About(
                id=directory.path.name,
                task=task,
                config=config.document.name,
                working_directory=os.getcwd(),
                versions=dict(_versions()),
                is_chat=is_chat,
                answer_file=self.answer_file,
                files_directory=self.files_directory,
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
        self._parking = Parking(recorder, park)
        recorder(opened)

    def _resume(
        self,
        directory: RunDirectory,
        config: CheckedConfig,
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
                    "the config has changed since this run began: what is asked otherwise is done anew"
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
        """An interceptor: see :meth:`Recorder.intercept`.

        Raises:
            CancelledError: If the run is being stopped: the caller is being stopped, too.
        """
        recorder, parking = self.recorder, self._parking
        if recorder is None or parking is None:
            return await do()
        recorder.refuse_if_stopping()
        try:
            with parking.watching(effect):
                return await (self._resumption or recorder).intercept(
                    effect, partial(parking.intercept, effect, do)
                )
        except JournalError as error:
            recorder.give_up(error)
            self.fail(error)
            raise

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
        recorder, self.recorder, self._resumption, self._parking = self.recorder, None, None, None
        if recorder is not None:
            # the last entries may be large
            await to_the_end(asyncio.to_thread(recorder.close))


def config_of(run: RecordedRun, redactor: Redactor, shown: Collection[str] | None) -> Document:
    """The config of a run, with the changes that were made when it was resumed, unless somebody else made these. Blocks.

    Args:
        run: The run.
        redactor: Fills in its credentials.
        shown: As of :func:`shown_to`, which has checked the run.

    Raises:
        JournalError: If it cannot be read.
        ConfigError: If it is no config.
    """
    directory = run.directory
    document = read_document(str(redactor.restore(directory.config())), str(directory.config_file))
    # a person who confirms another user's run sees its config only
    return apply_overrides(document, run.changes() if shown is None else ())


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
        command = "the program again" if about.task is None else f"codeact-team resume {_shell(place)}"
        raise JournalError(
            f"the run {about.id} was made in {readable(str(made_in))}, from which paths in its config lead; resume it there: "
            f"cd {_shell(made_in)} && {command}"
        )


def _shell(path: Path) -> str:
    return shlex.quote(readable(str(path)))


@cache
def _versions() -> Mapping[str, str]:
    return {"python": platform.python_version(), **{name: version(name) for name in _VERSIONED}}


def foreign_refused(run: Path, *wanted: str) -> JournalError:
    """The error for a run that this user has not recorded, and that its config asks for ``wanted``."""
    told = [_one(each) for each in wanted[:_MOST]]
    if len(wanted) > _MOST:
        told.append(f"{len(wanted) - _MOST} more")
    asked = f" Its config asks for {'; '.join(told)}." if told else ""
    return JournalError(
        f"the run in {readable(str(run))} was not recorded by you on this machine, or was changed since: it could let your tools, your keys and "
        f"your files be used for what you never asked for.{asked} Go on with it on a terminal by `codeact-team resume` or `replay`, "
        "which ask you first; or begin a new run"
    )


def _refuse_what_code_reaches(runs: Path, executors: Sequence[StreamingCodeExecutor]) -> None:
    """Refuse code that could change its own history, or make runs that are taken for this user's."""
    if (path := _reached(runs, executors)) is not None:
        raise JournalError(
            f"the run cannot be recorded in {runs}: its code can reach {path}, and so what is recorded of it. {ADVICE}"
        )
    try:
        key = key_file()
    except JournalError:
        return
    if (path := _reached(key, executors)) is not None:
        raise JournalError(
            f"the run cannot be recorded: its code can reach {path}, and so the key {key}, by which your runs are known. Give it "
            "less, or set XDG_STATE_HOME to another directory, or run it with --no-record"
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


_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-[^}]*)?\}")
_TELLING = frozenset(
    "approval args base_url bind_dir command confinement cwd data env environment extra_volumes image network packages read_only "
    "readable runtime tools_dir url work_dir writable".split()
)
"""Settings that use something of this machine, or of the network."""
_MOST = 12
"""Wishes of a config that one sentence lists."""
_LONGEST = 80
_MOST_NAMES = 40
"""Names that a person confirms one by one."""
_MOST_READ = 1 << 30
"""Bytes of a run that are searched for placeholders."""
_PIECE = 1 << 20
_OVERLAP = 1024
"""Bytes that no placeholder is longer than."""

_Parts = Sequence[tuple[tuple[str | int, ...], Any]]
"""The values in a config, each with its path."""


@dataclass(frozen=True)
class ForeignRun:
    """A run of unknown origin. All of it is hostile data.

    Attributes:
        directory: Of its record.
        about: Its description of itself.
        config: Its config, in YAML; ``None`` if that does not run.
        wanted: What the config asks for, in words.
        names: Credentials and variables of this machine that the run names, and gets only if a person confirms each.
    """

    directory: RunDirectory
    about: About
    config: str | None
    wanted: Sequence[str]
    names: Sequence[str]


Confirm = Callable[[ForeignRun], Collection[str] | None]
"""Asks a person whether a run may go on; returns those of the names that it gets, or ``None`` if it may not."""


def shown_to(
    directory: RunDirectory, confirm: Confirm | None, *, runs_config: bool = True
) -> Collection[str] | None:
    """The names of the credentials and variables that a run gets; ``None`` for all, as it is this user's. Blocks.

    Args:
        directory: Of its record.
        confirm: Asks a person; ``None`` if nobody can be asked.
        runs_config: Whether its own config is to run.

    Raises:
        JournalError: If the run cannot be read; or it is not this user's, and nobody confirms it.
        ConfigError: If its config cannot be read.
    """
    if is_own(directory):
        return None
    config = directory.config() if runs_config else None
    if config is not None and not is_text(config):
        # it would be taken for the name of a file
        raise JournalError(f"{readable(str(directory.path))} has no config that could run")
    parts = [] if config is None else list(walk(read_document(config).data))
    wanted = list(_wanted(config or "", parts))
    if confirm is None:
        raise foreign_refused(directory.path, *wanted)
    about = directory.about()
    named = _named_in(directory.path, names_in_placeholders(about.nonce))
    names = [name for name in credentials_of_environment(os.environ) if name in named]
    referred = dict.fromkeys(_REFERENCE.findall(config or ""))
    sent = _sent(parts)
    names += [name for name in {**referred, **sent} if name in os.environ and name not in names]
    if len(names) > _MOST_NAMES:
        raise JournalError(
            f"the run in {directory.path} was not recorded by you on this machine, and names {len(names):,} variables of your "
            "environment: too many to be confirmed one by one"
        )
    shown = confirm(ForeignRun(directory, about, config, wanted, names))
    if shown is None:
        raise JournalError(
            f"the run in {readable(str(directory.path))} was not confirmed, and nothing of it was done"
        )
    for name in sent.keys() & os.environ.keys():
        # the client does not ask us for it
        if name not in shown:
            raise JournalError(
                f"the config of the run in {readable(str(directory.path))} sends {name} to {_one(sent[name])}, and it was not "
                "given that; nothing of it was done"
            )
    return shown


def environment_for(
    shown: Collection[str] | None, overrides: Sequence[str | ForEvery] = ()
) -> Mapping[str, str]:
    """The variables to which the config of a run, and its overrides, may refer; ``shown`` is of :func:`shown_to`."""
    if shown is None:
        return os.environ
    own = {name for change in overrides if isinstance(change, str) for name in _REFERENCE.findall(change)}
    return {name: value for name, value in os.environ.items() if name in shown or name in own}


def options_of(run: RecordedRun) -> Sequence[str]:
    """The options that a run was given and cannot be resumed without; none of a run that somebody else may have written."""
    # of one that cannot be read, nothing is known
    with suppress(JournalError):
        if is_own(run.directory) and (began := run.began()) is not None:
            return began.options
    return ()


def is_own(directory: RunDirectory) -> bool:
    """Whether this user has recorded a run, which is unchanged since."""
    if (chain := directory.chain()) is None:
        return False
    with LogReader(directory.lines, chain) as log:
        return all(log.chain is not None for _ in log.new())


def _named_in(top: Path, placeholder: re.Pattern[bytes]) -> set[str]:
    """The names in placeholders in the files below a directory. Other placeholders are not filled."""
    found: set[str] = set()
    left = _MOST_READ
    with suppress(OSError), opened(top) as directory:
        for inner, name, _ in files_below(directory):
            before = b""
            with suppress(OSError), opened_file(inner.descriptor, name) as file:
                while left > 0 and (piece := os.read(file, _PIECE)):
                    left -= len(piece)
                    found |= {each.decode(errors="replace") for each in placeholder.findall(before + piece)}
                    before = piece[-_OVERLAP:]
    return found


def _wanted(config: str, parts: _Parts) -> Iterator[str]:
    """The wishes of a config, as far as they are known without importing anything."""
    providers: dict[str, None] = {}
    told: dict[str, None] = {}
    for path, value in parts:
        if is_component(value):
            providers[str(value["provider"])] = None
        elif last_key(path) in _TELLING and value not in (None, [], {}, ""):
            told[f"{dotted(path)}: {_text(value)}"] = None
    references = dict.fromkeys(_REFERENCE.findall(config))
    if references:
        yield f"variables of your environment: {', '.join(f'${{{name}}}' for name in references)}"
    yield from told
    if providers:
        yield f"components: {', '.join(providers)}"


def _sent(parts: _Parts) -> Mapping[str, str]:
    """The variables from which model clients read a key by themselves, each with the server that a config sends it to."""
    found: dict[str, str] = {}
    for _, value in parts:
        if is_component(value) and isinstance(settings := value.get("config"), dict):
            given = cast("Mapping[str, Any]", settings)
            server = next((_text(given[name]) for name in SERVER_FIELDS if given.get(name)), "")
            found |= dict.fromkeys(keys_for_a_server(str(value["provider"]), given), server)
    return found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


def _one(wanted: str) -> str:
    return visible(cut(wanted, _LONGEST))
