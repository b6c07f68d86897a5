"""Removes what killed runs have left on this machine. The next run does this unasked."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

from codeact_team.core.aio import to_the_end
from codeact_team.errors import EngineError
from codeact_team.sandbox.temporary import orphaned_directories, remove_orphaned

logger = logging.getLogger(__name__)

_NOTE = re.compile(r"codeact-team-\d+-[0-9a-f]{16}\.start")
"""The name of a note; see :mod:`codeact_team.sandbox.docker.leftovers`."""


async def remove_leftovers() -> None:
    """Remove temporary directories, and containers that never started, of processes that were killed. Logs failures.

    A cancellation waits for the end, because a run may be shorter than this.
    """
    await to_the_end(asyncio.to_thread(_remove_all))


def _remove_all() -> None:
    # containers come before the directories that they use
    notes = _left_notes()
    if notes:
        # the Docker client takes long to load, and a note is rare
        from codeact_team.sandbox.docker.leftovers import remove_noted

        _remove_each(notes, remove_noted)
    _remove_each(orphaned_directories(), remove_orphaned)


def _left_notes() -> list[Path]:
    try:
        place = Path(tempfile.gettempdir())
        return [place / name for name in os.listdir(place) if _NOTE.fullmatch(name)]
    except OSError as error:
        logger.debug("the notes of killed runs cannot be read: %s", error)
        return []


def _remove_each(paths: list[Path], remove: Callable[[Path], None]) -> None:
    for path in paths:
        try:
            remove(path)
        except (OSError, EngineError) as error:
            logger.debug("%s, left by a killed run, stays for now: %s", path, error)
