"""A host process for tests: takes something away from itself, uses a sandbox, and prints what came of it.

Arguments: ``report``, ``hang``, or a file of Python code to run inside; a workspace, the confinement, and what to do without:
``namespaces``, ``landlock``, ``capabilities``, ``listener``, ``cgroups``, or ``numbers`` of system calls, as on a processor that is
not known. ``landlock-2`` takes Landlock for its version 2, and ``pids=20`` is a setting of the sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import glob
import json
import logging
import os
import socket
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from codeact_team.errors import ConfinementError
from codeact_team.sandbox.base import Cause, diagnose
from codeact_team.sandbox.confined import control
from codeact_team.sandbox.confined.config import ConfinedSandboxConfig
from codeact_team.sandbox.confined.sandbox import ConfinedSandbox, Enforced
from codeact_team.sandbox.confined.supervisor import isolation, users
from codeact_team.sandbox.system import filters

ATTACKS = Path(__file__).with_name("confined_attacks.py").read_bytes()

filters.NUMBERS |= {"unshare": (272, 97), "landlock_create_ruleset": (444, 444)}
TAKEN_AWAY = {"namespaces": "unshare", "landlock": "landlock_create_ruleset", "listener": "seccomp"}


def do_without(what: Sequence[str]) -> None:
    """Take things away from this process, for good."""
    if "cgroups" in what:
        hide_control_groups()
    if "capabilities" in what:
        users.drop_privileges()
    rules = [filters.Rule(call) for name, call in TAKEN_AWAY.items() if name in what]
    if rules:
        try:
            filters.install(rules)
        except PermissionError:
            # not root: only for who cannot gain privileges any more
            users.drop_privileges()
            filters.install(rules)
    for older in (name for name in what if name.startswith("landlock-")):
        # in the zygote, which is a program of its own
        taken = f"import codeact_team.sandbox.system.kernel as k; k.landlock_abi = lambda: {older[9:]}"
        control._PROGRAM = control._PROGRAM.replace("del begin", f"{taken}; del k, begin")  # pyright: ignore[reportPrivateUsage]
    if "numbers" in what:
        # PER_LINUX32
        ctypes.CDLL(None).personality(8)


def hide_control_groups() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    new_mounts, recursive_private = 0x20000, 0x4000 | 0x40000
    for call in (
        lambda: libc.unshare(new_mounts),
        lambda: libc.mount(b"none", b"/", None, recursive_private, None),
        lambda: libc.mount(b"tmpfs", b"/sys/fs/cgroup", b"tmpfs", 1, None),
    ):
        # one after the other: without the first, the others would be done to the machine
        assert call() == 0, os.strerror(ctypes.get_errno())


@contextlib.contextmanager
def targets() -> Generator[tuple[str, int, str]]:
    """What the attacks aim at: a directory, a TCP port and a terminal."""
    with tempfile.TemporaryDirectory() as outside, contextlib.ExitStack() as stack:
        Path(outside, "secret").write_text("secret")
        for kind, name in ((socket.SOCK_STREAM, "socket"), (socket.SOCK_DGRAM, "datagrams")):
            unix = stack.enter_context(socket.socket(socket.AF_UNIX, kind))
            unix.bind(f"{outside}/{name}")
            if kind == socket.SOCK_STREAM:
                unix.listen()
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        abstract.bind(f"\0{outside}")
        abstract.listen()
        # of all addresses of this machine
        tcp = stack.enter_context(socket.create_server(("", 0)))
        for side in (terminals := os.openpty()):
            stack.callback(os.close, side)
        yield outside, tcp.getsockname()[1], os.ttyname(terminals[1])


def _is_shared(place: str, sandbox: ConfinedSandbox) -> bool:
    # shared memory is the sandbox's own where it has namespaces, and so are temporary files
    own = [isolation.SHARED_MEMORY, *([isolation.TEMPORARY] if Cause.UNSEEN in sandbox.limits else [])]
    return os.path.realpath(place) not in own


async def attack(sandbox: ConfinedSandbox) -> list[str]:
    """Run the attacks in a started sandbox; the names of those that succeeded."""
    with targets() as (outside, port, terminal):
        places = [
            place for place in ("/", *glob.glob("/*/"), *glob.glob("/*/*/")) if _is_shared(place, sandbox)
        ]
        aims = (str(os.getpid()), outside, str(port), terminal)
        process = await sandbox.spawn([sandbox.python, "-", *aims, *places])
        await process.write(ATTACKS)
        await process.close_stdin()
        output = b""
        while chunk := await process.read():
            output += chunk
        await process.aclose()
    return json.loads(output)


async def survivors(sandbox: ConfinedSandbox) -> int:
    """Kill a program with detached children; how many of them are left."""
    await run_detached(sandbox, "survivor")
    await sandbox.kill()
    return len(alive(f"survivor-{os.getpid()}"))


async def can_open_terminals(sandbox: ConfinedSandbox) -> bool:
    process = await sandbox.spawn([sandbox.python, "-c", "import os; os.openpty()"])
    exit = await process.wait()
    await process.aclose()
    return exit.code == 0


async def run_detached(sandbox: ConfinedSandbox, mark: str) -> None:
    """Start a program with a detached child, both with ``mark`` and our process id in their arguments."""
    code = r"import os, time; os.write(1, b'ready\n'); time.sleep(600)"
    both = f'setsid "$0" -c "$1" {mark}-{os.getpid()} & exec "$0" -c "$1" {mark}-{os.getpid()}'
    process = await sandbox.spawn(["sh", "-c", both, sandbox.python, code])
    output = b""
    while output.count(b"ready\n") < 2:
        output += await process.read()
    await process.aclose()


def children(pid: int) -> list[int]:
    """The children of a process, whichever of its threads has started them."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        # a thread may end meanwhile
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found += map(int, (task / "children").read_text().split())
    return found


def supervisors() -> list[int]:
    """The zygotes of this process, and after them the supervising processes that are forks of them."""
    zygotes = [child for child in children(os.getpid()) if child in alive("confined/supervisor")]
    return zygotes + [child for one in zygotes for child in children(one) if _filters(child) > _filters(one)]


def _filters(pid: int) -> int:
    """How many filters of system calls a process has: its children that clean up after others have no more than a zygote."""
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        return int(status.partition("Seccomp_filters:")[2].split()[0])
    return 0


def alive(mark: str) -> list[int]:
    """Processes of this machine with ``mark`` in their arguments."""
    found: list[int] = []
    for directory in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if mark.encode() in (directory / "cmdline").read_bytes():
                found.append(int(directory.name))
    return found


async def report(sandbox: ConfinedSandbox, said: list[str]) -> dict[str, Any]:
    """What is enforced, what attacks succeed, whether anything survives being killed, and what else works."""
    return {
        "enforced": sorted(sandbox.enforced),
        # without Landlock, some would do this process harm
        "done": await attack(sandbox) if Enforced.READS in sandbox.enforced else None,
        "survivors": await survivors(sandbox),
        "terminals": await can_open_terminals(sandbox),
        "namespaces": Cause.UNSEEN in sandbox.limits,
        "ungrouped": sorted(sandbox.ungrouped),
        "said": said,
    }


async def run_code(sandbox: ConfinedSandbox, code: str) -> dict[str, Any]:
    """Run Python code, whose first argument is the number of a process outside. What it says, how and why it ends; and whether that lives."""
    outside = await asyncio.create_subprocess_exec("sleep", "600")
    process = await sandbox.spawn([sandbox.python, "-c", code, str(outside.pid)])
    await process.close_stdin()
    output = b""
    while chunk := await process.read():
        output += chunk
    ending = await process.wait()
    await process.aclose()
    lives = outside.returncode is None
    said = output.decode(errors="replace")
    outside.kill()
    await outside.wait()
    return {
        "output": said,
        "diagnosis": diagnose(sandbox.limits, exit_code=ending.code, output=said),
        "code": ending.code,
        "lost": ending.lost,
        "lives": lives,
    }


def leave_fork() -> None:
    """Leave a process that holds the sockets open for longer than this one lives."""
    if os.fork() == 0:
        os.closerange(0, 3)
        time.sleep(30)
        os._exit(0)


async def hang(sandbox: ConfinedSandbox) -> None:
    """Run something until this process is killed."""
    await run_detached(sandbox, "orphan")
    leave_fork()
    print("ready", flush=True)
    await asyncio.sleep(60)


async def use(task: str, workspace: str, confinement: Any, *without: str) -> dict[str, Any]:
    do_without(without)
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("codeact_team").addHandler(handler)
    try:
        settings: dict[str, Any] = dict(each.split("=", 1) for each in without if "=" in each)
        if "readable" in settings:
            settings["readable"] = [settings["readable"]]
        config = ConfinedSandboxConfig(confinement=confinement, **settings)
        async with ConfinedSandbox(config, workspace=Path(workspace)) as sandbox:
            if task == "hang":
                await hang(sandbox)
            if task not in ("report", "hang"):
                return await run_code(sandbox, task)
            if confinement == "best_effort":
                # what is missing is said once, and not by each
                async with ConfinedSandbox(config, workspace=Path(workspace)):
                    pass
            return await report(sandbox, said)
    except ConfinementError as error:
        return {"error": str(error)}


if __name__ == "__main__":
    what, *others = sys.argv[1:]
    given = what if what in ("report", "hang") else Path(what).read_text()
    print(json.dumps(asyncio.run(use(given, *others))))
