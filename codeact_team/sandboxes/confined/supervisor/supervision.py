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
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from functools import cache, partial
from typing import Any

import forked
import hardening
from cgroups import CONTROLLERS, ControlGroup, Limits
from loaded import LoadedProgram
from messages import Messages
from programs import Program, Programs, Start
from view import SHARED_MEMORY, View

from codeact_team.system import filters, kernel, landlock, trees
from codeact_team.system.oom_score import SECOND_CHOICE, OomScore

_SPAWN_FDS = 3
_MIB = 1 << 20
_STACK = 8 * _MIB
"""Bytes of a program's first stack, which the memory limit of a process does not count. What Linux gives by default."""
_DESCRIPTORS = 512
"""How many a process may have: the memory limit of a process does not count what waits in sockets and pipes."""
_OWN_TASKS = 1
"""This process is in the control group as well."""

# these reach files outside the workspace whatever Landlock says; needless where the mounts are read-only
_METADATA_CALLS = (
    "chmod fchmodat fchmodat2 chown lchown fchownat utime utimes futimesat utimensat setxattr lsetxattr setxattrat "
    "removexattr lremovexattr removexattrat file_setattr"
).split()
_PROCESSES_OF_SANDLOCK = 1
"""How many process ids it takes for itself before a program gets its own."""
_NOT_PRIVATE = {"task", "children", "cwd", "exe", "root"}
"""Besides the list of children these: to deny a link is to deny what it leads to, such as the interpreter."""
_NOBODYS = "/proc/0"
"""Denied only so that something is: sandlock then opens all files by calls whose mode our filter sees, also for openat2."""

_NOT_BY_KERNEL = "what is loaded ahead runs only where the kernel alone confines"

# memory that the memory limit does not count
_UNCOUNTED_MEMORY_CALLS = ["memfd_create", "memfd_secret"]


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


class Machine:
    """What confines code here, by trial.

    Args:
        sandlock: Loads the module, or says why it cannot be used; for where the kernel alone is not enough.
        settings: Of a sandbox, to try with.
        program: What was loaded ahead, if anything.

    Attributes:
        no_namespaces: Why namespaces cannot be had, or ``None``.
    """

    def __init__(
        self, sandlock: Callable[[], Any], settings: Mapping[str, Any], program: LoadedProgram | None
    ) -> None:
        self._load_sandlock = cache(sandlock)
        self.program = program
        self.no_namespaces: str | None = None
        self._has_landlock = False
        if sys.platform == "linux":
            self.no_namespaces = hardening.failure_of(_entering(settings, None))
            self._has_landlock = landlock.abi() >= landlock.ABI_OF_SCOPES

    def sandlock_for(self, group: ControlGroup | None) -> Any:
        """The module, or why it cannot be used; ``None`` for a sandbox that the kernel alone confines."""
        is_bounded = group is not None and not {"memory", "pids"} & group.missing.keys()
        if is_bounded and self._has_landlock and self.no_namespaces is None:
            return None
        return self._load_sandlock()


def _entering(settings: Mapping[str, Any], group: ControlGroup | None) -> Callable[..., None]:
    view = View(settings["readable"], settings["workspace"], settings["private"], settings["tmpfs_mib"])
    moved = () if group is None else group.mounts
    return partial(hardening.enter_namespaces, partial(view.enter, moved))


def _harden(
    settings: Mapping[str, Any], group: ControlGroup | None, machine: Machine, birth: int
) -> tuple[Programs, dict[str, str | None], bool]:
    """Give up what this process does not need, and what its programs must not have.

    Returns who starts programs, why something that confines cannot be had, by its name, and whether the kernel alone confines.
    """
    sandlock, no_namespaces = machine.sandlock_for(group), machine.no_namespaces
    _limit(resource.RLIMIT_CORE, 0)
    # sandlock keeps a descriptor for each process that has led a group
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    _limit(resource.RLIMIT_STACK, _STACK)
    if settings["workspace_mib"] is not None:
        _limit(resource.RLIMIT_FSIZE, settings["workspace_mib"] * _MIB)
    no_sandlock = sandlock if isinstance(sandlock, str) else None
    if group is None:
        _say_birth(birth)
        start = _plain(settings, limit_memory=False)
        return Programs(start, OomScore()), {"sandlock": no_sandlock}, False
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    if no_namespaces is None:
        _entering(settings, group)(birth)
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
    rules, start = _confinement(sandlock, settings, group, machine)
    reasons = {"sandlock": no_sandlock, "namespaces": no_namespaces, "seccomp": _try_filter(rules)}
    reasons |= {f"{name} control group": group.missing.get(name) for name in sorted(CONTROLLERS)}
    return Programs(start, oom_score, group.count, group.processor_time), reasons, sandlock is None


def _say_birth(birth: int) -> None:
    os.write(birth, str(os.getpid()).encode())
    os.close(birth)


def _confinement(
    sandlock: Any, settings: Mapping[str, Any], group: ControlGroup, machine: Machine
) -> tuple[Sequence[filters.Rule], Start]:
    """What system calls are refused, and how to start programs."""
    limit_memory = "memory" in group.missing
    if sandlock is None:
        return hardening.FOR_KERNEL, _by_kernel(settings, group.mounts, machine.program)
    if isinstance(sandlock, str):
        return hardening.FOR_PLAIN, _plain(settings, limit_memory=limit_memory)
    mounts = group.mounts if machine.no_namespaces is None else None
    return hardening.FOR_CONFINED, _confined(sandlock, settings, mounts, limit_memory=limit_memory)


def _limit(what: int, most: int) -> None:
    soft, hard = (
        most if now == resource.RLIM_INFINITY else min(now, most) for now in resource.getrlimit(what)
    )
    resource.setrlimit(what, (soft, hard))


def _try_filter(rules: Sequence[filters.Rule]) -> str | None:
    try:
        filters.install((*hardening.FOR_ALL, *rules))
    except OSError as error:
        return str(error)
    return None


def _by_kernel(
    settings: Mapping[str, Any], mounts: Sequence[tuple[str, str]], loaded: LoadedProgram | None
) -> Start:
    """How to start programs that the kernel alone confines."""
    writable = [settings["workspace"], settings["private"], os.devnull, SHARED_MEMORY]
    # of what is in /proc, the view shows as much as may be seen
    shown = ["/proc", *(place for _, place in mounts)]

    def start(argv: list[str] | None, env: dict[str, str], readable: list[str]) -> Program:
        def confine() -> None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (_DESCRIPTORS, _DESCRIPTORS))
            hardening.allow_only([*readable, *shown], writable)
            os.chdir(settings["workspace"])

        if argv is not None:
            return forked.start(confine, argv, env)
        assert loaded is not None, "it is asked for where there is one"
        return forked.start_loaded(confine, loaded, env)

    return start


def _confined(
    sandlock: Any,
    settings: Mapping[str, Any],
    mounts: Sequence[tuple[str, str]] | None,
    *,
    limit_memory: bool,
) -> Start:
    """How to start programs with sandlock; ``mounts`` are those of the namespaces, and ``None`` where there are none."""
    writable = [settings["workspace"], settings["private"], os.devnull]
    denied = [*_UNCOUNTED_MEMORY_CALLS]
    if mounts is None:
        denied += _METADATA_CALLS
    else:
        writable.append(SHARED_MEMORY)

    def start(argv: list[str] | None, env: dict[str, str], readable: list[str]) -> Program:
        assert argv is not None, _NOT_BY_KERNEL
        return sandlock.Sandbox(
            fs_readable=[*readable, *(place for _, place in mounts or ())],
            fs_denied=list(_private_to_the_next()) if "/proc" in readable else [_NOBODYS],
            fs_writable=writable,
            clean_env=True,
            env=env,
            cwd=settings["workspace"],
            max_memory=f"{settings['memory_mib']}M" if limit_memory else None,
            max_processes=settings["pids"],
            max_open_files=_DESCRIPTORS,
            extra_deny_syscalls=denied,
            allow_degraded=list(sandlock.Protection),
        ).popen(argv)

    return start


def _private_to_the_next() -> Iterator[str]:
    """What ``/proc`` has of the program that is started next, but for the list of its children."""
    with open("/proc/loadavg") as file:
        pid = int(file.read().split()[-1]) + _PROCESSES_OF_SANDLOCK + 1
    for own, theirs in (("/proc/self", f"/proc/{pid}"), ("/proc/thread-self", f"/proc/{pid}/task/{pid}")):
        yield from (f"{theirs}/{name}" for name in os.listdir(own) if name not in _NOT_PRIVATE)


def _plain(settings: Mapping[str, Any], *, limit_memory: bool) -> Start:
    """How to start programs without sandlock: they have the limits of this process."""
    _limit(resource.RLIMIT_NOFILE, _DESCRIPTORS)
    if limit_memory:
        _limit(resource.RLIMIT_DATA, settings["memory_mib"] * _MIB)

    def start(argv: list[str] | None, env: dict[str, str], readable: list[str]) -> Program:
        assert argv is not None, _NOT_BY_KERNEL
        return subprocess.Popen(argv, env=env, cwd=settings["workspace"], start_new_session=True)

    return start


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
    group: ControlGroup | None,
    machine: Machine,
    *,
    host: int | None,
    birth: int,
) -> None:
    """Harden this process, and serve the host, in this process or in a child.

    Args:
        control: The socket to the host.
        settings: Of the sandbox.
        group: Its control group, where there are any.
        machine: What confines code.
        host: What can be read once the host's process has ended, where there are such descriptors.
        birth: Where the id of the process that serves is written, to be closed then.
    """
    with closing(control):
        try:
            programs, reasons, by_kernel = _harden(settings, group, machine, birth)
        except OSError as error:
            refuse(control, error)
            return
        said = {"reasons": reasons, "by_kernel": by_kernel}
        control.sendall(json.dumps(said).encode() + b"\n")
        with closing(programs), suppress(EOFError, ConnectionResetError):
            _serve(control, host, programs)


def refuse(control: socket.socket, reason: OSError) -> None:
    """Tell the host why a supervising process cannot be."""
    with suppress(OSError):
        control.sendall(json.dumps({"failed": str(reason)}).encode() + b"\n")
