"""Blocks of Python code: compiled as a notebook compiles them, run in one namespace, and interrupted by SIGINT."""

from __future__ import annotations
import __future__

import signal
import sys
import threading
from _ast import Expr, Interactive, PyCF_ALLOW_TOP_LEVEL_AWAIT, PyCF_ONLY_AST

# without the module around it
from _contextvars import Context, copy_context

# the function of signal makes an enum of each handler
from _signal import getsignal  # pyright: ignore[reportMissingImports, reportUnknownVariableType]
from _thread import _count as count_threads  # pyright: ignore[reportPrivateUsage]  # includes those of threading
from collections.abc import Callable
from contextlib import suppress
from os import getpid
from sys import version_info
from types import CodeType, FrameType

from codeact_team.session.runner.interpreter.user_code import can_interrupt, interruptible, runs_users

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Handle, Task
    from collections.abc import Coroutine, Sequence
    from typing import Any


class Interrupts:
    """Turns SIGINT into ``KeyboardInterrupt`` while a block runs.

    It is raised in the code of the block and of libraries, and in functions of the runner that are marked as interruptible.
    In the rest of the runner it could do damage, and waits for :meth:`check`. If it hits the runner's event loop, a callback
    raises it, so that the loop can be interrupted as well.
    """

    def __init__(self) -> None:
        self.came: bool = False
        """Whether the present or last block was sent a SIGINT."""
        self.on_stop: Callable[[int], None] | None = None
        """Called with the id of each thread that the block has started and that has to end."""
        self._armed = False
        self._pending = False
        self._earlier_threads: list[threading.Thread] = []
        self._base: CodeType | None = None
        self._defer: Callable[[], object] | None = None
        self._handler = self._handle
        signal.signal(signal.SIGINT, self._handler)

    def arm(self) -> None:
        self.came = self._pending = False
        # mostly there are no others
        self._earlier_threads = threading.enumerate() if count_threads() else [threading.main_thread()]
        self._armed = True

    def disarm(self) -> None:
        """The block has ended. Restores the handler if the block has replaced it."""
        self._armed = False
        if getsignal(signal.SIGINT) is not self._handler:
            signal.signal(signal.SIGINT, self._handler)

    def defer(self, base: CodeType, defer: Callable[[], object] | None) -> None:
        """Call ``defer`` once, instead of raising, if no user code runs in what ``base`` has called."""
        self._base, self._defer = base, defer

    @interruptible
    def check(self) -> None:
        """Raise an interrupt that came when it could not be raised."""
        if self._pending:
            self._pending = False
            raise KeyboardInterrupt

    def stop_threads(self) -> None:
        """End the threads that were started since :meth:`arm` and run Python code of the user."""
        frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]
        earlier = set(map(id, self._earlier_threads))
        for thread in threading.enumerate():
            if id(thread) in earlier or not thread.ident:
                continue
            # not an idle thread of a pool, which would break at its next task
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
        # now, because the interrupted code may wait for them to end
        self.stop_threads()
        if self._defer is not None and not runs_users(frame, self._base):
            # only once: the loop may hang in a C function
            defer, self._defer = self._defer, None
            defer()
            return
        raise KeyboardInterrupt


def _raise_system_exit(thread: int) -> None:
    try:
        from ctypes import c_ulong, py_object, pythonapi
    except ImportError:
        # the image has no ctypes, or the block was interrupted while it imported ctypes
        return
    pythonapi.PyThreadState_SetAsyncExc(c_ulong(thread), py_object(SystemExit))


_CO_COROUTINE = 0x80
_OF_A_RUNNING_LOOP = {"create_task", "ensure_future", "get_running_loop", "TaskGroup"}
# of distinct bits
_FUTURES = sum({getattr(__future__, name).compiler_flag for name in __future__.all_feature_names})


class Blocks:
    """Compiles blocks and runs them in ``namespace``. Calls ``before_part`` before each part of a block."""

    def __init__(
        self, namespace: dict[str, Any], interrupts: Interrupts, before_part: Callable[[], None]
    ) -> None:
        self._namespace = namespace
        self._interrupts = interrupts
        self._before_part = before_part
        # not the thread's own, in which tasks could not run: what one block sets there is set in the next
        self._context = Context()
        self._loop = _Loop(interrupts, self._context)

    def compile(self, code: str, name: str) -> list[CodeType]:
        """Compile a block in parts: its statements, and its last expression, whose value goes to ``sys.displayhook``.

        Raises a ``SyntaxError`` if it is not Python code; an ``Exception`` if it cannot be compiled for other reasons,
        such as being nested too deeply.
        """
        flags = PyCF_ALLOW_TOP_LEVEL_AWAIT
        if "\n" not in code and "\\" not in code and not code[:1].isspace():
            # compiles a single expression in a third of the time; anything else is compiled below
            with suppress(SyntaxError):
                return [compile(code, name, "eval", flags, dont_inherit=True)]
        tree = compile(code, name, "exec", flags | PyCF_ONLY_AST, dont_inherit=True)
        return self.parts_of(tree, code, name)

    def parts_of(self, tree: Any, code: str, name: str) -> list[CodeType]:
        """Do the same for a block that has been parsed already."""
        flags = PyCF_ALLOW_TOP_LEVEL_AWAIT
        body = tree.body
        last = body.pop() if body and _is_shown(body[-1], code) else None
        parts: list[CodeType] = []
        if body:
            parts.append(compile(tree, name, "exec", flags, dont_inherit=True))
            # an import from __future__ applies to the last expression, too, but not to later blocks
            flags |= parts[0].co_flags & _FUTURES
        if last is not None:
            parts.append(compile(Interactive([last]), name, "single", flags, dont_inherit=True))
        return parts

    def close_loop(self, is_used: Callable[[Any], bool]) -> str | None:
        """Close the event loop unless it is used; a later block gets another. Returns why a fork is impossible, or ``None``."""
        return self._loop.close(is_used)

    @property
    def open_loop(self) -> AbstractEventLoop | None:
        """The event loop that a fork gets a copy of, if one is open."""
        return self._loop.present

    @interruptible
    def run(self, parts: Sequence[CodeType]) -> None:
        """Run the parts of a block. Raises whatever the code raises."""
        if any(part.co_flags & _CO_COROUTINE for part in parts):
            self._loop.run(self._run_awaiting, parts)
            return
        if "asyncio" in sys.modules:
            if any(_wants_running_loop(part.co_names) for part in parts):
                self._loop.run(self._run_awaiting, parts)
                return
            self._loop.offer()
        self._context.run(self._run, parts)

    @interruptible
    def _run(self, parts: Sequence[CodeType]) -> None:
        self._interrupts.check()
        for part in parts:
            self._before_part()
            _display(eval(part, self._namespace))

    @interruptible
    async def _run_awaiting(self, parts: Sequence[CodeType]) -> None:
        self._interrupts.check()
        for part in parts:
            self._before_part()
            value = eval(part, self._namespace)
            _display(await value if part.co_flags & _CO_COROUTINE else value)


def _wants_running_loop(names: tuple[str, ...]) -> bool:
    """Whether code with these names asks for the running loop, as it has one in a notebook, and does not run one of its own."""
    return "run" not in names and not _OF_A_RUNNING_LOOP.isdisjoint(names)


def _is_shown(statement: Any, code: str) -> bool:
    """Whether the value of a statement of ``code`` is shown: that of an expression without a semicolon behind it."""
    if type(statement) is not Expr:
        return False
    line = code.replace("\r\n", "\n").replace("\r", "\n").split("\n")[(statement.end_lineno or 0) - 1]
    return not line.encode()[statement.end_col_offset :].lstrip().startswith(b";")


@interruptible
def _display(value: object) -> None:
    """Display the value of a block that was compiled as one expression; other code displays its value itself."""
    if value is not None:
        sys.displayhook(value)


class _Loop:
    """The event loop of blocks that ``await``. It runs only during such a block, in which ``context`` is the current one."""

    def __init__(self, interrupts: Interrupts, context: Context) -> None:
        self._interrupts = interrupts
        self._context = context
        self._loop: AbstractEventLoop | None = None
        self._process = 0

    def run(
        self, work: Callable[[Sequence[CodeType]], Coroutine[Any, Any, None]], parts: Sequence[CodeType]
    ) -> None:
        """Run ``work(parts)`` until it ends or is cancelled, and raise whatever it raises."""
        loop = self._open()
        requests: list[Handle] = []
        code = _Loop.run.__code__

        def request() -> None:
            requests.append(loop.call_soon_threadsafe(interrupt))

        def interrupt() -> None:
            self._interrupts.defer(code, request)
            raise KeyboardInterrupt

        self._interrupts.defer(code, request)
        try:
            _complete(loop, self._new_task(loop, work(parts)))
        finally:
            self._interrupts.defer(code, None)
            for late in requests:
                # otherwise it would hit the next block
                late.cancel()

    def _new_task(self, loop: AbstractEventLoop, work: Coroutine[Any, Any, None]) -> Task[None]:
        if version_info >= (3, 11):  # noqa: UP036 - a container may have 3.10
            return loop.create_task(work, context=self._context)
        return self._context.run(loop.create_task, self._keeping_context(work))

    async def _keeping_context(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        finally:
            # a task has a copy of its own
            for variable, value in copy_context().items():
                self._context.run(variable.set, value)

    def offer(self) -> None:
        """Let code that asks for the event loop of its thread have this one, unless it has set another."""
        from asyncio import events

        # to ask for the present one would make one, or warn
        # deprecated by its name, and there under another one
        policy_of: Any = getattr(events, "_get_event_loop_policy", None) or events.get_event_loop_policy  # pyright: ignore[reportDeprecated]
        present = getattr(getattr(policy_of(), "_local", None), "_loop", None)
        if present is None or present.is_closed():
            events.set_event_loop(self._open())

    def close(self, is_used: Callable[[Any], bool]) -> str | None:
        if self._loop is None or self._loop.is_closed():
            return None
        from asyncio import all_tasks

        if tasks := all_tasks(self._loop):
            return f"{len(tasks)} task(s) of the event loop have not ended: await or cancel them"
        if not is_used(self._loop):
            self._loop.close()
        return None

    @property
    def present(self) -> AbstractEventLoop | None:
        return None if self._loop is None or self._loop.is_closed() else self._loop

    def _open(self) -> AbstractEventLoop:
        if self._loop is None or self._loop.is_closed():
            from asyncio import new_event_loop

            self._loop = new_event_loop()
            self._loop.set_exception_handler(self._handle)
            self._process = getpid()
        return self._loop

    def _handle(self, loop: AbstractEventLoop, context: dict[str, Any]) -> None:
        from asyncio import _get_running_loop, _set_running_loop  # pyright: ignore[reportPrivateUsage]

        if getpid() != self._process and loop.is_running() and _get_running_loop() is None:
            # Since 3.14 a forked child has no running loop, so that it can run one of its own. If it awaits, the step that
            # has forked complains, and later steps would not run.
            _set_running_loop(loop)
        # otherwise a task was interrupted, and so is the block
        elif not isinstance(context.get("exception"), KeyboardInterrupt):
            loop.default_exception_handler(context)


def _complete(loop: AbstractEventLoop, task: Task[None]) -> None:
    try:
        _run_until_done(loop, task)
    except BaseException as error:
        if not task.done():
            # interrupted, or the loop was stopped
            task.cancel()
            try:
                _run_until_done(loop, task)
            except BaseException as second:
                if not task.cancelled():
                    raise
                # this traceback shows where the code was waiting
                raise error.with_traceback(second.__traceback__) from None
        elif not task.cancelled():
            # it is reported already
            task.exception()
        raise


def _run_until_done(loop: AbstractEventLoop, task: Task[None]) -> None:
    # unlike run_until_complete, which leaves a callback behind that stops the next run if an interrupt comes just as the task
    # ends
    is_running = True

    def stop(_: Task[None]) -> None:
        if is_running:
            loop.stop()

    task.add_done_callback(stop)
    try:
        loop.run_forever()
    finally:
        is_running = False
        task.remove_done_callback(stop)
    if not task.done():
        raise RuntimeError("the event loop was stopped before the block had ended")
    task.result()
