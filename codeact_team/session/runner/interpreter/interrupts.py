"""SIGINT: interrupts a block that runs, and the threads it has started, and hurts nothing else."""

from __future__ import annotations

import signal
import sys
import threading

# the one of signal makes an enum of each handler
from _signal import getsignal  # pyright: ignore[reportMissingImports, reportUnknownVariableType]
from collections.abc import Callable
from types import CodeType, FrameType

from codeact_team.session.runner.interpreter.stack_frames import can_interrupt, interruptible, runs_users


class Interrupts:
    """Turns SIGINT into ``KeyboardInterrupt`` while a block runs.

    It is raised in the code of the block and of libraries, and where a function of the runner is marked as
    interruptible; elsewhere in the runner it could break what it must not, and waits for :meth:`check`. An event loop
    of the runner has it raised by a callback: it can break off what the loop does, too.
    """

    def __init__(self) -> None:
        self.came = False
        """Whether the block that runs, or ran last, was sent a SIGINT."""
        self.on_stop: Callable[[int], None] | None = None
        """Called with the id of each thread that the block has started, when these are to end."""
        self._armed = False
        self._pending = False
        self._earlier_threads: list[threading.Thread] = []
        self._base: CodeType | None = None
        self._defer: Callable[[], object] | None = None
        self._handler = self._handle
        signal.signal(signal.SIGINT, self._handler)

    def arm(self) -> None:
        """From here on a block runs."""
        self.came = self._pending = False
        self._earlier_threads = threading.enumerate()
        self._armed = True

    def disarm(self) -> None:
        """The block has ended. What it has made of the signal's handler is undone."""
        self._armed = False
        if getsignal(signal.SIGINT) is not self._handler:
            signal.signal(signal.SIGINT, self._handler)

    def defer(self, base: CodeType, defer: Callable[[], object] | None) -> None:
        """Have ``defer`` called, once, instead of raising, where what ``base`` has called runs none of the user's code.

        ``base`` runs an event loop, in which ``defer`` has ``KeyboardInterrupt`` raised; ``None`` when it has ended.
        """
        self._base, self._defer = base, defer

    @interruptible
    def check(self) -> None:
        """Raise the interrupt, if there is one, that came while it could not be raised."""
        if self._pending:
            self._pending = False
            raise KeyboardInterrupt

    def stop_threads(self) -> None:
        """End the threads started since :meth:`arm` that run Python code of the user."""
        frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]
        earlier = set(map(id, self._earlier_threads))
        for thread in threading.enumerate():
            if id(thread) in earlier or not thread.ident:
                continue
            # an idle thread of a pool would break at its next piece of work
            if runs_users(frames.get(thread.ident)):
                _raise_system_exit(thread.ident)
            if self.on_stop is not None:
                self.on_stop(thread.ident)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._armed or frame is None:
            return
        self.came = True
        if not can_interrupt(frame.f_code):
            self._pending = True
            return
        # now, for the code that is interrupted may wait for them to end
        self.stop_threads()
        if self._defer is not None and not runs_users(frame, self._base):
            # once: the loop may hang in a function of C
            defer, self._defer = self._defer, None
            defer()
            return
        raise KeyboardInterrupt


def _raise_system_exit(thread: int) -> None:
    try:
        from ctypes import c_ulong, py_object, pythonapi
    except ImportError:
        # an image without it, or the block was interrupted while it imported it
        return
    pythonapi.PyThreadState_SetAsyncExc(c_ulong(thread), py_object(SystemExit))
