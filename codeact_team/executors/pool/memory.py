"""How much memory there is yet: of the machine, and of the control groups that this process is in. Linux only."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_KIB = 1024
_AVAILABLE = re.compile(r"^MemAvailable:\s+(\d+) kB", re.MULTILINE)
_GIVEN_BACK = re.compile(r"^(?:total_)?inactive_file (\d+)", re.MULTILINE)
"""What the kernel takes from caches when it is needed."""


def available(root: Path = Path("/")) -> int | None:
    """Bytes that can be used without harm to what runs; ``None`` where the system does not say.

    Args:
        root: Where ``/proc`` and ``/sys`` are.
    """
    with suppress(OSError):
        found = _AVAILABLE.search((root / "proc/meminfo").read_text())
        if found is not None:
            return min([int(found[1]) * _KIB, *_left_in_groups(root)])
    return None


def _left_in_groups(root: Path) -> Iterator[int]:
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            yield from _left(root / "sys/fs/cgroup", path, "memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            names = "memory.limit_in_bytes", "memory.usage_in_bytes"
            yield from _left(root / "sys/fs/cgroup/memory", path, *names)


def _left(mount: Path, path: str, limit: str, usage: str) -> Iterator[int]:
    """What a group and those above it have left, as far as they have a limit."""
    group = mount / path.lstrip("/")
    if not group.is_dir():
        # in a container: the mount is its group
        group = mount
    while group.is_relative_to(mount):
        # the topmost has no such files, and no limit is "max"
        with suppress(OSError, ValueError):
            most = int((group / limit).read_text())
            given_back = sum(map(int, _GIVEN_BACK.findall((group / "memory.stat").read_text())[-1:]))
            yield most - int((group / usage).read_text()) + given_back
        group = group.parent
