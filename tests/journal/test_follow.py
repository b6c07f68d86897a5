"""Following a run that goes on: what is written is told when it is, and that its writer is gone."""

from __future__ import annotations

import errno
import subprocess
from contextlib import aclosing
from pathlib import Path

import pytest
from support.recorded import recorder
from watchdog.observers.api import BaseObserver

from codeact_team.core.effects import Event
from codeact_team.core.events import Decision
from codeact_team.errors import JournalError
from codeact_team.journal.log import LogReader, encode
from codeact_team.journal.recorded_run import RecordedRun


def said(text: str) -> Event:
    return Decision(agent="coder", retry=True, reason=text)


def started_with(path: Path) -> subprocess.Popen[bytes]:
    """A process that has a file open as this one has it, and with it the lock on it."""
    here = Path("/proc/self/fd")
    [descriptor] = [link.name for link in here.iterdir() if link.exists() and link.samefile(path)]
    return subprocess.Popen(["sleep", "infinity"], pass_fds=[int(descriptor)])


async def test_what_is_written_is_told_when_it_is_until_its_writer_closes_it(tmp_path: Path):
    writer = recorder(tmp_path, "run", said("first"))
    async with aclosing(RecordedRun(writer.directory).follow()) as events:
        assert await anext(events) == said("first")
        # nothing is there yet when it is waited for
        for text in ("second", "third"):
            writer(said(text))
            assert await anext(events) == said(text)
        writer(said("last"))
        writer.close()
        assert [event async for event in events] == [said("last")]


async def test_a_writer_that_is_killed_ends_it(tmp_path: Path):
    writer = recorder(tmp_path, "run", said("first"))
    holder = started_with(writer.directory.lines)
    writer.close()
    run = RecordedRun(writer.directory)
    try:
        assert run.is_running
        async with aclosing(run.follow()) as events:
            assert await anext(events) == said("first")
            holder.kill()
            assert [event async for event in events] == []
    finally:
        holder.kill()
        holder.wait()


async def test_a_run_that_has_ended_is_told_whole(tmp_path: Path):
    writer = recorder(tmp_path, "run", said("first"), said("last"))
    writer.close()
    assert [event async for event in RecordedRun(writer.directory).follow()] == [
        said("first"),
        said("last"),
    ]


def test_a_line_that_is_not_whole_yet_is_read_later(tmp_path: Path):
    writer = recorder(tmp_path, "run", said("first"))
    lines = writer.directory.lines
    with LogReader(lines) as log, open(lines, "ab", buffering=0) as file:
        [first] = log.new()
        whole = encode({"n": 2})
        file.write(whole[:5])
        assert list(log.new()) == []
        file.write(whole[5:])
        assert first["reason"] == "first"
        assert list(log.new()) == [{"n": 2}]
    writer.close()


async def test_a_journal_that_is_damaged_is_told_up_to_there(tmp_path: Path):
    writer = recorder(tmp_path, "run", said("first"))
    writer.directory.lines.write_bytes(writer.directory.lines.read_bytes() + b"damaged\n")
    events = RecordedRun(writer.directory).follow()
    assert await anext(events) == said("first")
    with pytest.raises(JournalError, match=r"journal\.jsonl:2: the journal is damaged here"):
        await anext(events)
    writer.close()


async def test_where_nothing_can_be_watched_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        # as the kernel does, whose limit is that of all programs of a user
        raise OSError(errno.EMFILE, "inotify instance limit reached")

    monkeypatch.setattr(BaseObserver, "start", refuse)
    writer = recorder(tmp_path, "run", said("first"))
    with pytest.raises(
        JournalError, match=r"limit reached; raise fs.inotify.max_user_instances by sysctl, or look"
    ):
        _ = [event async for event in RecordedRun(writer.directory).follow()]
    writer.close()


def test_events_before_the_run_was_resumed_are_not_even_read(tmp_path: Path) -> None:
    writer = recorder(tmp_path, "run", said("first"))
    writer.write(resumed={})
    writer(said('{"at":1,"resumed":'))
    writer.write(resumed={})
    for text in ("second", "third"):
        writer(said(text))
    writer.close()
    lines = writer.directory.lines.read_bytes().replace(b"first", b"damag")
    writer.directory.lines.write_bytes(lines.replace(b"third", b"damag"))
    events = RecordedRun(writer.directory).events()
    assert next(events) == said("second")
    with pytest.raises(JournalError, match=r"journal\.jsonl:6: the journal is damaged here"):
        next(events)
