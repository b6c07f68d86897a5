"""The process between the host and confined code: starts programs, one at a time, and ends what they leave behind.

Runs as a directory, ``python -I -S supervisor``, with nothing but the standard library and sandlock. Its stdin is a
socket to the host. A message is its length, as four bytes, and JSON; the first is the settings, and is answered by one
line of JSON. When the socket closes, or the host's process ends, everything ends.
"""

from __future__ import annotations

import json
import os
import resource
import selectors
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from functools import partial
from typing import Any

import hardening
import trees
from programs import Program, Programs, Start, close_standard_streams

_LENGTH = struct.Struct(">I")
_SPAWN_FDS = 3
_MIB = 1 << 20

# these reach files outside the workspace whatever Landlock says; needless where the mounts are read-only
_METADATA_CALLS = (
    "chmod fchmodat fchmodat2 chown lchown fchownat utime utimes futimesat utimensat setxattr lsetxattr setxattrat "
    "removexattr lremovexattr removexattrat file_setattr"
).split()
_FOLLOWING_PROCESSES = 32
"""How many process ids after the last one a program that is started next may get; sandlock takes a few for itself."""
# memory that the memory limit does not count
_UNCOUNTED_MEMORY_CALLS = ["memfd_create", "memfd_secret"]


def _harden(settings: Mapping[str, Any], at_the_end: ExitStack) -> tuple[Start, dict[str, str | None]]:
    """Give up what this process does not need, and what its programs must not have.

    Returns:
        How to start programs, and what could not be had, with the reason.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    remove_private = partial(trees.remove, settings["private"])
    if sys.platform != "linux":
        at_the_end.callback(remove_private)
        return partial(_start_plain, settings), {"sandlock": f"it runs on Linux, and this is {sys.platform}"}
    hardening.adopt_orphans()
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        # if the machine runs out of memory, then not for the host's programs
        file.write("1000")
    writable, denied = [settings["workspace"], settings["private"]], _UNCOUNTED_MEMORY_CALLS
    no_namespaces = hardening.failure_of(partial(hardening.enter_namespaces, writable))
    if no_namespaces is None:
        hardening.enter_namespaces(writable, remove_private)
        writable.append(hardening.SHARED_MEMORY)
    else:
        at_the_end.callback(remove_private)
        denied = [*denied, *_METADATA_CALLS]
    hardening.drop_privileges()
    if no_namespaces is None:
        hardening.end_with_parent()
    sandlock = _load_sandlock(settings["sandlock"])
    confined = not isinstance(sandlock, str)
    no_filter = _try_filter(confined=confined)
    reasons = {"sandlock": None if confined else sandlock, "namespaces": no_namespaces, "seccomp": no_filter}
    if confined:
        return partial(_start_confined, sandlock, settings, writable, denied), reasons
    memory = settings["memory_mib"] * _MIB
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    return partial(_start_plain, settings), reasons


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
    rules = [*hardening.OWN_PROCESS_ONLY]
    rules += [hardening.UNIX_SOCKETS_ONLY] if confined else [hardening.NO_SOCKETS, *hardening.NO_TRACING]
    try:
        hardening.install_filter(rules)
    except OSError as error:
        return str(error)
    return None


def _start_confined(
    sandlock: Any,
    settings: Mapping[str, Any],
    writable: list[str],
    denied: list[str],
    argv: list[str],
    env: dict[str, str],
    readable: list[str],
) -> Program:
    return sandlock.Sandbox(
        fs_readable=readable,
        fs_denied=list(_memory_of_the_next()) if "/proc" in readable else [],
        fs_writable=[*writable, os.devnull],
        clean_env=True,
        env=env,
        cwd=settings["workspace"],
        max_memory=f"{settings['memory_mib']}M",
        max_processes=settings["pids"],
        extra_deny_syscalls=denied,
        allow_degraded=list(sandlock.Protection),
    ).popen(argv)


def _memory_of_the_next() -> Iterator[str]:
    """The memory of the program that is started next: sandlock itself opens files of ``/proc`` for who may not."""
    with open("/proc/loadavg") as file:
        last = int(file.read().split()[-1])
    for pid in range(last + 1, last + 1 + _FOLLOWING_PROCESSES):
        yield f"/proc/{pid}/mem"
        yield f"/proc/{pid}/task/{pid}/mem"


def _start_plain(
    settings: Mapping[str, Any], argv: list[str], env: dict[str, str], readable: list[str]
) -> Program:
    return subprocess.Popen(argv, env=env, cwd=settings["workspace"], start_new_session=True)


def _messages(control: socket.socket, buffer: bytearray, fds: list[int]) -> Iterator[dict[str, Any]]:
    """The messages that are complete with what can be read now. Raises EOFError at the end of the stream."""
    data, new_fds, _, _ = socket.recv_fds(control, 1 << 16, _SPAWN_FDS)
    fds += new_fds
    if not data:
        raise EOFError
    buffer += data
    while len(buffer) >= _LENGTH.size:
        end = _LENGTH.size + _LENGTH.unpack_from(buffer)[0]
        if len(buffer) < end:
            return
        message = json.loads(buffer[_LENGTH.size : end])
        del buffer[:end]
        yield message


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
            start, reasons = _harden(settings, at_the_end)
        except OSError as error:
            control.sendall(json.dumps({"failed": str(error)}).encode() + b"\n")
            return
        control.sendall(json.dumps(reasons).encode() + b"\n")
        programs = at_the_end.enter_context(closing(Programs(start)))
        with suppress(EOFError, ConnectionResetError):
            _serve(control, programs, selector)


if __name__ == "__main__":
    main()
