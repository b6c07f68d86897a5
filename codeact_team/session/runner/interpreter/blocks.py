"""Blocks of Python code: compiled as a notebook does it, and run in one namespace."""

from __future__ import annotations
import __future__

import sys
from _ast import Expr, Interactive, PyCF_ALLOW_TOP_LEVEL_AWAIT, PyCF_ONLY_AST
from contextlib import suppress

from codeact_team.session.runner.interpreter.stack_frames import interruptible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Handle, Task
    from collections.abc import Callable, Coroutine, Sequence
    from types import CodeType
    from typing import Any

    from codeact_team.session.runner.interpreter.interrupts import Interrupts

_CO_COROUTINE = 0x80
# of distinct bits
_FUTURES = sum({getattr(__future__, name).compiler_flag for name in __future__.all_feature_names})


class Blocks:
    """Compiles blocks, and runs them in ``namespace``."""

    def __init__(self, namespace: dict[str, Any], interrupts: Interrupts) -> None:
        self._namespace = namespace
        self._interrupts = interrupts
        self._loop = _Loop(interrupts)

    def compile(self, code: str, name: str) -> list[CodeType]:
        """The parts of a block: its statements, and its last expression, whose value ``sys.displayhook`` gets.

        Raises:
            SyntaxError: If it is no Python code.
            Exception: If it cannot be compiled for other reasons, such as being nested too deeply.
        """
        flags = PyCF_ALLOW_TOP_LEVEL_AWAIT
        if "\n" not in code and "\\" not in code and not code[:1].isspace():
            # one expression is compiled in a third of the time like this; of what else it is, the usual way tells
            with suppress(SyntaxError):
                return [compile(code, name, "eval", flags, dont_inherit=True)]
        tree: Any = compile(code, name, "exec", flags | PyCF_ONLY_AST, dont_inherit=True)
        body = tree.body
        last = body.pop() if body and isinstance(body[-1], Expr) else None
        parts: list[CodeType] = []
        if body:
            parts.append(compile(tree, name, "exec", flags, dont_inherit=True))
            # an import from __future__ holds for the last expression, too, and not for the blocks to come: functions
            # that are given to the code may need what the code does not
            flags |= parts[0].co_flags & _FUTURES
        if last is not None:
            parts.append(compile(Interactive([last]), name, "single", flags, dont_inherit=True))
        return parts

    def close_loop(self) -> str | None:
        """Close the event loop, for a fork cannot share it; a later block gets another. Why that cannot be, or ``None``."""
        return self._loop.close()

    @interruptible
    def run(self, parts: Sequence[CodeType]) -> None:
        """Run what :meth:`compile` has made. Raises whatever the code raises."""
        if any(part.co_flags & _CO_COROUTINE for part in parts):
            self._loop.run(self._run_awaiting, parts)
            return
        self._interrupts.check()
        for part in parts:
            _display(eval(part, self._namespace))

    @interruptible
    async def _run_awaiting(self, parts: Sequence[CodeType]) -> None:
        self._interrupts.check()
        for part in parts:
            coroutine = eval(part, self._namespace)
            if coroutine is not None:
                _display(await coroutine)


@interruptible
def _display(value: object) -> None:
    """Display the value of a block that was compiled as one expression; other code displays its values itself."""
    if value is not None:
        sys.displayhook(value)


class _Loop:
    """The event loop of the blocks that ``await``. Between them it stands still, and no loop is running."""

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts
        self._loop: AbstractEventLoop | None = None

    def run(
        self, work: Callable[[Sequence[CodeType]], Coroutine[Any, Any, None]], parts: Sequence[CodeType]
    ) -> None:
        """Run ``work(parts)`` to its end, or to that of its cancellation, and raise whatever it raises."""
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
            _complete(loop, loop.create_task(work(parts)))
        finally:
            self._interrupts.defer(code, None)
            for late in requests:
                # not for the next block
                late.cancel()

    def close(self) -> str | None:
        if self._loop is None or self._loop.is_closed():
            return None
        from asyncio import all_tasks

        if tasks := all_tasks(self._loop):
            return f"{len(tasks)} task(s) of the event loop have not ended: await or cancel them"
        self._loop.close()
        return None

    def _open(self) -> AbstractEventLoop:
        if self._loop is None or self._loop.is_closed():
            from asyncio import new_event_loop

            self._loop = new_event_loop()
            self._loop.set_exception_handler(_handle)
        return self._loop


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
                # shows where the code was waiting
                raise error.with_traceback(second.__traceback__) from None
        elif not task.cancelled():
            # it is told already
            task.exception()
        raise


def _run_until_done(loop: AbstractEventLoop, task: Task[None]) -> None:
    # run_until_complete, if an interrupt comes just as the task ends, leaves behind what stops the loop at its next run
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


def _handle(loop: AbstractEventLoop, context: dict[str, Any]) -> None:
    # of a task that was interrupted; the block is, too
    if not isinstance(context.get("exception"), KeyboardInterrupt):
        loop.default_exception_handler(context)
