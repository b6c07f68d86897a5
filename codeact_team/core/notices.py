"""Turns this package's log records, and its warnings for users, into notices for a person, and writes a log if one is wanted."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Literal

from codeact_team.errors import SettingError

Level = Literal["note", "warning", "error"]
Notify = Callable[[Level, str], object]

LOG_LEVEL, LOG_FILE = "CODEACT_TEAM_LOG_LEVEL", "CODEACT_TEAM_LOG_FILE"
"""Variables of the environment, which the workers of a batch inherit: the least level of a log, and its file."""
_FORMAT = "%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s"


@contextmanager
def logs_as_notices(notify: Notify) -> Generator[None]:
    """Within it, what this package logs, and its warnings for users, are notices; a log that the environment asks for is written.

    Args:
        notify: Is called with each notice, from whatever thread.

    Raises:
        SettingError: If the log cannot be written.
    """
    root, ours = logging.getLogger(), logging.getLogger("codeact_team")
    # where the root has no handler, Python prints the warnings of others itself
    for_all = _log()
    for_us = _NoticeHandler(notify)
    level = ours.level
    root.addHandler(for_all)
    ours.setLevel(min(for_all.level or logging.INFO, logging.INFO))
    ours.addHandler(for_us)

    def show(message: Warning | str, category: type[Warning], *place: object) -> None:
        if issubclass(category, UserWarning):
            notify("warning", str(message))

    with warnings.catch_warnings():
        # of AutoGen's client: where a server answers with the name that it was asked for, as proxies do, and where an answer
        # is empty, of which agents tell
        for begin in ("Resolved model mismatch", "No text content or tool calls"):
            warnings.filterwarnings("ignore", begin, UserWarning)
        warnings.showwarning = show
        try:
            yield
        finally:
            ours.removeHandler(for_us)
            ours.setLevel(level)
            root.removeHandler(for_all)
            for_all.close()


def _log() -> logging.Handler:
    level, file = os.environ.get(LOG_LEVEL), os.environ.get(LOG_FILE)
    if not (level or file):
        return logging.NullHandler()
    try:
        if file:
            # what a team works on may be nobody else's business
            os.close(os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600))
        log = (
            logging.FileHandler(file, encoding="utf-8", errors="backslashreplace")
            if file
            else logging.StreamHandler()
        )
    except OSError as error:
        raise SettingError(f"the log cannot be written to {file}: {error.strerror}") from error
    log.setLevel((level or "info").upper())
    log.setFormatter(_WithoutSecrets(_FORMAT))
    return log


class _WithoutSecrets(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        # takes long to import, and most commands write no log
        from codeact_team.text.redaction import without_secrets, without_user_info

        return without_user_info(without_secrets(super().format(record)))


class _NoticeHandler(logging.Handler):
    def __init__(self, notify: Notify) -> None:
        super().__init__(logging.INFO)
        self._notify = notify

    def emit(self, record: logging.LogRecord) -> None:
        self._notify("warning" if record.levelno >= logging.WARNING else "note", record.getMessage())
