"""What the code of the tests calls while its run is parked, or waits to be."""

from __future__ import annotations

import asyncio
from pathlib import Path

EFFECTS = Path("effects.txt")


def _note(what: str) -> None:
    with EFFECTS.open("a", encoding="utf-8") as file:
        file.write(f"{what}\n")


def refund(order: str) -> str:
    """Refund an order."""
    _note(f"refund {order}")
    return f"refunded {order}"


async def count() -> int:
    """Count for longer than a run waits for what else may happen before it is parked."""
    await asyncio.sleep(1.5)
    _note("counted")
    return 3


async def hang() -> None:
    """Never come to an end."""
    _note("hangs")
    await asyncio.get_running_loop().create_future()
