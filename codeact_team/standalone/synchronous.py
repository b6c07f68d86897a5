"""The same sandbox for programs without an event loop."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import partial, wraps
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from codeact_team.core.executor_interface import Checkpoint
from codeact_team.core.showing import in_few_words
from codeact_team.errors import SandboxError
from codeact_team.session.processes import SandboxProcess
from codeact_team.standalone.sandbox import CLOSED, AsyncSandbox

A = TypeVar("A", bound="_Twin")
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


_NEEDED = ("threading", "select", "socket", "queue", "subprocess")


class LoopThread:
    """An event loop in a thread of its own, from :meth:`start` to :meth:`stop`. Any other thread may call."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop
        self._stopping: asyncio.Event
        self._process = 0
        self._started: Future[None] = Future()
        self._answers: set[Future[Any]] = set()
        """Those that callers wait for."""
        # a program that never leaves its sandbox can end all the same, and the sandbox ends with it
        self._thread = threading.Thread(target=self._work, name="codeact-team-sandbox", daemon=True)

    @property
    def has_ended(self) -> bool:
        """Whether nothing can be called any more, as in a fork of the process, which has no such thread."""
        return self._loop.is_closed() or os.getpid() != self._process

    def start(self) -> None:
        """Start the thread.

        Raises:
            SandboxError: If gevent has replaced what it needs.
        """
        gevent = sys.modules.get("gevent.monkey")
        if gevent is not None and any(map(gevent.is_module_patched, _NEEDED)):
            raise SandboxError(
                "gevent has replaced modules that a sandbox needs, such as threading: open the sandbox in "
                "a process without `monkey.patch_all()`"
            )
        self._process = os.getpid()
        self._thread.start()
        self._started.result()

    def stop(self) -> None:
        """End the loop, and wait for the end of the thread."""
        if self.has_ended:
            return
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    def call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine function to its end, for its result or its exception. An interrupt of the caller cancels it.

        Raises:
            SandboxError: If the loop has ended.
            RuntimeError: If the loop itself calls, which would wait for itself.
        """
        if os.getpid() != self._process:
            raise SandboxError("this sandbox belongs to the process that forked this one: open one here")
        if threading.current_thread() is self._thread:
            raise RuntimeError("a coroutine would wait for itself here: give a plain function")
        answer: Future[T] = Future()
        task: Future[asyncio.Task[T]] = Future()

        def begin() -> None:
            begun = asyncio.ensure_future(work())
            begun.add_done_callback(partial(_pass_on, answer))
            task.set_result(begun)

        self._answers.add(answer)
        answer.add_done_callback(self._answers.discard)
        try:
            if not self._schedule(begin):
                answer.cancel()
            return answer.result()
        except CancelledError:
            raise SandboxError(CLOSED) from None
        except BaseException:
            if not answer.done():
                # raised in the thread that waits, such as by Ctrl-C
                self._schedule(lambda: task.result().cancel())
                with suppress(CancelledError):
                    answer.exception()
            raise

    def _schedule(self, callback: Callable[[], object]) -> bool:
        """Run a callback in the loop; whether it has not ended."""
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            return False
        return True

    def _work(self) -> None:
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            runner.run(self._until_stopped())
        for answer in [*self._answers]:
            # its call came too late for the loop
            answer.cancel()

    async def _until_stopped(self) -> None:
        self._stopping = asyncio.Event()
        self._started.set_result(None)
        await self._stopping.wait()


def _pass_on(answer: Future[T], task: asyncio.Task[T]) -> None:
    if task.cancelled():
        answer.cancel()
    elif (error := task.exception()) is not None:
        answer.set_exception(error)
    else:
        answer.set_result(task.result())


class _Twin(Protocol):
    """An object whose methods are coroutines."""

    async def aclose(self) -> None: ...


class _Synchronous(Generic[A]):
    """An object whose methods wait for its twin's coroutines. A context manager that closes it.

    Attributes:
        twin: The object with coroutines, which only ``loop`` may run.
        loop: The event loop of the thread.
    """

    def __init__(self, twin: A, loop: LoopThread) -> None:
        self.twin = twin
        self.loop = loop

    def close(self) -> None:
        """Close it, with all that runs in it. Idempotent."""
        if not self.loop.has_ended:
            self.loop.call(self.twin.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _synchronous(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[_Synchronous[A], P], T]:
    """The method of the twin that waits for this one, with the same parameters."""
    return _synchronous_as(lambda result, _: result, method)


def _synchronous_as(
    make: Callable[[T, LoopThread], R], method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]]
) -> Callable[Concatenate[_Synchronous[A], P], R]:
    """The method of the twin that waits for this one, and makes a twin of its result."""

    @wraps(method)
    def call(self: _Synchronous[A], *args: P.args, **kwargs: P.kwargs) -> R:
        return make(self.loop.call(partial(method, self.twin, *args, **kwargs)), self.loop)

    return call


class SyncProcess(_Synchronous[SandboxProcess]):
    """A :class:`SandboxProcess` whose methods wait. A context manager that ends it with all that it has started.

    Any thread may call; an interrupt, as by Ctrl-C, ends the wait and not the process.
    """

    @property
    def args(self) -> list[str]:
        """Its arguments."""
        return self.twin.args

    @property
    def returncode(self) -> int | None:
        """Its exit code, negative for a signal, as far as is known: :meth:`poll` and :meth:`wait` find it out."""
        return self.twin.returncode

    @property
    def timed_out(self) -> bool:
        """Whether its time was over."""
        return self.twin.timed_out

    @property
    def limit(self) -> str | None:
        """The limit of the sandbox that it ran into, in a sentence, if it has failed and that is known."""
        return self.twin.limit

    read = _synchronous(SandboxProcess.read)
    read_available = _synchronous(SandboxProcess.read_available)
    write = _synchronous(SandboxProcess.write)
    close_stdin = _synchronous(SandboxProcess.close_stdin)
    poll = _synchronous(SandboxProcess.poll)
    has_left = _synchronous(SandboxProcess.has_left)
    wait = _synchronous(SandboxProcess.wait)
    send_signal = _synchronous(SandboxProcess.send_signal)
    terminate = _synchronous(SandboxProcess.terminate)
    kill = _synchronous(SandboxProcess.kill)
    resize = _synchronous(SandboxProcess.resize)


class SyncCheckpoint(_Synchronous[Checkpoint]):
    """A :class:`Checkpoint` of a :class:`SyncSandbox`."""


class SyncSandbox(_Synchronous[AsyncSandbox]):
    """An open sandbox, as ``with open_sandbox(...)`` gives it: the methods of :class:`AsyncSandbox`, which wait here.

    Any thread may call. An interrupt of the thread that calls, as by Ctrl-C, cancels the call, and waits for its end.
    """

    def __repr__(self) -> str:
        return in_few_words(self, {"twin": self.twin})

    @property
    def workspace_path(self) -> str:
        """The absolute path of the workspace, as the sandbox sees it."""
        return self.twin.workspace_path

    run_python = _synchronous(AsyncSandbox.run_python)
    run = _synchronous(AsyncSandbox.run)
    start = _synchronous_as(SyncProcess, AsyncSandbox.start)
    put = _synchronous(AsyncSandbox.put)
    get = _synchronous(AsyncSandbox.get)
    list = _synchronous(AsyncSandbox.list)
    fork = _synchronous_as(lambda forks, loop: [SyncSandbox(fork, loop) for fork in forks], AsyncSandbox.fork)
    checkpoint = _synchronous_as(SyncCheckpoint, AsyncSandbox.checkpoint)

    def rollback(self, point: SyncCheckpoint) -> None:
        """Set variables and files back to a checkpoint, as :meth:`AsyncSandbox.rollback` does."""
        self.loop.call(partial(self.twin.rollback, point.twin))
