"""What the programs of a batch have in common: they talk by pipes, and none outlives whoever has started it."""

from __future__ import annotations

import asyncio
import os
import sys
from signal import SIGKILL
from typing import Any

from codeact_team.system.kernel import prctl

_PR_SET_PDEATHSIG = 1


def own_streams(*, quiet: bool = False) -> tuple[int, int]:
    """Standard input and output, as this program alone has them: what else reads and prints here does not reach them.

    Args:
        quiet: Whether nothing that is printed here is for a person, be it standard error.
    """
    incoming, outgoing = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    # what code prints here is no message
    os.dup2(nowhere, 0)
    if quiet:
        os.dup2(nowhere, 2)
    os.dup2(2, 1)
    os.close(nowhere)
    return incoming, outgoing


async def opened(incoming: int, outgoing: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """The streams for this event loop."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(incoming, "rb", 0))
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), os.fdopen(outgoing, "wb", 0)
    )
    return reader, asyncio.StreamWriter(transport, protocol, None, loop)


def end_with_parent(place: dict[str, Any]) -> None:
    """Let this program end with the one that has started it, and import from where that does.

    Args:
        place: The first message.
    """
    if sys.platform == "linux":
        prctl(_PR_SET_PDEATHSIG, SIGKILL)
    if os.getppid() != place["parent"]:
        os._exit(1)
    sys.path[:] = place["path"]
