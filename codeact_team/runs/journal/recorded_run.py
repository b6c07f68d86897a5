"""A recorded run to look at, also while it grows."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import aclosing, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

from pydantic import JsonValue
from watchdog.events import FileModifiedEvent, FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer

from codeact_team.core.effects import Event
from codeact_team.core.events import RunBegan, SandboxStarted
from codeact_team.core.files import is_locked, open_regular, wait_until_free
from codeact_team.errors import JournalError
from codeact_team.runs.journal.blobs import LARGEST, Blobs, TooMuchError
from codeact_team.runs.journal.lines import EventReader, repeated_of
from codeact_team.runs.journal.log import Entry, LogReader, entry_at, read_backwards, read_log, understood
from codeact_team.runs.journal.run_directory import About, RunDirectory
from codeact_team.runs.result import RunResult


async def growth(path: Path) -> AsyncGenerator[None]:
    """Yields at once, and again each time that a file may have grown; the last time when nobody holds it any more.

    Raises:
        JournalError: If it cannot be opened, or not be watched.
    """
    changed, over = asyncio.Event(), asyncio.Event()
    call = asyncio.get_running_loop().call_soon_threadsafe
    try:
        descriptor = open_regular(path)
    except OSError as error:
        raise JournalError(f"the journal {path} cannot be read: {error.strerror}") from error
    observer = Observer()
    handler = _Handler(partial(call, changed.set))
    try:
        observer.schedule(handler, str(path.parent), event_filter=[FileModifiedEvent])
        observer.start()
    except OSError as error:
        os.close(descriptor)
        raise JournalError(_unwatched(path, error)) from error
    # nothing ends this thread but the end of what it waits for, or of this process
    calls = partial(call, over.set), partial(call, changed.set)
    Thread(target=_wait, args=(descriptor, *calls), daemon=True).start()
    try:
        while not over.is_set():
            changed.clear()
            yield
            await changed.wait()
        yield
    finally:
        observer.stop()
        observer.join()


def _unwatched(path: Path, error: OSError) -> str:
    limit = {errno.EMFILE: "fs.inotify.max_user_instances", errno.ENOSPC: "fs.inotify.max_user_watches"}
    told = f"the journal {path} cannot be followed: {error.strerror}"
    advice = f"raise {limit[error.errno]} by sysctl, or " if error.errno in limit else ""
    return f"{told}; {advice}look at it without --follow"


class _Handler(FileSystemEventHandler):
    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call

    def on_any_event(self, event: FileSystemEvent) -> None:
        self._call()


def _wait(descriptor: int, *calls: Callable[[], object]) -> None:
    try:
        wait_until_free(descriptor)
    finally:
        os.close(descriptor)
    # the loop may be closed meanwhile
    with suppress(RuntimeError):
        for call in calls:
            call()


E = TypeVar("E", bound=Event)

_AFTER_THE_END = {"given", "delivered"}
"""What entries have that come after the end: answers to questions for which the run was parked, and that it was delivered."""
_LARGEST_TOLD = 16 << 20
"""Bytes of an event that is told: it is shown as a whole."""
_MOST_READ = 256 << 20
"""Bytes that are read and unpacked of a run from its beginning to its end, beyond those that its blobs have."""
_MOST_LEFT_OUT = 10_000
"""Entries that cannot be read: more are no run of another version."""


@dataclass(frozen=True, slots=True)
class RecordedEffect:
    """Something that a run has asked of the world.

    Attributes:
        by: Who asked: the name of an agent, ``@``, and the place in the config of the part that was asked.
        kind: What sort of effect it is, such as ``model_call`` or ``block``.
        request: What was asked.
        outcome: What came of it, as JSON; ``None`` where nothing did.
        error: Why nothing did, where that is known.
        n: Its number.
        is_repeated: Whether it is an effect that was recorded before the run was resumed, once more.
        within: That of the effect that it was a part of.
        began: When, in seconds since the epoch.
        ended: When it had ended; ``None`` where it has not.
    """

    by: str
    kind: str
    request: JsonValue
    n: int
    within: int | None
    began: float
    ended: float | None = None
    outcome: JsonValue = None
    error: str | None = None
    is_repeated: bool = False


class RecordedRun:
    """A run that was recorded, or is. Reading blocks.

    Args:
        directory: Where it is kept.
    """

    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory
        self._artifacts = self._blobs()

    def _blobs(self, largest: int = LARGEST) -> Blobs:
        read = partial(entry_at, self.directory.lines)
        return Blobs(self.directory.blobs, largest=largest, most=_MOST_READ, entry_at=read)

    @cached_property
    def about(self) -> About:
        """What was known when it began.

        Raises:
            JournalError: If that cannot be read.
        """
        return self.directory.about()

    @cached_property
    def task(self) -> str | None:
        """What it has to do; of a program's, the first task; ``None`` where it has given none.

        Raises:
            JournalError: If that cannot be read.
        """
        if self.about.task is not None:
            return self.about.task
        began = next(self._all_events(RunBegan), None)
        return None if began is None else began.task

    def sandboxes(self) -> Iterator[SandboxStarted]:
        """What its code ran in: the sandboxes that have started, also before the run was resumed.

        Raises:
            JournalError: As :meth:`events`.
        """
        return self._all_events(SandboxStarted)

    def _all_events(self, kind: type[E]) -> Iterator[E]:
        reader = self._reader()
        for entry in read_log(self.directory.lines):
            if entry.get("type") == kind.type and isinstance(event := self._event(entry, reader), kind):
                yield event

    @property
    def is_running(self) -> bool:
        """Whether a process holds it."""
        try:
            descriptor = open_regular(self.directory.lines)
        except OSError:
            return False
        try:
            return is_locked(descriptor)
        finally:
            os.close(descriptor)

    def events(self) -> Iterator[Event]:
        """What happened, in order; of a run that was resumed, what was told since, which is all of it once more.

        Raises:
            JournalError: Where the journal is damaged, after all that is whole before that. At the end, if something could
                not be read, such as what was beside it, or is of another version.
        """
        with self._since_resumed() as log:
            yield from self._events(log, self._reader(_LARGEST_TOLD))

    async def follow(self) -> AsyncGenerator[Event]:
        """What has happened, and what happens from now on, until no process holds the run any more.

        Raises:
            JournalError: As :meth:`events`.
        """
        reader = self._reader(_LARGEST_TOLD)
        with self._since_resumed() as log:
            async with aclosing(growth(self.directory.lines)) as wake_ups:
                async for _ in wake_ups:
                    for event in self._events(log, reader):
                        yield event

    def result(self) -> RunResult | None:
        """What has come of the run, without reading the rest; ``None`` where it has not ended.

        Raises:
            JournalError: If the end of the journal is damaged.
        """
        with closing(read_backwards(self.directory.lines)) as entries:
            last = next((entry for entry in entries if not _AFTER_THE_END & entry.keys()), None)
        if last is None or last.get("type") != RunResult.type:
            return None
        result = self._event(last, self._reader())
        assert isinstance(result, RunResult)
        return result

    @property
    def is_delivered(self) -> bool:
        """Whether the person, or the program, has got what came of it last.

        Raises:
            JournalError: As :meth:`result`.
        """
        with closing(read_backwards(self.directory.lines)) as entries:
            last = next(entries, None)
        return last is not None and "delivered" in last

    def effects(self) -> Iterator[RecordedEffect]:
        """What was asked, each when it had ended, and at last those that have not.

        Raises:
            JournalError: As :meth:`events`.
        """
        effects = _Effects(self._blobs())
        left_out = _LeftOut()
        for entry in read_log(self.directory.lines):
            ended = None
            with left_out.noted(), understood(self.directory.lines):
                ended = effects.take(entry)
            if ended is not None:
                yield ended
        yield from effects.under_way.values()
        left_out.report()

    def artifact(self, digest: str) -> bytes | None:
        """The bytes of a picture or a table by its SHA-256; ``None`` where they were not kept."""
        try:
            return self._artifacts.read(digest)
        except JournalError:
            return None

    @contextmanager
    def _since_resumed(self) -> Generator[LogReader]:
        """Reads what was written since the run was resumed last."""
        with LogReader(self.directory.lines) as log:
            log.go_to_last("resumed")
            yield log

    def _events(self, log: LogReader, reader: EventReader) -> Iterator[Event]:
        left_out = _LeftOut()
        for entry in log.new():
            event = None
            with left_out.noted():
                if (mib := entry.get("full")) is not None:
                    raise JournalError(f"the run had used up the {mib} MiB that were kept of it, and went on")
                if "type" in entry:
                    event = self._event(entry, reader)
            if event is not None:
                yield event
        left_out.report()

    def _reader(self, largest: int = LARGEST) -> EventReader:
        return EventReader(self._blobs(largest))

    def _event(self, entry: Entry, reader: EventReader) -> Event:
        with understood(self.directory.lines):
            return reader.event(entry)


class _Effects:
    """Puts the lines of effects together."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._known: dict[int, RecordedEffect] = {}
        """All of them, by the numbers that they had first."""
        self._first: dict[int, int] = {}
        """By the numbers that effects have got when a run was resumed, those that they had first."""
        self.under_way: dict[int, RecordedEffect] = {}
        """Those that have not ended, by the numbers that they had first."""

    def take(self, entry: Entry) -> RecordedEffect | None:
        """Take the next entry; the effect that has ended with it, if one has."""
        if (ask := entry.get("ask")) is not None:
            self._begin(entry, ask)
            return None
        end, span = entry.get("end", entry), int(entry.get("given", entry.get("span", 0)))
        n = self._first.get(span, span)
        if (asked := self.under_way.pop(n, None)) is None:
            return None
        if end.get("cancelled"):
            # it may have been gone on with
            self.under_way[n] = replace(asked, ended=entry["at"], error=self._error(end))
            return None
        if "outcome" in end:
            outcome = self._blobs.unpack(end["outcome"])
            ended = replace(asked, ended=entry["at"], outcome=outcome, error=None, is_repeated=False)
        elif "error" in end:
            ended = replace(asked, ended=entry["at"], error=self._error(end), is_repeated=False)
        else:
            ended = replace(asked, ended=entry["at"])
        self._known[n] = ended
        return ended

    def _error(self, end: Entry) -> str | None:
        if "error" not in end:
            return None
        error: Any = self._blobs.unpack(end["error"])
        return f"{error['type']}: {error['text']}"

    def _begin(self, entry: Entry, ask: Entry) -> None:
        n = entry["span"]
        if (repeated := repeated_of(ask)) is not None:
            self._first[n] = repeated.span
            before = self._known[repeated.span]
            self.under_way[repeated.span] = replace(
                before, n=n, began=entry["at"], ended=None, is_repeated=True
            )
            return
        self._known[n] = self.under_way[n] = RecordedEffect(
            by=ask["by"],
            kind=ask["kind"],
            request=self._blobs.unpack(ask["request"]),
            n=n,
            within=ask.get("within"),
            began=entry["at"],
        )


class _LeftOut:
    """What of a run cannot be read, which is no reason not to read the rest."""

    def __init__(self) -> None:
        self._first: str | None = None
        self._count = 0

    @contextmanager
    def noted(self) -> Generator[None]:
        """Within it something is read, or noted as what cannot be.

        Raises:
            JournalError: If there is so much of it that nobody has written this.
        """
        try:
            yield
        except TooMuchError:
            raise
        except JournalError as error:
            # errors hold what they came from: the first one says enough
            self._first, self._count = self._first or str(error), self._count + 1
            if self._count == _MOST_LEFT_OUT:
                self.report()

    def report(self) -> None:
        """Say at the end what was left out.

        Raises:
            JournalError: If there was anything.
        """
        if self._first is not None:
            more = "" if self._count == 1 else f" (and {self._count - 1:,} more like it)"
            raise JournalError(f"{self._first}; this is left out{more}")
