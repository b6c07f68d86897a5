"""Sockets that the code has open when the interpreter is forked: in the fork, each reads as a connection that was reset.

The interpreter that was forked keeps them. Connections of its event loop find out by themselves in the fork, where the
loop goes on with descriptors of its own. Linux only.
"""

from __future__ import annotations

import os

# without the module around it, which the code may not need
from _socket import AF_UNIX, SOCK_STREAM, socket, socketpair
from contextlib import contextmanager
from select import epoll

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

_KIND = 0xF
"""The bits of a socket's type without its flags."""


def reset(fd: int) -> None:
    """Replace a socket by one whose other end is gone, without a word to the one that it was connected to."""
    here, there = socketpair(AF_UNIX, SOCK_STREAM)
    # what was not read makes an end a reset
    here.send(b"\0")
    there.close()
    here.setblocking(os.get_blocking(fd))
    os.dup2(here.fileno(), fd, os.get_inheritable(fd))
    here.close()


def is_used(loop: Any) -> bool:
    """Whether an event loop waits for more than its own wake-up, as for connections. False for a loop of another library."""
    selector = getattr(loop, "_selector", None)
    return selector is not None and len(selector.get_map()) > 1


def descriptors_of(loop: Any) -> tuple[int, ...]:
    """The descriptors of an event loop's own."""
    return loop._selector.fileno(), loop._ssock.fileno(), loop._csock.fileno()


@contextmanager
def renewed(loop: Any) -> Generator[None]:
    """In a fork, give an event loop descriptors of its own. Its sockets are to be reset meanwhile.

    Afterwards it waits for its connections, and for nothing else: a server would be told without end that it can take nobody.
    """
    selector = loop._selector
    # first of all, as to forget something would have the other process forget it
    own = epoll()
    os.dup2(own.fileno(), selector.fileno(), False)
    own.close()
    loop._close_self_pipe()
    loop._make_self_pipe()
    keys = [key for key in selector.get_map().values() if key.fd != loop._ssock.fileno()]
    connections = [key for key in keys if _is_connection(key.fd)]
    for key in keys:
        selector.unregister(key.fileobj)
    yield
    # the kernel would go on watching what a descriptor led to before
    for key in connections:
        selector.register(key.fileobj, key.events, key.data)


def _is_connection(fd: int) -> bool:
    same = socket(fileno=os.dup(fd))
    try:
        same.getpeername()
        return same.type & _KIND == SOCK_STREAM
    except OSError:
        return False
    finally:
        same.close()
