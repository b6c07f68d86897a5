"""How much code may be given to a lexer: its regular expressions can be made to take a minute for 50,000 characters."""

from __future__ import annotations

import re

_TRIED = {"python", "python3", "py", "bash", "sh", "shell", "json"}
"""Languages whose lexers take their time for long runs of blanks only."""
_LONGEST, _LONGEST_UNTRIED = 20_000, 2_000
_BLANKS = re.compile(r"\s{200}")


def is_lexed_quickly(code: str, language: str) -> bool:
    """Whether the lexer of a language takes less than a second for some code, whoever wrote it."""
    if language.strip().lower() not in _TRIED:
        return len(code) <= _LONGEST_UNTRIED
    return len(code) <= _LONGEST and _BLANKS.search(code) is None
