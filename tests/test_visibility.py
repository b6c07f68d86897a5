from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cost import LINEAR, growth
from support.variations import mostly_long

from codeact_team.text.visibility import all_visible, cut, edged, exact, excerpt, visible

ANYTHING = st.text(alphabet=st.characters(codec=None))


@given(ANYTHING)
def test_nothing_that_steers_a_terminal_is_left(text: str):
    shown = visible(text)
    assert not any(unicodedata.category(char) in ("Cc", "Cs") for char in shown if char not in "\t\n")
    assert not any(
        unicodedata.bidirectional(char) in ("LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI")
        for char in shown
    )
    shown.encode()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\nc", "a\tb\nc"),
        ("ünïcödé 日本 👩‍💻", "ünïcödé 日本 👩‍💻"),
        ("\x1b[31mred\x1b]0;title\x07", "␛[31mred␛]0;title␇"),
        ("10%\r20%\r\ndone", "10%\n20%\ndone"),
        ("\x9b31m\x7f\ud800", "\ufffd31m␡\ufffd"),
        ("access\u202eadmin", "access\ufffdadmin"),
    ],
)
def test_what_is_left_can_be_read(text: str, shown: str):
    assert visible(text) == shown


IGNORABLE = [
    0x034F,
    0x115F,
    0x1160,
    0x17B4,
    0x180B,
    0x180F,
    0x2800,
    0x3164,
    0xFE00,
    0xFE0F,
    0xFFA0,
    0xE0100,
    0xE01EF,
]
"""Letters, marks and symbols that look like nothing."""


@given(ANYTHING | st.text(alphabet=[*map(chr, IGNORABLE), "a", "日"]))
def test_for_somebody_who_decides_nothing_is_unseen(text: str):
    shown = all_visible(text)
    assert not any(unicodedata.category(char)[0] == "C" for char in shown if char not in "\t\n")
    assert not any(ord(char) in IGNORABLE for char in shown)
    assert all_visible(shown) == shown


def test_what_is_hidden_between_letters_shows():
    assert all_visible("pay\u200bpal \U000e0041 日本") == "pay\\u200bpal \\U000e0041 日本"
    assert all_visible("yes\u3164\u2800!") == "yes\\u3164\\u2800!"


@given(ANYTHING, st.integers(1, 120))
def test_each_line_that_a_screen_shows_of_foreign_text_has_its_edge(text: str, width: int):
    shown = edged(all_visible(text), width)
    for line in shown.split("\n"):
        assert line.startswith(("| ", "|↳ "))
        # a terminal may draw what is not ASCII twice as wide
        assert sum(1 if char.isascii() else 2 for char in line) <= max(6, width)
    assert shown.replace("\n|↳ ", "").replace("\n| ", "\n")[2:] == all_visible(text).expandtabs(4)


@given(st.text(alphabet="ab\r\n", max_size=60), st.integers(2, 20), st.integers(2, 10))
def test_an_excerpt_is_as_short_as_asked_and_counts_what_is_missing(text: str, chars: int, lines: int):
    plain = text.replace("\r\n", "\n").replace("\r", "\n")
    shown = excerpt(text, chars=chars, lines=lines)
    if shown == plain:
        assert len(plain) <= chars
        assert len(plain.split("\n")) <= lines
        return
    head, rest = shown.split("\n[... ", 1)
    missing, tail = rest.split(" characters are not shown ...]\n", 1)
    assert len(head) + len(tail) <= chars
    assert len(head.split("\n")) <= lines // 2
    assert len(tail.split("\n")) <= lines // 2
    assert plain.startswith(head)
    assert plain.endswith(tail)
    assert int(missing) == len(plain) - len(head) - len(tail) > 0


def test_a_text_that_is_cut_shows_it():
    assert cut("abcdef", 6) == "abcdef"
    assert cut("abcdefg", 6) == "abcde…"


@pytest.mark.parametrize(
    "text", mostly_long(["\u200b", "\u4e2d", "a\u202e", "".join(map(chr, range(0x4E00, 0x8000)))])
)
def test_what_is_unseen_is_shown_in_linear_time(text: str) -> None:
    assert growth(lambda size: text * (size // len(text) + 1), all_visible, 400_000, rounds=3) < LINEAR


def test_a_tab_is_told_from_blanks_where_a_person_decides():
    text = "cat >notes <<-E\n{0}text\n{0}E\nrm -rf victim"
    by_tabs, by_blanks = (edged(exact(text.format(indent)), 80) for indent in ("\t", "    "))
    assert by_tabs != by_blanks
    assert "| ␉   text" in by_tabs


@pytest.mark.parametrize("char", ["\U00013441", "\U00016fe4", "\u3164"])
def test_letters_without_ink_are_written_out_where_a_person_decides(char: str):
    assert all_visible(f"a{char}b").isascii()
