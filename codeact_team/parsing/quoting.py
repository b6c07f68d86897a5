"""Makes text safe to quote: whoever extracts code finds none in it."""

from __future__ import annotations

import re

from codeact_team.parsing.containers import PREFIX
from codeact_team.parsing.tags import TAGS

_ZERO_WIDTH = "\u200b"
_BACKTICKS = re.compile("``(?=`)")
# Tildes count at the start of a line only. Python's tracebacks underline with ``~~~^~~``: no label starts with that.
_TILDES = re.compile(rf"^({PREFIX.pattern})(~{{3,}}+)(?!\^)", re.MULTILINE)

_END_OF_DATA = re.compile(r"<(?=\s*/\s*output)", re.IGNORECASE)

_START_TAG = re.compile(
    "|".join(
        re.escape(start) + (r"(?=[^\S\n]*$)" if tag.on_own_lines else "") for start, tag in TAGS.items()
    ),
    re.MULTILINE,
)


def make_inert(text: str) -> str:
    """Break what could be taken as a fence or a tag such as ``<execute>`` with zero-width spaces.

    Neither :func:`extract_code` nor the pattern of AutoGen's own executor agent finds code in the result. It reads as
    before; text without anything of the kind is returned as it is.
    """
    text = _BACKTICKS.sub(f"``{_ZERO_WIDTH}", text)
    text = _TILDES.sub(lambda match: match[1] + _ZERO_WIDTH.join(match[2]), text)
    # most outputs hold none, and looking for each by itself is many times faster
    if not any(start in text for start in TAGS):
        return text
    return _START_TAG.sub(lambda tag: f"{tag[0][0]}{_ZERO_WIDTH}{tag[0][1:]}", text)


def as_data(text: str) -> str:
    """Text for a model's context: delimited, so that it is read as data and not as somebody's words."""
    inert = _END_OF_DATA.sub(f"<{_ZERO_WIDTH}", text)
    return f"<output>\n{inert}\n</output>"


def make_json_inert(text: str) -> str:
    """JSON on one line that means the same as ``text``, which is that, too, and in which nobody finds code either."""
    text = _BACKTICKS.sub(lambda _: _escaped("`") * 2, text)
    return _START_TAG.sub(lambda tag: _escaped(tag[0][0]) + tag[0][1:], text)


def _escaped(character: str) -> str:
    return f"\\u{ord(character):04x}"
