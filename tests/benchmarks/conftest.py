"""What the benchmarks measure, in the table of a page, and what decides of it in the README."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import pytest

ROOT = Path(__file__).parents[2]
TABLE = re.compile(r"(?<=<!-- figures -->\n).*?(?=<!-- end of figures -->)", re.DOTALL)
IN_THE_README = re.compile(
    r"A block of code|Fork of a session|A sandbox from a pool: command|Small tasks in a second|Memory of each of 100 confined"
)


class Figure(NamedTuple):
    """A row of the table."""

    what: str
    ours: str
    theirs: str
    ratio: str


class Figures(Protocol):
    """Keeps what was measured, ours and AutoGen's, and the ratio."""

    def __call__(self, what: str, ours: str, theirs: str = "", ratio: str = "") -> None: ...


FIGURES = pytest.StashKey[list[Figure]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-figures", action="store_true", help="write what is measured into the documents")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[FIGURES] = []


@pytest.fixture
def figure(pytestconfig: pytest.Config) -> Figures:
    """For the table."""
    rows = pytestconfig.stash[FIGURES]

    def keep(what: str, ours: str, theirs: str = "", ratio: str = "") -> None:
        rows.append(Figure(what, ours, theirs, ratio))

    return keep


def pytest_sessionfinish(session: pytest.Session) -> None:
    found = session.config.stash[FIGURES]
    if session.config.getoption("--write-figures") and found and not session.testsfailed:
        write(ROOT / "docs" / "explanation" / "measurements.md", found)
        write(ROOT / "README.md", [figure for figure in found if IN_THE_README.match(figure.what)])


def write(page: Path, figures: Sequence[Figure]) -> None:
    """Replace the table of a page."""
    page.write_text(TABLE.sub(lambda _: markdown(figures), page.read_text()))


def markdown(figures: Sequence[Figure]) -> str:
    """The table, with what it was measured on."""
    machine = f"{os.cpu_count()} processors, {platform.system()}, Python {platform.python_version()}"
    rows = [
        "| | here | AutoGen | ratio |",
        "|---|---|---|---|",
        *(f"| {' | '.join(row)} |" for row in figures),
    ]
    return "\n".join(
        ["", *rows, "", f"All in one run, on {machine}. AutoGen's ten-second stop is left out.", "", ""]
    )
