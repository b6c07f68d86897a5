"""Forks that go on in the main thread, on whose stack nothing is but what Python itself has begun with.

What serves the host is in a thread of its own. So a fork can become a program that finds none of our calls on its stack, and whose
first thread is the one to which Python tells signals: from CPython 3.13 on, that is not so after a fork by another thread.
Imports next to nothing: a program that is a fork has that, too.
"""

from __future__ import annotations

import _thread
import os
from _queue import SimpleQueue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Child = Callable[[], bool]
    """What a fork does first; whether it obeys orders then, or becomes the program."""

_orders: SimpleQueue[_Order] = SimpleQueue()


class _Order:
    def __init__(self, child: Child) -> None:
        self.child = child
        self.pid = -1
        self.is_done = _thread.allocate_lock()
        self.is_done.acquire()
        self.error: OSError | None = None


def serve(work: Callable[[], None]) -> None:
    """Work in a thread other than the main one; when that is done, or has failed, the process ends."""

    def thread() -> None:
        try:
            work()
        finally:
            os._exit(0)

    _thread.start_new_thread(thread, ())


def fork(child: Child) -> int:
    """Have the main thread fork, and return the process id. Not to be called by that itself.

    Raises:
        OSError: If it cannot.
    """
    order = _Order(child)
    _orders.put(order)
    order.is_done.acquire()
    if order.error is not None:
        raise order.error
    return order.pid


def obey() -> bool:
    """Do as one order says. To be called by the main thread, at the outermost level, as long as this is true."""
    order = _orders.get()
    try:
        order.pid = os.fork()
    except OSError as error:
        order.error = error
    if order.pid == 0:
        return order.child()
    order.is_done.release()
    return True
