"""Every figure that is told was measured: it stands in the table that the benchmarks write."""

from __future__ import annotations

import re

from benchmarks.bars import drawn
from benchmarks.conftest import PICTURE, TABLE, deciding, read
from documents import DOCS, PAGES

MEASURED = re.compile(r"\b(\d[\d,.]*) (ms|MiB|times|tasks a second|small tasks a second)\b")
MEASUREMENTS = (DOCS / "explanation" / "measurements.md").read_text()


def _table(text: str) -> str:
    (found,) = TABLE.findall(text)
    return found


def test_the_table_and_the_bars_of_the_readme_are_made_of_what_was_measured() -> None:
    figures = read()
    assert _table(PAGES["README"].read_text()) == deciding(figures), "--write-figures writes it"
    assert PICTURE.read_text() == drawn(figures)


def test_each_figure_in_the_text_of_the_readme_was_measured() -> None:
    text = TABLE.sub("", PAGES["README"].read_text())
    told = MEASURED.findall(text)
    assert told
    for number, unit in told:
        shown = f"{number} {unit}" if unit in ("ms", "MiB") else number
        assert re.search(rf"(?<![\d.]){re.escape(shown)}(?![\d.]*\d)", _table(MEASUREMENTS)), shown
