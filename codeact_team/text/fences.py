"""Where a block of code in a chat message begins and ends: fences by CommonMark, tags, and indentation."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import NamedTuple


class Tag(NamedTuple):
    """The code behind an opening tag.

    Attributes:
        end: The closing tag.
        on_own_lines: Whether both tags must be on lines of their own, as they have other meanings, too.
        may_end_text: Whether the closing tag is usually missing at the end of the text.
    """

    end: str
    language: str = "python"
    on_own_lines: bool = False
    may_end_text: bool = False


TAGS = {
    "<execute>": Tag("</execute>"),
    "<execute_ipython>": Tag("</execute_ipython>"),
    "<execute_bash>": Tag("</execute_bash>", "bash"),
    "[PYTHON]": Tag("[/PYTHON]"),
    "<code>": Tag("</code>", on_own_lines=True),
    "<|python_tag|>": Tag("<|eom_id|>", may_end_text=True),
}
"""The tags of CodeAct, OpenHands, Code Llama, smolagents and Llama, by the opening one."""

STARTS = "|".join(map(re.escape, TAGS))
_ENDS = "|".join(re.escape(tag.end) for tag in TAGS.values())

_SHELL_NAMES = frozenset({"shell", "shellscript"})
_PYTHON_NAME = re.compile(r"i?py(?:thon)?(?:-?3(?:\.?\d{1,2}(?:\.\d{1,2})?)?)?")

_SHELLS = frozenset({"sh", "bash"})
"""Each of these shells runs simple scripts of the other, so support for one covers both labels."""

# Data, prose and transcripts. A console or pycon transcript mixes prompts and output: it cannot be run as it stands.
_NOT_CODE = frozenset(
    """
    text txt plain plaintext none nohighlight output stdout stderr result results log logs traceback pytb
    console terminal shell-session shellsession sh-session session pycon python-repl python-console doctest
    json json5 jsonc jsonl ndjson yaml yml toml ini cfg conf config properties env dotenv csv tsv
    xml html xhtml svg css markdown md mdx rst asciidoc tex latex math bibtex
    diff patch http mermaid plantuml graphviz dot regex ebnf tree gitignore
    """.split()
)

# The first word of an info string, out of forms such as ``{.python .numbered}``, ``python:main.py``, ``python{1,3}``.
_WORD = re.compile(r"[\s{.]*+([A-Za-z0-9_][A-Za-z0-9_+#.-]{0,39}+)(?![^\s{}()\[\]:;,=|?&!/\"'])")


def language_of(label: str) -> str:
    """The canonical name of the language in a label or info string, such as ``{.python}``; empty if there is none."""
    if (word := _WORD.match(label)) is None:
        return ""
    name = word[1].lower()
    if _PYTHON_NAME.fullmatch(name):
        return "python"
    return "sh" if name in _SHELL_NAMES else name


def is_code(language: str) -> bool:
    """Whether this canonical name means a programming language."""
    return bool(language) and language not in _NOT_CODE


class Languages:
    """The supported languages, and the labels that mean one of them."""

    def __init__(self, labels: Sequence[str]) -> None:
        self._verbatim = {label.strip().lower(): label for label in labels}
        self._canonical = {language_of(label) for label in labels}
        if self._canonical & _SHELLS:
            self._canonical |= _SHELLS

    def resolve(self, info: str) -> str | None:
        """Return the supported language of a fence with this info string, or ``None`` if there is none."""
        name = language_of(info)
        if name in _SHELLS or name == "python":
            return name if name in self._canonical else None
        for spelling in (info.strip().lower(), name):
            if spelling in self._verbatim:
                return self._verbatim[spelling]
        return None

    def is_listed(self, label: str) -> bool:
        """Whether the label is literally a supported one, in any case."""
        return label.lower() in self._verbatim


_TAB_STOP = 4

_DELIMITER = rf"`{{3,}}+|~{{3,}}+|{_ENDS}"
_ANYWHERE = re.compile(_DELIMITER)
# A quoted string ends with its line at the latest, so that a stray apostrophe hides no more than that line.
_PYTHON = re.compile(
    rf"(?P<delimiter>{_DELIMITER})|(?P<quote>\"\"\"|''')|(?P<comment>#[^\n]*+)"
    r"|\"(?:[^\"\\\n]|\\[^\n])*+\"?|'(?:[^'\\\n]|\\[^\n])*+'?"
)
# Quotes of a shell count within a line only: an apostrophe too many is a common mistake, and hides no closing fence.
_SHELL = re.compile(
    rf"(?P<delimiter>{_DELIMITER})|(?P<comment>(?<![^\s;&|()])#[^\n]*+)|\\.|'[^'\n]*+'|\"(?:[^\"\\\n]|\\[^\n])*+\""
    r"|\(\((?:[^)\n]|\)(?!\)))*+|(?<!<)<<-?[ \t]*['\"\\]?(?P<heredoc>[A-Za-z_][\w.-]{0,60}+)"
)
_STRING_REST = {
    quote * 3: re.compile(rf"(?:[^\\{quote}]++|\\.|{quote}(?!{quote}{quote}))*+{quote * 3}", re.DOTALL)
    for quote in "\"'"
}
_REST_BLANK = re.compile(r"[ \t\r]*+(?=\n|\Z)")
_COMMENT_LINE = re.compile(r"[ \t]*+(?:#|//)")
_COMMENT = re.compile(r"(?:^|(?<=[ \t]))(?:#|//)", re.MULTILINE)


class Where(Enum):
    """The context of a delimiter in the code."""

    CODE = "code"
    COMMENT = "comment"
    STRING = "string"
    """A string of several lines, or a here-document."""
    ENDLESS = "endless"
    """A string that never ends."""


class Delimiter(NamedTuple):
    """A run of backticks or tildes, or a closing tag: it may end a block of code.

    Attributes:
        text: The run or the tag.
        start: Its offset.
        line: The offset of the start of its line.
        indent: Its column, from 0, if only blanks precede it on its line.
        last: Whether only blanks follow it on its line.
        odd: Whether an even number of delimiters precedes it on its line.
    """

    text: str
    start: int
    line: int
    indent: int | None
    last: bool
    odd: bool
    where: Where

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def find_delimiters(text: str, start: int, language: str | None = None) -> Iterator[Delimiter]:
    """Yield the delimiters from ``start`` on, which counts as the start of a line; lazily, so that no more is read.

    In Python and shells, delimiters in strings of several lines, such as here-documents, are marked, and those in strings
    of one line are left out. In other languages only the usual comments are known. No code is compiled, since hostile
    source would make that slow or worse.
    """
    if language == "python":
        found = _python(text, start)
    elif language in _SHELLS:
        found = _shell(text, start)
    else:
        found = _plain(text, start)
    line, before, odd = start, start, False
    for match, where in found:
        newline = text.rfind("\n", before, match.start())
        if newline >= 0:
            line, odd = newline + 1, False
        first = newline >= 0 or before == start
        lead = text[line : match.start()] if first else None
        indent = column(lead) if lead is not None and not lead.strip(" \t") else None
        last = _REST_BLANK.match(text, match.end()) is not None
        before, odd = match.end(), not odd
        yield Delimiter(match[0], match.start(), line, indent, last, odd, where)


def column(lead: str) -> int:
    """Return the column, counted from 0, behind ``lead``, the beginning of a line."""
    return len(lead.expandtabs(_TAB_STOP))


def line_end(text: str, position: int) -> int:
    """Return the offset of the line feed that ends the line, or of the end of the text."""
    end = text.find("\n", position)
    return len(text) if end < 0 else end


def _is_comment(text: str, line: int) -> bool:
    """Whether the line at that offset starts like a comment of most languages."""
    return _COMMENT_LINE.match(text, line) is not None


def _plain(text: str, start: int) -> Iterator[tuple[re.Match[str], Where]]:
    before, in_comment = start, False
    for match in _ANYWHERE.finditer(text, start):
        newline = text.rfind("\n", before, match.start())
        if newline >= 0:
            before, in_comment = newline + 1, False
        in_comment = in_comment or _COMMENT.search(text, before, match.start()) is not None
        before = match.end()
        yield match, Where.COMMENT if in_comment else Where.CODE


def _python(text: str, start: int) -> Iterator[tuple[re.Match[str], Where]]:
    position = start
    while match := _PYTHON.search(text, position):
        position = match.end()
        if match["delimiter"] is not None:
            yield match, Where.CODE
        elif match["comment"] is not None:
            yield from _within(text, match.start(), position, Where.COMMENT)
        elif match["quote"] is not None:
            rest = _STRING_REST[match["quote"]].match(text, position)
            begin, position = position, rest.end() if rest else len(text)
            yield from _within(text, begin, position, Where.STRING if rest else Where.ENDLESS)


def _shell(text: str, start: int) -> Iterator[tuple[re.Match[str], Where]]:
    heredocs: list[str] = []
    position, line_end = start, len(text)
    while True:
        match = _SHELL.search(text, position, line_end)
        if match is None:
            if not heredocs:
                return
            position, ends = _here_documents_end(text, line_end, heredocs)
            yield from _within(text, line_end, position, Where.STRING if ends else Where.ENDLESS)
            heredocs, line_end = [], len(text)
            continue
        position = match.end()
        if match["delimiter"] is not None:
            yield match, Where.CODE
        elif match["comment"] is not None:
            yield from _within(text, match.start(), position, Where.COMMENT)
        elif match["heredoc"] is not None:
            heredocs.append(match["heredoc"])
            if len(heredocs) == 1 and (newline := text.find("\n", position)) >= 0:
                line_end = newline


def _here_documents_end(text: str, position: int, words: list[str]) -> tuple[int, bool]:
    """Find the offset behind the here-documents of the line that ends at ``position``, and whether all of them end."""
    line = ""
    for word in words:
        line = ""
        while line != word and position < len(text):
            end = line_end(text, position + 1)
            line, position = text[position:end].strip(), end
    return position, line == words[-1]


def _within(text: str, start: int, end: int, where: Where) -> Iterator[tuple[re.Match[str], Where]]:
    return ((match, where) for match in _ANYWHERE.finditer(text, start, end))


_MAX_INDENT = 3
"""Columns by which a fence may be indented in its container; with more, it is a part of indented code, which is quoted."""

PREFIX = re.compile(r"(?:[ \t>]|(?:[-+*]|\d{1,9}[.)])(?=[ \t]))*+")
"""Everything before the content of a line: indentation, list markers, block quote markers."""

_ITEM = re.compile(r"(?:[-+*]|\d{1,9}[.)])(?= |\Z)")
_CODE_IN_ITEM = re.compile(r"(?:[-+*]|[.)]) {5}")
_FENCE = ("```", "~~~")


class Lists:
    """Tracks the open list items. Parses lazily, as most messages never need it."""

    def __init__(self) -> None:
        self._unread: list[str] = []
        self._columns: list[int] = []
        self._after_blank = True

    def add(self, text: str) -> None:
        """Append whole lines that are outside of fences."""
        if text:
            self._unread.append(text.removesuffix("\n"))

    def is_indented_code(self, prefix: str) -> bool:
        """Whether the next line, with this prefix, is indented code, which is only quoted."""
        if not prefix:
            return False
        expanded = prefix.expandtabs(_TAB_STOP)
        if _CODE_IN_ITEM.search(expanded):
            return True
        indent = len(expanded) - len(expanded.lstrip(" "))
        return indent > _MAX_INDENT and indent - self._content_column(indent) > _MAX_INDENT

    def _content_column(self, indent: int) -> int:
        for text in self._unread:
            for line in text.split("\n"):
                self._read(line.expandtabs(_TAB_STOP))
        self._unread.clear()
        enclosing = bisect_right(self._columns, indent)
        return self._columns[enclosing - 1] if enclosing else 0

    def _read(self, line: str) -> None:
        content = line.lstrip(" ")
        if not content.strip():
            self._after_blank = True
            return
        indent = len(line) - len(content)
        is_item = _ITEM.match(content) is not None
        # any other line may be a lazy continuation of the paragraph above, which leaves the list open
        if is_item or self._after_blank or content.startswith(_FENCE):
            while self._columns and self._columns[-1] > indent:
                self._columns.pop()
        self._after_blank = False
        if is_item and indent - (self._columns[-1] if self._columns else 0) <= _MAX_INDENT:
            self._open_items(line, indent)

    def _open_items(self, line: str, position: int) -> None:
        while item := _ITEM.match(line, position):
            position = item.end()
            while position < len(line) and line[position] == " ":
                position += 1
            blanks = position - item.end()
            if position == len(line) or blanks > _MAX_INDENT + 1:
                self._columns.append(item.end() + 1)
                return
            self._columns.append(position)


def unquote(text: str, start: int, candidate: int, prefix: str) -> tuple[str, int]:
    """Remove the quote markers, as many as the line at ``candidate`` has in its prefix, from the block quote around it.

    Returns:
        The text of the quote, from ``start`` at the earliest, as a document of its own, and the offset behind it.
    """
    marks = re.compile(rf"(?:[ \t]*+> ?+){{{prefix.count('>')}}}")
    before: list[str] = []
    for line in reversed(text[start:candidate].split("\n")[:-1]):
        if (match := marks.match(line)) is None:
            break
        before.append(line[match.end() :])
    end = line_end(text, candidate)
    lines = [*reversed(before), text[candidate + prefix.rindex(">") + 1 : end].removeprefix(" ")]
    while end < len(text) and (match := marks.match(text, end + 1)):
        end = line_end(text, match.end())
        lines.append(text[match.end() : end])
    return "\n".join(lines) + text[end : end + 1], min(end + 1, len(text))


def dedent(code: str, width: int) -> str:
    """Remove the indentation of a fence, ``width``, from its code, as far as the code is indented as well."""
    first = code[: len(code) - len(code.lstrip())].rpartition("\n")[2]
    width = min(width, column(first))
    return "\n".join(_outdent(line, width) for line in code.split("\n")) if width else code


def _outdent(line: str, width: int) -> str:
    reached = position = 0
    while reached < width and position < len(line) and line[position] in " \t":
        reached += _TAB_STOP - reached % _TAB_STOP if line[position] == "\t" else 1
        position += 1
    return " " * (reached - width) + line[position:]


# A single word right behind the fence; prose begins with a blank or goes on behind the word.
_LABEL = re.compile(r"[A-Za-z][^\s`]*+[ \t]*+(?=\n|\Z)")


class Fence(NamedTuple):
    """An opening fence: a run of backticks or tildes, and its column."""

    run: str
    indent: int

    def fits(self, delimiter: Delimiter) -> bool:
        """Whether the delimiter has the same character, at least as often."""
        return delimiter.text.startswith(self.run)

    def is_closed_by(self, delimiter: Delimiter) -> bool:
        """Whether the delimiter is a closing fence by CommonMark, except that a list item need not end first."""
        return (
            delimiter.last and delimiter.indent is not None and delimiter.indent <= self.indent + _MAX_INDENT
        )


class CodeEnd(NamedTuple):
    """The end of the code behind a fence.

    Attributes:
        code: The offset of the end of the code.
        resume: The offset behind the closing fence.
        certain: Whether there is a closing fence, on a line of its own or glued to the code, and not just a mention of one.
        closed: Whether the end of the code is known.
        read_on: Whether text behind this end had to be read to find it.
    """

    code: int
    resume: int
    certain: bool = False
    closed: bool = True
    read_on: bool = False


def first_end(text: str, body: int, fence: Fence, *, may_be_glued: bool) -> CodeEnd:
    """Find the first closing fence, without reading on behind it.

    A fence that is not run is read with ``may_be_glued=False``, so that nothing quoted in it is taken for code.
    """
    for delimiter in find_delimiters(text, body):
        if fence.fits(delimiter) and fence.is_closed_by(delimiter):
            return _own_line(text, delimiter)
        if may_be_glued and fence.fits(delimiter) and _is_glued(text, delimiter):
            return _glued(text, delimiter)
    return _unclosed(text)


def code_end(text: str, body: int, fence: Fence, language: str) -> CodeEnd:
    """Find the end of code: preferably a closing fence on a line of its own, outside of strings and comments."""
    reader = _Reader(text, fence, language)
    for delimiter in find_delimiters(text, body, language):
        if (end := reader.read(delimiter)) is not None:
            return end
    return reader.doubtful_end()


class _Reader:
    """Looks for the end of code, delimiter by delimiter, and keeps candidates in case that nothing better follows."""

    def __init__(self, text: str, fence: Fence, language: str) -> None:
        self._text = text
        self._fence = fence
        self._is_python = language == "python"
        self._is_known = self._is_python or language in _SHELLS
        self._line: Delimiter | None = None
        self._glued: Delimiter | None = None

    def read(self, delimiter: Delimiter) -> CodeEnd | None:
        """Return the end if the delimiter is certainly it."""
        on_own_line = self._fence.is_closed_by(delimiter)
        if not self._fence.fits(delimiter):
            # known code holds no line of backticks, so this one was meant to close a longer fence
            if (
                self._is_known
                and on_own_line
                and delimiter.where is Where.CODE
                and delimiter.text[0] == self._fence.run[0]
            ):
                self._line = self._line or delimiter
            return None
        if delimiter.where is not Where.CODE:
            return self._read_inside(delimiter, on_own_line=on_own_line)
        if on_own_line or (self._is_python and delimiter.last and delimiter.indent is not None):
            return _own_line(self._text, delimiter)
        return self._read_backticks(delimiter) if delimiter.text[0] == "`" else None

    def _read_inside(self, delimiter: Delimiter, *, on_own_line: bool) -> None:
        """Read a delimiter in a string or a comment. In a string that ends, or in a line of comment, it is no end."""
        if on_own_line and delimiter.where is Where.ENDLESS:
            self._line = self._line or delimiter
        elif (
            delimiter.where is Where.COMMENT
            and delimiter.last
            and not _is_comment(self._text, delimiter.line)
        ):
            self._glued = self._glued or delimiter

    def _read_backticks(self, delimiter: Delimiter) -> CodeEnd | None:
        """Read backticks beside other text. In Python they are never valid, in a shell not at the start of a line."""
        if self._is_python or (self._is_known and delimiter.indent is not None):
            opens_another = delimiter.indent is not None and _LABEL.match(self._text, delimiter.end)
            return CodeEnd(delimiter.line, delimiter.line) if opens_another else _glued(self._text, delimiter)
        if _is_glued(self._text, delimiter):
            return _glued(self._text, delimiter)
        if (
            self._is_known
            and delimiter.odd
            and _glued(self._text, delimiter).certain
            and self._text[delimiter.end].isspace()
        ):
            self._glued = self._glued or delimiter
        return None

    def doubtful_end(self) -> CodeEnd:
        """Return the best candidate. Behind a here-document that never ends, the end of the code is unknown."""
        if self._line is not None:
            known = self._is_python or self._line.where is Where.CODE
            end = _own_line(self._text, self._line)._replace(closed=known)
        elif self._glued is not None:
            end = _glued(self._text, self._glued)._replace(closed=self._glued.where is Where.CODE)
        else:
            return _unclosed(self._text)
        return end._replace(read_on=True)


def _is_glued(text: str, delimiter: Delimiter) -> bool:
    if delimiter.text[0] != "`" or delimiter.where is not Where.CODE:
        return False
    if not delimiter.last or delimiter.indent is not None or not delimiter.odd:
        return False
    # a fence in a quote or a list, within the code, is glued to nothing
    return PREFIX.fullmatch(text, delimiter.line, delimiter.start) is None


def _own_line(text: str, delimiter: Delimiter) -> CodeEnd:
    return CodeEnd(delimiter.line, min(line_end(text, delimiter.end) + 1, len(text)), certain=True)


def _glued(text: str, delimiter: Delimiter) -> CodeEnd:
    certain = delimiter.indent is not None or not text[delimiter.start - 1].isspace()
    return CodeEnd(delimiter.start, delimiter.end, certain=certain)


def _unclosed(text: str) -> CodeEnd:
    return CodeEnd(len(text), len(text), closed=False)
