"""``final_answer``, with which code ends the task it was written for."""

from __future__ import annotations

import builtins
import json

from codeact_team.session.runner.interpreter.stack_frames import interruptible

MAX_ANSWER = 100_000
"""Characters of an answer; more are left out of its middle."""

_SHORT_ANSWER = 40_000
"""Characters of an answer that fits into a report however they have to be encoded."""

_MAX_PROBLEM = 1_000

_SETS = (set, frozenset)
_OF_JSON = (bool, int, float, type(None), dict, list, tuple, *_SETS)
_NOT_JSON = "JSON has dicts, lists, strings, finite numbers, booleans and None only; convert it to these"


class Answer:
    """What the block that runs has called ``final_answer`` with."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forget the answer of the block before, and give the code the function again."""
        self.text: str | None = None
        self._is_json = False
        self._problem = ""
        setattr(builtins, "final_answer", self.final_answer)  # noqa: B010 - no such name is known to type checkers

    @interruptible
    def final_answer(self, value: object) -> None:
        """Give the answer. Of several calls in one block the first one counts."""
        if self.text is not None:
            return
        text, is_json, problem = _read(value)
        self._is_json, self._problem = is_json, problem
        self._set(text, MAX_ANSWER)

    def shorten(self) -> None:
        """Cut it so far that it fits into a report."""
        if self.text is not None:
            self._set(self.text, _SHORT_ANSWER)

    def report(self) -> dict[str, object]:
        """What is reported of it; see ``Kind.REPORT``."""
        return {"answer": self.text, "answer_is_json": self._is_json, "answer_problem": self._problem}

    def _set(self, text: str, limit: int) -> None:
        self.text = cut(text, limit)
        if len(text) > limit:
            self._is_json = False
            self._problem = self._problem or f"it has {len(text)} characters; {limit} are possible"


@interruptible
def _read(value: object) -> tuple[str, bool, str]:
    """A value as text, whether that is its JSON, and why JSON does not have it.

    The text is a text as it is, what JSON has as JSON, all else as Python shows it.
    """
    if isinstance(value, str):
        return str.__str__(value), False, ""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_refuse), True, ""
    except (TypeError, ValueError, RecursionError) as error:
        problem = cut(str(error), _MAX_PROBLEM)
    return _text(value), False, problem


def _refuse(value: object) -> object:
    raise TypeError(f"{_name(type(value))}: {_NOT_JSON}")


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _text(value: object) -> str:
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
