"""What runs that were killed have left on this machine, which the next run removes without being asked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from codeact_team.core.aio import to_the_end
from codeact_team.errors import EngineError
from codeact_team.sandbox.docker.creation import left_notes, remove_noted
from codeact_team.sandbox.temporary import orphaned_directories, remove_orphaned

logger = logging.getLogger(__name__)


async def remove_leftovers() -> None:
    """Remove temporary directories, and containers that never started. What cannot be removed is no error.

    A cancellation waits for the end: a run may be shorter than this.
    """
    await to_the_end(asyncio.to_thread(_remove_all))


def _remove_all() -> None:
    # containers come before the directories that they use
    for find, remove in ((left_notes, remove_noted), (orphaned_directories, remove_orphaned)):
        _remove(find, remove)


def _remove(find: Callable[[], list[Path]], remove: Callable[[Path], None]) -> None:
    try:
        for path in find():
            try:
                remove(path)
            except (OSError, EngineError) as error:
                logger.debug("%s, which a killed run has left, stays for now: %s", path, error)
    except OSError as error:
        logger.debug("what killed runs have left cannot be found: %s", error)
