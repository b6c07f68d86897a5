from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from codeact_team.cli.text import Segment, segments


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
