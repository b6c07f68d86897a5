"""Hostile text for a person's eyes: makes hostile characters visible, and limits the code that a lexer gets.

The regular expressions of a lexer can take a minute for 50,000 hostile characters.
"""

from __future__ import annotations

import re
import unicodedata

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_DIRECTIONS = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))

_LINE_BREAKS = str.maketrans({"\r": "\u240d", "\n": "\u2424", "\t": "\u2409"})
_VISIBLE: dict[int, str] = {
    # the pictures of control characters in Unicode
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n"},
    0x7F: "\N{SYMBOL FOR DELETE}",
    **dict.fromkeys(range(0x80, 0xA0), _REPLACEMENT),
    # characters that reorder text
    **dict.fromkeys(_DIRECTIONS, _REPLACEMENT),
    # halves of a pair, which no stream can encode
    **dict.fromkeys(range(0xD800, 0xE000), _REPLACEMENT),
}
_UNSEEN = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"})
"""Unicode's categories of characters that leave no mark, such as zero-width spaces, or only look like a plain space."""
_BLANK = frozenset(
    {
        # characters that Unicode tells to ignore if they are not supported, without the categories above
        *(0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810), 0x3164, 0xFFA0),
        *range(0xFE00, 0xFE10),
        *range(0xE0100, 0xE01F0),
        # symbols and letters without ink; what is newer than this Python's Unicode belongs to no category
        *(0x2800, 0x13441, 0x13442, 0x16FE4, 0x1D159),
    }
)
_JOINERS = "\u200d\ufe0e\ufe0f"
"""Unseen characters by which emoji are composed."""
_END_MARKS = {0x20: "\N{SYMBOL FOR SPACE}", 0x09: "\N{SYMBOL FOR HORIZONTAL TABULATION}"}
_TAB = 4

EDGE = "| "
"""Precedes each line of foreign text, so that none can pass for a line of ours."""
CONTINUED = "|↳ "
"""The same for the continuation of a line that is too long for the screen."""
_EDGE_CELLS = 4


def visible(text: str) -> str:
    """Replace the characters that control a terminal by visible ones.

    A lone carriage return, with which a line overwrites itself, becomes a new line.
    """
    return _plain_lines(text).translate(_VISIBLE)


def all_visible(text: str) -> str:
    r"""Do what :func:`visible` does, and make characters without a mark visible, for a person who has to decide.

    They are written as escapes, such as ``\u200b``. A joined emoji falls apart by this.
    """
    text = _plain_lines(text)
    if text.isascii():
        return text.translate(_VISIBLE)
    # most texts have few different characters
    return text.translate({ord(char): mark for char in {*text} if (mark := _mark(char)) is not None})


def readable(path: str) -> str:
    """A path that hostile code has made up, as a person can read it on one line."""
    return all_visible(path.translate(_LINE_BREAKS))


def exact(text: str) -> str:
    """Do what :func:`all_visible` does, and mark carriage returns, tabs, and the blanks at the ends of lines."""
    lines = text.replace("\r\n", "\r").replace("\r", "\N{SYMBOL FOR CARRIAGE RETURN}\n").split("\n")
    return all_visible("\n".join(map(_with_marked_end, lines)))


def unseen_place(text: str) -> int | None:
    """Find the first character that leaves no mark and is no part of an emoji; ``None`` if there is none."""
    if text.isascii():
        return None
    before = " "
    for place, char in enumerate(text):
        if _leaves_no_mark(char) and (char not in _JOINERS or before.isascii()):
            return place
        if char not in _JOINERS:
            before = char
    return None


def edged(text: str, width: int) -> str:
    """Put an edge before each line, and break lines so that a screen of ``width`` cells breaks none by itself."""
    lines: list[str] = []
    for line in text.expandtabs(_TAB).split("\n"):
        breaks = edge_breaks(line, width)
        for start, end in zip([0, *breaks], [*breaks, len(line)], strict=True):
            lines.append(f"{CONTINUED if start else EDGE}{line[start:end]}")
    return "\n".join(lines)


def edge_breaks(line: str, width: int) -> list[int]:
    """Find where to break a line without tabs, to fit behind its edge however wide a terminal draws its characters."""
    room = max(2, width - _EDGE_CELLS)
    if line.isascii():
        return list(range(room, len(line), room))
    breaks: list[int] = []
    taken = 0
    for place, char in enumerate(line):
        cells = 1 if char.isascii() else 2
        if taken + cells > room:
            breaks.append(place)
            taken = 0
        taken += cells
    return breaks


def _leaves_no_mark(char: str) -> bool:
    return not char.isascii() and (unicodedata.category(char) in _UNSEEN or ord(char) in _BLANK)


def _mark(char: str) -> str | None:
    """The text in place of a character that is unseen or controls a terminal; ``None`` for all others."""
    return _escaped(char) if _leaves_no_mark(char) else _VISIBLE.get(ord(char))


def _with_marked_end(line: str) -> str:
    bare = line.rstrip(" \t")
    # the tab stays behind its mark, for lines to begin below each other
    return bare.replace("\t", f"{_END_MARKS[0x09]}\t") + line[len(bare) :].translate(_END_MARKS)


def _escaped(char: str) -> str:
    code = ord(char)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def excerpt(text: str, *, chars: int, lines: int) -> str:
    """Shorten a text to its beginning and its end, and say how much is not shown."""
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
    """Return the beginning of a text, with a sign if there is more."""
    return text if len(text) <= chars else f"{text[: chars - 1]}…"


def clean(text: str, chars: int) -> str:
    """Return the beginning of a text, with everything unseen in it made visible."""
    # the rest, which is not shown, costs nothing
    return cut(all_visible(text[: chars + 1]).strip(), chars)


def one_line(text: str, chars: int) -> str:
    """Return the beginning of a text on one line, with everything unseen in it made visible."""
    return clean(text.strip(), chars).replace("\n", " ").replace("\t", " ")


_TRIED = {"python", "python3", "py", "bash", "sh", "shell", "json"}
"""Languages whose lexers are slow for long runs of blanks only."""
_LONGEST, _LONGEST_UNTRIED = 20_000, 2_000
_BLANKS = re.compile(r"\s{200}")
_LINE_BREAK = re.compile(r"\r\n?|\n")
_CODING = re.compile(r"[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)", re.ASCII | re.DOTALL)
_UTF_8 = re.compile(r"utf[-_]?8(?:[-_].*)?", re.IGNORECASE)


def foreign_encoding(code: str) -> str | None:
    """Find the encoding, other than UTF-8, in which Python would read the file of this code.

    A comment in one of the first two lines names it. In an encoding such as UTF-7, the rest of a comment may be a statement.
    """
    # a line ends for Python at a carriage return, too
    for line in _LINE_BREAK.split(code.removeprefix("\ufeff"), maxsplit=2)[:2]:
        if (found := _CODING.match(line)) is not None and not _UTF_8.fullmatch(found[1]):
            return found[1]
    return None


def is_lexed_quickly(code: str, language: str) -> bool:
    """Whether the lexer of a language takes less than a second for this code, even if it is hostile."""
    if language.strip().lower() not in _TRIED:
        return len(code) <= _LONGEST_UNTRIED
    return len(code) <= _LONGEST and _BLANKS.search(code) is None
