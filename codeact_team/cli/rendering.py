"""Markdown and code as lines for a terminal. Nothing is left out: what cannot be rendered so stays as it is written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from io import StringIO
from typing import ClassVar

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Heading, ListItem, Markdown, MarkdownElement
from rich.segment import Segment
from rich.syntax import Syntax
from rich.text import Text
from rich.theme import Theme

from codeact_team.text.visibility import is_lexed_quickly

_FENCE = re.compile(r"[ \t]*(?P<run>`{3,}|~{3,})[ \t]*(?P<label>[\w+#.-]*)")
_LONGEST_BLOCK = 20_000
"""Characters of prose that are rendered together."""
_SHORT_BLOCK = 2_000
"""Characters of prose that are parsed anew at each line; longer prose when it has grown by a quarter, as a table may be one block."""
_CODE_BEFORE = 4_000
"""Characters of code before a line that its colours may depend on, as far as code comes line by line."""
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_WORD = re.compile(r"[^\W_]+")


def highlighted(code: str, language: str) -> Text:
    """``code`` in the colours of its language, where these do not take long."""
    if not code or not is_lexed_quickly(code, language):
        return Text(code)
    # tabs stay: the terminal knows how wide they are
    text = Syntax("", language, theme="ansi_dark", background_color="default", tab_size=0).highlight(code)
    # the lexer ends its text with a line break, and the code may not
    if (surplus := len(text) - len(code)) > 0:
        text.right_crop(surplus)
    return text


def highlighted_prose(text: str) -> Text:
    """``text``, all of it, with the code in its fences in colours; what runs does not depend on this."""
    shown, code, fence, language = Text(), "", "", ""
    for line in text.splitlines(keepends=True):
        found = _FENCE.match(line)
        if fence and (found is None or not found["run"].startswith(fence)):
            code += line
            continue
        shown.append_text(highlighted(code, language)).append(line)
        code = ""
        if found is not None:
            fence, language = ("", "") if fence else (found["run"], found["label"])
    return shown.append_text(highlighted(code, language))


class RenderedProse:
    """Turns Markdown that comes in pieces into lines, block by block: each when it is known where the block ends.

    Lines of code in a fence come as they are, however long, since people copy them. Prose is broken between words.

    Args:
        width: Cells in a line of the terminal.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._rest = ""
        """Text that is not rendered yet."""
        self._parsed = 0
        """Length of that text when it was parsed last and no block of it had ended."""
        self._fence = ""
        """The fence that the code which comes is in."""
        self._language = ""
        self._code = ""
        """The code of it that has lines already."""

    @property
    def unfinished(self) -> str:
        """The last line of what has no line yet."""
        return self._rest.rstrip().rpartition("\n")[2]

    def add(self, piece: str) -> Iterator[Text]:
        """Take a piece; yields the lines of blocks that have ended with it."""
        self._rest += piece
        # a block ends where another line begins
        return self._lines(is_end=False) if "\n" in piece else iter(())

    def end(self) -> Iterator[Text]:
        """Yields the other lines. What comes afterwards is in the same fence."""
        yield from self._lines(is_end=True)

    def _lines(self, *, is_end: bool) -> Iterator[Text]:
        while self._rest:
            if self._fence:
                yield from self._code_lines(is_end=is_end)
                if self._fence:
                    return
                continue
            if not is_end and _SHORT_BLOCK < len(self._rest) < self._parsed * 5 // 4:
                return
            window, has_more = self._window(is_end=is_end)
            taken = 0
            for source, kind in _blocks(window, is_end=not has_more):
                taken += len(source)
                if kind == "fence":
                    yield self._begin_code(source)
                else:
                    yield from _rendered(source, self._width)
            self._rest = self._rest[taken:]
            self._parsed = 0 if taken else len(self._rest)
            if not taken:
                return

    def _window(self, *, is_end: bool) -> tuple[str, bool]:
        """As much of the rest as is parsed together, and whether more follows."""
        if len(self._rest) > _LONGEST_BLOCK:
            end = self._rest.rfind("\n", 0, _LONGEST_BLOCK) + 1
            window = self._rest[: end or _LONGEST_BLOCK]
            # a block that is longer comes in parts
            return window, any(True for _ in _blocks(window, is_end=False))
        if is_end:
            return self._rest, False
        # an incomplete line may become anything
        return self._rest[: self._rest.rfind("\n") + 1], True

    def _begin_code(self, line: str) -> Text:
        found = _FENCE.match(line.lstrip("\n"))
        # the parser has found one
        self._fence, self._language = (found["run"], found["label"]) if found else ("```", "")
        self._code = ""
        return Text(line.rstrip("\n").lstrip("\n"), "dim")

    def _code_lines(self, *, is_end: bool) -> Iterator[Text]:
        lines = _lines_of(self._rest)
        if not is_end and lines and not lines[-1].endswith("\n"):
            lines.pop()
        closing = next((number for number, line in enumerate(lines) if self._closes(line)), len(lines))
        code = "".join(lines[:closing])
        self._rest = self._rest[len(code) :]
        if code:
            if len(self._code) > _CODE_BEFORE:
                self._code = ""
            known = len(self._code)
            self._code += code
            text = highlighted(self._code, self._language)[known:]
            if text.plain.endswith("\n"):
                text.right_crop(1)
            yield from text.split("\n", allow_blank=True)
        if closing < len(lines):
            self._rest = self._rest[len(lines[closing]) :]
            self._fence = ""
            yield Text(lines[closing].rstrip("\n"), "dim")
            blank = len(self._rest) - len(self._rest.lstrip("\n"))
            self._rest = self._rest[blank:]
            if blank:
                yield Text()

    def _closes(self, line: str) -> bool:
        bare = line.strip()
        return len(bare) >= len(self._fence) and {*bare} == {self._fence[0]}


def _blocks(text: str, *, is_end: bool) -> Iterator[tuple[str, str]]:
    """The blocks of Markdown that have ended, each with the empty lines after it, and its kind.

    Of code in a fence it is the first line, and nothing follows.
    """
    lines = _lines_of(text)
    begins: list[tuple[int, str]] = []
    for token in _parser().parse(text):
        if token.level == 0 and token.nesting >= 0 and token.map is not None:
            begins.append((token.map[0], token.type))
    if not begins:
        if is_end and text:
            yield text, "blank"
        return
    done = 0
    for number, (begin, kind) in enumerate(begins):
        if kind == "fence":
            yield "".join(lines[done : begin + 1]), kind
            return
        is_last = number + 1 == len(begins)
        if is_last and not is_end:
            return
        end = len(lines) if is_last else begins[number + 1][0]
        yield "".join(lines[done:end]), kind
        done = end


def _lines_of(text: str) -> list[str]:
    # str.splitlines() knows more ends of lines than Markdown does
    return _LINE.findall(text)


def _rendered(source: str, width: int) -> Iterator[Text]:
    """The lines of a block of Markdown that is no code. An empty line follows where one does in ``source``."""
    bare = source.strip("\n")
    lines = _rendered_lines(bare, width) if len(bare) <= _LONGEST_BLOCK else None
    yield from lines if lines is not None else highlighted_prose(bare).split("\n", allow_blank=True)
    if source.endswith("\n\n"):
        yield Text()


def _rendered_lines(source: str, width: int) -> list[Text] | None:
    """The lines of a block; ``None`` if a word would be broken or lost, or a line of code broken."""
    markdown = _Markdown(source)
    console = Console(
        file=StringIO(),
        width=width,
        theme=_THEME,
        force_terminal=True,
        color_system="standard",
        legacy_windows=False,
    )
    lines: list[Text] = []
    for segments in console.render_lines(markdown, console.options.update(width=width), pad=False):
        line = Text.assemble(*((segment.text, segment.style or "") for segment in segments))
        line.rstrip()
        lines.append(line)
    while lines and not lines[-1].plain:
        lines.pop()
    while lines and not lines[0].plain:
        del lines[0]
    shown = "\n".join(line.plain for line in lines)
    return lines if all(word in shown for word in markdown.unbroken(source)) else None


class _Heading(Heading):
    """A heading at the left, without a frame."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield Text("#" * int(self.tag[1:]) + " ", "dim").append_text(self.text)


class _Item(ListItem):
    """An item of a list, whose number has its point."""

    def render_number(
        self, console: Console, options: ConsoleOptions, number: int, last_number: int
    ) -> RenderResult:
        width = len(f"{last_number}. ")
        style = console.get_style("markdown.item.number")
        first = f"{number}. ".rjust(width)
        inner = options.update(width=options.max_width - width)
        for line in console.render_lines(self.elements, inner, style=self.style):
            yield Segment(first, style)
            yield from line
            yield Segment.line()
            first = " " * width


class _Markdown(Markdown):
    """Markdown whose links and HTML stay as they are written, so that each is seen to lead where it does."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _Heading,
        "list_item_open": _Item,
    }

    def __init__(self, source: str) -> None:
        super().__init__("", code_theme="ansi_dark", hyperlinks=False)
        self.markup = source
        self.parsed = _parser().parse(source)
        for token in self.parsed:
            for child in token.children or ():
                # in a terminal, a line that ends is meant to
                child.type = "hardbreak" if child.type == "softbreak" else child.type

    def unbroken(self, source: str) -> set[str]:
        """Return the words and the lines of code that the rendered lines must keep whole."""
        found = {*_WORD.findall(source)}
        for token in self.parsed:
            if token.type in ("fence", "code_block"):
                found.update(line.strip() for line in token.content.splitlines())
            for child in token.children or ():
                found.update(child.content.split())
        return found


def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    return parser.disable(["link", "image", "autolink", "reference", "entity"])


_THEME = Theme(
    {
        **{f"markdown.h{level}": "bold" for level in range(1, 7)},
        "markdown.code": "cyan",
        "markdown.item.bullet": "cyan",
        "markdown.item.number": "cyan",
        "markdown.block_quote": "italic",
        "markdown.hr": "dim",
    }
)
