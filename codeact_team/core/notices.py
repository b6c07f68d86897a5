"""Turns this package's log records, and its warnings for users, into notices for a person."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Literal

Level = Literal["note", "warning", "error"]
Notify = Callable[[Level, str], object]


@contextmanager
def logs_as_notices(notify: Notify, *, debugging: bool = False) -> Generator[None]:
    """Within it, what this package logs, and its warnings for users, are notices; what others log is not shown.

    Args:
        notify: Is called with each notice, from whatever thread.
        debugging: Whether all records of all packages are printed as well.
    """
    root, ours = logging.getLogger(), logging.getLogger("codeact_team")
    # where the root has no handler, Python prints the warnings of others itself
    for_all = logging.StreamHandler() if debugging else logging.NullHandler()
    for_us = _NoticeHandler(notify)
    level = ours.level
    root.addHandler(for_all)
    ours.setLevel(logging.DEBUG if debugging else logging.INFO)
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


class _NoticeHandler(logging.Handler):
    def __init__(self, notify: Notify) -> None:
        super().__init__(logging.INFO)
        self._notify = notify

    def emit(self, record: logging.LogRecord) -> None:
        self._notify("warning" if record.levelno >= logging.WARNING else "note", record.getMessage())
