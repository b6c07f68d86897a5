"""A fork of an interpreter, from the request to the moment in which all forks live, or none."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial

from codeact_team.session.protocol import TOKEN_BYTES, Kind, ProtocolError
from codeact_team.session.runner.supervisor.child import Interpreter
from codeact_team.session.runner.supervisor.pipes import PipeWriter
from codeact_team.session.runner.supervisor.poll_loop import Loop
from codeact_team.session.runner.supervisor.process_family import Family

_MAX_WORDS = 2000
_UNREADABLE = "what the interpreter said of it could not be read"


def flush(loop: Loop, pipe: PipeWriter) -> None:
    """Write what there is room for, and the rest when there is."""
    if pipe.flush():
        loop.forget(pipe.fd)
    else:
        loop.on_writable(pipe.fd, partial(flush, loop, pipe))


class Fork:
    """A fork that is under way. Reads what the interpreter says meanwhile.

    Args:
        loop: What calls handlers.
        family: All processes.
        parent: The interpreter that forks, which has been told to.
        children: Its forks to be, which have sent what they need to it.
        done: Called once: with ``None`` if all forks live, each with its process, and with the reason if none does.

    Attributes:
        parent: The interpreter that forks.
    """

    def __init__(
        self,
        loop: Loop,
        family: Family,
        parent: Interpreter,
        children: Sequence[Interpreter],
        done: Callable[[str | None], None],
    ) -> None:
        self._loop = loop
        self._family = family
        self.parent = parent
        self._children = children
        self._done = done
        self._unheard = set(children)
        self._problem: str | None = None
        self._answered = False
        loop.on_readable(parent.reports, self._on_reports)
        for child in children:
            loop.on_readable(child.control, partial(self._hear, child))
        flush(loop, parent.commands)

    def abandon(self, reason: str) -> None:
        """End it without forks."""
        self._loop.forget(self.parent.reports)
        for child in self._children:
            self._loop.forget(child.control)
        parent, lines = self.parent.pid, {child.pid for child in self._children if child.pid}
        # beside its forks a parent has no descendants; those not heard of yet may be in the middle of their copies
        self._family.end(lambda one: one.line in lines or (one.line == parent and one.pid != parent))
        for child in self._children:
            self._family.forget(child.pid)
            child.close()
        self._done(reason)

    def _on_reports(self) -> None:
        try:
            for kind, payload in self.parent.receive():
                if kind == Kind.FORKED:
                    self._answered = True
                    # one that is refused has ended, too, and this says why
                    self._problem = _refusal(payload[TOKEN_BYTES:]) or self._problem
                elif kind not in (Kind.CALL, Kind.CANCEL):
                    raise ProtocolError
        except (EOFError, ProtocolError):
            self._answered, self._problem = True, _UNREADABLE
        self._conclude()

    def _hear(self, child: Interpreter) -> None:
        self._loop.forget(child.control)
        self._unheard.discard(child)
        child.pid, problem = child.hear()
        self._problem = self._problem or problem or None
        self._conclude()

    def _conclude(self) -> None:
        if not self._answered or (self._unheard and self._problem is None):
            return
        if self._problem is None and not all(map(self._is_known, self._children)):
            self._problem = _UNREADABLE
        if self._problem is not None:
            self.abandon(self._problem)
            return
        self._loop.forget(self.parent.reports)
        self._done(None)

    def _is_known(self, child: Interpreter) -> bool:
        """Whether it is what it says: a child of this process by now, or of its parent, whatever else it may be."""
        if self._family.adopt(child.pid):
            return True
        child.watching = self._family.watch(child.pid, self.parent.pid)
        return child.watching is not None


def _refusal(payload: bytes) -> str | None:
    try:
        refused = json.loads(payload)["refused"]
    except (ValueError, LookupError, TypeError):
        return _UNREADABLE
    return None if refused is None else str(refused)[:_MAX_WORDS]
