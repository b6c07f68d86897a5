from __future__ import annotations

import struct
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from codeact_team.sandbox.docker.plain import MarkedStream
from codeact_team.sandbox.docker.streams import Demultiplexer

# one whose beginning does not come again in it, so that it is clear where the output ends
MARK = b"0123456789abcdeffedcba9876543211"
PIECES = st.lists(st.binary(max_size=40), max_size=12)
CUTS = st.lists(st.integers(0, 200), max_size=20)


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(place for place in cuts if place < len(data))})
    return [data[start:end] for start, end in pairwise(places)]


@given(PIECES, CUTS)
def test_payload_is_the_same_however_the_frames_are_cut(pieces: list[bytes], cuts: list[int]) -> None:
    framed = b"".join(struct.pack(">BxxxL", 1 + len(piece) % 2, len(piece)) + piece for piece in pieces)
    frames = Demultiplexer()
    assert b"".join(frames.feed(part) for part in cut(framed, cuts)) == b"".join(pieces)


@given(st.binary(), CUTS)
def test_no_bytes_make_the_demultiplexer_fail(data: bytes, cuts: list[int]) -> None:
    frames = Demultiplexer()
    payload = b"".join(frames.feed(part) for part in cut(data, cuts))
    assert payload == Demultiplexer().feed(data)
    assert len(payload) <= len(data)


# made of pieces of the mark, so that beginnings of it come up; nobody can write the whole of it
OUTPUT = (
    st.lists(st.one_of(st.binary(max_size=5), st.integers(1, 31).map(lambda n: MARK[:n])), max_size=8)
    .map(b"".join)
    .filter(lambda output: MARK not in output)
)


@given(OUTPUT, st.lists(st.integers(-(10**6), 10**6), min_size=1, max_size=5), CUTS)
def test_output_and_numbers_come_apart_however_the_stream_is_cut(
    output: bytes, numbers: list[int], cuts: list[int]
) -> None:
    line = MARK + b" " + b" ".join(b"%d" % number for number in numbers) + b"\n"
    stream = MarkedStream(MARK)
    assert b"".join(stream.feed(part) for part in cut(output + line, cuts)) == output
    assert stream.ended
    assert stream.numbers == tuple(numbers)


@given(OUTPUT, CUTS)
def test_output_without_a_mark_is_all_output(output: bytes, cuts: list[int]) -> None:
    stream = MarkedStream(MARK)
    fed = b"".join(stream.feed(part) for part in cut(output, cuts))
    assert fed + stream.finish() == output
    # no more is held back than could be a mark's beginning
    assert len(output) - len(fed) < len(MARK)
    assert not stream.ended


@given(st.binary(max_size=300), CUTS)
def test_no_bytes_after_a_mark_make_it_fail(trailer: bytes, cuts: list[int]) -> None:
    stream = MarkedStream(MARK)
    for part in cut(b"out" + MARK + trailer, cuts):
        stream.feed(part)
        assert stream.numbers is None or all(isinstance(number, int) for number in stream.numbers)
    assert stream.ended == (b"\n" in trailer or len(trailer) >= 64)


def test_numbers_that_are_none() -> None:
    for hostile in (
        b" --1\n",
        b" 1e9\n",
        "\u0661\n".encode(),
        "\u00b2\n".encode(),
        b" 0x1\n",
        b"9" * 5000 + b"\n",
        b"-\n",
    ):
        stream = MarkedStream(MARK)
        stream.feed(MARK + hostile)
        assert stream.ended
        assert stream.numbers == () or hostile.startswith(b"999")
