"""Tracebacks as Python prints them, of the user's frames only."""

from __future__ import annotations

import linecache
from traceback import TracebackException

from codeact_team.session.runner.interpreter.stack_frames import is_users

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from traceback import StackSummary
    from typing import Any

_MAX_ENTRIES = 20
"""How many entries of one stack are shown, from its beginning and its end."""


class _Short:
    """A stack whose middle is left out when it is printed."""

    def __init__(self, stack: StackSummary) -> None:
        self._stack = stack

    def __len__(self) -> int:
        return len(self._stack)

    def format(self, **options: Any) -> list[str]:
        entries = self._stack.format(**options)
        omitted = len(entries) - _MAX_ENTRIES
        if omitted > 0:
            half = _MAX_ENTRIES // 2
            entries[half:-half] = [f"  [{omitted} more entries]\n"]
        return entries


def formatted(error: BaseException) -> str:
    """The traceback of ``error``, for whatever its methods do."""
    try:
        if isinstance(error, SyntaxError):
            _add_line(error)
        summary = TracebackException(type(error), error, error.__traceback__, compact=True)
        for part in _parts(summary):
            part.stack[:] = [frame for frame in part.stack if is_users(frame.filename)]
            part.stack = _Short(part.stack)  # pyright: ignore[reportAttributeAccessIssue]
        return "".join(summary.format())
    except BaseException as second:
        # also an interrupt of a __str__ that does not end
        return f"{_name(error)}: <its traceback cannot be shown: {_name(second)}>\n"


def one_line(error: BaseException) -> str:
    """The name and the text of ``error``, unless it is interrupted."""
    try:
        text = " ".join(str(error).split())
    except KeyboardInterrupt:
        raise
    except BaseException as second:
        text = f"<its text cannot be shown: {_name(second)}>"
    return f"{_name(error)}: {text}" if text else _name(error)


def _name(error: BaseException) -> str:
    return type.__dict__["__name__"].__get__(type(error))


def _add_line(error: SyntaxError) -> None:
    # what the compiler finds after parsing comes without it
    if error.text is None and error.filename and error.lineno:
        error.text = linecache.getline(error.filename, error.lineno) or None


def _parts(summary: TracebackException) -> Iterator[TracebackException]:
    waiting: list[TracebackException | None] = [summary]
    while waiting:
        part = waiting.pop()
        if part is not None:
            yield part
            # groups came with 3.11
            waiting += (part.__cause__, part.__context__, *(getattr(part, "exceptions", None) or ()))
