"""What is to be decided: a block of code, or a call of a tool, as rules and persons see it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import JsonValue

from codeact_team.visibility import EDGE, all_visible, cut, edged, excerpt

Kind = Literal["code", "tool"]

MAX_NAME_CHARS = 100
_MAX_REASON_CHARS = 1_000
_MAX_CODE_CHARS, _MAX_CODE_LINES = 20_000, 400
_MAX_VALUE_CHARS, _MAX_VALUE_LINES = 2_000, 40
_MAX_ARGUMENTS = 30
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
        """The code, or the arguments line by line; with nothing unseen in it, and cut if it is long."""
        if self.kind == "code":
            return all_visible(excerpt(self.code.rstrip("\n"), chars=_MAX_CODE_CHARS, lines=_MAX_CODE_LINES))
        return "\n".join(self._argument_lines()) or "(no arguments)"

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

    def _argument_lines(self) -> Iterator[str]:
        for name, value in list(self.arguments.items())[:_MAX_ARGUMENTS]:
            shown_name = name if name.isidentifier() and name.isascii() else json.dumps(name)
            yield f"{cut(shown_name, MAX_NAME_CHARS)}:{_shown_value(value)}"
        if (more := len(self.arguments) - _MAX_ARGUMENTS) > 0:
            yield f"[... {more:,} more arguments are not shown ...]"


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


def _shown_value(value: JsonValue) -> str:
    if isinstance(value, str) and "\n" in value:
        text = excerpt(value, chars=_MAX_VALUE_CHARS, lines=_MAX_VALUE_LINES)
        return "".join(f"\n    {EDGE}{line}" for line in all_visible(text).split("\n"))
    try:
        text = json.dumps(value, ensure_ascii=False, indent=2)
    except (RecursionError, ValueError):
        return " (nested too deeply, or too large, to be shown)"
    text = excerpt(text, chars=_MAX_VALUE_CHARS, lines=_MAX_VALUE_LINES)
    return " " + all_visible(text).replace("\n", "\n    ")
