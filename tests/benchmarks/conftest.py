"""What the benchmarks measure, in one table of the README."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import NamedTuple, Protocol

import pytest

README = Path(__file__).parents[2] / "README.md"
TABLE = re.compile(r"(?<=<!-- figures -->\n).*?(?=<!-- end of figures -->)", re.DOTALL)


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
    parser.addoption("--readme", action="store_true", help="write what is measured into the README")


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
    if session.config.getoption("--readme") and found and not session.testsfailed:
        README.write_text(TABLE.sub(lambda _: markdown(found), README.read_text()))


def markdown(figures: list[Figure]) -> str:
    """The table, with what it was measured on."""
    machine = f"{os.cpu_count()} processors, {platform.system()}, Python {platform.python_version()}"
    rows = [
        "| | here | AutoGen | ratio |",
        "|---|---|---|---|",
        *(f"| {' | '.join(row)} |" for row in figures),
    ]
    return "\n".join(
        ["", *rows, "", f"All in one run, on {machine}; AutoGen's ten-second stop is left out.", "", ""]
    )
