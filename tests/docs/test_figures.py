"""Every figure that is told was measured: it stands in the table that the benchmarks write."""

from __future__ import annotations

import re

from benchmarks.conftest import TABLE
from documents import DOCS, PAGES

MEASURED = re.compile(r"\b(\d[\d,.]*) (ms|MiB|times|tasks a second|small tasks a second)\b")
MEASUREMENTS = (DOCS / "explanation" / "measurements.md").read_text()


def _table(text: str) -> str:
    (found,) = TABLE.findall(text)
    return found


def test_the_rows_of_the_readme_are_those_that_were_measured() -> None:
    rows = _table(PAGES["README"].read_text()).strip().splitlines()
    assert len(rows) > 5
    assert set(rows) <= set(_table(MEASUREMENTS).splitlines())


def test_each_figure_in_the_text_of_the_readme_was_measured() -> None:
    text = TABLE.sub("", PAGES["README"].read_text())
    told = MEASURED.findall(text)
    assert told
    for number, unit in told:
        shown = f"{number} {unit}" if unit in ("ms", "MiB") else number
        assert re.search(rf"(?<![\d.]){re.escape(shown)}(?![\d.]*\d)", _table(MEASUREMENTS)), shown
