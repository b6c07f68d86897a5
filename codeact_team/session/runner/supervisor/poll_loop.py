"""Waiting for whatever can be read next."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from contextlib import suppress

_MOMENT = 1
"""Milliseconds; nobody sees that output comes so much later."""


def is_readable(fd: int) -> bool:
    """Whether there is something to read."""
    return bool(select.select([fd], (), (), 0)[0])


class Loop:
    """Calls a handler whenever there is something to read, or room to write; and never for anything else."""

    def __init__(self) -> None:
        self._all = select.poll()
        self._urgent = select.poll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._patient = False

    def on_readable(self, fd: int, handler: Callable[[], None], *, can_wait: bool = False) -> None:
        """Call ``handler`` when there is something to read; see :meth:`wait_for_more` for what can wait."""
        self._handlers[fd] = handler
        self._all.register(fd, select.POLLIN)
        if not can_wait:
            self._urgent.register(fd, select.POLLIN)

    def on_writable(self, fd: int, handler: Callable[[], None]) -> None:
        self._handlers[fd] = handler
        for poll in (self._all, self._urgent):
            poll.register(fd, select.POLLOUT)

    def wait_for_more(self) -> None:
        """Leave what can wait for a moment, unless something else comes: it is less work to take it together."""
        self._patient = True

    def forget(self, fd: int) -> None:
        """Call no handler for ``fd`` any more; to be called before it is closed."""
        if self._handlers.pop(fd, None):
            for poll in (self._all, self._urgent):
                with suppress(KeyError):
                    poll.unregister(fd)

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
            ready = self._urgent.poll(_MOMENT) if self._patient else []
            self._patient = False
            for fd, _ in ready or self._all.poll():
                # one that was called before may have closed it
                if handler := self._handlers.get(fd):
                    handler()
