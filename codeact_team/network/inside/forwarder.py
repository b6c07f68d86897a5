"""The forwarder: takes the connections of code to addresses of its own sandbox, and hands them on to a unix socket of the host.

The supervisor owns it, so nothing here waits. What carries the bytes is the relay, a process of its own. Nobody trusts the
forwarder: the proxy at the socket decides alone. It says to it where code has connected to, and what of the sandbox has.
"""

from __future__ import annotations

import json
import select
import socket
import time

# pyright: reportUntypedNamedTuple=false
# typing, which has NamedTuple, takes longer to load than everything else here
from collections import deque, namedtuple
from contextlib import ExitStack

from codeact_team.network.inside.first_line import FirstLine
from codeact_team.network.inside.relay import reset
from codeact_team.sandbox.system.framing import receive_with_descriptors, send_with_descriptors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Protocol

    Address = tuple[str, int]
    """An IPv4 address, and a port."""

    class Loop(Protocol):
        """The event loop of the supervisor."""

        def on_readable(self, fd: int, handler: Callable[[], object], /) -> None: ...

        def call_later(self, seconds: float, handler: Callable[[], object], /) -> None: ...

        def forget(self, fd: int, /) -> None: ...


_AT_ONCE = 64
"""The most connections that are taken before those are handed on."""
_BACKLOG = 1024
_LONGEST_NOTE = 200
_PAUSE = 0.005
"""Seconds until a full socket is tried again: the kernel tells nobody that it has room."""
_PATIENCE = 5.0
"""Seconds after which a connection is refused that the proxy, or the relay, does not take."""


class Connection(namedtuple("Connection", "accepted client server thread", defaults=(0,))):
    """A connection of code that was taken.

    Attributes:
        accepted: This end of it.
        client: The address from which code has connected.
        server: The one to which it has.
        thread: The thread that has connected, where that is known; else 0.
    """

    __slots__ = ()
    accepted: socket.socket
    client: Address
    server: Address
    thread: int


class _Waiting:
    """A connection that is to be handed on."""

    def __init__(self, here: socket.socket, line: bytes) -> None:
        self.here = here
        self.line = line
        self.there: socket.socket | None = None
        self.until: float = time.monotonic() + _PATIENCE

    def refuse(self) -> None:
        reset(self.here)
        if self.there is not None:
            self.there.close()


class Forwarder:
    """Listens at addresses of the sandbox, and hands on what connects there.

    Args:
        loop: Calls this.
        token: The secret of the sandbox.
        path: The unix socket.
        addresses: Where to listen.
        door: A socket through which connections come that were taken elsewhere.
        units_of: Says for each of some connections what in the sandbox has made it; see :class:`FirstLine`.
        start_relay: Starts a relay, and returns the socket to it. May raise an ``OSError``.

    Raises:
        OSError: If it cannot listen everywhere, or nobody listens at the socket.
    """

    def __init__(
        self,
        loop: Loop,
        *,
        token: str,
        path: str,
        addresses: Sequence[Address],
        door: socket.socket | None = None,
        units_of: Callable[[Sequence[Connection]], Sequence[str]],
        start_relay: Callable[[], socket.socket],
    ) -> None:
        self._loop = loop
        self._token = token
        self._path = path
        self._units_of = units_of
        self._start_relay = start_relay
        self._relay: socket.socket | None = None
        self._waiting: deque[_Waiting] = deque()
        self._listeners: dict[int, socket.socket] = {}
        self._door = door
        with ExitStack() as failed:
            # a trial, of which the proxy hears nothing but its end
            try:
                self._connected().close()
            except OSError as error:
                raise OSError(error.errno, f"{error.strerror} ({path})") from error
            self._poll = failed.enter_context(select.epoll())
            for address in addresses:
                listener = failed.enter_context(_listening_at(address))
                self._listeners[listener.fileno()] = listener
                self._poll.register(listener.fileno(), select.EPOLLIN)
            if door is not None:
                door.setblocking(False)
                self._poll.register(door.fileno(), select.EPOLLIN)
            failed.pop_all()
        # one descriptor for all, so that the loop is not slower with many
        self._listen()

    def on_relay_end(self) -> None:
        """Note that the relay has ended, and all that it carried. The next connection gets another one."""
        if self._relay is not None:
            self._relay.close()
            self._relay = None

    def _listen(self) -> None:
        self._loop.on_readable(self._poll.fileno(), self._on_connections)

    def _on_connections(self) -> None:
        taken: list[Connection] = []
        try:
            ready = self._poll.poll(0, _AT_ONCE)
            for fd, _ in ready:
                # a flood at one address leaves time for the others
                for _ in range(_AT_ONCE // len(ready)):
                    try:
                        taken.append(self._take(fd))
                    except (BlockingIOError, ConnectionAbortedError):
                        break
        except OSError:
            # no descriptors are left for now: code waits
            self._pause()
        for connection, unit in zip(taken, self._units_of(taken), strict=True):
            line = FirstLine(self._token, unit, *connection.server)
            self._waiting.append(_Waiting(connection.accepted, line.pack()))
        self._hand_on()

    def _take(self, fd: int) -> Connection:
        """Take a connection. Raises an ``OSError``: a ``BlockingIOError`` if there is none."""
        if (listener := self._listeners.get(fd)) is not None:
            accepted, client = listener.accept()
            return Connection(accepted, client, listener.getsockname())
        assert self._door is not None, "nothing else is watched"
        data, descriptors, _ = receive_with_descriptors(self._door, _LONGEST_NOTE)
        if not descriptors:
            # whoever takes them has ended
            self._poll.unregister(fd)
            raise BlockingIOError
        said = json.loads(data)
        host, port = said["address"]
        accepted = socket.socket(fileno=descriptors[0])
        return Connection(accepted, accepted.getpeername(), (host, port), said["thread"])

    def _pause(self) -> None:
        """Take no more connections for a moment."""
        self._loop.forget(self._poll.fileno())
        self._loop.call_later(_PAUSE, self._go_on)

    def _go_on(self) -> None:
        self._listen()
        self._hand_on()

    def _hand_on(self) -> None:
        while self._waiting:
            first = self._waiting[0]
            try:
                self._hand(first)
            except BlockingIOError:
                if time.monotonic() < first.until:
                    self._pause()
                    return
                first.refuse()
            except OSError:
                # nobody is there: the proxy has ended, or no relay can start
                first.refuse()
            self._waiting.popleft()

    def _hand(self, one: _Waiting) -> None:
        """Hand a connection to the proxy, and both ends to the relay. Raises a ``BlockingIOError`` if one of them is busy."""
        if one.there is None:
            there = self._connected()
            there.send(one.line)
            one.there = there
        ends = [one.here.fileno(), one.there.fileno()]
        try:
            self._pass(ends)
        except (BrokenPipeError, ConnectionResetError):
            # it was killed, which this process has not been told yet
            self.on_relay_end()
            self._pass(ends)
        one.here.close()
        one.there.close()

    def _pass(self, ends: Sequence[int]) -> None:
        if self._relay is None:
            self._relay = self._start_relay()
        send_with_descriptors(self._relay, b"+", ends, socket.MSG_DONTWAIT)

    def _connected(self) -> socket.socket:
        there = socket.socket(socket.AF_UNIX)
        try:
            there.setblocking(False)
            there.connect(self._path)
        except BaseException:
            there.close()
            raise
        return there


def _listening_at(address: Address) -> socket.socket:
    listener = socket.socket(socket.AF_INET)
    try:
        listener.setblocking(False)
        # what code gets in small pieces must not wait for its acknowledgements
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        host, port = address
        raise OSError(error.errno, f"{error.strerror} ({host} port {port})") from error
    return listener
