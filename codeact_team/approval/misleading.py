"""Find what makes code run as something else than a person reads."""

from __future__ import annotations

import re
import unicodedata

from codeact_team.lexing import foreign_encoding
from codeact_team.visibility import unseen_place

_SHELLS = frozenset({"sh", "shell", "bash", "pwsh", "powershell", "ps1"})
_READ_DIFFERENTLY = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters, which interpreters take for an end, a line break, an indentation or nothing, each in its own way; and
halves of a pair, in whose place something else is stored."""
_SPOILED_CONTINUATION = re.compile(r"\\[ \t]+$", re.MULTILINE)


def is_python(language: str) -> bool:
    """Whether the code of a block is Python for certain."""
    return language.lower() == "python"


def misleading(code: str, language: str) -> str:
    """Tell why code would not run as it is shown, in words for the model; empty if it would.

    Args:
        code: The block, to be shown with all that is unseen in it.
        language: Its label.
    """
    if language.lower() not in _SHELLS and (encoding := foreign_encoding(code)) is not None:
        return (
            f"a comment says that it is written in {encoding[:40]!r}, but it is UTF-8: leave that comment out"
        )
    if is_python(language):
        code = code.replace("\r\n", "\n")
    found = _READ_DIFFERENTLY.search(code)
    return "" if found is None else _at(code, found.start())


def misleading_as_it_is(code: str, language: str) -> str:
    """Do what :func:`misleading` does for code that is shown with nothing made visible in it."""
    if reason := misleading(code, language):
        return reason
    if (place := unseen_place(code)) is not None:
        return _at(code, place)
    if (found := _SPOILED_CONTINUATION.search(code)) is not None:
        line = code.count("\n", 0, found.start()) + 1
        return f"in line {line}, blanks follow the backslash at the end, which nobody can see: remove them"
    return ""


def _at(code: str, place: int) -> str:
    line = code.count("\n", 0, place) + 1
    name = unicodedata.name(code[place], "a control character")
    return f"line {line} holds U+{ord(code[place]):04X} ({name}), by which it reads as something else than it is: write it as an escape"
