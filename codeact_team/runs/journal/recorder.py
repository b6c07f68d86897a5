"""Writes a run down while it happens: its events as a listener, its effects as a handler in the door."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import JsonValue

from codeact_team.agents.codeact.attempts import Attempt
from codeact_team.core.aio import to_the_end
from codeact_team.core.component_effects import CodeEffect, CodeRun
from codeact_team.core.effects import Effect, Event, Perform
from codeact_team.core.events import OpenQuestion, Output, Words, dump
from codeact_team.core.execution import Artifact, Outcome
from codeact_team.core.executor_interface import RecordedFile, StreamingCodeExecutor
from codeact_team.core.places import place_of
from codeact_team.core.redaction import Redactor
from codeact_team.errors import JournalError, SandboxError
from codeact_team.runs.journal.blobs import Blobs, Room, is_light
from codeact_team.runs.journal.log import Log
from codeact_team.runs.journal.past import Past
from codeact_team.runs.journal.questions import Owner, Questions, asking, inside
from codeact_team.runs.journal.run_directory import About, RunDirectory
from codeact_team.runs.journal.seal import SealKey

logger = logging.getLogger(__name__)

_STOPPING = "the run is being stopped"
_ENDS = ("run_ended", "result")
"""The types of the events that tell how a run ends."""
_NO_FILES = "this run has nearly used up the {:,} MiB that are kept of it (--record-mib): its files and pictures are not kept from now on"
_FULL = (
    "this run has used up the {:,} MiB that are kept of it (--record-mib): it goes on, but nothing more is kept, and it cannot be "
    "resumed"
)


class Recorder:
    """Writes the journal of a run. No other process does, until it is closed.

    Each entry has its number ``n`` and the time ``at``, in seconds since the epoch, and one of:

    - ``event``: what was told, as :func:`codeact_team.core.events.dump` has it. Pieces of what a model or code writes are left
      out: the end of the call has all of it.
    - ``ask``: an effect begins: who asks (``by``), what sort it is (``kind``), what is asked (``request``), a digest of these
      three (``key``), and ``within`` which other effect, or which ``block`` or ``attempt``, by the number of its entry.
    - ``answered``, the number of an ``ask``: what came of it (``outcome``).
    - ``failed``, the number of an ``ask``: the ``error`` that it has raised, with its ``type``, and the ``status`` of a server;
      ``cancelled`` where it is under way still, as far as a resumed run is concerned.
    - ``files``: what a ``block`` has ``changed`` in a ``workspace``, and what is ``gone``.
    - ``copies``: where files of the run are copied to now, or have been.
    - ``delivered``: what came of the run, its answer and its files, is where it was wanted.
    - ``full``, a number of MiB: they are used up, and nothing is written after that but the end of the run.

    Args:
        directory: Where the run is kept.
        redactor: Replaces credentials by placeholders.
        mib: How many MiB of the run are kept; ``None`` for any number. When files and artifacts have used up three quarters
            of that, no more of them are kept; when all is used up, nothing more is written but how the run ends.
        sync: Whether each entry is on the disk before the run goes on.
    """

    def __init__(
        self, directory: RunDirectory, redactor: Redactor, *, mib: int | None = None, sync: bool = False
    ) -> None:
        self.directory = directory
        self._room = Room(mib, directory.path)
        self._is_full = self._leaves_out_files = False
        """Whether the room is used up, and whether that for files is."""
        self._notices: list[str] = []
        """What is to be said of that; a listener of warnings may not be called in a thread."""
        self.blobs = Blobs(directory.blobs, self._room, sync=sync, is_hidden=redactor.found_in)
        self.questions = Questions(redactor, self.blobs)
        self._redactor = redactor
        self._log = Log(directory.lines, self._room, sync=sync)
        self._failure: JournalError | None = None
        self._apart = ThreadPoolExecutor(1, "journal")
        """What is large is written there, in order: to look through it takes its time."""
        self._last: Future[None] | None = None
        """The last entry that was written there."""
        self._lost: JournalError | None = None
        """Why one was not."""
        self.last = 0
        """The number of the last entry."""
        self._known = 0
        """The number of the last one of the time before."""
        self._files: dict[str, Mapping[str, RecordedFile]] = {}
        """What was in each workspace when that was last recorded."""
        self._at_work: dict[int, tuple[str, Mapping[str, RecordedFile]]] = {}
        """By the numbers of blocks that have not ended, their workspaces, and what was there before."""
        self.is_stopping = False
        """Whether the run is being stopped from outside, so that what ends now was cut short."""

    @classmethod
    def create(
        cls,
        runs: Path,
        about: About,
        config: str,
        credentials: Mapping[str, str],
        *,
        key: SealKey | None = None,
        mib: int | None = None,
        sync: bool = False,
    ) -> Recorder:
        """Begin the journal of a new run. Blocks.

        Args:
            runs: The directory that gets one for it.
            about: What is known of the run.
            config: Its config, in YAML.
            credentials: What must not be written, each by its name.
            key: What seals it; by default the key of this user.
            mib: As of the recorder.
            sync: As of the recorder.

        Raises:
            JournalError: If it cannot be written.
        """
        redactor = Redactor(credentials, about.nonce)
        about = About.model_validate(redactor.redact(about.model_dump(mode="json")))
        directory = RunDirectory(runs / about.id, key)
        directory.make()
        recorder = cls(directory, redactor, mib=mib, sync=sync)
        try:
            # nobody else does so meanwhile, as the journal is held
            directory.describe(about, str(redactor.redact(config)))
            recorder._log.chain = directory.chain()
            if sync:
                directory.sync()
        except BaseException:
            recorder.close()
            raise
        return recorder

    def __call__(self, event: Event) -> None:
        if isinstance(event, Words | Output):
            return
        self._write_apart({}, {"event": dump(event)}, is_end=event.type in _ENDS)

    @classmethod
    def reopen(
        cls,
        directory: RunDirectory,
        credentials: Mapping[str, str],
        *,
        shown: Collection[str] | None = None,
        mib: int | None = None,
        sync: bool = False,
    ) -> tuple[Recorder, Past]:
        """Go on with the journal of a run, whose past is known then. Blocks.

        Args:
            directory: Where the run is kept.
            credentials: As of :meth:`create`.
            shown: The names of those that the run gets back; ``None`` for all.
            mib: As of the recorder.
            sync: As of the recorder.

        Raises:
            JournalError: If another process writes it, or it is damaged.
        """
        redactor = Redactor(credentials, directory.about().nonce, shown)
        recorder = cls(directory, redactor, mib=mib, sync=sync)
        try:
            if sync:
                directory.sync()
            past = Past(directory)
        except BaseException:
            recorder.close()
            raise
        recorder.last = recorder._known = past.last
        # what is written to the journal of somebody else's run is not made ours by that
        recorder._log.chain = past.chain
        return recorder, past

    async def stand(self, effect: Effect[Any], do: Perform) -> Any:
        """A handler: note what is asked before it is done, and what came of it before anybody knows it.

        While the run is being stopped no outcome is recorded: the code, the tool or the person may have been cancelled, and
        have made something of that. A resumed run takes it for under way, as after a kill.

        Raises:
            JournalError: If that cannot be written. The effect is not performed then, or its outcome is lost.
        """
        return await self.perform(self.begin(await self.questions.asked(effect)), effect, do)

    def refuse_if_stopping(self) -> None:
        """Let nothing new be done while the run is being stopped.

        Raises:
            CancelledError: If it is: whoever asks is being stopped, too.
        """
        if self.is_stopping:
            raise asyncio.CancelledError(_STOPPING)

    def begin(self, asked: Mapping[str, JsonValue]) -> int:
        """Note that it is asked; the number of the entry."""
        within = asking()
        return self.write(ask={**asked} if within is None else {**asked, "within": within})

    async def perform(self, n: int, effect: Effect[Any], do: Perform) -> Any:
        """Perform the effect whose entry has the number ``n``, and note what came of it."""
        executor = effect.part if isinstance(effect, CodeEffect) and not effect.is_apart else None
        await self.written()
        try:
            with inside(n, owner_by(effect)):
                if isinstance(executor, StreamingCodeExecutor):
                    await self._before(executor)
                    workspace = workspace_of(executor)
                    self._at_work[n] = workspace, self._files.get(workspace, {})
                outcome = await do()
                if isinstance(executor, StreamingCodeExecutor):
                    await self.record_files(executor, n)
        except JournalError:
            # says nothing of the effect
            raise
        except BaseException as error:
            try:
                if isinstance(error, asyncio.CancelledError) and isinstance(executor, StreamingCodeExecutor):
                    await self._after_interruption(executor, n)
            finally:
                await self._fail(n, error, is_cancelled=self.is_stopping or _is_cancelled(error))
            raise
        finally:
            if not self.is_stopping:
                self._at_work.pop(n, None)
        if self.is_stopping and not isinstance(effect, CodeRun):
            await self._fail(n, asyncio.CancelledError(_STOPPING), is_cancelled=True)
        else:
            await self.settle(n, effect, outcome)
        return outcome

    async def settle(self, n: int, effect: Effect[Any], outcome: Any) -> None:
        """Note what came of the effect whose entry has the number ``n``."""
        ran: dict[str, JsonValue] = {}
        artifacts: Sequence[Artifact] = ()
        if isinstance(effect, CodeRun):
            artifacts = getattr(outcome, "artifacts", ())
            how = Outcome.CANCELLED if self.is_stopping else getattr(outcome, "outcome", Outcome.COMPLETED)
            ran["ran"] = {"outcome": how, "state_lost": getattr(outcome, "state_lost", None)}
        self._write_apart({"answered": n, **ran}, {"outcome": effect.dump(outcome)}, artifacts=artifacts)
        await self.written()

    async def _fail(self, n: int, error: BaseException, *, is_cancelled: bool) -> None:
        cancelled: dict[str, JsonValue] = {"cancelled": True} if is_cancelled else {}
        self._write_apart({"failed": n}, {"error": _told(error)}, cancelled)
        await self.written()

    def answer(self, question: OpenQuestion, outcome: JsonValue) -> None:
        """Note what was answered to a question of a run that has ended."""
        self.write(answered=question.n, key=question.key, outcome=self.questions.packed(outcome))

    async def _before(self, executor: StreamingCodeExecutor) -> None:
        if workspace_of(executor) not in self._files:
            await executor.start()
            # before the first block, it belongs to none
            await self.record_files(executor, 0)

    async def _after_interruption(self, executor: StreamingCodeExecutor, block: int) -> None:
        """Note what is left where a person may change it, so that it is known later who has."""
        workspace = workspace_of(executor)
        if workspace in self._files and not workspace.startswith("@"):
            await self.record_files(executor, block)

    async def record_files(self, executor: StreamingCodeExecutor, block: int) -> None:
        """Write down what has changed in a workspace since that was last known.

        Args:
            executor: Whose it is.
            block: The number of the entry of the block that has changed it.
        """
        try:
            now = await self.files_of(executor)
        except SandboxError as error:
            logger.warning("what code has changed in its workspace is not recorded: %s", error)
            return
        workspace = workspace_of(executor)
        before = self._files.get(workspace, {})
        entry = await to_the_end(asyncio.to_thread(self._changes, before, now))
        self.know_files(executor, now)
        if block <= self._known or entry["changed"] or entry["gone"]:
            self.write(files={"workspace": workspace, "block": block, **entry})
            await self.written()

    def _changes(
        self, before: Mapping[str, RecordedFile], now: Mapping[str, RecordedFile]
    ) -> dict[str, JsonValue]:
        changed = as_entry({path: file for path, file in now.items() if before.get(path) != file})
        gone: list[JsonValue] = [path for path in before if path not in now]
        return {"changed": self.questions.packed(changed), "gone": self.questions.packed(gone)}

    def know_files(self, executor: StreamingCodeExecutor, files: Mapping[str, RecordedFile]) -> None:
        """Take what is in a workspace for known: what is written down later is what has changed since."""
        self._files[workspace_of(executor)] = files

    def known_files(self, executor: StreamingCodeExecutor) -> Mapping[str, RecordedFile]:
        """What is in a workspace, as far as is known."""
        return self._files.get(workspace_of(executor), {})

    async def files_of(self, executor: StreamingCodeExecutor) -> Mapping[str, RecordedFile]:
        """What is in a workspace; the contents are kept, but those with a credential in them."""
        return await executor.record_files(self._keep)

    def _keep(self, data: bytes) -> str | None:
        """Keep the content of a file or an artifact, unless there is a credential in it, or no room for it."""
        if self._redactor.found_in(data):
            return None
        digest = self.blobs.keep_if_room(data)
        if digest is None and not self._leaves_out_files:
            self._leaves_out_files = True
            self._notices.append(_NO_FILES)
        return digest

    async def cut_off(self, executor: StreamingCodeExecutor) -> Collection[str]:
        """The files of a workspace that a block has made or changed which has not ended: they are not the run's until it has.

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
        """Write down where files of the run are copied to, so that those that it has no more can be removed in the end."""
        self._write_apart({}, {"copies": [*paths]})
        await self.written()

    def close(self) -> None:
        """Let others go on with the run, when all is written. Idempotent. Blocks."""
        self._apart.shutdown()
        self._log.close()

    def give_up(self, error: JournalError) -> None:
        """Write nothing more of effects: what is made of an error of the journal did not come of them."""
        self._failure = self._failure or error

    def write(self, **entry: JsonValue) -> int:
        """Append an entry, and return its number. Behind large ones it is written when these are; see :meth:`written`.

        Raises:
            JournalError: If it cannot be written, or one before could not be.
        """
        return self._write_apart(entry, {})

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

    def _write_apart(
        self,
        entry: Mapping[str, JsonValue],
        values: Mapping[str, JsonValue],
        more: Mapping[str, JsonValue] = MappingProxyType({}),
        *,
        artifacts: Sequence[Artifact] = (),
        is_end: bool = False,
    ) -> int:
        """Append an entry: at once, or in a thread if it is large, or others are written there.

        Args:
            entry: What it begins with.
            values: What is packed before it is written.
            more: What it ends with.
            artifacts: What is kept before it is written.
            is_end: Whether it tells how the run ends, and is written in any case.
        """
        if (failure := self._lost or (None if "event" in values else self._failure)) is not None:
            raise failure
        self.last += 1
        head: dict[str, JsonValue] = {"n": self.last, "at": round(time.time(), 6), **entry}

        def write() -> None:
            if not is_end and self._is_used_up(head):
                return
            for artifact in artifacts:
                self._keep(artifact.data)
            packed = {key: self.questions.packed(value) for key, value in values.items()}
            self._log.append({**head, **packed, **more})

        is_idle = self._last is None or self._last.done()
        if is_idle and not artifacts and all(map(is_light, values.values())):
            write()
        else:
            self._last = self._apart.submit(self._write_unless_lost, write)
        return self.last

    def _is_used_up(self, entry: Mapping[str, JsonValue]) -> bool:
        """Whether the room is used up, which the journal says in place of the entry with which it is."""
        if not self._is_full and self._room.is_used_up:
            self._is_full = True
            self._log.append({"n": entry["n"], "at": entry["at"], "full": self._room.mib})
            self._notices.append(_FULL)
        return self._is_full

    def _write_unless_lost(self, write: Callable[[], None]) -> None:
        if self._lost is None:
            try:
                write()
            except JournalError as error:
                self._lost = error


def as_entry(files: Mapping[str, RecordedFile]) -> dict[str, JsonValue]:
    """Files as an entry has them."""
    # many times faster than dataclasses.asdict
    return {
        path: {"digest": file.digest, "size": file.size, "is_executable": file.is_executable}
        for path, file in files.items()
    }


def owner_by(effect: Effect[Any]) -> Owner | None:
    """What sort of owner of what is asked within it an effect is, if it is one."""
    if isinstance(effect, CodeRun):
        return "block"
    return "attempt" if isinstance(effect, Attempt) else None


def workspace_of(executor: StreamingCodeExecutor) -> str:
    """A name for a workspace: executors that share a directory share it, also where that was moved with all around it."""
    workspace = executor.workspace
    if workspace is None or workspace.path is None or not workspace.lasts:
        return f"@{place_of(executor)}"
    return os.path.relpath(workspace.path)


def _is_cancelled(error: BaseException) -> bool:
    # what else ends a process while something is under way
    return isinstance(error, asyncio.CancelledError) or not isinstance(error, Exception)


def _told(error: BaseException) -> JsonValue:
    kind = type(error)
    told: dict[str, JsonValue] = {"type": f"{kind.__module__}.{kind.__qualname__}", "text": str(error)}
    if isinstance(status := getattr(error, "status_code", None), int):
        told["status"] = status
    return told
