"""The processes that others have started."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def processes_below(parent: int) -> list[int]:
    """The processes that one has started, and those that they have started."""
    found: list[int] = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = file.read_text().rpartition(")")[2].split()
            if int(fields[1]) == parent and fields[0] != "Z":
                child = int(file.parent.name)
                found += [child, *processes_below(child)]
    return found


def process_lives(process: int) -> bool:
    """Whether it has not ended."""
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def is_worker(process: int) -> bool:
    """Whether this is the process of a worker of a batch."""
    with suppress(OSError):
        command = Path(f"/proc/{process}/cmdline").read_bytes()
        # Ray names the process of an actor after its class
        return b"codeact_team.batch.worker_process" in command or b"ray::NodeWorker" in command
    return False
