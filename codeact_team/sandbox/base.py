"""A sandbox, its limits, and a program that runs in it."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Self

from pydantic import BaseModel

from codeact_team.core.aio import to_the_end
from codeact_team.errors import SandboxError


class Cause(StrEnum):
    """A limit of a sandbox."""

    MEMORY = "memory"
    PROCESSES = "number of processes"
    NETWORK = "network"
    READ_ONLY = "read-only file system"
    DISK = "disk space"
    FILES = "access to files"
    UNSEEN = "files that it sees"


BY_RULES = (
    "egress: what its rules allow; a name that none of them has in full is found only by way of HTTP_PROXY"
)
"""What limits the network of a sandbox that has a way out. A lookup fails there that a program does itself."""

Limits = Mapping[Cause, str]
"""The limits in force, each with the config field that sets it, such as ``memory_mib: 1024``."""


def above_default(config: BaseModel, *fields: str) -> list[str]:
    """The limits among ``fields`` that are higher than their defaults, as text for a person."""
    defaults = {field: type(config).model_fields[field].default for field in fields}
    return [
        f"{field}: {value} (default {default})"
        for field, default in defaults.items()
        if (value := getattr(config, field)) is None or value > default
    ]


# the messages of C libraries, shells and interpreters when the kernel refuses something, the surest first
_SYMPTOMS = {
    Cause.READ_ONLY: r"Read-only file system|\bEROFS\b",
    Cause.DISK: r"No space left on device|\bENOSPC\b|Disk quota exceeded|File too large|\bEFBIG\b",
    Cause.NETWORK: (
        r"Temporary failure (?:in name resolution|resolving)|UnknownHostException|Name or service not known"
        r"|Network is unreachable|No route to host|Could not resolve host|nodename nor servname provided"
        r"|could not bind on any address|bad address '|\bEAI_AGAIN\b|\bE(?:NET|HOST)UNREACH\b|[Ss]ocket.{0,200}(?:Permission denied|Operation not permitted)"
    ),
    Cause.PROCESSES: (
        r"can't start new thread|[Cc]annot fork|can't fork|fork: (?:retry: )?Resource temporarily unavailable"
        r"|BlockingIOError: \[Errno 11\]|pthread_create failed"
    ),
    Cause.MEMORY: (
        r"\bMemoryError\b|[Cc]annot allocate memory|[Oo]ut of memory|OutOfMemoryError|\bENOMEM\b|std::bad_alloc"
    ),
    Cause.FILES: r"PermissionError: \[Errno (?:1|13)\]|Permission denied|Operation not permitted",
    Cause.UNSEEN: r"No such file or directory: ['\"]/|\W/[^:\n]*: No such file or directory",
}

KILLED = 128 + 9
"""The exit code of a program that SIGKILL has ended, and of whatever is lost with its sandbox."""
FILE_TOO_LARGE = 128 + 25
"""The exit code of a program that the kernel has ended for the size of a file."""


_LAST_LINES = 30
"""Lines at the end of an output that may name the reason of a program's failure."""
_EXCEPTION = re.compile(r"(?:[\w.]+\.)?(?P<type>_?[A-Za-z]\w*(?:Error|Exception|error))(?:: |$)")
_OF_THE_KERNEL = {
    "OSError", "BlockingIOError", "PermissionError", "FileNotFoundError", "MemoryError", "_ArrayMemoryError", "gaierror", "URLError"
}  # fmt: skip
"""Types of exceptions that the kernel's refusals have, or that are raised for these alone."""
_AT_A_SOCKET = re.compile(r"\b(?:socket|socketserver|connect|getaddrinfo)\b")


def diagnose(
    limits: Limits,
    *,
    exit_code: int,
    output: str,
    oom_kills: int | None = None,
    fork_failures: int = 0,
) -> str | None:
    """Name the limit that a failed program ran into, in a sentence, which says so if that is a guess.

    It is none where the kernel has counted it, or the program has ended by an exception of the kernel's. Its ``output`` is
    hostile data, which can only make the answer wrong. The other counts are as in :class:`Exit`.
    """
    if exit_code == 0:
        return None
    if oom_kills:
        cause, is_certain = Cause.MEMORY, True
    elif (told := _told(limits, output)) is not None:
        cause, is_certain = told
        is_certain = is_certain or (cause is Cause.PROCESSES and fork_failures > 0)
    elif fork_failures:
        cause, is_certain = Cause.PROCESSES, True
    elif exit_code == FILE_TOO_LARGE:
        cause, is_certain = Cause.DISK, True
    elif exit_code == KILLED and oom_kills is None and Cause.MEMORY in limits:
        # nothing counts, so it may have been the memory limit, or the code itself
        return (
            "What killed it is not known. It may have run into a limit of the sandbox: "
            f"{Cause.MEMORY} ({limits[Cause.MEMORY]})."
        )
    else:
        return None
    return limit_sentence(cause, limits[cause], is_certain=is_certain) if cause in limits else None


def _told(limits: Limits, output: str) -> tuple[Cause, bool] | None:
    """The limit that the end of an output is about, and whether that is an exception of the kernel's."""
    lines = output.rstrip().split("\n")[-_LAST_LINES:]
    frames, words, is_certain = "", "\n".join(lines), False
    for number in range(len(lines) - 1, -1, -1):
        if (found := _EXCEPTION.match(lines[number])) is not None:
            # what was printed before is not why it failed
            frames, words = "\n".join(lines[:number]), "\n".join(lines[number:])
            # lines that belong to the exception are indented
            ends = all(line[:1].isspace() or not line for line in lines[number + 1 :])
            is_certain = found["type"] in _OF_THE_KERNEL and ends
            break
    if Cause.NETWORK in limits:
        if words.startswith("PermissionError") and "'" not in words and _AT_A_SOCKET.search(frames):
            return Cause.NETWORK, True
        # asyncio's servers go on without the sockets that they could not make
        if words.startswith("IndexError") and ".sockets[" in frames:
            return Cause.NETWORK, False
    cause = next(
        (each for each, known in _SYMPTOMS.items() if each in limits and re.search(known, words)), None
    )
    # the file may not exist outside either
    return None if cause is None else (cause, is_certain and cause is not Cause.UNSEEN)


def limit_sentence(cause: Cause, field: str, *, is_certain: bool = True) -> str:
    """The sentence that names a limit and the config field that sets it."""
    how = "This ran" if is_certain else "It may have run"
    return f"{how} into a limit of the sandbox: {cause} ({field})."


logger = logging.getLogger("codeact_team.sandbox")

STOPPED = "the executor was stopped"
UNCLEARED = "some programs in it could not be ended"
"""The reasons for which the owner of a sandbox had to end it."""

KILL_TIMEOUT = 10.0
"""Seconds that killed programs get to end. They always do, but on a busy machine it may take some time."""
_SLOW_AFTER = 3.0
"""Seconds after which a person is told what this waits for."""

STARTS_AT_ONCE = max(2, os.cpu_count() or 1)
"""The sandboxes, and the interpreters, that this process starts at a time. Each start has a time limit, which all
together would exceed; it does not run while a start waits for its turn."""

NO_SUCH_USER = "unable to find user"
"""The words of container engines that refuse to start a program as a user whom the image does not have."""

PACKAGES_START = "start"
"""The directory in a layer of packages whose ``sitecustomize`` puts the packages on the path of every Python."""


def python_path(packages: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The variable by which code with this environment finds a layer of packages; ``packages`` is its path in the sandbox."""
    start = f"{packages}/{PACKAGES_START}"
    return {"PYTHONPATH": ":".join(filter(None, (start, environment.get("PYTHONPATH"))))}


@asynccontextmanager
async def time_to_end() -> AsyncGenerator[None]:
    """Give killed programs time to end. Raises a ``TimeoutError`` after :data:`KILL_TIMEOUT`."""
    slow = "killed programs in a sandbox have not ended after %g s, perhaps as the machine is very busy: waiting for %g s"
    telling = asyncio.get_running_loop().call_later(
        _SLOW_AFTER, logger.warning, slow, _SLOW_AFTER, KILL_TIMEOUT
    )
    try:
        async with asyncio.timeout(KILL_TIMEOUT):
            yield
    finally:
        telling.cancel()


@cache
def warn_once(text: str) -> None:
    """Warn once of something that does not change while this process runs."""
    logger.warning("%s", text)


@dataclass(frozen=True)
class Exit:
    """The end of a process, or of a block."""

    code: int
    """Its exit code; 128 + n if signal n has ended it."""
    lost: str | None = None
    """The reason if the sandbox, or the state that blocks share, is lost; ``None`` if it is not."""
    sandbox_lives: bool = False
    """Whether the sandbox is known to run, even if an interpreter in it is lost."""
    ran: bool = True
    """Whether it began to run."""
    oom_kills: int | None = None
    """The processes that the memory limit has killed since the process started; ``None`` if not known."""
    fork_failures: int = 0
    """The new processes that the process limit has refused since then, as far as is known."""
    processor_seconds: float | None = field(default=None, compare=False)
    """Processor time of the program, or of everything in a session; ``None`` if not known."""


WAY_OUT = "/run/codeact-team"
"""Where a sandbox shows the directory of its :class:`WayOut`."""


@dataclass(frozen=True)
class WayOut:
    """The one way by which connections of code leave a sandbox without a network: a unix socket of this machine.

    The supervisor hands the connections on to it; see :mod:`codeact_team.network.inside.forwarder`.
    """

    directory: Path
    """A directory of this machine, without links, with the unix socket ``socket`` and other files. Others may enter it, and connect."""
    token: str = field(repr=False)
    """The secret by which the supervisor proves itself there: 64 hexadecimal digits."""
    addresses: Sequence[tuple[str, int]]
    """Where in the sandbox the supervisor takes connections: addresses of its loopback, with ports."""
    hosts: Mapping[str, str] = field(default_factory=dict[str, str])
    """More lines of ``/etc/hosts``: name to address."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables of the code's environment. Those of a config go before them."""
    files: Mapping[str, Path] = field(default_factory=dict[str, Path])
    """Files of this machine that the code may read, by their paths in the sandbox, where they replace what is there."""
    of_packages: Mapping[str, Path] = field(default_factory=dict[str, Path])
    """Such files, by their paths in the layer of packages, if the sandbox has one."""


class ZygoteProgram(NamedTuple):
    """A Python program of ours that a zygote loads, so that its forks can become it at once.

    Attributes:
        loader: Source of a class ``Loaded``, which is called with ``data`` and ``names`` and has a method ``run``, and of
            ``_path``, the path of modules as the source has found it.
        data: The modules.
        names: The modules to load.
        arguments: The argument of ``run``.
    """

    loader: str
    data: bytes
    names: str
    arguments: Sequence[str]


RECEIVER = """
import posix, sys
size = b""
while size[-1:] != b"\\n":
    size += posix.read(0, 1) or sys.exit("no program has arrived")
program = b""
while len(program) < int(size):
    program += posix.read(0, int(size) - len(program)) or sys.exit("no program has arrived")
exec(program)
"""
"""The program of a Python that runs the program which comes first by its stdin, behind its size and a line's end. All that it
imports is built in."""


def receiving(python: str, *, plain: bool = False) -> list[str]:
    """The command of a supervisor, which receives its program; see :meth:`Sandbox.supervise`."""
    # isolated, without site, so that nothing runs that code may have left in the sandbox; the name is for lists of processes
    isolated = [] if plain else ["-I", "-S"]
    return [python, *isolated, "-u", "-c", RECEIVER, "codeact_team.session.runner"]


class PythonIdentity(NamedTuple):
    """What tells the Python of a sandbox from others.

    Attributes:
        origin: Who has made it, such as an image. What it compiles is for sandboxes whose Python has the same origin.
        state: Changes if it, or what it has of packages, may be another.
    """

    origin: str
    state: str


class NoPythonError(SandboxError):
    """A sandbox has no Python that can run a supervisor."""


class Process(ABC):
    """A program that runs inside a sandbox. stdout and stderr are one stream, in the order of writing."""

    @abstractmethod
    async def read(self) -> bytes:
        """Wait for the next piece of output; ``b""`` once the program, or its sandbox, has ended."""

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Send ``data`` to the program's stdin. It is no error if the program does not read it."""

    @abstractmethod
    async def close_stdin(self) -> None:
        """Close the program's stdin."""

    @abstractmethod
    async def wait(self) -> Exit:
        """Return the end of the program. Call it after :meth:`read` has returned ``b""``."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close what the host holds for the process. Does not stop the process: the sandbox does that."""


class DirectProcess(Process):
    """A program in a sandbox without a supervisor, and the only one there. All that it leaves running ends with it."""

    @abstractmethod
    async def interrupt(self) -> None:
        """Send SIGINT to all that runs."""

    @abstractmethod
    async def kill(self) -> None:
        """End all that runs, and return when it has ended. The sandbox may have, too."""


Spawn = Callable[[Sequence[str]], Coroutine[Any, Any, DirectProcess]]
"""Starts a program in the workspace, once the one before has ended. Raises a ``SandboxError``."""


class Sandbox(ABC):
    """A place where hostile code runs, with a supervisor that starts it. Not bound to an event loop.

    ``kill`` reaches everything that runs inside, whatever it forked into.

    Attributes:
        way_out: How connections of code leave it, if they do. To be set before a start.
    """

    way_out: WayOut | None = None

    @property
    def way_out_place(self) -> str:
        """The directory of its way out, as its programs see it."""
        return WAY_OUT

    @property
    @abstractmethod
    def running(self) -> bool:
        """Whether it runs; ``False`` before ``start`` and after the end, whatever has ended it."""

    @property
    @abstractmethod
    def limits(self) -> Limits:
        """The limits in force, to find out which one a failed program ran into."""

    @property
    @abstractmethod
    def workspace(self) -> str:
        """The absolute path of the workspace, as the sandbox sees it and without links, once it runs."""

    @property
    @abstractmethod
    def private(self) -> str:
        """A directory, as the sandbox sees it, that nothing outside can write."""

    @property
    def image(self) -> str | None:
        """The digest of its image, once it runs; ``None`` if it has no image, or an unknown digest."""
        return None

    @property
    def python_version(self) -> str | None:
        """The version of its Python; ``None`` if that depends on an image."""
        return None

    @property
    def view(self) -> str | None:
        """How Linux confines its processes, in words, once it runs; ``None`` if it is a container."""
        return None

    @property
    def directories(self) -> Sequence[Path]:
        """The directories of the host that programs can write, and for which it has no quota, once it runs."""
        return ()

    @property
    def temporary(self) -> tuple[Path, int] | None:
        """Another such directory, for temporary files, and the MiB that it may have; ``None`` if the sandbox limits them itself."""
        return None

    async def start(self) -> None:
        """Make the sandbox ready, unless it is. After a failure, nothing is left.

        Raises:
            SandboxError: If this machine cannot provide it. Never falls back to a weaker one.
        """
        if self.running:
            return
        await self.stop()
        try:
            await self._start()
        except BaseException:
            await to_the_end(self.stop())
            raise

    @abstractmethod
    async def _start(self) -> None: ...

    @abstractmethod
    async def stop(self) -> None:
        """End everything inside and remove the sandbox. Idempotent."""

    @abstractmethod
    async def supervise(self, *, plain: bool = False) -> Process:
        """The process of the supervisor: a Python in the workspace that runs :data:`RECEIVER`.

        It guards hostile programs that it starts: nothing shares its stream, and it can see them all. It ends once, with the sandbox.

        Args:
            plain: Whether it may be one that reads settings at its start; see :attr:`python_is_plain`.

        Raises:
            NoPythonError: If there is no Python.
            SandboxError: If it cannot be started.
        """

    async def start_without_python(self) -> Spawn:
        """Start it, and return what starts programs, where no supervisor can run. All that has run is gone.

        Raises:
            NoPythonError: If it cannot do without.
            SandboxError: As :meth:`start`.
        """
        raise NoPythonError("nothing runs in this sandbox without a Python")

    def is_own_user(self, user: str) -> bool:
        """Whether programs run as this user, given by name or number, once it runs."""
        return False

    async def supervise_as(self, user: str) -> Process:
        """Like :meth:`supervise`, as another user, beside the other supervisor. It ends with its stdin.

        Raises a ``LookupError`` if no such user can exist; that none does may also show by :data:`NO_SUCH_USER` in what
        it writes. Its exit code is not known, so do not call ``wait``.
        """
        raise LookupError(f"the sandbox has no other user than the code's, and so no {user!r}")

    async def supervise_loaded(self) -> Process | None:
        """Like :meth:`supervise`, with the supervisor that the zygote has loaded; ``None`` without one."""
        return None

    @property
    def keeps_processes_apart(self) -> bool:
        """Whether no process that the host starts reaches the processes of another one, where the kernel can see to that."""
        return False

    @property
    def python_is_plain(self) -> bool:
        """Whether a Python inside reads nothing at its start that the code could have written: settings, packages or files."""
        return False

    @property
    @abstractmethod
    def python(self) -> str:
        """The Python interpreter, as the sandbox sees it."""

    @abstractmethod
    async def python_identity(self) -> PythonIdentity:
        """Tell its interpreter from others. Available before a start.

        Raises a ``SandboxError`` if the sandbox has no interpreter.
        """

    @abstractmethod
    async def kill(self) -> None:
        """End everything inside at once, and the sandbox with it if its supervisor is its first process."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
