"""Tells when a file that a process holds locked has grown, and when it is held no more. Nothing is asked again and again."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Thread

from watchdog.events import FileModifiedEvent, FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer

from codeact_team.errors import JournalError
from codeact_team.system.file_locks import wait_until_free
from codeact_team.system.regular_files import open_regular


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
