"""Making text safe to quote: nothing in it is code to anybody who extracts code from it."""

from __future__ import annotations

import re

from codeact_team.parsing.containers import PREFIX

_ZERO_WIDTH = "\u200b"
_BACKTICKS = re.compile("``(?=`)")
# Tildes count at the start of a line only. Python's tracebacks underline with ``~~~^~~``: no label starts with that.
_TILDES = re.compile(rf"^({PREFIX.pattern})(~{{3,}}+)(?!\^)", re.MULTILINE)


def make_inert(text: str) -> str:
    """Break what could be taken as a fence or an ``<execute>`` tag with zero-width spaces.

    Neither :func:`extract_code` nor the pattern of AutoGen's own executor agent finds code in the result. It reads as
    before; text without anything of the kind is returned as it is.
    """
    text = _BACKTICKS.sub(f"``{_ZERO_WIDTH}", text)
    text = _TILDES.sub(lambda match: match[1] + _ZERO_WIDTH.join(match[2]), text)
    return text.replace("<execute>", f"<{_ZERO_WIDTH}execute>")
