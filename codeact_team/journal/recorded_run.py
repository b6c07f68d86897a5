"""Reads a recorded run, also while it grows."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from contextlib import aclosing, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar, cast

from pydantic import JsonValue
from watchdog.events import FileModifiedEvent, FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer

from codeact_team.core.effects import Event
from codeact_team.core.events import RunBegan, SandboxStarted
from codeact_team.errors import JournalError
from codeact_team.files.opening import is_locked, open_regular, wait_until_free
from codeact_team.journal.blobs import LARGEST, Blobs, TooMuchError, reading
from codeact_team.journal.conversations import KeptMessages
from codeact_team.journal.lines import EventReader
from codeact_team.journal.log import Entry, LogReader, read_backwards, read_log, understood
from codeact_team.journal.result import RunResult
from codeact_team.journal.run_directory import About, RunDirectory

E = TypeVar("E", bound=Event)

_AFTER_THE_END = {"given", "delivered"}
"""Keys of entries that may follow the end of a run."""
_LARGEST_EVENT = 16 << 20
"""Bytes of an event that is shown as a whole."""
_MOST_READ = 256 << 20
"""Bytes of a run that are read and unpacked beyond the size of its blobs."""
_MOST_LEFT_OUT = 10_000
"""Entries that cannot be read: a run of another version has fewer."""


@dataclass(frozen=True, slots=True)
class RecordedEffect:
    """An effect of a recorded run.

    Attributes:
        by: Its caller: the name of an agent, ``@``, and the place in the config of the component that was asked.
        kind: The kind of the effect, such as ``model_call`` or ``block``.
        request: What was asked.
        n: Its number.
        within: The number of the effect that it was a part of.
        began: When, in seconds since the epoch.
        ended: When; ``None`` where it has not ended.
        outcome: Its outcome, as JSON; ``None`` where it has none.
        error: Why it has none, where that is known.
        is_repeated: Whether it was recorded before the run was resumed, and has not ended otherwise since.
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
    """A run that was recorded, or is being recorded. Reading blocks, and raises :class:`JournalError` where that fails.

    Args:
        directory: The directory of the run.
    """

    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory
        self._artifacts = self._blobs()

    def _blobs(self, largest: int = LARGEST) -> Blobs:
        return Blobs(self.directory.blobs, largest=largest, most=_MOST_READ)

    def _reader(self, largest: int = LARGEST) -> EventReader:
        return EventReader(self._blobs(largest))

    @cached_property
    def about(self) -> About:
        """Return the description of the run."""
        return self.directory.about()

    @cached_property
    def task(self) -> str | None:
        """Its task; of a program's run, the first one; ``None`` where the program has given none."""
        if self.about.task is not None:
            return self.about.task
        began = self.began()
        return None if began is None else began.task

    def began(self) -> RunBegan | None:
        """Its begin, of a program's run with the first task; ``None`` if it has not begun to work."""
        return next(self._all_events(RunBegan), None)

    def tasks(self) -> Sequence[str]:
        """Its tasks, of a resumed run those since."""
        return [event.task for event in self.events() if isinstance(event, RunBegan)]

    def sandboxes(self) -> Iterator[SandboxStarted]:
        """The sandboxes that have started, also before the run was resumed."""
        return self._all_events(SandboxStarted)

    def _all_events(self, kind: type[E]) -> Iterator[E]:
        reader = self._reader()
        for entry in read_log(self.directory.lines):
            if entry.get("type") == kind.type and isinstance(
                event := _event(entry, reader, self.directory.lines), kind
            ):
                yield event

    def changes(self) -> Sequence[str]:
        """The overrides of its config that hold since it was last resumed."""
        with self._since_resumed() as log:
            entry = next(iter(log.new()), None)
        changes: Any = None if entry is None or "resumed" not in entry else entry.get("set")
        return list(map(str, cast("list[object]", changes))) if isinstance(changes, list) else []

    @property
    def is_running(self) -> bool:
        """Whether a process writes it."""
        try:
            descriptor = open_regular(self.directory.lines)
        except OSError:
            return False
        try:
            return is_locked(descriptor)
        finally:
            os.close(descriptor)

    def events(self) -> Iterator[Event]:
        """Yield its events in order; of a resumed run, the events since, which repeat the ones before.

        Raises:
            JournalError: Where the journal is damaged, after all events before that. At the end, if some events could not be
                read, such as those of another version.
        """
        with self._since_resumed() as log:
            yield from self._events(log, self._reader(_LARGEST_EVENT))

    async def follow(self) -> AsyncGenerator[Event]:
        """Its events, those that happened and those that happen, until no process writes the run.

        Raises:
            JournalError: As :meth:`events`.
        """
        reader = self._reader(_LARGEST_EVENT)
        with self._since_resumed() as log:
            async with aclosing(_growth(self.directory.lines)) as wake_ups:
                async for _ in wake_ups:
                    for event in self._events(log, reader):
                        yield event

    def result(self) -> RunResult | None:
        """Its result, without reading the rest; ``None`` where it has not ended."""
        with closing(read_backwards(self.directory.lines)) as entries:
            last = next((entry for entry in entries if not _AFTER_THE_END & entry.keys()), None)
        if last is None or last.get("type") != RunResult.type:
            return None
        result = _event(last, self._reader(), self.directory.lines)
        assert isinstance(result, RunResult)
        return result

    @property
    def is_delivered(self) -> bool:
        """Whether its last result was delivered."""
        with closing(read_backwards(self.directory.lines)) as entries:
            last = next(entries, None)
        return last is not None and "delivered" in last

    @property
    def has_answers(self) -> bool:
        """Whether a question of the parked run was answered."""
        with closing(read_backwards(self.directory.lines)) as entries:
            last = next(entries, None)
        return last is not None and "given" in last

    def effects(self) -> Iterator[RecordedEffect]:
        """Its effects in the order of their ends, and then those that have not ended.

        Raises:
            JournalError: As :meth:`events`.
        """
        effects = _Effects(self._blobs())
        left_out = _LeftOut()
        for entry in read_log(self.directory.lines):
            ended = None
            with left_out.noted(), understood(self.directory.lines):
                ended = effects.add(entry)
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
        with LogReader(self.directory.lines) as log:
            log.go_to_last("resumed")
            yield log

    def _events(self, log: LogReader, reader: EventReader) -> Iterator[Event]:
        left_out, path = _LeftOut(), self.directory.lines
        for entry in log.new():
            event = other = None
            with left_out.noted():
                if (mib := entry.get("full")) is not None:
                    raise JournalError(
                        f"the run had used up the {mib} MiB that are kept of a run, and went on"
                    )
                event = _event(entry, reader, path)
                # the result comes last
                if not _AFTER_THE_END & entry.keys():
                    with understood(path):
                        other = reader.unknown(entry, event)
            yield from filter(None, [other, event])
        left_out.report()


def _event(entry: Entry, reader: EventReader, path: Path) -> Event | None:
    with understood(path):
        return reader.event(entry)


class _Effects:
    """Makes effects of the entries of their begins and ends."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._messages = KeptMessages(blobs, LARGEST)
        self._first: dict[int, int] = {}
        """The first numbers of effects that have got another one when the run was resumed."""
        self.under_way: dict[int, RecordedEffect] = {}
        """Those that have not ended, by their first numbers."""

    def add(self, entry: Entry) -> RecordedEffect | None:
        """Add the next entry. Returns the effect that has ended with it, if one has."""
        if "begin" in entry:
            self._begin(entry)
            return None
        span = int(entry.get("given", entry.get("span", 0)))
        n = self._first.get(span, span)
        if (asked := self.under_way.pop(n, None)) is None:
            return None
        ended = replace(asked, ended=entry["at"], is_repeated="again" in entry)
        if "outcome" in entry:
            ended = replace(ended, outcome=self._blobs.unpack(entry["outcome"]), error=None)
        elif "error" in entry:
            error: Any = self._blobs.unpack(entry["error"])
            ended = replace(ended, error=f"{error['type']}: {error['text']}")
        if entry.get("cancelled"):
            # the agent may have asked for more
            self.under_way[n] = ended
            return None
        return ended

    def _begin(self, entry: Entry) -> None:
        n, by = entry["span"], f"{entry['agent']}@{entry['place']}"
        caller = by, entry.get("block", entry.get("attempt"))
        request: Any = self._blobs.unpack(entry["request"])
        if (messages := self._messages.of(caller, entry)) is not None:
            request = dict(request, messages=messages)
        self._first[n] = first = entry.get("again", n)
        self.under_way[first] = RecordedEffect(
            by=by,
            kind=entry["begin"],
            request=request,
            n=n,
            within=entry.get("within"),
            began=entry["at"],
            is_repeated=first != n,
        )


class _LeftOut:
    """Counts entries that cannot be read, which does not keep the others from being read."""

    def __init__(self) -> None:
        self._first: str | None = None
        self._count = 0

    @contextmanager
    def noted(self) -> Generator[None]:
        """Within it, an entry is read, or counted.

        Raises:
            JournalError: If there are so many that no version has written the journal.
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
        """Raise :class:`JournalError` if entries were left out."""
        if self._first is not None:
            more = "" if self._count == 1 else f" (and {self._count - 1:,} more like it)"
            raise JournalError(f"{self._first}; this is left out{more}")


async def _growth(path: Path) -> AsyncGenerator[None]:
    """Yields at once, each time that a file may have grown, and a last time when no process holds it."""
    changed, over = asyncio.Event(), asyncio.Event()
    call = asyncio.get_running_loop().call_soon_threadsafe
    with reading(f"the journal {path}"):
        descriptor = open_regular(path)
    observer = Observer()
    try:
        observer.schedule(
            _Handler(partial(call, changed.set)), str(path.parent), event_filter=[FileModifiedEvent]
        )
        observer.start()
    except OSError as error:
        os.close(descriptor)
        limit = {errno.EMFILE: "fs.inotify.max_user_instances", errno.ENOSPC: "fs.inotify.max_user_watches"}
        advice = f"raise {limit[error.errno]} by sysctl, or " if error.errno in limit else ""
        raise JournalError(
            f"the journal {path} cannot be followed: {error.strerror}; {advice}look at it without --follow"
        ) from error

    def wait() -> None:
        try:
            wait_until_free(descriptor)
        finally:
            os.close(descriptor)
        # the loop may be closed meanwhile
        with suppress(RuntimeError):
            call(over.set)
            call(changed.set)

    # it ends only with the lock that it waits for, or with this process
    Thread(target=wait, daemon=True).start()
    try:
        while not over.is_set():
            changed.clear()
            yield
            await changed.wait()
        yield
    finally:
        observer.stop()
        observer.join()


class _Handler(FileSystemEventHandler):
    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call

    def on_any_event(self, event: FileSystemEvent) -> None:
        self._call()
