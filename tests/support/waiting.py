"""Waiting for what other processes do, which nobody tells of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


async def until(condition: Callable[[], object], *, seconds: float = 30) -> None:
    """Wait until ``condition`` holds.

    Raises:
        TimeoutError: If it does not within ``seconds``.
    """
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - whatever the condition is
            await asyncio.sleep(0.005)


def is_below(folder: Path, name: str) -> bool:
    """Whether there is a file of this name, while others may come and go."""
    # what is removed while it is read raises in Python before 3.13
    with suppress(FileNotFoundError):
        return any(folder.rglob(name))
    return False


async def first_tick(workspace: Path) -> None:
    """Wait for code that writes to the file ``tick``."""
    await until((workspace / "tick").exists)


async def ticking(workspace: Path) -> bool:
    """Whether something still writes there."""
    tick = workspace / "tick"
    before = tick.read_text() if tick.exists() else ""
    await asyncio.sleep(0.15)
    return tick.exists() and tick.read_text() != before
