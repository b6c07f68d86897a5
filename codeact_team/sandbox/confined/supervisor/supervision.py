"""The process between the host and confined code: starts programs, one at a time, and ends what they leave behind.

It begins with a line of JSON, which says what confines the code. When the socket to the host closes, or the host's
process ends, everything ends.
"""

from __future__ import annotations

import json
import os
import resource
import selectors
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from typing import Any

import hardening
import main_thread
import starting
from cgroups import CONTROLLERS, ControlGroup, Limits
from means import BOUNDING, Means, entering
from messages import Messages
from programs import Programs, Start

from codeact_team.core import trees
from codeact_team.sandbox.system import filters, kernel
from codeact_team.sandbox.system.limits import LOCKED_BYTES, PENDING_SIGNALS, limit
from codeact_team.sandbox.system.oom_score import SECOND_CHOICE, OomScore

_SPAWN_FDS = 3
_MIB = 1 << 20
_STACK = 8 * _MIB
"""Bytes of a program's first stack, which the memory limit of a process does not count. What Linux gives by default."""
_OWN_TASKS = 1
"""This process is in the control group as well."""


class Surroundings:
    """What is made for a sandbox, and has to be removed with all rights when it has ended.

    Args:
        settings: Of the sandbox.

    Attributes:
        group: Its control group, which is empty at first; ``None`` where there are none.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._private = settings["private"]
        self.group: ControlGroup | None = None
        if sys.platform == "linux":
            tasks = settings["pids"] + _OWN_TASKS
            self.group = ControlGroup(Limits(settings["memory_mib"] * _MIB, tasks, settings["cpus"]))

    def leave(self) -> None:
        """Let go of what a process that was forked has open now."""
        if self.group is not None:
            self.group.close()

    def remove(self) -> None:
        """Remove what is left when that has ended."""
        if self.group is not None:
            self.group.remove()
        trees.remove(self._private)


def _harden(settings: Mapping[str, Any], means: Means, birth: int) -> tuple[Programs, dict[str, str | None]]:
    """Give up what this process does not need, and what its programs must not have.

    Returns who starts programs, and why something that confines cannot be had, by its name.
    """
    limit(resource.RLIMIT_CORE, 0)
    if sys.platform == "linux":
        # counted for all processes of a user, of which there may be others
        limit(resource.RLIMIT_SIGPENDING, PENDING_SIGNALS)
        limit(resource.RLIMIT_MSGQUEUE, 0)
        limit(resource.RLIMIT_MEMLOCK, LOCKED_BYTES)
    # sandlock keeps a descriptor for each process that has led a group
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    limit(resource.RLIMIT_STACK, _STACK)
    if settings["workspace_mib"] is not None:
        limit(resource.RLIMIT_FSIZE, settings["workspace_mib"] * _MIB)
    no_sandlock = means.sandlock if isinstance(means.sandlock, str) else None
    if (group := means.group) is None:
        _say_birth(birth)
        start = starting.plain(settings, limit_memory=False)
        return Programs(start, OomScore()), {"sandlock": no_sandlock}
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    if means.no_namespaces is None:
        entering(settings, group)(birth)
        os.close(birth)
    else:
        _say_birth(birth)
    oom_score = OomScore(SECOND_CHOICE, proc)
    os.close(proc)
    kernel.checked(kernel.adopt_orphans())
    hardening.drop_privileges()
    hardening.end_with_parent()
    # late: what this process has used until now does not count
    group.enter()
    rules, start = _confinement(settings, group, means)
    reasons = {"sandlock": no_sandlock, "namespaces": means.no_namespaces, "seccomp": _try_filter(rules)}
    reasons |= {f"{name} control group": group.missing.get(name) for name in sorted(CONTROLLERS)}
    return Programs(start, oom_score, group.count, group.processor_time), reasons


def _say_birth(birth: int) -> None:
    os.write(birth, str(os.getpid()).encode())
    os.close(birth)


def _confinement(
    settings: Mapping[str, Any], group: ControlGroup, means: Means
) -> tuple[Sequence[filters.Rule], Start]:
    """What system calls are refused, and how to start programs."""
    limit_memory = "memory" in group.missing
    if means.sandlock is None:
        if missing := sorted(BOUNDING & group.missing.keys()):
            raise OSError(f"the control groups cannot be entered: {', '.join(missing)}")
        return hardening.FOR_KERNEL, starting.by_kernel(settings, group.mounts, means.program)
    if isinstance(means.sandlock, str):
        return hardening.FOR_PLAIN, starting.plain(settings, limit_memory=limit_memory)
    mounts = group.mounts if means.no_namespaces is None else None
    start = starting.by_sandlock(means.sandlock, settings, mounts, limit_memory=limit_memory)
    return hardening.FOR_CONFINED, start


def _try_filter(rules: Sequence[filters.Rule]) -> str | None:
    try:
        filters.install((*hardening.FOR_ALL, *rules))
    except OSError as error:
        return str(error)
    return None


def _serve(control: socket.socket, host: int | None, programs: Programs) -> None:
    """Do what the host says until it goes away."""
    messages = Messages(control)
    with selectors.DefaultSelector() as selector:
        for fd in (control, programs.child_died, *(() if host is None else (host,))):
            selector.register(fd, selectors.EVENT_READ)
        while True:
            ready = {key.fd for key, _ in selector.select()}
            if host in ready:
                return
            if programs.child_died in ready:
                programs.reap()
            if control.fileno() not in ready:
                continue
            for message in messages.receive():
                match message["do"]:
                    case "spawn":
                        programs.spawn(message, messages.take_descriptors(_SPAWN_FDS))
                    case "interrupt":
                        programs.send(signal.SIGINT)
                    case _:
                        programs.send(signal.SIGKILL)


def supervise(
    control: socket.socket,
    settings: Mapping[str, Any],
    means: Means,
    *,
    host: int | None,
    birth: int,
) -> None:
    """Harden this process, and let a thread serve the host, in this process or in a child.

    Args:
        control: The socket to the host.
        settings: Of the sandbox.
        means: What confines code.
        host: What can be read once the host's process has ended, where there are such descriptors.
        birth: Where the id of the process that serves is written, to be closed then.
    """
    try:
        programs, reasons = _harden(settings, means, birth)
    except OSError as error:
        refuse(control, error)
        os._exit(0)

    def serve() -> None:
        with closing(programs), suppress(EOFError, ConnectionResetError):
            said = {"reasons": reasons, "by_kernel": means.sandlock is None}
            control.sendall(json.dumps(said).encode() + b"\n")
            _serve(control, host, programs)

    # what confines is inherited by threads that are started later
    main_thread.serve(serve)


def refuse(control: socket.socket, reason: OSError) -> None:
    """Tell the host why a supervising process cannot be."""
    with suppress(OSError):
        control.sendall(json.dumps({"failed": str(reason)}).encode() + b"\n")
