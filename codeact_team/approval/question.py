"""What is to be decided: a block of code, or a call of a tool, as rules and persons see it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import JsonValue

from codeact_team.approval.misleading import is_python, misleading
from codeact_team.visibility import EDGE, all_visible, cut, edged, exact, excerpt

Kind = Literal["code", "tool"]

MAX_NAME_CHARS = 100
_MAX_REASON_CHARS = 1_000
MAX_SHOWN_CHARS = 100_000
"""Characters of code, or of all arguments, that a person is asked to read; more of them cannot be approved."""
_TOO_LONG = f"it is longer than the {MAX_SHOWN_CHARS:,} characters that are shown to a person"
_WIDTH = 80


@dataclass(frozen=True)
class Question:
    """What is to be approved.

    What comes from the code is hostile: show it by the properties that make it fit for a person's eyes.

    Attributes:
        source: The agent whose code it is.
        kind: Whether it is code that is to run, or a tool that code calls.
        name: The tool, as code calls it below ``tools``, or the language of the code.
        arguments: Of the tool, unabridged.
        code: The whole block, unabridged.
        reason: Why a person is asked, if the rule says so.
    """

    source: str
    kind: Kind
    name: str
    arguments: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    code: str = ""
    reason: str = ""

    @property
    def headline(self) -> str:
        """What is wanted, in a few words."""
        return f"{one_line(self.source, MAX_NAME_CHARS)} wants to {self.deed}"

    @property
    def deed(self) -> str:
        """What would be done, without who does it."""
        name = one_line(self.name, MAX_NAME_CHARS)
        return f"run {name} code" if self.kind == "code" else f"call {name}"

    @property
    def grant(self) -> str:
        """What an answer for good would allow."""
        if self.kind == "code":
            return "all code"
        return f"{one_line(self.name, MAX_NAME_CHARS)} with any arguments"

    @property
    def details(self) -> str:
        """The code, or the arguments line by line; whole, with nothing unseen in it, unless there is an obstacle."""
        if self.kind == "tool":
            return "\n".join(line for line, _ in self._shown_arguments()) or "(no arguments)"
        code = self.code.rstrip("\n")
        if is_python(self.name):
            # such a line ends in the same way for Python
            code = code.replace("\r\n", "\n")
        return exact(excerpt(code, chars=MAX_SHOWN_CHARS, lines=MAX_SHOWN_CHARS))

    @property
    def obstacle(self) -> str:
        """Why nobody can approve this, in words for the model; empty if it can be shown whole, and as it would run."""
        if len(self.name) > MAX_NAME_CHARS:
            return f"its name is longer than the {MAX_NAME_CHARS} characters that are shown to a person"
        if self.kind == "code":
            if len(self.code) > MAX_SHOWN_CHARS:
                return f"{_TOO_LONG}: write shorter code"
            return misleading(self.code, self.name)
        if not all(is_whole for _, is_whole in self._shown_arguments()):
            return f"{_TOO_LONG}, or nested too deeply: pass less at a time"
        return ""

    @property
    def shown_reason(self) -> str:
        """Why a person is asked, on one line; it may be empty."""
        return one_line(self.reason, _MAX_REASON_CHARS)

    def to_text(self, *, width: int = _WIDTH) -> str:
        """Write the question on several lines, on which what is foreign keeps its edge if the screen is not narrower."""
        parts = [f"{self.headline}:", edged(self.details, width)]
        if self.reason:
            parts.append(f"You are asked because: {self.shown_reason}")
        return "\n".join(parts)

    def _shown_arguments(self) -> Iterator[tuple[str, bool]]:
        """The arguments as they are shown, and whether each is whole."""
        room = MAX_SHOWN_CHARS
        for number, (name, value) in enumerate(self.arguments.items()):
            shown_name = name if name.isidentifier() and name.isascii() else json.dumps(name)
            if (room := room - len(shown_name)) < 0:
                yield f"[... {len(self.arguments) - number:,} more arguments are not shown ...]", False
                return
            shown = _shown_value(value, room)
            yield (
                f"{shown_name}:{shown or ' (nested too deeply, or too large, to be shown)'}",
                shown is not None,
            )
            room -= len(shown or "")


def as_json(value: JsonValue) -> str | None:
    """Write a value as compact JSON with sorted keys and plain whole numbers, so that equal values have equal texts.

    ``None`` if it is nested too deeply, or holds a number of too many digits.
    """
    try:
        plain = with_leaves(value, _whole_number)
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    except (RecursionError, ValueError):
        return None


def with_leaves(value: JsonValue, change: Callable[[JsonValue], JsonValue]) -> JsonValue:
    """Change each text, number and the like in a value.

    Raises:
        RecursionError: If it is nested too deeply.
    """
    if isinstance(value, list):
        return [with_leaves(item, change) for item in value]
    if isinstance(value, dict):
        return {key: with_leaves(item, change) for key, item in value.items()}
    return change(value)


def _whole_number(value: JsonValue) -> JsonValue:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def one_line(text: str, chars: int) -> str:
    """Return the beginning of a text on one line, with nothing unseen in it."""
    return cut(all_visible(text.strip()[: chars + 1]), chars).replace("\n", " ").replace("\t", " ")


def _shown_value(value: JsonValue, room: int) -> str | None:
    """Write a value for a person; ``None`` if it takes more than ``room`` characters, or cannot be written."""
    if isinstance(value, str) and len(value) > room:
        return None
    if isinstance(value, str) and "\n" in value:
        return "".join(f"\n    {EDGE}{line}" for line in exact(value).split("\n"))
    pieces: list[str] = []
    try:
        # piece by piece: deep levels are indented, which can make much of little
        for piece in json.JSONEncoder(ensure_ascii=False, indent=2).iterencode(value):
            pieces.append(piece)
            if (room := room - len(piece)) < 0:
                return None
    except (RecursionError, ValueError):
        return None
    return " " + all_visible("".join(pieces)).replace("\n", "\n    ")
