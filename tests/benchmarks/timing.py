"""How long something takes, and how much memory."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Awaitable
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
