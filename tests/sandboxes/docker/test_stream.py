from __future__ import annotations

import struct
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from codeact_team.sandbox.docker.streams import Demultiplexer

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
