"""Keeps the code from reading, tracing, signalling and imitating the process that supervises it.

The code runs as the same user in the same sandbox, so the kernel has to distinguish them. Linux only; on other
systems nothing is guarded, which the greeting reports.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

from codeact_team.sandbox.system.filters import OF_ITSELF, Rule, assemble, install
from codeact_team.sandbox.system.kernel import (
    ABI_OF_MOVES,
    CAPABILITIES,
    DOMAIN,
    MOVE,
    PR_GET_DUMPABLE,
    PR_SET_DUMPABLE,
    PR_SET_NO_NEW_PRIVS,
    READ_DIRECTORY,
    READ_FILE,
    SIGNALS,
    SIZE_OF_CAPABILITIES,
    allow,
    enter_domain,
    in_domain,
    install_filter,
    landlock_abi,
    landlock_scopes,
    libc,
    make_ruleset,
    prctl,
    take_handed,
)
from codeact_team.session.runner.supervisor.terminals import allow_to_open, rights_to_open

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_CAP_SYS_PTRACE = 1 << 19


class Guard:
    """Guards this process, and one other that it has started, against everything that it starts from now on.

    Against reading: this process is not dumpable, or its children are in Landlock domains of their own. Against signals: a
    system call filter, or a Landlock scope, which also keeps one block from ending what another has left running.

    Attributes:
        unguarded: What code can do to this process, or ``None``.
        can_shield: Whether :meth:`shield` is possible.
        ruleset: The ruleset of the Landlock domains that children enter; ``None`` if they enter none.
    """

    def __init__(self) -> None:
        self.ruleset: int | None = None
        self._shield: bytes | None = None
        self._separating: int | None = None
        """The ruleset of a domain from which no process outside it can be signalled."""
        self._of_code = take_handed(DOMAIN)
        """The ruleset of a domain for user code, if the supervisor may do more."""
        self.can_shield: bool = False
        if sys.platform != "linux":
            self.unguarded: str | None = (
                "code can read and signal its supervisor: only Linux can keep it from that"
            )
            return
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        if self._of_code is None:
            prctl(PR_SET_DUMPABLE, 0)
        # a listener has to read what this process asks; Landlock keeps code from reading it
        is_closed = prctl(PR_GET_DUMPABLE) == 0 if self._of_code is None else self._memory_is_closed()
        unreadable = is_closed and not _may_trace_anything()
        unreachable = _filter_calls()
        is_filtered = unreachable
        can_scope = bool(landlock_scopes() & SIGNALS)
        self._separating = _make_ruleset(SIGNALS) if can_scope else None
        if not (unreadable and unreachable):
            abi = landlock_abi()
            scope = SIGNALS if not unreachable and can_scope else 0
            if abi >= ABI_OF_MOVES and (ruleset := _make_ruleset(scope)) is not None:
                self.ruleset = ruleset
                unreadable = unreadable or self._memory_is_closed()
                unreachable = unreachable or scope != 0
        self.can_shield = unreadable and is_filtered
        acts = [act for act, prevented in (("read", unreadable), ("signal", unreachable)) if not prevented]
        self.unguarded: str | None = (
            f"code can {' and '.join(acts)} its supervisor: the kernel, or what surrounds the sandbox, offers no"
            " way to keep it from that"
            if acts
            else None
        )

    def _memory_is_closed(self) -> bool:
        # by trial: what surrounds the sandbox may open files on behalf of processes inside
        me = os.getpid()
        if (child := os.fork()) == 0:
            try:
                self.enter_code()
                os.open(f"/proc/{me}/mem", os.O_RDONLY)
            except PermissionError:
                os._exit(0)
            finally:
                os._exit(1)
        return os.waitpid(child, 0)[1] == 0

    def enter_child(self) -> None:
        """Guard against this child. It must not run user code before this, nor if this raises."""
        if self.ruleset is not None:
            enter_domain(self.ruleset)
        if self._shield is not None:
            install_filter(self._shield)

    def enter_code(self) -> None:
        """Restrict this child, which :meth:`enter_child` guards against, to what user code may do."""
        self.enter_child()
        if self._of_code is not None:
            # the rule is for the entries of this process, which exists only now
            allow(self._of_code, "/proc/self", READ_FILE | READ_DIRECTORY)
            enter_domain(self._of_code)

    def start_code(self, start: Callable[[], int]) -> int:
        """Start a program of user code by a call that forks. Returns its result."""
        return start() if self._of_code is None else in_domain(self._of_code, start)

    @property
    def separates(self) -> bool:
        """Whether :meth:`separate` keeps it from other processes."""
        return self.ruleset is not None or self._separating is not None

    @property
    def narrows(self) -> bool:
        """Whether user code is in a domain of its own, as the supervisor may do more."""
        return self._of_code is not None

    @property
    def descriptors(self) -> list[int]:
        """The descriptors that a keeper needs to guard others."""
        return [one for one in (self.ruleset, self._separating, self._of_code) if one is not None]

    def enter_keeper(self) -> None:
        """Protect the supervisor, and this child, a keeper, from the programs that it will start."""
        self.enter_child()
        if self.can_shield:
            install_filter(assemble(_aimed_at(os.getpid())))

    def separate(self, terminal: str | None) -> None:
        """Keep the programs of this keeper from the processes of others and from all terminals but its own, where the kernel can."""
        if self._separating is not None:
            enter_domain(self._separating)
            if rights := rights_to_open():
                ruleset = make_ruleset(rights)
                allow_to_open(ruleset, rights, terminal)
                enter_domain(ruleset)
                os.close(ruleset)

    def shield(self, process: int | None) -> bytes:
        """Guard another process like this one against the children that call :meth:`enter_child` from now on.

        Returns the program of a system call filter that it has to install itself, against what it starts.
        """
        self._shield = None if process is None else assemble(_aimed_at(process))
        return self.shielding

    @property
    def shielding(self) -> bytes:
        """The program of the filter that shields another process; empty if none is shielded."""
        return self._shield or b""


def _may_trace_anything() -> bool:
    sets = ctypes.create_string_buffer(SIZE_OF_CAPABILITIES)
    if libc.capget(CAPABILITIES, sets) < 0:
        return True
    _, permitted, _ = struct.unpack_from("=III", sets)
    return bool(permitted & _CAP_SYS_PTRACE)


def _make_ruleset(scope: int) -> int | None:
    # without handling moves, a domain refuses to move files from one directory to another
    try:
        ruleset = make_ruleset(MOVE, scopes=scope)
    except OSError:
        return None
    # what surrounds the sandbox may hide the root, but not the directories that can be written
    if not _allow_moves_below(ruleset, "/"):
        for directory in (os.getcwd(), os.environ.get("TMPDIR", "/tmp"), "/dev/shm"):
            _allow_moves_below(ruleset, directory)
    return ruleset


def _allow_moves_below(ruleset: int, directory: str) -> bool:
    try:
        allow(ruleset, directory, MOVE)
    except OSError:
        return False
    return True


_FIRST, _F_SETSIG = 1, 10


def _aimed_at(*processes: int) -> list[Rule]:
    """Calls that could be aimed at these processes, at the groups that they lead, or at all processes."""
    each = [(0, process) for process in processes]
    first_or_second = [*each, *((1, process) for process in processes)]
    everyone = (0, -1)
    whom = {
        "kill": [everyone, *each, *((0, -process) for process in processes)],
        "tkill": each,
        "tgkill": first_or_second,
        "rt_sigqueueinfo": each,
        "rt_tgsigqueueinfo": first_or_second,
        "pidfd_open": each,
        # SIGKILL could be what a file sends to its owner
        "fcntl": [(1, _F_SETSIG)],
    }
    # its arguments do not show its target: as if the kernel did not have it
    unseen = Rule("pidfd_send_signal", error=errno.ENOSYS)
    own = [Rule(call, arguments) for call, arguments in OF_ITSELF.items()]
    return [unseen, *own, *(Rule(call, either=arguments) for call, arguments in whom.items())]


def _filter_calls() -> bool:
    """Refuse system calls that are aimed at our processes, in this process and all that it starts."""
    try:
        install(_aimed_at(os.getpid(), os.getpgrp(), _FIRST))
    except OSError:
        return False
    return True
