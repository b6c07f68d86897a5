"""How programs are started: confined by the kernel alone, by sandlock, or not by themselves."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import forked
import hardening
from loaded import LoadedProgram
from programs import Program, Start
from view import SHARED_MEMORY

from codeact_team.sandbox.system.limits import OWN_DESCRIPTORS, limit

_MIB = 1 << 20
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


def by_kernel(
    settings: Mapping[str, Any], mounts: Sequence[tuple[str, str]], loaded: LoadedProgram | None
) -> Start:
    """How to start programs that the kernel alone confines."""
    writable = [settings["workspace"], settings["private"], os.devnull, SHARED_MEMORY]
    # of what is in /proc, the view shows as much as may be seen
    shown = ["/proc", *(place for _, place in mounts)]

    def start(argv: list[str] | None, env: dict[str, str], readable: list[str], descriptors: int) -> Program:
        def confine() -> None:
            limit(resource.RLIMIT_NOFILE, descriptors)
            hardening.allow_only([*readable, *shown], writable)
            os.chdir(settings["workspace"])

        if argv is not None:
            return forked.start(confine, argv, env)
        assert loaded is not None, "it is asked for where there is one"
        return forked.start_loaded(confine, loaded, env)

    return start


def by_sandlock(
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

    def start(argv: list[str] | None, env: dict[str, str], readable: list[str], descriptors: int) -> Program:
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
            max_open_files=descriptors,
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


def plain(settings: Mapping[str, Any], *, limit_memory: bool) -> Start:
    """How to start programs without sandlock: they have the limits of this process."""
    limit(resource.RLIMIT_NOFILE, OWN_DESCRIPTORS)
    if limit_memory:
        limit(resource.RLIMIT_DATA, settings["memory_mib"] * _MIB)

    def start(argv: list[str] | None, env: dict[str, str], readable: list[str], descriptors: int) -> Program:
        assert argv is not None, _NOT_BY_KERNEL
        return subprocess.Popen(argv, env=env, cwd=settings["workspace"], start_new_session=True)

    return start
