"""How long something takes, and how much memory."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Awaitable
from contextlib import suppress
from pathlib import Path
from typing import Any


async def milliseconds(work: Awaitable[Any]) -> float:
    """The time until ``work`` is done."""
    began = time.perf_counter()
    await work
    return 1000 * (time.perf_counter() - began)


def memory_for_a_flood(kind: str) -> float:
    """By how many MiB the memory of a process grows while code of its executor prints 200 MB."""
    program = [sys.executable, "-W", "ignore", Path(__file__).with_name("flood.py"), kind]
    return float(subprocess.run(program, stdout=subprocess.PIPE, text=True, check=True).stdout)


def pss_mib(pid: int) -> dict[str, float]:
    """What all descendants of a process have of the memory (PSS, in MiB), by how deep below it they are and what they run."""
    found: dict[str, float] = {}
    level, depth = [str(pid)], 0
    while level := [child for parent in level for child in _children(parent)]:
        depth += 1
        for child in level:
            # it may have ended meanwhile
            with suppress(FileNotFoundError, ProcessLookupError):
                name = f"{depth}: {Path(f'/proc/{child}/comm').read_text().strip()}"
                rollup = Path(f"/proc/{child}/smaps_rollup").read_text()
                if (pss := re.search(r"^Pss:\s+(\d+) kB", rollup, re.MULTILINE)) is not None:
                    found[name] = found.get(name, 0) + int(pss[1]) / 1024
    return found


def _children(pid: str) -> list[str]:
    found: list[str] = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += (task / "children").read_text().split()
    return found
