"""The way out of a sandbox, as the supervisor has it: the forwarder, its relay, and whose each connection is."""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress

from codeact_team.network.inside import peers
from codeact_team.network.inside.forwarder import Forwarder
from codeact_team.network.inside.relay import Relay
from codeact_team.sandbox.system.framing import ProtocolError
from codeact_team.sandbox.system.kernel import DOOR, close_descriptors, take_handed
from codeact_team.sandbox.system.process_tree import stat_fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from codeact_team.network.inside.forwarder import Connection
    from codeact_team.session.runner.supervisor.interpreter_process import Context
    from codeact_team.session.runner.supervisor.processes import HostedProcesses

_UNKNOWN = "-"
_MAIN = "s0"
_PARENT, _SESSION = 1, 3
"""Positions of fields of ``/proc/PID/stat``, counted behind the name."""


class SandboxEgress:
    """Hands on the connections of code, each with the unit that has made it: a session, or a process of the host's.

    Args:
        payload: The frame of the host that begins it; see ``Kind.EGRESS``.

    Raises:
        OSError: If it cannot listen everywhere, or nobody listens at the socket.
        ProtocolError: If the frame cannot be understood.
    """

    def __init__(self, context: Context, processes: HostedProcesses, payload: bytes) -> None:
        self._context = context
        self._units = _Units(context, processes)
        self._relays: list[int] = []
        """The present one last."""
        try:
            order = json.loads(payload)
            token, path = str(order["token"]), str(order["socket"])
            addresses = [(str(address), int(port)) for address, port in order["addresses"]]
        except (ValueError, LookupError, TypeError) as error:
            raise ProtocolError("the order to take connections cannot be understood") from error
        door = take_handed(DOOR)
        self._forwarder = Forwarder(
            context.loop,
            token=token,
            path=path,
            # where code shares the machine's network, they are taken outside
            addresses=addresses if door is None else (),
            door=None if door is None else socket.socket(fileno=door),
            units_of=self._units.of,
            start_relay=self._start_relay,
        )

    def _start_relay(self) -> socket.socket:
        """Start a relay, which blocks and their ends leave alone. Returns the socket to it. Raises an ``OSError``."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                pid = self._context.fork()
            except OSError:
                ours.close()
                raise
            if pid == 0:
                self._become_relay(theirs)
        self._relays.append(pid)
        self._context.keepers.add(pid)
        return ours

    def _become_relay(self, control: socket.socket) -> None:
        try:
            os.setsid()
            guard = self._context.guard
            close_descriptors(3, os.sysconf("SC_OPEN_MAX"), control.fileno(), *guard.descriptors)
            guard.enter_keeper()
            Relay(control).serve()
        finally:
            os._exit(0)

    def on_child_end(self) -> None:
        """Check whether a relay has ended."""
        for relay in [*self._relays]:
            if self._context.processes.status(relay) is not None:
                if relay == self._relays[-1]:
                    self._forwarder.on_relay_end()
                self._relays.remove(relay)
                # before it is taken for a keeper, whose orphans would be ended
                self._context.keepers.discard(relay)


class _Units:
    """Finds out whose connections are, by what the kernel says of processes. See :class:`FirstLine` for the names."""

    def __init__(self, context: Context, processes: HostedProcesses) -> None:
        self._context = context
        self._processes = processes
        self._above = {*_line_of(os.getpid())}

    def of(self, connections: Sequence[Connection]) -> list[str]:
        """The unit of each connection."""
        living = self._living()
        units = {*living.values()}
        if len(units) == 1 and not self._has_strangers(living):
            # nobody else can have made them; to find that by the kernel's tables takes milliseconds
            return [*units] * len(connections)
        if all(one.thread for one in connections):
            return [living.get(_process_of(one.thread), _UNKNOWN) for one in connections]
        found = self._by_sockets(connections, living)
        return [found.get(one, _UNKNOWN) for one in connections]

    def _by_sockets(
        self, connections: Sequence[Connection], living: Mapping[int, str]
    ) -> dict[Connection, str]:
        sockets = peers.sockets_of(connections)
        holders, hidden = peers.holders_of(sockets.values(), living)
        units: dict[Connection, str] = {}
        for connection, number in sockets.items():
            # one that hides from all others has it if none of them has
            of = {living[process] for process in holders[number] or hidden}
            if len(of) == 1:
                units[connection] = of.pop()
        return units

    def _living(self) -> dict[int, str]:
        """The unit of each process below this one, by process id."""
        context = self._context
        units: dict[int, str] = {keeper: f"p{number}" for keeper, number in self._processes.numbers.items()}
        if context.zygote is not None:
            # it has run the setup
            units[context.zygote.pid] = _MAIN
        ours: set[int] = {*context.keepers}
        for number, session in context.sessions.items():
            units |= dict.fromkeys(session.shell_sessions, f"s{number}")
            if (interpreter := session.interpreter) is not None:
                units[interpreter.pid] = f"s{number}"
                if number == 0 and not interpreter.was_used:
                    ours.add(interpreter.pid)
        orphans = _MAIN if len(context.sessions) == 1 else _UNKNOWN
        living: dict[int, str] = {}
        for process, ancestor in context.processes.below():
            if process not in ours:
                unit = units.get(ancestor) or units.get(_session_of(ancestor), orphans)
                living[process] = unit
        return living

    def _has_strangers(self, living: Mapping[int, str]) -> bool:
        """Whether there are processes that this one has not started, as those of another user."""
        known = self._above | living.keys() | {*self._context.interpreters} | self._context.keepers
        return any(name.isdigit() and int(name) not in known for name in os.listdir("/proc"))


def _line_of(process: int) -> Iterator[int]:
    """A process, and all above it."""
    while process:
        yield process
        process = int(stat_fields(process)[_PARENT])


def _session_of(process: int) -> int:
    """The kernel's session of a process; 0 if it has ended."""
    try:
        return int(stat_fields(process)[_SESSION])
    except OSError:
        return 0


def _process_of(thread: int) -> int:
    """The process of a thread; 0 if it has ended."""
    with suppress(OSError), open(f"/proc/{thread}/status", "rb") as file:
        for line in file:
            if line.startswith(b"Tgid:"):
                return int(line.split()[1])
    return 0
