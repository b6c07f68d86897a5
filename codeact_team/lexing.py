"""How interpreters and lexers read code: its encoding, and how much of it a lexer can be given.

The regular expressions of a lexer can be made to take a minute for 50,000 characters.
"""

from __future__ import annotations

import re

_TRIED = {"python", "python3", "py", "bash", "sh", "shell", "json"}
"""Languages whose lexers take their time for long runs of blanks only."""
_LONGEST, _LONGEST_UNTRIED = 20_000, 2_000
_BLANKS = re.compile(r"\s{200}")
_LINE_BREAK = re.compile(r"\r\n?|\n")
_CODING = re.compile(r"[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)", re.ASCII | re.DOTALL)
_UTF_8 = re.compile(r"utf[-_]?8(?:[-_].*)?", re.IGNORECASE)


def foreign_encoding(code: str) -> str | None:
    """Find the encoding other than UTF-8 in which Python would read the file of some code.

    A comment in one of the first two lines names it. By an encoding such as UTF-7, the rest of a comment is a statement.
    """
    # a line ends for Python at a carriage return, too
    for line in _LINE_BREAK.split(code.removeprefix("\ufeff"), maxsplit=2)[:2]:
        if (found := _CODING.match(line)) is not None and not _UTF_8.fullmatch(found[1]):
            return found[1]
    return None


def is_lexed_quickly(code: str, language: str) -> bool:
    """Whether the lexer of a language takes less than a second for some code, whoever wrote it."""
    if language.strip().lower() not in _TRIED:
        return len(code) <= _LONGEST_UNTRIED
    return len(code) <= _LONGEST and _BLANKS.search(code) is None
