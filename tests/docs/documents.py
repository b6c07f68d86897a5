"""The pages that people read, and the blocks in them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {
    path.relative_to(ROOT).with_suffix("").as_posix().removeprefix("docs/"): path
    for path in (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))
}
"""Each by its name, such as `guides/data`."""

_FILE = re.compile(r"^# (?P<name>[\w./-]+\.\w+)\n")


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        language: What its fence says.
        text: What is in it.
        line: Its first line in the page, counted from 1.
    """

    language: str
    text: str
    line: int

    @property
    def file(self) -> str | None:
        """The file whose content it is, which a comment in its first line names."""
        named = _FILE.match(self.text)
        return named and named["name"]


@dataclass(frozen=True)
class Command:
    """What is typed in a console, and what it says it prints.

    Attributes:
        text: The command, of one or several lines.
        printed: The lines below it; none if the page says nothing of its output.
        line: Its line in the page.
    """

    text: str
    printed: Sequence[str]
    line: int


def blocks_of(page: Path) -> Sequence[Block]:
    """The fenced blocks of a page, in order. What is in one of Markdown comes in its place."""
    return list(_blocks(page.read_text(), 0))


def _blocks(text: str, above: int) -> Iterator[Block]:
    for token in MarkdownIt().parse(text):
        if token.type == "fence":
            block = Block(token.info.strip(), token.content, above + (token.map or [0])[0] + 2)
            yield from _blocks(block.text, block.line - 1) if block.language == "markdown" else [block]


def commands_of(block: Block) -> Iterator[Command]:
    """The commands of a console block: lines that begin with `$ `, which go on behind a backslash."""
    lines = block.text.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("$ ")]
    assert starts[:1] == [0], f"line {block.line}: a console block begins with a command"
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        last = start
        while lines[last].endswith("\\"):
            last += 1
        text = "\n".join(lines[start : last + 1]).removeprefix("$ ")
        yield Command(text, lines[last + 1 : end], block.line + start)
