"""What a model reads of output that a terminal would have overwritten, and that repeats itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cost import LINEAR, growth
from support.variations import mostly_long

from codeact_team.text.screen_text import condensed, settled


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ntext\n", "plain\ntext\n"),
        ("\r 10%|#  |\r 50%|## |\r100%|###|\ndone\n", "100%|###|\ndone\n"),
        # what is shorter leaves the end of what was there
        ("downloading 100\rready\n", "readyoading 100\n"),
        ("downloading 100\r\x1b[Kready\n", "ready\n"),
        ("a\r\nb\r\n", "a\nb\n"),
        ("abc\b\bX", "aXc"),
        ("\x1b[31mred\x1b[0m and \x1b]0;title\x07plain", "red and plain"),
        # two bars, one below the other
        ("A  0%\nB  0%\x1b[A\rA 50%\n\rB 50%\x1b[A\rA100%\n\rB100%\nend", "A100%\nB100%\nend"),
        ("one\ntwo\n\x1b[H\x1b[2J\x1b[3Jthree\n", "three\n"),
        ("one\ntwo\nthree\x1b[H\nto\x1b[J", "one\nto"),
        ("a\x1b[99999999999Ab", "ab"),
        ("a\x1b[", "a["),
    ],
)
def test_output_is_read_as_a_terminal_shows_it_in_the_end(text: str, shown: str) -> None:
    assert settled(text) == shown


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a\na\na\n", "a\na\na\n"),
        ("x\n" + "a\n" * 1000 + "y", "x\na\n[... the line above came 999 more times ...]\ny"),
        (
            "w.py:1: UserWarning: slow\n  warn('slow')\n" * 500 + "42\n",
            "w.py:1: UserWarning: slow\n  warn('slow')\n[... the 2 lines above came 499 more times ...]\n42\n",
        ),
        ("\n" * 20, "\n" * 20),
    ],
)
def test_lines_that_are_repeated_are_counted(text: str, told: str) -> None:
    assert condensed(text) == told


@given(st.text(alphabet="ab\n\r\b\x1b[K2AHJ", max_size=200))
def test_whatever_the_output_its_last_words_stay(text: str) -> None:
    shown = settled(f"{text}\x1b[m\n\r\x1b[Kresult")
    assert "result" in shown.split("\n")
    # else others may be below it
    assert shown.endswith("result") or "A" in text or "H" in text
    assert settled(condensed(settled(text))) is not None


@pytest.mark.parametrize(
    "unit",
    mostly_long(
        [
            "a\r",
            "ab\b",
            "\x1b[A",
            "\x1b[2K\n",
            "\x1b[",
            "a\n",
            "a\nb\n",
            "a\nb\nc\nd\ne\n",
            "\x1b[2Ka",
            "a\n\x1b[99Ab",
        ],
        usual=2,
    ),
)
def test_hostile_output_takes_time_in_proportion(unit: str) -> None:
    def make(size: int) -> str:
        return "x" * size + unit * size

    def work(text: str) -> None:
        condensed(settled(text))

    assert growth(make, work, 5_000) < LINEAR
