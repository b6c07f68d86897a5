"""Leases: who may go on with a run, and what becomes of somebody else who still does."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from batch.batches import coder, doubling, numbers, results
from support.openai_server import AnyReply, ScriptedServer

from codeact_team.batch.batch import run_batch
from codeact_team.batch.leases import HeldLease, Lease, LeasedRun, LeaseFiles
from codeact_team.batch.throttle import Report
from codeact_team.errors import JournalError
from codeact_team.journal.log import Log, read_log


class NoDriver:
    """Nobody asks a driver whose files can be read."""

    async def admit(self, job: str) -> str | None:
        raise AssertionError

    async def holds(self, job: str, lease: str) -> bool:
        raise AssertionError

    def report(self, job: str, report: Report) -> None:
        raise AssertionError


def leased(top: Path, lease: Lease) -> tuple[HeldLease, LeasedRun]:
    held = HeldLease(lease, LeaseFiles(top), NoDriver(), lambda: None)
    return held, LeasedRun(top / "runs" / lease.job, held)


def test_a_new_lease_has_a_higher_number_and_ends_the_one_before(tmp_path: Path) -> None:
    leases = LeaseFiles(tmp_path)
    first = leases.grant("a")
    # another driver
    second = LeaseFiles(tmp_path).grant("a")
    assert (first.number, first.takes_over, second.number, second.takes_over) == (1, False, 2, True)
    assert (leases.is_newest(first), leases.is_newest(second)) == (False, True)
    leases.give_back(second)
    assert not leases.is_newest(second)
    assert not leases.grant("a").takes_over


def test_a_directory_of_the_same_name_is_not_taken_for_that_of_the_driver(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    token = LeaseFiles(tmp_path / "out").begin()
    assert LeaseFiles(tmp_path / "out").is_seen(token)
    assert not LeaseFiles(tmp_path / "other").is_seen(token)


async def test_what_the_holder_before_still_writes_is_in_no_journal(tmp_path: Path) -> None:
    leases = LeaseFiles(tmp_path)
    _, old = leased(tmp_path, leases.grant("a"))
    old.path.mkdir(parents=True)
    (old.path / "run.json").write_text("{}")
    with closing(Log(old.lines)) as before:
        before.append({"n": 1})
        held, run = leased(tmp_path, leases.grant("a"))
        await held.enter(run)
        # as somebody who was stopped in the middle does
        before.append({"n": 2, "by": "the one before"})
        with closing(Log(run.lines)) as now:
            now.append({"n": 2, "by": "the newest"})
        before.append({"n": 3})
    with pytest.raises(JournalError, match="another worker"):
        Log(old.lines)
    assert [entry.get("by") for entry in read_log(run.lines)] == [None, "the newest"]
    assert {each.name for each in run.path.iterdir()} == {"run.json", "journal.jsonl"}


async def test_a_run_that_was_given_to_somebody_else_does_nothing_more(tmp_path: Path) -> None:
    """Nor is what came of it a result: another driver has begun, whom the lock of the first has not kept away."""
    asked = 0

    def model(body: Any) -> AnyReply:
        nonlocal asked
        asked += 1
        if asked == 1:
            LeaseFiles(tmp_path).grant("n1")
        return doubling(body)

    async with ScriptedServer(model) as server:
        with pytest.raises(JournalError, match="another process works on the batch"):
            await run_batch(coder(server.base_url), numbers(1), out=tmp_path, workers=1)
        assert asked == 1
        assert results(tmp_path) == []
        # whoever begins now goes on
        batch = await run_batch(coder(server.base_url), numbers(1), out=tmp_path, workers=1)
    assert (batch.outcomes, batch.wrong) == ({"answered": 1}, 0)
    assert not (tmp_path / "leases" / "n1").exists()
