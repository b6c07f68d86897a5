"""The picture of a run in the README is one of a real run, the chat of the tutorial; `--write-picture` makes it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from io import StringIO
from itertools import groupby
from pathlib import Path

import pyte
import pytest
from documents import DOCS, PAGES, blocks_of
from pyte.screens import Char
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text
from support.terminal import CTRL_D, ENTER, on_a_terminal

pytestmark = pytest.mark.long

PICTURE = DOCS / "run.svg"
COLUMNS, LINES = 100, 100
_CHANGES = re.compile(r"\d+\.\d(?=(?:\s|&#160;)s)")


def test_the_picture_shows_the_chat_of_the_tutorial(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    for block in blocks_of(PAGES["tutorial"]):
        if block.file in ("shop.py", "shop.yaml"):
            (tmp_path / block.file).write_text(block.text)
    command = ["chat", "shop.yaml", "--allow", "shop"]
    with on_a_terminal(*command, cwd=tmp_path, PYTHONPATH=".") as terminal:
        for message in ("Which orders are late?", "Refund them."):
            terminal.wait_for("\n> ")
            terminal.type(message, ENTER)
        for _ in range(2):
            terminal.wait_for("Allow?")
            terminal.type("y", ENTER)
        terminal.wait_for("in all.")
        terminal.wait_for("\n> ")
        terminal.type(CTRL_D)
        assert terminal.end() == 0
    made = picture(" ".join(["codeact-team", *command]), terminal.raw)
    if pytestconfig.getoption("--write-picture", default=False):
        PICTURE.write_text(made)
    assert _CHANGES.sub("0.0", PICTURE.read_text()) == _CHANGES.sub("0.0", made)


def picture(command: str, raw: str) -> str:
    """A terminal as SVG."""
    screen = pyte.Screen(COLUMNS, LINES)
    pyte.Stream(screen).feed(raw)
    console = Console(file=StringIO(), record=True, width=COLUMNS, force_terminal=True, highlight=False)
    console.print(Text.assemble(("$ ", "bold"), command))
    for line in shown(screen):
        console.print(line, soft_wrap=True)
    # a picture loads nothing, not even a font
    form = re.sub(r"@font-face \{\{.*?\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    return console.export_svg(title="codeact-team", theme=SVG_EXPORT_THEME, code_format=form, unique_id="run")


def shown(screen: pyte.Screen) -> list[Text]:
    """Its lines, from the first message to the last answer."""
    lines = [styled(screen.buffer[number]) for number in range(LINES)]
    first = next(number for number, line in enumerate(lines) if line.plain.startswith("> "))
    last = max(number for number, line in enumerate(lines) if "in all." in line.plain)
    return lines[first : last + 1]


def styled(cells: Mapping[int, Char]) -> Text:
    """A line with its colours."""
    text = Text()
    for (name, bold, italic), same in groupby(
        (cells[column] for column in range(COLUMNS)), lambda cell: (cell.fg, cell.bold, cell.italics)
    ):
        text.append("".join(cell.data for cell in same), Style(color=color(name), bold=bold, italic=italic))
    text.rstrip()
    return text


def color(name: str) -> str | None:
    """What Rich calls a colour of pyte's."""
    if re.fullmatch(r"[0-9a-f]{6}", name):
        return f"#{name}"
    return {"default": None, "brown": "yellow", "brightbrown": "bright_yellow"}.get(
        name, name.replace("bright", "bright_")
    )
