from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from codeact_team.executors.running import BoundedOutput


async def written(pieces: list[bytes], limit: int) -> BoundedOutput:
    output = BoundedOutput(limit=limit)
    for piece in pieces:
        await output.write(piece)
    return output


class Listened:
    """An output, with what it passes on."""

    def __init__(self) -> None:
        self.output = BoundedOutput(self._take)
        self.heard = ""

    async def _take(self, text: str) -> None:
        assert text
        self.heard += text


@given(st.lists(st.binary(max_size=30)), st.integers(2, 100))
async def test_beginning_and_end_are_kept_exactly(pieces: list[bytes], limit: int) -> None:
    output = await written(pieces, limit)
    data, half = b"".join(pieces), limit // 2
    assert output.omitted_bytes == max(0, len(data) - 2 * half)
    if not output.omitted_bytes:
        assert output.text() == data.decode(errors="replace")
        return
    cut = f"\n[... {output.omitted_bytes} bytes of output omitted ...]\n"
    assert output.text() == data[:half].decode(errors="replace") + cut + data[-half:].decode(errors="replace")


@given(st.lists(st.binary(max_size=30)), st.integers(1, 50))
async def test_end_is_the_end(pieces: list[bytes], size: int) -> None:
    output = await written(pieces, 100)
    assert output.end(size) == b"".join(pieces)[-size:].decode(errors="replace")


@given(st.text(), st.lists(st.integers(0, 100), max_size=8))
async def test_text_that_is_cut_anywhere_is_passed_on_whole(text: str, cuts: list[int]) -> None:
    data = text.encode(errors="replace")
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    listened = Listened()
    for a, b in pairwise(places):
        await listened.output.write(data[a:b])
    await listened.output.finish()
    assert listened.heard == listened.output.text() == data.decode()


@given(st.lists(st.binary(max_size=12)))
async def test_what_is_passed_on_and_what_is_kept_agree_on_what_is_no_text(pieces: list[bytes]) -> None:
    listened = Listened()
    for piece in pieces:
        await listened.output.write(piece)
    await listened.output.finish()
    assert listened.heard == listened.output.text()


async def test_memory_is_bounded() -> None:
    output = await written([b"x" * 999] * 10_000, 1000)
    assert output.omitted_bytes == 9_990_000 - 1000
    assert len(output.text()) < 1100


async def test_a_remark_is_on_a_line_of_its_own() -> None:
    for before, after in ((b"", "note"), (b"x", "x\nnote"), (b"x\n", "x\nnote")):
        output = await written([before], 100)
        await output.remark("note")
        assert output.text() == after
