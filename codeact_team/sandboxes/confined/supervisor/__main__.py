"""The process between the host and confined code: starts programs, one at a time, and ends what they leave behind.

Runs as a directory, ``python -I -S supervisor``, with nothing but the standard library and sandlock. Its stdin is a
socket to the host. A message is a line of JSON; the first is the settings, and is answered. When the socket closes, or
the host's process ends, everything ends.
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from typing import Any

# the package's directory: without site it is not among the paths
sys.path.append(os.path.abspath(f"{__file__}/../../../../.."))

import hardening
from cgroups import CONTROLLERS, ControlGroup, Limits
from programs import Program, Programs, Start, close_standard_streams

from codeact_team.system import filters, kernel, trees
from codeact_team.system.oom_score import SECOND_CHOICE, OomScore

_SPAWN_FDS = 3
_MIB = 1 << 20
_STACK = 8 * _MIB
"""Bytes of a program's first stack, which the memory limit of a process does not count. What Linux gives by default."""
_DESCRIPTORS = 512
"""How many a process may have: the memory limit of a process does not count what waits in sockets and pipes."""
_TASKS_PER_PROCESS = 8
"""How many threads there may be for each process that there may be; a control group counts threads as well."""

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

# memory that the memory limit does not count
_UNCOUNTED_MEMORY_CALLS = ["memfd_create", "memfd_secret"]


def _harden(settings: Mapping[str, Any], at_the_end: ExitStack) -> tuple[Programs, dict[str, str | None]]:
    """Give up what this process does not need, and what its programs must not have.

    Returns who starts programs, and why something that confines cannot be had, by its name.
    """
    _limit(resource.RLIMIT_CORE, 0)
    # sandlock keeps a descriptor for each process that has led a group
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    _limit(resource.RLIMIT_STACK, _STACK)
    if settings["workspace_mib"] is not None:
        _limit(resource.RLIMIT_FSIZE, settings["workspace_mib"] * _MIB)
    if sys.platform != "linux":
        at_the_end.callback(trees.remove, settings["private"])
        start = _plain(settings, limit_memory=False)
        return Programs(start, OomScore()), {"sandlock": f"it runs on Linux, and this is {sys.platform}"}
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    tasks = settings["pids"] * _TASKS_PER_PROCESS
    group = ControlGroup(Limits(settings["memory_mib"] * _MIB, tasks, settings["cpus"]))
    no_namespaces = _enter_namespaces(settings, group)
    oom_score = OomScore(SECOND_CHOICE, proc)
    os.close(proc)
    kernel.checked(kernel.adopt_orphans())
    hardening.drop_privileges()
    hardening.end_with_parent()
    sandlock = _load_sandlock(settings["sandlock"])
    no_sandlock = sandlock if isinstance(sandlock, str) else None
    no_filter = _try_filter(confined=no_sandlock is None)
    # late: what this process has used until now does not count
    group.enter()
    limit_memory = "memory" in group.missing
    if no_sandlock is None:
        mounts = None if no_namespaces else group.mounts
        start = _confined(sandlock, settings, mounts, limit_memory=limit_memory)
    else:
        start = _plain(settings, limit_memory=limit_memory)
    reasons = {"sandlock": no_sandlock, "namespaces": no_namespaces, "seccomp": no_filter}
    reasons |= {f"{name} control group": group.missing.get(name) for name in sorted(CONTROLLERS)}
    return Programs(start, oom_score, group.count, group.processor_time), reasons


def _enter_namespaces(settings: Mapping[str, Any], group: ControlGroup) -> str | None:
    """Go on in a child, in namespaces, or return why it is in none; this process cleans up after it."""
    private = settings["private"]
    enter = partial(hardening.enter_namespaces, settings["workspace"], (private, settings["tmpfs_mib"]))

    def clean_up() -> None:
        group.remove()
        trees.remove(private)

    failure = hardening.failure_of(enter)
    if failure is None:
        enter(group.mounts, clean_up)
    else:
        hardening.go_on_in_a_child(clean_up)
    return failure


def _limit(what: int, most: int) -> None:
    soft, hard = (
        most if now == resource.RLIM_INFINITY else min(now, most) for now in resource.getrlimit(what)
    )
    resource.setrlimit(what, (soft, hard))


def _load_sandlock(path: str | None) -> Any:
    """The module, or why it cannot be used."""
    if path is None:
        return "it is not installed: pip install sandlock"
    sys.path.append(path)
    try:
        import sandlock
    except (ImportError, OSError, RuntimeError) as error:
        return f"it cannot be loaded: {error}"
    if sandlock.landlock_abi_version() < 1:
        return "this kernel has no Landlock: it wants Linux 6.12, with `landlock` in /sys/kernel/security/lsm"
    failure = hardening.failure_of(partial(_try_sandlock, sandlock))
    return sandlock if failure is None else f"it does not work here, maybe for a seccomp profile: {failure}"


def _try_sandlock(sandlock: Any) -> None:
    """Start a program. What becomes of it does not matter."""
    sandlock.Sandbox(allow_degraded=list(sandlock.Protection)).popen(["true"]).wait()


def _try_filter(*, confined: bool) -> str | None:
    rules = (*hardening.FOR_ALL, *(hardening.FOR_CONFINED if confined else hardening.FOR_PLAIN))
    try:
        filters.install(rules)
    except OSError as error:
        return str(error)
    return None


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
        writable.append(hardening.SHARED_MEMORY)

    def start(argv: list[str], env: dict[str, str], readable: list[str]) -> Program:
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

    def start(argv: list[str], env: dict[str, str], readable: list[str]) -> Program:
        return subprocess.Popen(argv, env=env, cwd=settings["workspace"], start_new_session=True)

    return start


def _messages(control: socket.socket, buffer: bytearray, fds: list[int]) -> Iterator[dict[str, Any]]:
    """The messages that are complete with what can be read now. Raises EOFError at the end of the stream."""
    data, new_fds, _, _ = socket.recv_fds(control, 1 << 16, _SPAWN_FDS)
    fds += new_fds
    if not data:
        raise EOFError
    lines = (buffer + data).split(b"\n")
    buffer[:] = lines.pop()
    return map(json.loads, lines)


def _serve(control: socket.socket, programs: Programs, selector: selectors.BaseSelector) -> None:
    """Do what the host says until it goes away."""
    selector.register(control, selectors.EVENT_READ, "message")
    selector.register(programs.child_died, selectors.EVENT_READ, "child died")
    buffer, fds = bytearray(), list[int]()
    while True:
        ready = {key.data for key, _ in selector.select()}
        if "host died" in ready:
            return
        if "child died" in ready:
            programs.reap()
        if "message" not in ready:
            continue
        for message in _messages(control, buffer, fds):
            match message["do"]:
                case "spawn":
                    programs.spawn(message, fds[:_SPAWN_FDS])
                    del fds[:_SPAWN_FDS]
                case "interrupt":
                    programs.send(signal.SIGINT)
                case _:
                    programs.send(signal.SIGKILL)


def main() -> None:
    """Harden this process, and serve the host."""
    for number in (signal.SIGINT, signal.SIGXFSZ):
        # what is started inherits what is ignored
        signal.signal(number, signal.SIG_DFL)
    control = socket.socket(fileno=os.dup(0))
    close_standard_streams()
    selector = selectors.DefaultSelector()
    if sys.platform == "linux":
        # a process that the host has forked may hold the other end of the socket open
        selector.register(os.pidfd_open(os.getppid()), selectors.EVENT_READ, "host died")
    # the end of the stream tells the host that everything has ended
    with closing(control), ExitStack() as at_the_end:
        [settings] = _messages(control, bytearray(), [])
        try:
            programs, reasons = _harden(settings, at_the_end)
        except OSError as error:
            control.sendall(json.dumps({"failed": str(error)}).encode() + b"\n")
            return
        control.sendall(json.dumps(reasons).encode() + b"\n")
        at_the_end.callback(programs.close)
        with suppress(EOFError, ConnectionResetError):
            _serve(control, programs, selector)


if __name__ == "__main__":
    main()
