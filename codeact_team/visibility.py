"""Hostile text, made fit for the eyes of a person: at a terminal, and in what a person is asked."""

from __future__ import annotations

import unicodedata

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_DIRECTIONS = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))

_VISIBLE: dict[int, str] = {
    # the pictures that Unicode has for them
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n"},
    0x7F: "\N{SYMBOL FOR DELETE}",
    **dict.fromkeys(range(0x80, 0xA0), _REPLACEMENT),
    # what reorders text, so that it reads as something else than it is
    **dict.fromkeys(_DIRECTIONS, _REPLACEMENT),
    # halves of a pair, which no stream can encode
    **dict.fromkeys(range(0xD800, 0xE000), _REPLACEMENT),
}
_UNSEEN = ("Cf", "Cn", "Co", "Zl", "Zp")
"""Unicode's categories of characters that leave no mark, such as zero-width spaces."""


def visible(text: str) -> str:
    """``text`` without anything that steers a terminal: such characters are shown instead of sent.

    A lone carriage return, with which a line overwrites itself, becomes a new line.
    """
    return _plain_lines(text).translate(_VISIBLE)


def all_visible(text: str) -> str:
    """``text`` as with :func:`visible`, and nothing in it is unseen: for somebody who decides by what is there.

    A joined emoji falls apart by this, and what is hidden between two letters shows.
    """
    text = visible(text)
    if text.isascii():
        return text
    return "".join(_REPLACEMENT if unicodedata.category(char) in _UNSEEN else char for char in text)


def excerpt(text: str, *, chars: int, lines: int) -> str:
    """The beginning and the end of a text that has more characters or lines, and how much is not shown."""
    text = _plain_lines(text)
    parts = text.split("\n")
    if len(text) <= chars and len(parts) <= lines:
        return text
    head = "\n".join(parts[: lines // 2])[: chars // 2]
    tail = "\n".join(parts[len(parts) - lines // 2 :])
    tail = tail[max(0, len(tail) - chars // 2) :]
    return f"{head}\n[... {len(text) - len(head) - len(tail):,} characters are not shown ...]\n{tail}"


def _plain_lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def cut(text: str, chars: int) -> str:
    """The beginning of a text, and a sign if there is more."""
    return text if len(text) <= chars else f"{text[: chars - 1]}…"
