"""The kernel's counters for all processes of a control group together, of version 1 or 2. Linux only."""

from __future__ import annotations

import json
import os
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_V2_ROOT = "/sys/fs/cgroup"

# by controller: in which file of which version, under which key, a limit counts what it has killed or refused
_EVENTS = {
    ("memory", 2): ("memory.events", b"oom_kill"),
    ("memory", 1): ("memory.oom_control", b"oom_kill"),
    ("pids", 2): ("pids.events", b"max"),
    ("pids", 1): ("pids.events", b"max"),
}
_USAGE = {2: ("cpu.stat", 1_000_000), 1: ("cpuacct.usage", 1_000_000_000)}
"""By version: the file that holds the used processor time, and its units in a second."""

# where a sandbox sees its own group; the sign tells it from the group of the whole machine, which counts other programs
_OWN_USAGE = (
    (_V2_ROOT, 2, "cgroup.events", True),
    (f"{_V2_ROOT}/cpuacct", 1, "release_agent", False),
    (f"{_V2_ROOT}/cpu,cpuacct", 1, "release_agent", False),
)


_HANDED = "CODEACT_TEAM_COUNTERS"
"""The variable by which a program gets the counters of another process."""


class GroupCounters:
    """Reads the counters of one control group. A counter that the group does not have reads as ``None``."""

    def __init__(self) -> None:
        self._events: dict[str, tuple[int, bytes]] = {}
        self._cached: dict[str, tuple[bytes, int | None]] = {}
        self._usage: tuple[int, int] | None = None

    @classmethod
    def of_this_process(cls) -> GroupCounters:
        """The counters of the group in which this process runs: those it was handed, or as a sandbox sees them at the usual places."""
        counters = cls()
        if (handed := os.environ.pop(_HANDED, None)) is not None:
            counters._take(**json.loads(handed))
            return counters
        for controller in ("memory", "pids"):
            for directory, version in ((_V2_ROOT, 2), (f"{_V2_ROOT}/{controller}", 1)):
                with suppress(OSError):
                    counters.open_events(controller, directory, version)
                    break
        for directory, version, sign, is_there in _OWN_USAGE:
            if os.path.exists(f"{directory}/{sign}") is is_there and _is_member(directory):
                counters.open_usage(directory, version)
                break
        return counters

    def open_events(self, controller: str, directory: str, version: int) -> None:
        """Count what the memory or pids controller kills or refuses. Raises an ``OSError`` if it has no such file."""
        name, key = _EVENTS[controller, version]
        self._events[controller] = _open(f"{directory}/{name}"), key

    def open_usage(self, directory: str, version: int) -> None:
        """Measure processor time. Raises an ``OSError`` if the group has no such file."""
        name, units = _USAGE[version]
        self._usage = _open(f"{directory}/{name}"), units

    def handed(self) -> dict[str, str]:
        """The variable for a program that inherits the open files."""
        events = {controller: (fd, key.decode()) for controller, (fd, key) in self._events.items()}
        return {_HANDED: json.dumps({"events": events, "usage": self._usage})}

    def _take(self, events: dict[str, tuple[int, str]], usage: tuple[int, int] | None) -> None:
        self._events = {controller: (fd, key.encode()) for controller, (fd, key) in events.items()}
        self._usage = usage
        for fd in self.descriptors:
            os.set_inheritable(fd, False)

    @property
    def descriptors(self) -> Sequence[int]:
        """The open files."""
        return [fd for fd, _ in (*self._events.values(), *filter(None, (self._usage,)))]

    @property
    def oom_kills(self) -> int | None:
        """The number of processes that the memory limit has killed."""
        return self._count("memory")

    @property
    def fork_failures(self) -> int | None:
        """The number of processes that the process limit has refused."""
        return self._count("pids")

    @property
    def measures_time(self) -> bool:
        """Whether the used processor time is known."""
        return self._usage is not None

    def processor_seconds(self) -> float | None:
        """The seconds of processor time that the group has used."""
        if self._usage is None:
            return None
        fd, units = self._usage
        # a bare number, or the first value after its key
        return int(os.pread(fd, 4096, 0).split(None, 2)[:2][-1]) / units

    def drop(self, controller: str) -> None:
        """Do not count for a controller after all."""
        if (opened := self._events.pop(controller, None)) is not None:
            os.close(opened[0])
        if controller == "cpu" and self._usage is not None:
            os.close(self._usage[0])
            self._usage = None

    def _count(self, controller: str) -> int | None:
        if controller not in self._events:
            return None
        fd, key = self._events[controller]
        data = os.pread(fd, 4096, 0)
        # mostly nothing has changed since the last block
        if controller not in self._cached or self._cached[controller][0] != data:
            numbers = dict(line.split(b" ", 1) for line in data.splitlines() if b" " in line)
            self._cached[controller] = data, int(numbers[key]) if key in numbers else None
        return self._cached[controller][1]


def _is_member(directory: str) -> bool:
    try:
        with open(f"{directory}/cgroup.procs", "rb") as file:
            return str(os.getpid()).encode() in file.read().split()
    except OSError:
        return False


def _open(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
