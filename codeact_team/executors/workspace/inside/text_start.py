"""The first lines of a text, for a model: read on the host, and in a sandbox as a part of ``preview.py``."""

from __future__ import annotations

import codecs

_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def first_lines(start: bytes, size: int, lines: int) -> list[str]:
    """The first lines of a text, and before them its encoding if that is not UTF-8; none if it is no text.

    Args:
        start: Its first bytes.
        size: How many of them were asked for: where there are as many, the last line is cut.
        lines: How many lines to return.
    """
    is_cut = len(start) >= size
    if (encoding := _encoding_of(start, is_cut)) is None:
        return []
    text = start.decode(encoding, errors="replace").splitlines()
    if is_cut and len(text) > 1:
        text.pop()
    return [*_REMARKS.get(encoding, []), *text[:lines]]


_REMARKS = {
    "cp1252": ["(This is not UTF-8. Perhaps it is encoding='cp1252', as which it is shown here.)"],
    **{
        name: [f"(This is not UTF-8, but encoding={name!r}.)"]
        for name in ("utf-16", "utf-16-le", "utf-16-be")
    },
}


def _encoding_of(start: bytes, is_cut: bool) -> str | None:
    if start.startswith(_UTF_16):
        return "utf-16"
    if b"\0" in start:
        # most letters of a table are ASCII, of which each second byte is nought
        even, odd = (start[first::2].count(0) / (len(start) / 2) for first in (0, 1))
        if min(even, odd) > 0 or max(even, odd) < 0.5:
            return None
        return "utf-16-be" if even else "utf-16-le"
    try:
        # a letter at the end may be cut
        codecs.getincrementaldecoder("utf-8")().decode(start, final=not is_cut)
    except UnicodeDecodeError:
        return "cp1252"
    return "utf-8-sig"
