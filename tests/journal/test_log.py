"""A log outlives its process at any moment, and says where it is damaged."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.executing import wait_until

from codeact_team.errors import JournalError
from codeact_team.journal.log import Log, decode, encode, read_backwards, read_log

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
ENTRIES = st.dictionaries(st.text(min_size=1), JSON, min_size=1)


@pytest.mark.long
@given(ENTRIES)
def test_what_is_written_is_read_and_each_line_is_json(entry: dict[str, object]) -> None:
    line = encode(entry)  # pyright: ignore[reportArgumentType]
    assert line.count(b"\n") == 1
    assert decode(line) == json.loads(json.dumps(entry))
    assert {**json.loads(line), "crc": None} == {**json.loads(json.dumps(entry)), "crc": None}


@given(ENTRIES, st.data())
def test_a_line_that_is_cut_or_changed_is_not_taken_for_whole(
    entry: dict[str, object], data: st.DataObject
) -> None:
    line = encode(entry)  # pyright: ignore[reportArgumentType]
    assert decode(line[: data.draw(st.integers(0, len(line) - 1))]) is None
    place = data.draw(st.integers(0, len(line) - 1))
    changed = bytearray(line)
    changed[place] ^= 1 << data.draw(st.integers(0, 7))
    assert decode(bytes(changed)) is None


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def write(path: Path, *numbers: int) -> None:
    with closing(Log(path)) as log:
        for number in numbers:
            log.append({"n": number})


def numbers_in(path: Path) -> list[int]:
    return [entry["n"] for entry in read_log(path)]


@given(st.lists(st.dictionaries(st.text(), st.text() | st.integers()), max_size=6), st.data())
def test_wherever_a_log_is_cut_off_the_entries_before_are_there_and_it_goes_on(
    entries: list[dict[str, object]], data: st.DataObject
) -> None:
    whole = [encode({"n": 1, **entry}) for entry in entries]  # pyright: ignore[reportArgumentType]
    cut = data.draw(st.integers(0, len(b"".join(whole))))
    ends = [len(b"".join(whole[: number + 1])) for number in range(len(whole))]
    expected = [json.loads(json.dumps({"n": 1, **entry})) for entry in entries][
        : sum(end <= cut for end in ends)
    ]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "journal.jsonl"
        path.write_bytes(b"".join(whole)[:cut])
        assert list(read_log(path)) == expected
        assert next(read_backwards(path), None) == (expected[-1] if expected else None)
        write(path, 7)
        assert list(read_log(path)) == [*expected, {"n": 7}]


@pytest.mark.parametrize("text", ["é" * 40_000, "x"])
def test_a_torn_end_is_left_out_and_dropped_wherever_it_is_torn(path: Path, text: str) -> None:
    write(path, 1, 2)
    whole = path.read_bytes()
    line = encode({"n": 3, "text": text})
    for length in {0, 1, len(line) // 2, len(line) - 1}:
        path.write_bytes(whole + line[:length])
        assert numbers_in(path) == [1, 2]
        write(path, 4)
        assert path.read_bytes() == whole + encode({"n": 4})


def test_a_log_whose_first_line_is_torn_begins_anew(path: Path) -> None:
    path.write_bytes(encode({"n": 1})[:-3])
    write(path, 2)
    assert numbers_in(path) == [2]


def test_a_damaged_line_is_named_and_what_is_before_it_is_read(path: Path) -> None:
    write(path, 1, 2, 3)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1].replace(b"2", b"5", 1) + lines[2])
    read = read_log(path)
    assert next(read)["n"] == 1
    with pytest.raises(JournalError, match=r"journal\.jsonl:2: the journal is damaged here"):
        next(read)


def test_a_log_that_is_damaged_at_its_end_or_is_none_is_not_gone_on_with(path: Path) -> None:
    for text in (encode({"n": 1}).replace(b"1", b"2", 1), b"Dear diary,\nnothing happened.\n"):
        path.write_bytes(text)
        with pytest.raises(JournalError, match="damaged at its end"):
            Log(path)
        assert path.read_bytes() == text


def test_one_process_at_a_time_writes_and_others_read_meanwhile(path: Path) -> None:
    with closing(Log(path)) as log:
        log.append({"n": 1})
        assert numbers_in(path) == [1]
        with pytest.raises(JournalError, match="another process is writing the journal"):
            Log(path)
    write(path, 2)


def test_a_full_disk_is_told_and_leaves_no_part_of_a_line(path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with closing(Log(path)) as log:
        log.append({"n": 1})
        ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, before[1]))
        try:
            with pytest.raises(JournalError, match=r"cannot be written: .*can be resumed"):
                log.append({"n": 2, "text": "x" * 100})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, ignored)
        log.append({"n": 3})
    assert numbers_in(path) == [1, 3]


def test_what_cannot_be_opened_is_told(path: Path, tmp_path: Path) -> None:
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(JournalError, match="cannot be opened"):
        Log(path)
    with pytest.raises(JournalError, match="cannot be read"):
        list(read_log(tmp_path / "nowhere"))


WRITER = """
import sys
from functools import partial
from pathlib import Path
from codeact_team.journal.log import Log
log, number = Log(Path(sys.argv[1])), 0
while True:
    number += 1
    log.append({"n": number, "text": "x" * (number % 5000)})
"""


def is_longer(path: Path, size: int) -> bool:
    return path.exists() and path.stat().st_size > size


@pytest.mark.long
def test_what_a_process_wrote_is_there_whenever_it_is_killed(path: Path) -> None:
    for enough in (100_000, 234_567, 512_345):
        path.unlink(missing_ok=True)
        with subprocess.Popen([sys.executable, "-c", WRITER, path]) as process:
            wait_until(partial(is_longer, path, enough), seconds=60)
            process.kill()
        write(path, 0)
        *numbers, last = numbers_in(path)
        assert numbers == list(range(1, len(numbers) + 1))
        assert (len(numbers) > 10, last) == (True, 0)
