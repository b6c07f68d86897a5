from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeact_team.cli.text import Segment, segments, visible


@given(st.text(alphabet=st.characters(codec=None)))
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


@given(st.text(alphabet="`~a \n\tpython", max_size=60))
def test_segments_leave_nothing_out(text: str):
    assert "".join(segment.text for segment in segments(text)) == text


def test_segments_tell_code_from_prose():
    text = "Look:\n````py\n```\nx\n````\nand\n~~~\ny\n"
    assert list(segments(text)) == [
        Segment("Look:\n````py\n", None),
        Segment("```\nx\n", "py"),
        Segment("````\nand\n~~~\n", None),
        Segment("y\n", ""),
    ]
