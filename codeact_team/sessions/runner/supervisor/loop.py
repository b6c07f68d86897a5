"""Waiting for whatever can be read next."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from contextlib import suppress


def is_readable(fd: int) -> bool:
    """Whether there is something to read."""
    return bool(select.select([fd], (), (), 0)[0])


class Loop:
    """Calls a handler whenever there is something to read, or room to write; and never for anything else."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[], None]] = {}

    def on_readable(self, fd: int, handler: Callable[[], None]) -> None:
        self._handlers[fd] = handler
        self._poll.register(fd, select.POLLIN)

    def on_writable(self, fd: int, handler: Callable[[], None]) -> None:
        self._handlers[fd] = handler
        self._poll.register(fd, select.POLLOUT)

    def forget(self, fd: int) -> None:
        """Call no handler for ``fd`` any more; to be called before it is closed."""
        if self._handlers.pop(fd, None):
            self._poll.unregister(fd)

    def on_child(self, handler: Callable[[], None]) -> None:
        """Call ``handler`` when a child may have ended. No other signal reaches this process from now on."""
        reader, writer = os.pipe()
        for end in (reader, writer):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        # blocked, too: what a child gets before it is ready is not lost
        signals = signal.valid_signals() - {signal.SIGCHLD, signal.SIGKILL, signal.SIGSTOP}
        for number in signals:
            # the C library keeps some for itself
            with suppress(OSError):
                signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

        def wake() -> None:
            with suppress(BlockingIOError):
                os.read(reader, 4096)
            handler()

        self.on_readable(reader, wake)

    def run(self) -> None:
        """Call handlers until one raises."""
        while True:
            for fd, _ in self._poll.poll():
                # one that was called before may have closed it
                if handler := self._handlers.get(fd):
                    handler()
