"""What every sandbox offers: processes with a duplex byte stream, and files that travel over one."""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple, Self

from codeact_team.aio import to_the_end
from codeact_team.sandboxes.limits import Limits

logger = logging.getLogger("codeact_team.sandboxes")

STOPPED = "the executor was stopped"
UNCLEARED = "it could not be cleared of all that ran in it"
"""Why a sandbox is lost that its owner has ended."""

STARTS_AT_ONCE = max(2, os.cpu_count() or 1)
"""How many sandboxes, and how many interpreters, this process starts at a time: each has a limit on its time, which all
together would exceed. Whoever waits for a place has not begun."""

PACKAGES_START = "start"
"""The directory in a layer of packages whose ``sitecustomize`` puts them on the path of every Python that starts."""


def python_path(packages: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The variable by which code finds a layer of packages.

    Args:
        packages: The layer, as the sandbox sees it.
        environment: What the code has else.
    """
    start = f"{packages}/{PACKAGES_START}"
    return {"PYTHONPATH": ":".join(filter(None, (start, environment.get("PYTHONPATH"))))}


@cache
def warn_once(text: str) -> None:
    """Warn of something that does not change while this process runs."""
    logger.warning("%s", text)


@dataclass(frozen=True)
class Exit:
    """How a process ended."""

    code: int
    """Its exit code; 128 + n where signal n ended it."""
    lost: str | None = None
    """Why the sandbox itself is gone, or ``None`` where it goes on."""
    oom_kills: int | None = None
    """How many processes the memory limit has killed since the process started; ``None`` if not known."""
    fork_failures: int = 0
    """How often the process limit refused a new process since then, where that is known."""
    processor_seconds: float | None = field(default=None, compare=False)
    """Processor time that the program, or for a session everything in it, has used; ``None`` if not known."""


class LoadedAhead(NamedTuple):
    """A Python program of ours that a sandbox may have loaded before anybody asks for it.

    Attributes:
        loader: Source of a class ``Loaded``, of which one is made with ``data`` and ``names``, and whose ``run`` then runs
            with ``_path``, which is the path of modules as the source has found it.
        data: What it loads.
        names: What of that.
        arguments: What it runs with.
    """

    loader: str
    data: bytes
    names: str
    arguments: Sequence[str]


class Process(ABC):
    """A program that runs inside a sandbox. stdout and stderr are one stream, in the order of writing."""

    @abstractmethod
    async def read(self) -> bytes:
        """The next piece of output, as it comes; ``b""`` once the program, or its sandbox, has ended."""

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Send ``data`` to the program's stdin. A program that does not want it any more is no error."""

    @abstractmethod
    async def close_stdin(self) -> None:
        """Let the program read the end of its stdin."""

    @abstractmethod
    async def wait(self) -> Exit:
        """How the program ended. To be called after :meth:`read` has returned ``b""``."""

    @abstractmethod
    async def aclose(self) -> None:
        """Release what the host holds for the process. Does not stop it: that is the sandbox's part."""


class Sandbox(ABC):
    """A place where hostile code runs. Not bound to an event loop; one process at a time.

    ``interrupt`` and ``kill`` reach everything that runs inside, whatever it forked into.
    """

    @property
    @abstractmethod
    def running(self) -> bool:
        """Whether a process can be spawned now; ``False`` before ``start`` and after its end, for whatever reason."""

    @property
    @abstractmethod
    def limits(self) -> Limits:
        """The limits in force, for telling which one a failing program ran into."""

    @property
    @abstractmethod
    def private(self) -> str:
        """A directory, as the sandbox sees it, to which nothing outside it can write."""

    @property
    def image(self) -> str | None:
        """The digest of the image that it was made from, once it runs; ``None`` without one, or where nobody knows it."""
        return None

    @property
    def python_version(self) -> str | None:
        """The version of its Python; ``None`` where an image says which."""
        return None

    @property
    def directories(self) -> Sequence[Path]:
        """The directories of the host that programs write to, and for which the sandbox has no quota; once it runs."""
        return ()

    async def answers(self) -> bool:
        """Whether it really does, where nothing runs inside; not to be awaited for ever."""
        return self.running

    async def start(self) -> None:
        """Make the sandbox ready, unless it is; where that fails, nothing is left.

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
    async def spawn(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, supervises: bool = False
    ) -> Process:
        """Start a program in the workspace, with the variables of ``env`` beside those of the sandbox.

        One that ``supervises`` guards hostile ones that it starts: it is alone with its stream, and can see them all.
        """

    async def spawn_loaded(self) -> Process | None:
        """Like :meth:`spawn`, with the program that is loaded ahead, which supervises; ``None`` if there is none now."""
        return None

    @property
    def python_is_plain(self) -> bool:
        """Whether nothing that a Python inside reads at its start is the code's: settings, packages, or files it can write."""
        return False

    @property
    @abstractmethod
    def python(self) -> str:
        """The Python interpreter, as the sandbox sees it."""

    @abstractmethod
    async def python_identity(self) -> str:
        """What stands for that interpreter: something else where it may be another one. Can be asked before a start.

        Raises:
            SandboxError: If there is none.
        """

    @abstractmethod
    async def interrupt(self) -> None:
        """Send SIGINT to everything inside."""

    @abstractmethod
    async def kill(self) -> None:
        """End everything inside at once; the sandbox itself stays usable where it can."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
