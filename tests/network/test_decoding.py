"""Bodies that come compressed are read as they come, in bounded pieces."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from collections.abc import Callable, Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeact_team.network.decoding import Decoder
from codeact_team.network.http import HttpError


def raw(data: bytes) -> bytes:
    return zlib.compress(data, wbits=-zlib.MAX_WBITS)


def two_members(data: bytes) -> bytes:
    return gzip.compress(data[:3]) + gzip.compress(data[3:])


WAYS: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("gzip", gzip.compress),
    ("X-Gzip", two_members),
    ("deflate", zlib.compress),
    (" deflate ", raw),
    ("identity", bytes),
    ("", bytes),
]


def decoded(encoding: str, pieces: Iterable[bytes]) -> bytes:
    decoder = Decoder(encoding)
    found = [some for piece in pieces for some in decoder.feed(piece)]
    decoder.end()
    assert all(len(some) <= 1 << 16 for some in found)
    return b"".join(found)


def split(data: bytes, places: Iterable[int]) -> list[bytes]:
    ends = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[begin:end] for begin, end in pairwise(ends)]


@pytest.mark.parametrize(("encoding", "encode"), WAYS)
@given(body=st.binary(max_size=200), places=st.lists(st.integers(0, 500)))
def test_a_body_is_read_in_whatever_pieces_it_comes(
    encoding: str, encode: Callable[[bytes], bytes], body: bytes, places: list[int]
) -> None:
    assert decoded(encoding, split(encode(body), places)) == body


@pytest.mark.parametrize(("encoding", "encode"), WAYS[:4])
def test_little_that_becomes_much_comes_in_pieces(encoding: str, encode: Callable[[bytes], bytes]) -> None:
    bomb = encode(bytes(1 << 24))
    decoder = Decoder(encoding)
    tracemalloc.start()
    size = sum(len(piece) for piece in decoder.feed(bomb))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    decoder.end()
    assert size == 1 << 24
    assert most < 1 << 20


def test_an_answer_without_a_body_is_none_that_is_cut_off() -> None:
    assert decoded("gzip", []) == b""


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "compress", "aes\x1b[31m"])
def test_an_unknown_encoding_is_refused_by_name(encoding: str) -> None:
    with pytest.raises(HttpError, match="only gzip and deflate") as caught:
        Decoder(encoding)
    assert encoding[:3] in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("encoding", "body", "words"),
    [
        ("gzip", gzip.compress(b"hello")[:-1], "ends in the middle of its gzip"),
        ("gzip", b"\x1f", "ends in the middle of its gzip"),
        ("deflate", raw(b"hello")[:-1], "ends in the middle of its deflate"),
        ("gzip", b"<html>", "no well-formed gzip"),
        ("gzip", gzip.compress(b"hello") + b"<html>", "no well-formed gzip"),
        ("deflate", zlib.compress(b"hello") + b"more", "more bytes follow its end"),
        ("gzip", gzip.compress(b"hello")[:-8] + bytes(8), "no well-formed gzip"),
    ],
)
def test_a_damaged_body_is_refused(encoding: str, body: bytes, words: str) -> None:
    with pytest.raises(HttpError, match=words):
        decoded(encoding, [body])
    with pytest.raises(HttpError, match=words):
        decoded(encoding, split(body, range(len(body))))
