from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeact_team import session
from codeact_team.sandbox.system.framing import FrameReader, ProtocolError, frame
from codeact_team.session.protocol import FROM_SUPERVISOR, Kind

ROOT = Path(session.__file__).parent


def pieces(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    start = 0
    for cut in sorted(cut % (len(data) + 1) for cut in cuts):
        yield data[start:cut]
        start = cut
    yield data[start:]


@given(
    st.lists(
        st.sampled_from([Kind(kind) for kind in FROM_SUPERVISOR]).flatmap(
            lambda kind: st.tuples(st.just(kind), st.binary(max_size=min(300, FROM_SUPERVISOR[kind])))
        ),
        max_size=6,
    ),
    st.lists(st.integers(0, 10_000), max_size=6),
)
def test_frames_come_out_as_they_went_in_wherever_the_stream_is_cut(
    frames: list[tuple[Kind, bytes]], cuts: list[int]
) -> None:
    stream = b"".join(frame(kind, payload[:5], payload[5:]) for kind, payload in frames)
    reader = FrameReader(FROM_SUPERVISOR)
    assert [found for piece in pieces(stream, cuts) for found in reader.feed(piece)] == frames
    assert reader.held == b""


@given(st.binary(max_size=400), st.lists(st.integers(0, 10_000), max_size=6))
def test_anything_else_is_an_error_or_is_waited_for(data: bytes, cuts: list[int]) -> None:
    reader = FrameReader(FROM_SUPERVISOR)
    try:
        for piece in pieces(data, cuts):
            for kind, payload in reader.feed(piece):
                assert len(payload) <= FROM_SUPERVISOR[kind]
    except ProtocolError:
        return
    assert len(reader.held) <= len(data)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\x00\x00\x00\x00\x00", "no frame of kind 0"),
        (frame(Kind.RUN), "no frame of kind 1"),
        (bytes([Kind.OUTPUT]) + b"\xff\xff\xff\xff", "4294967295 bytes, more than 1048576"),
    ],
)
def test_a_header_says_too_much_before_anything_is_held(data: bytes, problem: str) -> None:
    with pytest.raises(ProtocolError, match=problem):
        list(FrameReader(FROM_SUPERVISOR).feed(data))


def test_a_frame_may_be_as_long_as_its_kind_allows_and_no_longer() -> None:
    longest = bytes(FROM_SUPERVISOR[Kind.CANCEL])
    assert list(FrameReader(FROM_SUPERVISOR).feed(frame(Kind.CANCEL, longest))) == [(Kind.CANCEL, longest)]
    with pytest.raises(ProtocolError, match="1025 bytes, more than 1024"):
        list(FrameReader(FROM_SUPERVISOR).feed(frame(Kind.CANCEL, longest, b"x")))


@pytest.mark.parametrize(
    "file", [ROOT / "protocol.py", *sorted((ROOT / "runner").rglob("*.py"))], ids=lambda file: file.name
)
def test_what_runs_inside_is_for_python_3_10(file: Path) -> None:
    ast.parse(file.read_text(), feature_version=(3, 10))
