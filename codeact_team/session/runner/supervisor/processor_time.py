"""How much processor time has been used in the sandbox: as the kernel counts it, never as the code tells."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Collection

_TICKS = os.sysconf("SC_CLK_TCK")
_MICROSECONDS = 1_000_000

# a group of version 2, or one of version 1: what counts its time, how much of that is a microsecond, and a file by which it
# is known whether it is the group of the whole machine
_GROUPS = (
    ("/sys/fs/cgroup", "cpu.stat", 1, "cgroup.events", False),
    ("/sys/fs/cgroup/cpuacct", "cpuacct.usage", 1000, "release_agent", True),
    ("/sys/fs/cgroup/cpu,cpuacct", "cpuacct.usage", 1000, "release_agent", True),
)


class ProcessorTime:
    """The time of everything that runs here together.

    It is that of the control group, where this process finds its own. Elsewhere it is that of the interpreters and of
    whatever has ended, as far as somebody has waited for its end: code can then hide what its children use.
    """

    def __init__(self) -> None:
        self._counter: int | None = None
        self._units = 1
        for directory, usage, units, sign, of_machine in _GROUPS:
            if os.path.exists(f"{directory}/{sign}") is not of_machine and _is_member(directory):
                self._counter = os.open(f"{directory}/{usage}", os.O_RDONLY | os.O_CLOEXEC)
                self._units = units
                break
        self._used: dict[int, int] = {}
        self._before = self._read(None, ()) or 0
        self._looked = time.monotonic()

    def since_last(self, own: int | None, living: Collection[int]) -> int | None:
        """Microseconds since this was last asked; ``None`` if nobody knows.

        Args:
            own: The process of the interpreter that has run something, if one has.
            living: The processes of all that live.
        """
        if self._counter is None:
            if (looked := time.monotonic()) - self._looked < 1 / _TICKS:
                # that clock has not ticked since; what is too little for it counts later
                return 0
            self._looked = looked
        now = self._read(own, living)
        if now is None:
            return None
        used, self._before = max(0, now - self._before), max(now, self._before)
        return used

    def _read(self, own: int | None, living: Collection[int]) -> int | None:
        if self._counter is not None:
            # a number alone, or first of all after its key
            return int(os.pread(self._counter, 4096, 0).split(None, 2)[:2][-1]) // self._units
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = ended.ru_utime + ended.ru_stime
        # the others have been looked at when they had run something
        self._used = {pid: ticks for pid, ticks in self._used.items() if pid in living}
        if own is not None:
            try:
                with open(f"/proc/{own}/stat", "rb", buffering=0) as file:
                    # the name before it may hold blanks and brackets
                    fields = file.read(4096).rpartition(b")")[2].split()
            except OSError:
                return None
            # of itself, and of its children that it has waited for
            self._used[own] = sum(map(int, fields[11:15]))
        seconds += sum(self._used.values()) / _TICKS
        return int(seconds * _MICROSECONDS)


def _is_member(directory: str) -> bool:
    try:
        with open(f"{directory}/cgroup.procs", "rb") as file:
            return str(os.getpid()).encode() in file.read().split()
    except OSError:
        return False
