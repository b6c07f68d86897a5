"""What the benchmarks measure, in the table of a page, and what decides of it in the README."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import pytest

ROOT = Path(__file__).parents[2]
TABLE = re.compile(r"(?<=<!-- figures -->\n).*?(?=<!-- end of figures -->)", re.DOTALL)
ROWS = {
    "Start to the first result": True,
    "A block of code": True,
    "100 blocks of code": False,
    "Stop": True,
    "A process": True,
    "A call of a tool": False,
    "Fork of a session": True,
    "Memory of such a fork": False,
    "Restart of a session": False,
    "A sandbox from a pool: command": True,
    "A sandbox from a pool": False,
    "Sandboxes started and stopped": False,
    "Memory of each of 100 confined": True,
    "Small tasks in a second": True,
    "A small task of a batch": False,
}
"""The rows of the table, in order, by how they begin, and whether the README shows them."""
PEERS = ("smolagents", "AutoGen, Jupyter", "Inspect")
"""The columns of others besides AutoGen's Docker executor."""


class Figure(NamedTuple):
    """A row of the table."""

    what: str
    ours: str
    theirs: str
    ratio: str
    peers: Mapping[str, str]

    @property
    def place(self) -> int:
        """Where it stands in the table."""
        return next(place for place, start in enumerate(ROWS) if self.what.startswith(start))

    @property
    def is_in_the_readme(self) -> bool:
        return [*ROWS.values()][self.place]


class Figures(Protocol):
    """Keeps what was measured: ours, AutoGen's, the ratio, and by their columns what others take."""

    def __call__(
        self, what: str, ours: str, theirs: str = "", ratio: str = "", peers: Mapping[str, str] = {}
    ) -> None: ...


FIGURES = pytest.StashKey[list[Figure]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-figures", action="store_true", help="write what is measured into the documents")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[FIGURES] = []


@pytest.fixture
def figure(pytestconfig: pytest.Config) -> Figures:
    """For the table."""
    rows = pytestconfig.stash[FIGURES]

    def keep(what: str, ours: str, theirs: str = "", ratio: str = "", peers: Mapping[str, str] = {}) -> None:
        assert any(map(what.startswith, ROWS)), f"{what!r} begins like none of the ROWS"
        rows.append(Figure(what, ours, theirs, ratio, peers))

    return keep


def pytest_sessionfinish(session: pytest.Session) -> None:
    found = session.config.stash[FIGURES]
    if session.config.getoption("--write-figures") and found and not session.testsfailed:
        found.sort(key=lambda figure: figure.place)
        write(ROOT / "docs" / "explanation" / "measurements.md", found)
        write(ROOT / "README.md", [figure for figure in found if figure.is_in_the_readme])


def write(page: Path, figures: Sequence[Figure]) -> None:
    """Replace the table of a page."""
    page.write_text(TABLE.sub(lambda _: markdown(figures), page.read_text()))


def markdown(figures: Sequence[Figure]) -> str:
    """The table, with what it was measured on."""
    machine = f"{os.cpu_count()} processors, {platform.system()}, Python {platform.python_version()}"
    columns = ["", "here", "AutoGen", "ratio", *PEERS]
    rows = [
        columns,
        ["---"] * len(columns),
        *([*row[:4], *(row.peers.get(name, "") for name in PEERS)] for row in figures),
    ]
    notes = (
        f"All in one run, on {machine}. In brackets: how many times ours. AutoGen's ten-second stop is left out of all rows but "
        "that of the stop."
    )
    return "\n".join(["", *(f"| {' | '.join(row)} |" for row in rows), "", notes, "", ""])
