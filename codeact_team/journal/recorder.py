"""Records a run while it happens: its events as a listener, its effects as an interceptor."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from pydantic import JsonValue

from codeact_team.agents.observations import RESULT_KEY
from codeact_team.core.aio import FairLock, beside_the_loop, to_the_end
from codeact_team.core.component_effects import CodeEffect, CodeRun, WorkspaceEffect
from codeact_team.core.effects import Effect, End, Event, Numbers, Perform, now
from codeact_team.core.events import EffectBegan, EffectEnded, MessageSent, OpenQuestion, Output, Words
from codeact_team.core.execution import Artifact, Outcome
from codeact_team.core.executor_interface import RecordedFile, StreamingCodeExecutor
from codeact_team.core.places import place_of
from codeact_team.core.process_effects import ProcessOutcome
from codeact_team.errors import JournalError, SandboxError
from codeact_team.journal.blobs import Blobs, Room, is_light
from codeact_team.journal.conversations import Conversations
from codeact_team.journal.effect_records import EffectRecord
from codeact_team.journal.history import History
from codeact_team.journal.journal import JournalPolicy
from codeact_team.journal.lines import event_line
from codeact_team.journal.log import Log
from codeact_team.journal.requests import Request, Requests
from codeact_team.journal.run_directory import About, RunDirectory
from codeact_team.journal.seal import SealKey
from codeact_team.text.redaction import Redactor

logger = logging.getLogger(__name__)

_STOPPING = "the run is being stopped"
_ENDS = ("run_ended", "result")
"""The types of the events of a run's end."""
_NO_FILES = (
    "this run has nearly used up the {:,} MiB that are kept of a run (--record-mib): from now on, its files and pictures "
    "are not kept"
)
_FULL = (
    "this run has used up the {:,} MiB that are kept of a run (--record-mib): it goes on, but nothing more is kept, and it cannot "
    "be resumed"
)
Fields = dict[str, JsonValue]
Files = Mapping[str, RecordedFile]


class Recorder:
    """Writes the journal of a run, as docs/reference/journal.md describes it. No other process does until it is closed.

    Args:
        directory: The directory of the run.
        redactor: Replaces credentials by placeholders.
        numbers: Numbers effects that have no number yet.
        mib: How many MiB of the run are kept; ``None`` for any number. When files and artifacts have used up three quarters
            of that, no more of them are kept; when all is used up, only the end of the run is written.
        sync: Whether each entry is on the disk before the run continues.
    """

    def __init__(
        self,
        directory: RunDirectory,
        redactor: Redactor,
        numbers: Numbers | None = None,
        *,
        mib: int | None = None,
        sync: bool = False,
    ) -> None:
        self.directory = directory
        self._room = Room(mib, directory.path)
        self._is_full = self._leaves_out_files = False
        """Whether the room is used up, and whether the share for files is."""
        self._notices: list[str] = []
        """Warnings that are due: their listener may not be called in a thread."""
        self.blobs: Blobs = Blobs(directory.blobs, self._room, sync=sync, is_hidden=redactor.found_in)
        self.redactor = redactor
        self._numbers = numbers or Numbers()
        self._log = Log(directory.lines, self._room, sync=sync)
        self._failure: JournalError | None = None
        self._thread = ThreadPoolExecutor(1, "journal")
        """Writes large entries, in order."""
        self._last: Future[None] | None = None
        """The last entry that the thread writes."""
        self._lost: JournalError | None = None
        """The error of the thread, if it could not write an entry."""
        self._last_known = 0
        """The number of the last effect before the run was resumed."""
        self._begun: dict[int, Event] = {}
        """The events of effects that have begun, by number, until they are written."""
        self.conversations: Conversations = Conversations()
        self._files: dict[str, Files] = {}
        """The files of each workspace when it was recorded last."""
        self._files_turns = FairLock()
        """Held while that is recorded: processes end at any time."""
        self._at_work: dict[int, tuple[str, Files]] = {}
        """The workspaces of blocks that have not ended, by number, and what was there before."""
        self._stopping = asyncio.Event()

    @property
    def requests(self) -> Requests:
        """Makes the requests for effects, as the journal has them."""
        return Requests(self.redactor, self._log.chain, self.conversations)

    @classmethod
    def create(
        cls,
        runs: Path,
        about: About,
        config: str,
        credentials: Mapping[str, str],
        numbers: Numbers | None = None,
        *,
        key: SealKey | None = None,
        mib: int | None = None,
        sync: bool = False,
    ) -> Recorder:
        """Begin the journal of a new run. Blocks.

        Args:
            runs: The directory in which the directory of the run is made.
            about: Describes the run.
            config: Its config, in YAML.
            credentials: What must not be written, by name.
            numbers: As of the recorder.
            key: Seals the run; by default the key of this user.
            mib: As of the recorder.
            sync: As of the recorder.

        Raises:
            JournalError: If it cannot be written.
        """
        redactor = Redactor(credentials, about.nonce)
        about = About.model_validate(redactor.redact(about.model_dump(mode="json")))
        directory = RunDirectory(runs / about.id, key)
        directory.make()
        recorder = cls(directory, redactor, numbers, mib=mib, sync=sync)
        try:
            # the lock on the journal keeps other processes out
            directory.describe(about, str(redactor.redact(config)))
            recorder._log.chain = directory.chain()
            if sync:
                directory.sync()
        except BaseException:
            recorder.close()
            raise
        return recorder

    @classmethod
    def reopen(
        cls,
        directory: RunDirectory,
        credentials: Mapping[str, str],
        numbers: Numbers | None = None,
        *,
        shown: Collection[str] | None = None,
        mib: int | None = None,
        sync: bool = False,
    ) -> tuple[Recorder, History]:
        """Continue the journal of a run; returns its history, too. Blocks.

        Args:
            directory: The directory of the run.
            credentials: As of :meth:`create`.
            numbers: As of the recorder; numbers that the run has used are skipped.
            shown: The names of the credentials that the run gets back; ``None`` for all.
            mib: As of the recorder.
            sync: As of the recorder.

        Raises:
            JournalError: If another process writes it, or it is damaged.
        """
        redactor = Redactor(credentials, directory.about().nonce, shown)
        recorder = cls(directory, redactor, numbers, mib=mib, sync=sync)
        try:
            if sync:
                directory.sync()
            history = History(directory)
        except BaseException:
            recorder.close()
            raise
        recorder._last_known = history.last
        recorder.conversations.kept |= history.messages
        recorder._numbers.skip(history.last)
        # the run of somebody else does not become this user's by what is added
        recorder._log.chain = history.chain
        return recorder, history

    def __call__(self, event: Event) -> None:
        match event:
            case Words() | Output():
                pass
            case EffectBegan():
                self._begun[event.span] = event
            case EffectEnded():
                if (begun := self._begun.pop(event.span, None)) is not None:
                    # another interceptor answered or refused it before it got here
                    self._write_event(begun)
                    self._write_event(event)
            case _:
                self._write_event(_without_result(event))

    def _write_event(self, event: Event) -> None:
        line = event_line(event)
        self._write(partial(self._packed, line), is_light(line), is_event=True, is_end=event.type in _ENDS)

    @property
    def is_stopping(self) -> bool:
        """Whether the run is being stopped from outside, so that what ends now was cut short."""
        return self._stopping.is_set()

    @is_stopping.setter
    def is_stopping(self, is_stopping: bool) -> None:
        if is_stopping:
            self._stopping.set()
            return
        self._stopping.clear()
        # nothing is at work any more
        self._at_work.clear()

    async def until_stopping(self) -> None:
        """Wait until the run is being stopped."""
        await self._stopping.wait()

    def refuse_if_stopping(self) -> None:
        """Raise ``CancelledError`` while the run is being stopped: its callers are, too."""
        if self.is_stopping:
            raise asyncio.CancelledError(_STOPPING)

    def begin(self, effect: Effect[Any], request: Request, again: EffectRecord | None = None) -> int:
        """Record that an effect begins, which may be recorded already, as the run was resumed since; returns its first number."""
        effect.span = effect.span or self._numbers.next()
        self._begun.pop(effect.span, None)
        begin = effect.entry
        if begin is None or begin.span != effect.span:
            begin = effect.begin(effect.span)
        line: Fields = {"at": begin.at, "begin": begin.kind, "span": begin.span, "parent": begin.parent}
        line |= {"agent": begin.agent, "place": request.place, "key": request.key}
        call = request.call
        if (within := call.within) is not None:
            line["within"] = within
        if (owner := call.owner) is not None:
            line[owner[0]] = owner[1]
        if again is not None:
            line["again"] = again.n
        line["request"] = request.value
        if begin.facts:
            line["facts"] = self.redactor.redact({**begin.facts})
        messages: dict[str, JsonValue] = {}
        if request.conversation is not None:
            line["conversation"] = self.conversations.reference(
                (request.by, request.owner), begin.span, request.conversation.digests
            )
            messages = self.conversations.not_kept(request.messages)

        def make() -> Fields:
            # request and messages have their placeholders
            packed = self.blobs.pack_fields(line)
            if messages:
                packed["messages"] = {digest: self.blobs.pack(one) for digest, one in messages.items()}
            return packed

        self._write(make, is_light(request.value) and is_light([*messages.values()]))
        call.n = begin.span if again is None else again.n
        return call.n

    async def perform(self, n: int, effect: Effect[Any], do: Perform) -> Any:
        """Perform an effect that has begun, as the number ``n`` for what it asks itself, and record its outcome."""
        executor = _executor_of(effect)
        await self.written()
        try:
            if executor is not None:
                if (workspace := workspace_of(executor)) not in self._files:
                    await executor.start()
                    await self.record_files(executor, 0)
                if isinstance(effect, CodeEffect):
                    self._at_work[n] = workspace, self._files.get(workspace, {})
            outcome = await do()
            # with its sandbox, the files may be gone
            is_lost = isinstance(outcome, ProcessOutcome) and outcome.is_lost
            if executor is not None and not is_lost:
                await self.record_files(executor, n)
        except JournalError:
            # says nothing of the effect
            raise
        except BaseException as error:
            # all but exceptions end the process while something is under way
            is_cancelled = isinstance(error, asyncio.CancelledError) or not isinstance(error, Exception)
            try:
                if isinstance(error, asyncio.CancelledError) and executor is not None:
                    await self._record_interrupted(executor, n)
            finally:
                await self.fail(effect, error, is_cancelled=self.is_stopping or is_cancelled)
            raise
        finally:
            if not self.is_stopping:
                self._at_work.pop(n, None)
        if self.is_stopping and not isinstance(effect, CodeRun):
            await self.fail(effect, asyncio.CancelledError(_STOPPING), is_cancelled=True)
        else:
            await self.settle(effect, outcome)
        return outcome

    async def settle(self, effect: Effect[Any], outcome: Any, *, again: EffectRecord | None = None) -> None:
        """Record the outcome of an effect, which may be the outcome that is recorded already."""
        line: Fields = {"outcome": effect.dumped(outcome)}
        artifacts: Sequence[Artifact] = ()
        if isinstance(effect, CodeRun) and again is None:
            artifacts = getattr(outcome, "artifacts", ())
            how = Outcome.CANCELLED if self.is_stopping else getattr(outcome, "outcome", Outcome.COMPLETED)
            line["ran"] = {"outcome": how, "state_lost": getattr(outcome, "state_lost", None)}
        await self._end(effect, effect.end(outcome, None), line, again, artifacts)

    async def fail(
        self,
        effect: Effect[Any],
        error: BaseException,
        *,
        is_cancelled: bool = False,
        again: EffectRecord | None = None,
    ) -> None:
        """Record the error of an effect; ``again`` as of :meth:`settle`."""
        end = effect.end(None, error)
        assert end.failure is not None, "it has an error"
        described = asdict(end.failure)
        line: Fields = {"error": {name: value for name, value in described.items() if value is not None}}
        if is_cancelled:
            line["cancelled"] = True
        await self._end(effect, end, line, again)

    async def _end(
        self,
        effect: Effect[Any],
        end: End,
        found: Fields,
        again: EffectRecord | None,
        artifacts: Sequence[Artifact] = (),
    ) -> None:
        # other interceptors may have taken their time
        end.at = now()
        line: Fields = {"at": end.at, "end": effect.kind, "span": effect.span}
        if again is not None:
            line["again"] = again.n
        if end.facts:
            line["facts"] = {**end.facts}
        line |= found
        self._write(partial(self._packed, line), is_light(found), artifacts=artifacts)
        await self.written()

    def next_span(self) -> int:
        """A number for what is no effect."""
        return self._numbers.next()

    def answer(self, question: OpenQuestion, outcome: JsonValue) -> None:
        """Record the answer to a question of a run that has ended."""
        self.write(given=question.n, key=question.key, outcome=self.packed(outcome))

    async def _record_interrupted(self, executor: StreamingCodeExecutor, block: int) -> None:
        """Record the files of a lasting workspace, so that changes by a person can be told from them later."""
        workspace = workspace_of(executor)
        if workspace in self._files and not workspace.startswith("@"):
            await self.record_files(executor, block)

    async def record_files(self, executor: StreamingCodeExecutor, block: int) -> None:
        """Record the changes of a block, or a process, in its workspace; 0 for the files before the first, which are no block's."""
        workspace = workspace_of(executor)
        async with self._files_turns:
            if block == 0 and workspace in self._files:
                return
            try:
                now = await self.files_of(executor)
            except SandboxError as error:
                logger.warning("changes of code in its workspace are not recorded: %s", error)
                return
            before = self._files.get(workspace, {})
            self.know_files(executor, now)
            if now is before and block > self._last_known:
                return
            entry = await to_the_end(
                beside_the_loop(len(before) + len(now), partial(self._changes, before, now))
            )
            if block <= self._last_known or entry["changed"] or entry["gone"]:
                self.write(files={"workspace": workspace, "block": block, **entry})
                await self.written()

    def _changes(self, before: Files, now: Files) -> Fields:
        changed = as_entry({path: file for path, file in now.items() if before.get(path) != file})
        return {
            "changed": self.packed(changed),
            "gone": self.packed([path for path in before if path not in now]),
        }

    def packed(self, value: JsonValue) -> JsonValue:
        """A value as an entry has it, with placeholders for credentials, and large parts as blobs. Blocks.

        Raises:
            JournalError: If a blob cannot be written.
        """
        return self.blobs.pack(self.redactor.redact(value))

    def _packed(self, line: Fields) -> Fields:
        """A line with placeholders for credentials, and large parts as blobs. Blocks."""
        return self.blobs.pack_fields(cast(Fields, self.redactor.redact(line)))

    def know_files(self, executor: StreamingCodeExecutor, files: Files) -> None:
        """Take files of a workspace for recorded."""
        self._files[workspace_of(executor)] = files

    def known_files(self, executor: StreamingCodeExecutor) -> Files:
        """The files of a workspace that are recorded."""
        return self._files.get(workspace_of(executor), {})

    async def files_of(self, executor: StreamingCodeExecutor) -> Files:
        """The files of a workspace. Their contents are kept, except those that hold a credential."""
        return await executor.workspace.record(self._keep)

    def _keep(self, data: bytes) -> str | None:
        """Keep the content of a file or an artifact, unless it holds a credential, or no room is left."""
        if self.redactor.found_in(data):
            return None
        digest = self.blobs.keep_if_room(data)
        if digest is None and not self._leaves_out_files:
            self._leaves_out_files = True
            self._notices.append(_NO_FILES)
        return digest

    async def cut_off(self, executor: StreamingCodeExecutor) -> Collection[str]:
        """Files that a block which has not ended has made or changed: they are not the run's until it has.

        Raises:
            SandboxError: If that cannot be found out.
        """
        workspace = workspace_of(executor)
        before = next((files for where, files in self._at_work.values() if where == workspace), None)
        if before is None:
            return ()
        now = await self.files_of(executor)
        return {path for path, file in now.items() if before.get(path) != file}

    async def note_copies(self, paths: Sequence[str]) -> None:
        """Record where files of the run are copied to, so that copies of files that it drops can be removed."""
        self._write(lambda: {"at": now(), "copies": self.packed([*paths])}, light=False)
        await self.written()

    def close(self) -> None:
        """Write what is due, and let other processes continue the run. Idempotent. Blocks."""
        while self._begun and self._lost is None:
            # no interceptor recorded them before the run ended
            self._write_event(self._begun.pop(next(iter(self._begun))))
        self._thread.shutdown()
        self.blobs.close()
        self._log.close()

    def give_up(self, error: JournalError) -> None:
        """Record no more effects: agents may react to an error of the journal, which is none of theirs."""
        self._failure = self._failure or error

    def write(self, **entry: JsonValue) -> None:
        """Append an entry that has no event, behind those that are being written; see :meth:`written`.

        Raises:
            JournalError: If it cannot be written, or one before could not be.
        """
        at = now()
        self._write(lambda: {"at": at, **entry}, light=True)

    async def written(self) -> None:
        """Wait until all entries are written.

        Raises:
            JournalError: If one cannot be.
        """
        if (last := self._last) is not None:
            await to_the_end(asyncio.wrap_future(last))
        while self._notices:
            logger.warning(self._notices.pop(0).format(self._room.mib))
        if self._lost is not None:
            raise self._lost

    def _write(
        self,
        make: Callable[[], Fields],
        light: bool,
        *,
        artifacts: Sequence[Artifact] = (),
        is_event: bool = False,
        is_end: bool = False,
    ) -> None:
        """Append an entry: at once, or in the thread if it is large, or others are written there.

        Args:
            make: Makes the entry.
            light: Whether that takes no time worth a thread.
            artifacts: Kept before the entry is written.
            is_event: Whether it is an event alone, which is written even if the journal has failed an effect.
            is_end: Whether it is the end of the run, which is written in any case.
        """
        if (failure := self._lost or (None if is_event else self._failure)) is not None:
            raise failure

        def write() -> None:
            if not is_end and self._is_used_up():
                return
            for artifact in artifacts:
                for data in artifact.forms.values():
                    self._keep(data)
            self._log.append(make())

        is_idle = self._last is None or self._last.done()
        if is_idle and not artifacts and light:
            write()
        else:
            self._last = self._thread.submit(self._write_unless_lost, write)

    def _is_used_up(self) -> bool:
        """Whether the room is used up; the journal says so once, in place of an entry."""
        if not self._is_full and self._room.is_used_up:
            self._is_full = True
            self._log.append({"at": now(), "full": self._room.mib})
            self._notices.append(_FULL)
        return self._is_full

    def _write_unless_lost(self, write: Callable[[], None]) -> None:
        if self._lost is None:
            try:
                write()
            except JournalError as error:
                self._lost = error


def _executor_of(effect: Effect[Any]) -> StreamingCodeExecutor | None:
    """The executor in whose workspace an effect may change files."""
    is_there = isinstance(effect, WorkspaceEffect) or (isinstance(effect, CodeEffect) and not effect.is_apart)
    return effect.part if is_there and isinstance(effect.part, StreamingCodeExecutor) else None


def as_entry(files: Files) -> Fields:
    """Files as an entry has them."""
    # many times faster than dataclasses.asdict
    return {
        path: {"digest": file.digest, "size": file.size, "is_executable": file.is_executable}
        for path, file in files.items()
    }


def _without_result(event: Event) -> Event:
    """An event without the result of a block, which the entry of the block's end has."""
    if not (isinstance(event, MessageSent) and RESULT_KEY in event.message.metadata):
        return event
    metadata = {key: value for key, value in event.message.metadata.items() if key != RESULT_KEY}
    return replace(event, message=event.message.model_copy(update={"metadata": metadata}))


def workspace_of(executor: StreamingCodeExecutor) -> str:
    """The name of a workspace: its path from the working directory, which runs may share, or ``@`` and a place."""
    workspace = executor.workspace
    path = workspace.path
    if path is None or workspace.is_own:
        return f"@{place_of(executor)}"
    return os.path.relpath(path)


class Record(JournalPolicy):
    """The policy of a new run: each effect is performed, and recorded.

    While the run is being stopped no outcome is recorded: the code, the tool or the person may have been cancelled, and have
    made something of that. A resumed run takes the effect for under way, as after a kill.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    async def perform(self, effect: Effect[Any], request: Request, do: Perform) -> Any:
        n = self._recorder.begin(effect, request)
        return await self._recorder.perform(n, effect, do)
