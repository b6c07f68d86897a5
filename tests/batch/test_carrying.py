"""Files of a run that are carried between machines: all of them arrive, and no name leads anywhere else."""

from __future__ import annotations

import base64
import io
import os
import tarfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from codeact_team.batch import carrying
from codeact_team.batch.carrying import Arrivals, packed
from codeact_team.errors import JournalError


def made(top: Path, *, name: str = "data") -> Path:
    for part, content in (("runs", b"{}\n"), ("files", os.urandom(200_000))):
        folder = top / part / "job" / "deep"
        folder.mkdir(parents=True)
        (folder / name).write_bytes(content)
    return top


def contents(top: Path) -> dict[str, bytes]:
    return {str(path.relative_to(top)): path.read_bytes() for path in top.rglob("*") if path.is_file()}


def carry(source: Path, goal: Path) -> None:
    arrivals = Arrivals(goal)
    receive(arrivals, packed(source, "job"))
    arrivals.settle("job")


def receive(arrivals: Arrivals, chunks: Iterable[str]) -> None:
    for chunk in chunks:
        arrivals.add("job", chunk)


def test_what_is_carried_replaces_what_was_there(tmp_path: Path) -> None:
    # a name that is no UTF-8
    source = made(tmp_path / "source", name=os.fsdecode(b"\xff\n'"))
    goal = made(tmp_path / "goal")
    (source / "files" / "job" / "link").symlink_to("/etc/passwd")
    carry(source, goal)
    (source / "files" / "job" / "link").unlink()
    assert contents(goal) == contents(source)
    assert {each.name for each in goal.iterdir()} == {"runs", "files"}


def test_what_does_not_arrive_whole_changes_nothing(tmp_path: Path) -> None:
    source, goal = made(tmp_path / "source"), made(tmp_path / "goal")
    before, arrivals = contents(goal), Arrivals(goal)
    first, *_ = packed(source, "job")
    arrivals.add("job", first)
    arrivals.discard()
    assert contents(goal) == before
    # nor does one that was cut off, where nothing tells that
    arrivals.add("job", first)
    with pytest.raises(JournalError, match="cannot be stored"):
        arrivals.settle("job")
    assert {name: content for name, content in contents(goal).items() if "arriving" not in name} == before


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("../../escaped", tarfile.REGTYPE),
        ("files/../../../escaped", tarfile.REGTYPE),
        ("/escaped", tarfile.REGTYPE),
        ("files/link", tarfile.SYMTYPE),
        ("files/link", tarfile.LNKTYPE),
        ("files/device", tarfile.CHRTYPE),
        ("files/pipe", tarfile.FIFOTYPE),
        ("archive", tarfile.REGTYPE),
    ],
)
def test_no_name_leads_out_and_nothing_but_files_is_unpacked(tmp_path: Path, name: str, kind: bytes) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, "/etc/passwd"
        tar.addfile(member)
    goal = tmp_path / "a" / "goal"
    for part in ("runs", "files"):
        (goal / part).mkdir(parents=True)
    arrivals = Arrivals(goal)
    arrivals.add("job", base64.b64encode(archive.getvalue()).decode())
    with pytest.raises(JournalError, match="cannot be stored"):
        arrivals.settle("job")
    assert not list(tmp_path.rglob("escaped")) + list(Path("/").glob("escaped"))
    assert contents(goal / "files") == contents(goal / "runs") == {}


def test_what_is_too_large_is_neither_sent_nor_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, chunks = made(tmp_path / "source"), list[str]()
    chunks += packed(source, "job")
    monkeypatch.setattr(carrying, "MAX_CARRIED", 100_000)
    with pytest.raises(JournalError, match="larger"):
        list(packed(source, "job"))
    arrivals = Arrivals(tmp_path / "goal")
    with pytest.raises(JournalError, match="larger than the"):
        receive(arrivals, chunks)
    arrivals.discard()
    assert not list((tmp_path / "goal").rglob("archive"))
