"""Large values are kept once, beside the lines that hold them."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from codeact_team.errors import JournalError
from codeact_team.journal.blobs import Blobs

KEYS = st.text() | st.sampled_from(["$blob", "$$blob", "$", "size"])
JSON = st.recursive(
    st.none() | st.integers() | st.text() | st.just("x" * 2000),
    lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner),
    max_leaves=10,
)


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path / "blobs")


def files(directory: Path) -> list[Path]:
    return [path for path in (directory / "blobs").rglob("*") if path.is_file()]


@given(value=JSON)
def test_what_is_packed_is_small_and_comes_back(
    tmp_path_factory: pytest.TempPathFactory, value: JsonValue
) -> None:
    blobs = Blobs(tmp_path_factory.getbasetemp() / "blobs")
    packed = blobs.pack(value)
    assert len(json.dumps(packed, ensure_ascii=False, separators=(",", ":"))) <= 1024
    assert blobs.unpack(json.loads(json.dumps(packed))) == value


def test_a_conversation_that_grows_keeps_each_message_once(blobs: Blobs, tmp_path: Path) -> None:
    messages: list[JsonValue] = [{"content": str(number) * 3000, "source": "ann"} for number in range(20)]
    for length in range(1, 21):
        blobs.pack({"messages": messages[:length]})
    stored = sum(path.stat().st_size for path in files(tmp_path))
    assert stored < 20 * 3200 + 20 * 20 * 150


@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_bytes_in_base64_are_kept_as_bytes(
    encode: Callable[[bytes], bytes], blobs: Blobs, tmp_path: Path
) -> None:
    picture = bytes(range(256)) * 8
    text = encode(picture).decode()
    packed = blobs.pack({"mime_type": "image/png", "data": text})
    assert [file.read_bytes() for file in files(tmp_path)] == [picture]
    assert blobs.read(sha256(picture).hexdigest()) == picture
    assert blobs.unpack(packed) == {"mime_type": "image/png", "data": text}


def test_a_blob_that_is_missing_or_changed_is_named(blobs: Blobs, tmp_path: Path) -> None:
    packed = blobs.pack("x" * 2000)
    [file] = files(tmp_path)
    file.write_bytes(b'"y"')
    with pytest.raises(JournalError, match="its digest differs"):
        Blobs(tmp_path / "blobs").unpack(packed)
    file.unlink()
    with pytest.raises(JournalError, match=str(file)):
        Blobs(tmp_path / "blobs").unpack(packed)
    with pytest.raises(JournalError, match="not a digest"):
        blobs.read("../../../../../../etc/passwd" + "x" * 36)


def test_bytes_that_hold_what_must_not_be_written_stay_in_base64(tmp_path: Path) -> None:
    secret = b'{"key": "of \\"mine\\""}'
    text = base64.b64encode(secret * 100).decode()
    packed = Blobs(tmp_path / "blobs", is_hidden=lambda data: secret in data).pack(text)
    assert [secret in file.read_bytes() for file in files(tmp_path)] == [False]
    assert Blobs(tmp_path / "blobs").unpack(packed) == text


def test_a_value_that_a_few_blobs_make_huge_is_refused(blobs: Blobs) -> None:
    named: JsonValue = blobs.pack(["x" * 2000])
    for _ in range(40):
        data = json.dumps([named, named]).encode()
        named = {"$blob": blobs.keep(data), "size": len(data)}
    with pytest.raises(JournalError, match="too large to be read"):
        blobs.unpack(named)


def test_nothing_is_kept_behind_a_link(tmp_path: Path) -> None:
    # a run directory may come from a stranger
    data = b"kept"
    digest = sha256(data).hexdigest()
    (tmp_path / "victim").mkdir()
    (tmp_path / "blobs").symlink_to("victim")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / digest[:2]).symlink_to("../victim")
    for directory in ("blobs", "more"):
        with pytest.raises(JournalError, match="is a link to"):
            Blobs(tmp_path / directory).keep(data)
    assert list((tmp_path / "victim").iterdir()) == []
