"""The program that owns the stream to the host, starts what runs the code, and ends it.

Everything it does is an answer to something that can be read: a frame of the host's, a report of an interpreter's,
output, or the end of a process. It never waits for the code.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress

try:
    import ctypes as _ctypes  # noqa: F401  # pyright: ignore[reportUnusedImport]
except ImportError:
    sys.exit(
        "the Python in the sandbox has no ctypes, which the supervisor needs to guard itself from the code"
    )

from codeact_team.sandbox.system.kernel import adopt_orphans, share_memory_with_forks
from codeact_team.sandbox.system.oom_score import OomScore
from codeact_team.session.protocol import Kind, ProtocolError
from codeact_team.session.runner.supervisor.branch import Branch
from codeact_team.session.runner.supervisor.branching import Branching
from codeact_team.session.runner.supervisor.child import INTERPRETER, Born, Program
from codeact_team.session.runner.supervisor.guard import Guard
from codeact_team.session.runner.supervisor.poll_loop import Loop
from codeact_team.session.runner.supervisor.process_family import Family
from codeact_team.session.runner.supervisor.relay import Host, HostGone
from codeact_team.session.runner.supervisor.surroundings import OutOfHand, Surroundings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Supervisor:
    """Serves one host."""

    def __init__(self, host: Host, program: Program) -> None:
        self._host = host
        loop = Loop()
        loop.on_child(self._on_child)
        adopt_orphans()
        oom_score = OomScore()
        guard = Guard()
        self._around = Surroundings(loop, Family(guard, oom_score), guard, program)
        self._main = Branch(self._around, 0, host, os.getcwd())
        self._around.branches[0] = self._main
        self._branching = Branching(self._around, host, self._main)
        loop.on_readable(host.fd, self._on_host)
        self._main.begin()
        self._main.prepare()

    def serve(self) -> None:
        """Serve until the host goes, or talks nonsense."""
        # its end is all that anybody could be told
        with suppress(HostGone, ProtocolError, OutOfHand):
            self._main.greet()
            self._around.loop.run()

    def end(self) -> None:
        """End all that was started."""
        self._around.family.end_all()
        for branch in self._around.branches.values():
            branch.shells.remove()

    def _on_host(self) -> None:
        for kind, payload in self._host.receive():
            if kind == Kind.BRANCH:
                self._branching.pass_on(payload)
            elif kind == Kind.RESTART:
                self._restart()
            else:
                self._branching.take(self._main, kind, payload)
        for branch in self._around.branches.values():
            branch.flush_answers()

    def _restart(self) -> None:
        self._branching.end_all()
        self._main.restart()
        self._main.greet()

    def _on_child(self) -> None:
        self._around.family.reap()
        for branch in list(self._around.branches.values()):
            branch.on_child()
        zygote = self._around.zygote
        if zygote and self._around.family.status(zygote.pid) is not None:
            self._main.zygote_ended(zygote)
            self._around.drop_zygote()


def main(
    sources: dict[str, tuple[str, bool, str | bytes]], load: Callable[[str], Any], arguments: list[str]
) -> tuple[str, list[str]] | None:
    """Supervise until the host is gone, or, in a fork, say what to run instead and with which arguments."""
    host, is_plain = Host(), bool(arguments)
    path, sys.path = sys.path, [entry for entry in sys.path if entry]
    if is_plain:
        share_memory_with_forks()
    try:
        supervisor = Supervisor(host, Program(sources, can_be_forked=is_plain))
    except Exception as error:
        # stderr is closed by now
        host.send(f"the supervisor cannot start: {error!r}\n".encode())
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
