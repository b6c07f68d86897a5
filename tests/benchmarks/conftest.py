"""What the benchmarks measure, in the table of a page, and what decides of it in the README."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import pytest
from benchmarks.bars import drawn

ROOT = Path(__file__).parents[2]
TABLE = re.compile(r"(?<=<!-- figures -->\n).*?(?=<!-- end of figures -->)", re.DOTALL)
ROWS = (
    "Processor time of a whole run",
    "Start to the first result",
    "A block of code",
    "100 blocks of code",
    "Stop",
    "A process",
    "A call of a tool",
    "Fork of a session",
    "Memory of such a fork",
    "Restart of a session",
    "A sandbox from a pool: command",
    "A sandbox from a pool",
    "Sandboxes started and stopped",
    "Memory of each of 100 confined",
    "Small tasks in a second",
    "A small task of a batch",
)
"""The rows of the table, in order, by how they begin."""
DECIDING = {
    "A step, with the variables of the steps before": "A block of code: session",
    "A new sandbox, to its first result": "Start to the first result: session",
    "A copy of a session with 200 MiB of objects": "Fork of a session",
    "A call of a function of the host": "A call of a tool from code: session",
    "Small tasks in a second": "Small tasks in a second",
}
"""The rows of the README, and how those of the table begin of which each is made: in Docker, and confined."""
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


class Figures(Protocol):
    """Keeps what was measured: ours, AutoGen's, the ratio, and by their columns what others take."""

    def __call__(
        self, what: str, ours: str, theirs: str = "", ratio: str = "", peers: Mapping[str, str] = {}
    ) -> None: ...


MEASUREMENTS = ROOT / "docs/explanation/measurements.md"
PICTURE = ROOT / "docs/figures.svg"
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
        write(MEASUREMENTS, markdown(found))
        write(ROOT / "README.md", deciding(found))
        PICTURE.write_text(drawn(found))


def write(page: Path, text: str) -> None:
    """Replace the table of a page."""
    page.write_text(TABLE.sub(lambda _: text, page.read_text()))


def read() -> list[Figure]:
    """The figures of the page that has all of them."""
    (table,) = TABLE.findall(MEASUREMENTS.read_text())
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in table.splitlines()
        if line.startswith("|")
    ]
    return [
        Figure(what, ours, theirs, ratio, dict(zip(PEERS, peers, strict=True)))
        for what, ours, theirs, ratio, *peers in rows[2:]
    ]


def deciding(figures: Sequence[Figure]) -> str:
    """The table of the README."""
    rows = [["", "Docker", "confined", "AutoGen", *PEERS], ["---"] * (4 + len(PEERS))]
    for title, start in DECIDING.items():
        docker, confined = pair(figures, start)
        others = [docker.theirs, *(docker.peers.get(name, "") for name in PEERS)]
        # in brackets stands how many times ours that is
        rows.append([title, docker.ours, confined.ours, *(other.partition(" (")[0] for other in others)])
    return "\n".join(["", *(f"| {' | '.join(row)} |" for row in rows), "", ""])


def pair(figures: Sequence[Figure], start: str) -> tuple[Figure, Figure]:
    """The rows that begin so: in Docker, and confined."""
    found = [figure for figure in figures if figure.what.startswith(start)]
    docker, confined = (
        next(figure for figure in found if name in figure.what) for name in ("Docker", "confined")
    )
    return docker, confined


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
        f"All in one run, on {machine}. Figures in brackets are multiples of ours. AutoGen's ten-second stop is left out of all rows but "
        "that of the stop."
    )
    return "\n".join(["", *(f"| {' | '.join(row)} |" for row in rows), "", notes, "", ""])
