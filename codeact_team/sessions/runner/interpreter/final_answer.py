"""``final_answer``, with which code ends the task it was written for."""

from __future__ import annotations

import builtins
import json

from codeact_team.sessions.runner.interpreter.stack_frames import interruptible

MAX_ANSWER = 100_000
"""Characters of an answer; more are left out of its middle."""

_SETS = (set, frozenset)
_OF_JSON = (bool, int, float, type(None), dict, list, tuple, *_SETS)


class Answer:
    """What the block that runs has called ``final_answer`` with."""

    def __init__(self) -> None:
        self.text: str | None = None

    def begin(self) -> None:
        """Forget the answer of the block before, and give the code the function again."""
        self.text = None
        setattr(builtins, "final_answer", self.final_answer)  # noqa: B010 - no such name is known to type checkers

    @interruptible
    def final_answer(self, value: object) -> None:
        """Give the answer. Of several calls in one block the first one counts."""
        if self.text is None:
            self.text = cut(_text(value), MAX_ANSWER)


@interruptible
def _text(value: object) -> str:
    """A text as it is, what JSON has as JSON, all else as Python shows it."""
    if isinstance(value, str):
        return str.__str__(value)
    if issubclass(type(value), _OF_JSON):
        try:
            return json.dumps(value, ensure_ascii=False, default=_as_json)
        except (TypeError, ValueError, RecursionError):
            pass
    return str(value)


def _as_json(value: object) -> object:
    """What JSON lacks, inside of what it has."""
    if issubclass(type(value), _SETS):
        return list(value)  # pyright: ignore[reportArgumentType, reportUnknownVariableType, reportCallIssue]
    return str(value)


def cut(text: str, limit: int) -> str:
    """``text``, or its beginning and its end if it has more than ``limit`` characters."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} of {len(text)} characters left out]\n{text[-half:]}"
