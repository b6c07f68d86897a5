"""Calls of the host's tools: sent and awaited by any thread or event loop, and answered in any order."""

from __future__ import annotations

import sys
from _thread import RLock, allocate_lock, get_ident, start_new_thread
from _thread import _count as count_threads  # pyright: ignore[reportPrivateUsage]  # of threading, too
from collections import deque
from contextlib import suppress
from itertools import count
from os import getpid
from signal import SIG_BLOCK, pthread_sigmask, valid_signals

from codeact_team.session.protocol import MAX_CALL_BYTES_AT_ONCE, MAX_CALLS_AT_ONCE, Kind
from codeact_team.session.runner.interpreter.tool_answers import ToolError, read_answer
from codeact_team.session.runner.interpreter.user_code import interruptible, one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _thread import LockType
    from asyncio import AbstractEventLoop, Future
    from collections.abc import Callable, Iterable
    from types import CodeType, FrameType
    from typing import Any

    from codeact_team.session.runner.interpreter.blocks import Interrupts
    from codeact_team.session.runner.interpreter.channel import Channel

_NOT_HERE = "tools can be called only by the session's own process"
_NOT_NOW = "tools can be called only while a block runs"
_ENDED = "the block that made this call has ended"
_LEFT_BEHIND = "this thread may call no tools any more: the block that started it has ended. Start it anew"
_INTERRUPTED = "the block that made this call was interrupted"

_PATIENCE = 1.0
"""Seconds. Python notices a signal that comes just before it waits only when the wait ends."""


class _Call:
    """A call, and its result."""

    def __init__(self, request: bytes, wake: Callable[[], object], thread: int | None = None) -> None:
        self.number = 0
        self.payload = request
        self.thread = thread
        self._wake = wake
        self._value: Any = None
        self._error: ToolError | None = None

    def complete(self, value: Any, error: ToolError | None) -> None:
        self._value, self._error = value, error
        with suppress(RuntimeError):
            self._wake()

    @interruptible
    def result(self) -> Any:
        """The value that the tool returned. Raises a :class:`ToolError` if it failed."""
        if self._error is None:
            return self._value
        try:
            raise self._error
        finally:
            # otherwise its traceback would keep the values of its frames alive
            self._error = None


class Calls:
    """The calls of the running block. Holds back calls that exceed what the host accepts at once."""

    def __init__(self, channel: Channel, interrupts: Interrupts) -> None:
        self._channel = channel
        self._interrupts = interrupts
        interrupts.on_stop = self._stop
        self._numbers = count(1)
        self.begin_process()

    @property
    def threads(self) -> int:
        return int(self._listening)

    def begin_process(self) -> None:
        """Start in this process, which may be a fork, between two blocks."""
        self._pid = getpid()
        self._main_thread = get_ident()
        # reentrant: a finalizer of the code may run within it, and call a tool
        self._lock = RLock()
        self._token: bytes | None = None
        self._sent: dict[int, _Call] = {}
        self._sent_bytes = 0
        self._queue: deque[_Call] = deque()
        self._listening = False
        self._broken: str | None = None
        self._left_behind: dict[int, FrameType] = {}
        """The outermost frame of the work of each thread that has outlived the last block."""

    def begin(self, token: bytes) -> None:
        self._token = token

    def end(self) -> None:
        """The block has ended, and with it all its calls."""
        with self._lock:
            self._token = None
            calls = self._unanswered()
            self._sent = {}
            self._sent_bytes = 0
            self._queue.clear()
        _fail(calls, _ENDED)
        self._left_behind = {}
        # apart from the one that reads answers
        if count_threads() > self._listening:
            workers = _workers_of_pools()
            frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]
            for thread, frame in frames.items():
                if (work := _work(frame, workers)) is not None and thread != self._main_thread:
                    self._left_behind[thread] = work

    @interruptible
    def call(self, request: bytes) -> Any:
        """Call a tool, with the payload that follows the id, and wait. Raises a :class:`ToolError` if it fails."""
        done = allocate_lock()
        done.acquire()
        call = _Call(request, done.release, get_ident())
        try:
            self._start(call)
            self._check()
            while not done.acquire(timeout=_PATIENCE):
                pass
        except BaseException:
            self._cancel(call)
            self._check()
            raise
        return call.result()

    @interruptible
    async def call_async(self, request: bytes) -> Any:
        """Call a tool, and await it; see :meth:`call`."""
        loop = _running_loop()
        done = loop.create_future()
        call = _Call(request, lambda: loop.call_soon_threadsafe(_set, done))
        try:
            self._start(call)
            self._check()
            await done
        except BaseException:
            self._cancel(call)
            self._check()
            raise
        return call.result()

    def _start(self, call: _Call) -> None:
        if getpid() != self._pid:
            raise ToolError(_NOT_HERE)
        with self._lock:
            token = self._token
            if token is None:
                raise ToolError(_NOT_NOW)
            if self._is_left_behind():
                raise ToolError(_LEFT_BEHIND)
            self._listen()
            call.number = next(self._numbers)
            call.payload = b'{"id":%d,%s' % (call.number, call.payload)
            self._queue.append(call)
            ready = self._admit()
        self._send(ready, token)

    def _is_left_behind(self) -> bool:
        """Whether this thread still does the work that it did when a block ended."""
        # an earlier thread that has ended since may have had the same id
        left = self._left_behind.get(get_ident())
        if left is None:
            return False
        here = sys._getframe()  # pyright: ignore[reportPrivateUsage]
        return _work(here, _workers_of_pools()) is left

    def _admit(self) -> list[_Call]:
        """Take the calls out of the queue that there is room for. Must be called within the lock."""
        admitted: list[_Call] = []
        while (
            self._queue
            and len(self._sent) < MAX_CALLS_AT_ONCE
            and self._sent_bytes + len(self._queue[0].payload) <= MAX_CALL_BYTES_AT_ONCE
        ):
            call = self._queue.popleft()
            self._sent[call.number] = call
            self._sent_bytes += len(call.payload)
            admitted.append(call)
        return admitted

    def _send(self, calls: Iterable[_Call], token: bytes) -> None:
        # not within the lock, as it may take long. If the block ends meanwhile, the supervisor drops the call for its token
        for call in calls:
            try:
                self._channel.send(Kind.CALL, token, call.payload)
            except OSError as error:
                if error.errno is None:
                    # raised by a signal handler of the code, not by the system
                    raise
                self._give_up(str(error))

    def _settle(self, token: bytes, number: int | None, value: Any, error: ToolError | None) -> None:
        """Complete a call, if it is known, and send calls that there is room for now."""
        with self._lock:
            if token != self._token or number not in self._sent:
                return
            call = self._sent.pop(number)
            self._sent_bytes -= len(call.payload)
            ready = self._admit()
        call.complete(value, error)
        self._send(ready, token)

    def _give_up(self, reason: str) -> None:
        with self._lock:
            self._broken = f"tools cannot be called any more: {reason}"
            calls = self._unanswered()
            self._queue.clear()
        _fail(calls, self._broken)

    def _cancel(self, call: _Call) -> None:
        """Cancel a call whose caller waits no longer. It takes up room until it is answered."""
        if getpid() != self._pid:
            return
        with self._lock:
            token = self._token
            if call.number not in self._sent:
                with suppress(ValueError):
                    self._queue.remove(call)
                return
        if token is not None:
            with suppress(OSError):
                self._channel.send(Kind.CANCEL, token, b'{"id":%d}' % call.number)

    @interruptible
    def _check(self) -> None:
        if get_ident() == self._main_thread:
            self._interrupts.check()

    def _stop(self, thread: int) -> None:
        with self._lock:
            calls = [call for call in self._unanswered() if call.thread == thread]
        _fail(calls, _INTERRUPTED)

    def _unanswered(self) -> list[_Call]:
        return [*self._sent.values(), *self._queue]

    def _listen(self) -> None:
        try:
            self._channel.answering.require()
        except OSError as error:
            self._give_up(str(error))
        if self._broken is not None:
            raise ToolError(self._broken)
        if not self._listening:
            ready = allocate_lock()
            ready.acquire()
            try:
                start_new_thread(self._read, (ready,))
            except RuntimeError as error:
                raise ToolError(f"tools cannot be called: {error}") from None
            self._listening = True
            # otherwise that thread could delay this one just before it waits for the answer; see _PATIENCE
            ready.acquire()

    def _read(self, ready: LockType) -> None:
        # a signal has to reach the main thread, to interrupt what that waits for
        pthread_sigmask(SIG_BLOCK, valid_signals())
        ready.release()
        try:
            for token, payload in self._channel.answers():
                if token == self._token:
                    self._settle(token, *read_answer(payload))
            reason = "there is nobody to answer"
        except BaseException as error:
            reason = one_line(error)
        self._give_up(reason)


def _fail(calls: Iterable[_Call], reason: str) -> None:
    for call in calls:
        call.complete(None, ToolError(reason))


def _work(frame: FrameType, workers: set[CodeType]) -> FrameType | None:
    """The outermost frame of the work of a thread, given its innermost one; ``None`` for an idle worker of a pool."""
    work: FrameType | None = None
    outer: FrameType | None = frame
    while outer is not None and outer.f_code not in workers:
        work, outer = outer, outer.f_back
    return work


def _workers_of_pools() -> set[CodeType]:
    """The functions in which threads of pools take one task after the other, of any block."""
    workers: set[CodeType] = set()
    for module, function in (("concurrent.futures.thread", "_worker"), ("multiprocessing.pool", "worker")):
        code = getattr(getattr(sys.modules.get(module), function, None), "__code__", None)
        # the code may have put anything there
        if isinstance(code, type(_workers_of_pools.__code__)):
            workers.add(code)
    return workers


@interruptible
def _set(done: Future[None]) -> None:
    if not done.done():
        done.set_result(None)


@interruptible
def _running_loop() -> AbstractEventLoop:
    from asyncio import get_running_loop

    return get_running_loop()
