from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from codeact_team.executors.output import Output


@given(st.lists(st.binary(max_size=30)), st.integers(2, 100))
def test_beginning_and_end_are_kept_exactly(pieces: list[bytes], limit: int) -> None:
    output = Output(limit)
    for piece in pieces:
        output.add(piece)
    data, half = b"".join(pieces), limit // 2
    assert output.omitted_bytes == max(0, len(data) - 2 * half)
    if not output.omitted_bytes:
        assert output.text() == data.decode(errors="replace")
        return
    cut = f"\n[... {output.omitted_bytes} bytes of output omitted ...]\n"
    assert output.text() == data[:half].decode(errors="replace") + cut + data[-half:].decode(errors="replace")


@given(st.lists(st.binary(max_size=30)), st.integers(1, 50))
def test_end_is_the_end(pieces: list[bytes], size: int) -> None:
    output = Output(100)
    for piece in pieces:
        output.add(piece)
    assert output.end(size) == b"".join(pieces)[-size:].decode(errors="replace")


@given(st.text(), st.lists(st.integers(0, 100), max_size=8))
def test_text_that_is_cut_anywhere_streams_whole(text: str, cuts: list[int]) -> None:
    data = text.encode(errors="replace")
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    output = Output()
    streamed = "".join(output.add(data[a:b]) for a, b in pairwise(places))
    assert streamed + output.finish() == output.text() == data.decode()


@given(st.lists(st.binary(max_size=12)))
def test_stream_and_text_agree_on_what_is_no_text(pieces: list[bytes]) -> None:
    output = Output()
    assert "".join([*(output.add(piece) for piece in pieces), output.finish()]) == output.text()


def test_memory_is_bounded() -> None:
    output = Output(1000)
    for _ in range(10_000):
        output.add(b"x" * 999)
    assert output.omitted_bytes == 9_990_000 - 1000
    assert len(output.text()) < 1100
