"""The program that owns the stream to the host, starts what runs the code, and ends it.

Everything it does reacts to something that can be read: a frame from the host, a report of an interpreter, output, or the
end of a process. It never waits for the code.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from functools import partial

try:
    import ctypes as _ctypes  # noqa: F401  # pyright: ignore[reportUnusedImport]
except ImportError:
    sys.exit(
        "the Python in the sandbox has no ctypes, which the supervisor needs to guard itself from the code"
    )

from codeact_team.sandbox.system.framing import ProtocolError, frame
from codeact_team.sandbox.system.kernel import adopt_orphans, share_memory_with_forks
from codeact_team.session.protocol import FORK_HEAD, FORKS_PREFIX, MAX_FORKS, ONLY_PROCESSES, PLAIN, Kind
from codeact_team.session.runner.fork_directories import replace_content
from codeact_team.session.runner.supervisor.interpreter_process import (
    INTERPRETER,
    Born,
    Context,
    OutOfControl,
)
from codeact_team.session.runner.supervisor.processes import REQUESTS, HostedProcesses
from codeact_team.session.runner.supervisor.session import SupervisedSession, remove_home
from codeact_team.session.runner.supervisor.streams import HostChannel, HostConnection, HostGone, PollLoop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from codeact_team.session.runner.supervisor.egress import SandboxEgress
    from codeact_team.session.runner.supervisor.interpreter_process import Sources

_EGRESS = f"{__name__.rpartition('.')[0]}.egress"
"""The module of the way out, where a sandbox has one."""


class _Supervisor:
    """Serves one host: passes its frames to the main session and its forks, and makes, promotes and ends forks."""

    def __init__(
        self, host: HostConnection, sources: Sources, load: Callable[[str], Any], *, kind: str
    ) -> None:
        self._host = host
        self._load = load
        self._egress: SandboxEgress | None = None
        loop = PollLoop()
        loop.on_child_end(self._on_child_end)
        adopt_orphans()
        self._sessions: dict[int, SupervisedSession] = {}
        self._context = Context(loop, sources, self._sessions, is_plain=kind == PLAIN)
        self._main = SupervisedSession(self._context, 0, HostChannel(host, 0), os.getcwd())
        self._sessions[0] = self._main
        self._processes = HostedProcesses(self._context, host)
        loop.on_readable(host.fd, self._on_host)
        self._main.begin()
        if kind != ONLY_PROCESSES:
            self._main.prepare()

    def serve(self) -> None:
        # the host learns the rest from the end of this process
        with suppress(HostGone, ProtocolError, OutOfControl):
            self._main.greet()
            self._context.loop.run()

    def end(self) -> None:
        self._context.processes.end_all()
        for session in self._sessions.values():
            session.shells.remove()

    def _on_host(self) -> None:
        for kind, payload in self._main.host.feed(self._host.read()):
            if kind == Kind.FORK_DATA:
                self._take_fork_data(payload)
            elif kind in REQUESTS:
                self._processes.handle(kind, payload)
            elif kind == Kind.EGRESS:
                self._begin_egress(payload)
            elif kind == Kind.RESTART:
                self._restart()
            else:
                self._handle(self._main, kind, payload)
        for session in self._sessions.values():
            session.flush_answers()

    def _begin_egress(self, payload: bytes) -> None:
        if self._egress is not None:
            raise ProtocolError("the way out is there already")
        # few sandboxes have one, so the others do not load it
        module = self._load(_EGRESS)
        problem: str | None = None
        try:
            self._egress = module.SandboxEgress(self._context, self._processes, payload)
        except OSError as error:
            problem = error.strerror or str(error)
        self._host.write(frame(Kind.FORWARDING, json.dumps({"problem": problem}).encode()))

    def _restart(self) -> None:
        for session in list(self._sessions.values()):
            if session is not self._main:
                self._end_fork(session)
        self._main.restart()
        self._main.greet()

    def _on_child_end(self) -> None:
        processes = self._context.processes
        processes.reap()
        if self._egress is not None:
            self._egress.on_child_end()
        self._processes.on_child_end()
        for session in list(self._sessions.values()):
            session.on_child_end()
        zygote = self._context.zygote
        if zygote and processes.status(zygote.pid) is not None:
            self._main.on_zygote_end(zygote)
            self._context.drop_zygote()

    def _take_fork_data(self, payload: bytes) -> None:
        """Handle a piece of a fork's stream. A piece for a fork that has ended is ignored."""
        if len(payload) < FORK_HEAD.size:
            raise ProtocolError("fork data without the number of the fork")
        (number,) = FORK_HEAD.unpack_from(payload)
        session = self._sessions.get(number)
        if session is not None and session is not self._main:
            for kind, content in session.host.feed(payload[FORK_HEAD.size :]):
                self._handle(session, kind, content)

    def _handle(self, session: SupervisedSession, kind: int, payload: bytes) -> None:
        if kind == Kind.FORK:
            session.require_idle()
            numbers, directory = self._new_numbers(payload), _directory(payload)
            session.with_interpreter(partial(self._fork, session, numbers, directory))
        elif kind == Kind.PROMOTE:
            self._promote(session, _field(payload, "fork"))
        elif kind == Kind.END and session is not self._main:
            self._end_fork(session)
            session.host.send(frame(Kind.DONE))
        else:
            session.handle(kind, payload)

    def _new_numbers(self, payload: bytes) -> list[int]:
        value = _field(payload, "forks")
        listed: list[object] = [*value] if isinstance(value, list) else []  # pyright: ignore[reportUnknownArgumentType]
        numbers = [one for one in listed if isinstance(one, int)]
        if not numbers or min(numbers) <= 0 or not self._sessions.keys().isdisjoint(numbers):
            raise ProtocolError("forks need new positive numbers")
        return numbers

    def _fork(self, session: SupervisedSession, numbers: list[int], directory: str) -> None:
        if (refused := self._obstacle(session, len(numbers))) is not None:
            _answer(session, refused)
            return
        forks: list[SupervisedSession] = []
        try:
            for number in numbers:
                home = os.path.join(self._main.home, directory, str(number))
                channel = HostChannel(self._host, number)
                forks.append(SupervisedSession(self._context, number, channel, home))
            for fork in forks:
                fork.fork_from(session)
        except OSError as error:
            _discard(forks)
            _answer(session, f"there is not enough for another interpreter: {error.strerror or error}")
            return
        children = [fork.interpreter for fork in forks if fork.interpreter]
        session.source.fork([fork.home for fork in forks], children, partial(self._forked, session, forks))

    def _forked(
        self, session: SupervisedSession, forks: Sequence[SupervisedSession], problem: str | None
    ) -> None:
        if problem is not None:
            for fork in forks:
                # closed already
                fork.source.interpreter = None
            _discard(forks)
        else:
            for fork in forks:
                fork.begin()
                self._sessions[fork.number] = fork
        _answer(session, problem)

    def _obstacle(self, session: SupervisedSession, count: int) -> str | None:
        """Return the reason for which a session cannot be forked now; ``None`` if it can."""
        context, interpreter = self._context, session.interpreter
        if not context.processes.can_list:
            return "a fork needs Linux, and a /proc in which processes can be seen"
        if len(self._sessions) + count > MAX_FORKS:
            return f"a session can have at most {MAX_FORKS} forks at a time"
        if interpreter is None:
            return "there is no interpreter to fork"
        sessions = session.shells.sessions
        if context.processes.has(
            lambda one: (
                one.pid != interpreter.pid
                and (one.ancestor == interpreter.pid or one.session in sessions or context.is_orphan(one))
            )
        ):
            return (
                "a process that the code has started still runs: wait for it, or end it "
                "(multiprocessing leaves processes of its own, which a restart ends)"
            )
        return None

    def _promote(self, session: SupervisedSession, number: object) -> None:
        fork = self._sessions.get(number) if isinstance(number, int) else None
        if fork is None or fork is session or fork is self._main:
            raise ProtocolError("there is no such fork")
        session.require_idle()
        fork.require_idle()
        if fork.interpreter is None:
            failure = {"error": "OSError", "message": "the fork has lost its interpreter"}
            session.host.send(frame(Kind.FAILED, json.dumps(failure).encode()))
            return
        session.end_interpreter("a fork of it goes on in its place")
        try:
            replace_content(fork.home, session.home, FORKS_PREFIX)
        except OSError as error:
            # half of the files have been replaced
            raise OutOfControl from error
        del self._sessions[fork.number]
        session.continue_from(fork)
        session.greet()

    def _end_fork(self, fork: SupervisedSession) -> None:
        fork.end_interpreter("it was ended")
        del self._sessions[fork.number]
        fork.close()
        remove_home(fork.home)


def _discard(forks: Sequence[SupervisedSession]) -> None:
    for fork in forks:
        fork.close()
        remove_home(fork.home)


def _answer(session: SupervisedSession, refused: str | None) -> None:
    session.host.send(frame(Kind.FORKED, json.dumps({"refused": refused}).encode()))


def _directory(payload: bytes) -> str:
    directory = _field(payload, "directory")
    if not isinstance(directory, str) or not directory.removeprefix(FORKS_PREFIX).isalnum():
        raise ProtocolError("that is no directory for forks")
    return directory


def _field(payload: bytes, name: str) -> object:
    try:
        return json.loads(payload)[name]
    except (ValueError, LookupError, TypeError) as error:
        raise ProtocolError(f"a request without {name!r}") from error


def main(sources: Sources, load: Callable[[str], Any], arguments: list[str]) -> tuple[str, list[str]] | None:
    """Supervise until the host is gone. In a fork that becomes an interpreter, return what to run, and its arguments."""
    host, kind = HostConnection(), arguments[0] if arguments else ""
    path, sys.path = sys.path, [entry for entry in sys.path if entry]
    if kind == PLAIN:
        share_memory_with_forks()
    try:
        supervisor = _Supervisor(host, sources, load, kind=kind)
    except Exception as error:
        # stderr is closed by now
        host.write(f"the supervisor cannot start: {error!r}\n".encode())
        sys.exit(1)
    born: list[str] | None = None
    try:
        supervisor.serve()
    except Born as birth:
        [born] = birth.args
    finally:
        if born is None:
            supervisor.end()
    sys.path = path
    return None if born is None else (INTERPRETER, born)
