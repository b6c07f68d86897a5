"""What every command does with warnings and errors."""

from __future__ import annotations

import errno
import logging
import os
import sys
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from signal import SIGINT, SIGPIPE

import typer

from codeact_team.cli.screen import Screen
from codeact_team.cli.signals import silence

logger = logging.getLogger(__name__)

_BAD_INPUT = 2
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


@contextmanager
def reported() -> Generator[Screen]:
    """A screen for a command; what goes wrong in it is printed there, in one message, and becomes an exit code."""
    screen = Screen()
    with _told_on(screen):
        try:
            yield screen
        except (typer.Exit, typer.Abort):
            raise
        except BrokenPipeError:
            # whoever read the output has enough; what is buffered has nowhere to go when the interpreter ends
            silence(sys.stdout)
            raise typer.Exit(128 + SIGPIPE) from None
        except KeyboardInterrupt:
            screen.notice("error", "interrupted")
            raise typer.Exit(128 + SIGINT) from None
        except Exception as error:
            from codeact_team.runs import explain

            logger.debug("the command failed", exc_info=error)
            screen.notice("error", _why_nothing_is_printed(error) or explain(error))
            raise typer.Exit(_BAD_INPUT) from None
        finally:
            screen.close()


def _why_nothing_is_printed(error: Exception) -> str | None:
    """Why standard output cannot be written, such as to a file on a full disk, if that is what has failed."""
    # what else is written says where
    if not isinstance(error, OSError) or error.filename is not None or error.errno not in _FULL:
        return None
    silence(sys.stdout)
    return f"standard output cannot be written: {error.strerror}"


@contextmanager
def _told_on(screen: Screen) -> Generator[None]:
    """Print what this package logs, and the warnings meant for users; nothing of what others log."""
    debugging = bool(os.environ.get("CODEACT_TEAM_DEBUG"))
    root, ours = logging.getLogger(), logging.getLogger("codeact_team")
    # where the root has no handler, Python prints others' warnings itself
    for_all = logging.StreamHandler() if debugging else logging.NullHandler()
    for_us = _NoticeHandler(screen)
    level = ours.level
    root.addHandler(for_all)
    ours.setLevel(logging.DEBUG if debugging else logging.INFO)
    ours.addHandler(for_us)

    def show(message: Warning | str, category: type[Warning], *place: object) -> None:
        if issubclass(category, UserWarning):
            screen.notice("warning", str(message))

    with warnings.catch_warnings():
        warnings.showwarning = show
        try:
            yield
        finally:
            ours.removeHandler(for_us)
            ours.setLevel(level)
            root.removeHandler(for_all)


class _NoticeHandler(logging.Handler):
    def __init__(self, screen: Screen) -> None:
        super().__init__(logging.INFO)
        self._screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        self._screen.notice("warning" if record.levelno >= logging.WARNING else "note", record.getMessage())
