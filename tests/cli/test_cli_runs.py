"""``codeact-team runs``: what is kept, and how it goes away."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from support.command_line import in_this_process, lines
from support.recorded import recorder, result
from support.thoughts import thought

from codeact_team.journal.recorder import Recorder
from codeact_team.journal.result import Cost, RunEnding

DAY = 24 * 60 * 60
THOUGHT = thought("Well.")
ALL = ["7-damaged", "6-running", "5-crashed", "4-stopped", "3-failed", "2-rejected", "1-accepted"]


@pytest.fixture
def kept(tmp_path: Path) -> Generator[Recorder]:
    """One run of each kind in ``runs``, each a day older than the next; returns what writes the one that goes on."""
    runs = tmp_path / "runs"
    hostile = "Count\x1b[2J the\nthings"
    cost = Cost(0.0123, "USD", ["other"])
    recorder(runs, "1-accepted", THOUGHT, result(cost=cost, answer="x" * 5000), task=hostile).close()
    recorder(
        runs, "2-rejected", result(RunEnding.NOT_ACCEPTED, steps=1, objection="the last code failed")
    ).close()
    recorder(runs, "3-failed", result(RunEnding.FAILED, messages=0)).close()
    recorder(runs, "4-stopped", result(RunEnding.STOPPED)).close()
    recorder(runs, "5-crashed", THOUGHT).close()
    running = recorder(runs, "6-running", THOUGHT)
    recorder(runs, "7-damaged", result()).close()
    with open(runs / "7-damaged" / "journal.jsonl", "ab") as file:
        file.write(b"damaged\n")
    for days, name in enumerate(ALL):
        when = time.time() - days * DAY
        os.utime(runs / name / "journal.jsonl", (when, when))
    yield running
    running.close()


def listed(folder: Path, *arguments: str) -> list[str]:
    told = in_this_process("runs", "--run-dir", str(folder / "runs"), *arguments, "--json")
    assert told.returncode == 0, told.stderr
    return [run["id"] for run in lines(told.stdout)]


def test_runs_are_listed_with_what_became_of_them(tmp_path: Path, kept: Recorder):
    told = in_this_process("runs", "--run-dir", str(tmp_path / "runs"))
    assert told.returncode == 0, told.stderr
    shown = [" ".join(line.split()) for line in told.stdout.splitlines()]
    assert shown[0].startswith("7-damaged damaged the journal ")
    assert shown[1].startswith("6-running running ")
    assert shown[2:] == [
        "5-crashed crashed Look.",
        "4-stopped stopped 2 steps 1,234 tokens 2.5 s Look.",
        "3-failed failed 2 steps 1,234 tokens 2.5 s Look.",
        "2-rejected not accepted 1 step 1,234 tokens 2.5 s Look. · the last code failed",
        "1-accepted accepted 2 steps 1,234 tokens at least 0.0123 USD (no price for other) 2.5 s Count␛[2J the things",
    ]


def test_programs_get_a_line_of_json_for_each_run(tmp_path: Path, kept: Recorder):
    told = in_this_process("runs", "--run-dir", str(tmp_path / "runs"), "--json")
    runs = {run["id"]: run for run in lines(told.stdout)}
    assert list(runs) == ALL
    accepted = runs["1-accepted"]
    assert accepted.pop("began") > 0
    assert accepted == {
        "id": "1-accepted",
        "path": str(tmp_path / "runs" / "1-accepted"),
        "state": "accepted",
        "task": "Count\x1b[2J the\nthings",
        "config": "team.yaml",
        "seconds": 2.5,
        "steps": 2,
        "messages": 3,
        "usage": {"prompt_tokens": 1200, "completion_tokens": 34},
        "is_estimated": False,
        "cost": {
            "amount": 0.0123,
            "currency": "USD",
            "unpriced": ["other"],
            "uncounted": 0,
            "is_estimated": False,
        },
        "exit_code": 0,
        "stop_reason": None,
        "objection": None,
        "problem": None,
    }
    assert (runs["5-crashed"]["state"], runs["5-crashed"]["usage"]) == ("crashed", None)


def test_runs_are_found_by_what_became_of_them_by_their_task_and_by_age(tmp_path: Path, kept: Recorder):
    assert listed(tmp_path, "--state", "crashed", "--state", "not-accepted") == ["5-crashed", "2-rejected"]
    assert listed(tmp_path, "--task", "the\nTHINGS") == ["1-accepted"]
    assert listed(tmp_path, "--older-than", "4.5") == ["2-rejected", "1-accepted"]
    assert listed(tmp_path, "--older-than", "2.5", "--state", "failed") == ["3-failed"]


def test_only_the_last_line_of_a_journal_is_read(tmp_path: Path):
    recorder(tmp_path / "runs", "run", THOUGHT, THOUGHT, result()).close()
    journal = tmp_path / "runs" / "run" / "journal.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b"Well", b"Ill."))
    assert listed(tmp_path, "--state", "accepted") == ["run"]


def test_pruning_removes_what_is_listed_and_nothing_that_goes_on(tmp_path: Path, kept: Recorder):
    runs = ("runs", "--run-dir", str(tmp_path / "runs"))
    told = in_this_process(*runs, "--older-than", "0.5", "--prune")
    assert told.returncode == 0, told.stderr
    assert told.stdout.count("  removed, ") == 5
    assert "  kept: it is running\n" in told.stdout
    assert sorted(os.listdir(tmp_path / "runs")) == [".gitignore", "6-running", "7-damaged"]
    kept(THOUGHT)
    kept.close()
    assert [
        run["removed"]
        for run in lines(in_this_process(*runs, "--older-than", "0", "--prune", "--json").stdout)
    ] == [True, True]
    assert os.listdir(tmp_path / "runs") == [".gitignore"]
    assert "there are no such runs" in in_this_process(*runs).stderr


def link_to_another(path: Path) -> None:
    path.symlink_to("run.json")


@pytest.mark.parametrize("make", [os.mkfifo, pytest.param(os.mkdir, marks=pytest.mark.long), link_to_another])
def test_what_cannot_be_a_journal_is_listed_as_damaged_and_removed(
    tmp_path: Path, kept: Recorder, make: Callable[[Path], object]
):
    odd = tmp_path / "runs" / "3-failed" / "journal.jsonl"
    odd.unlink()
    make(odd)
    assert listed(tmp_path, "--state", "damaged") == ["7-damaged", "3-failed"]
    assert listed(tmp_path, "--state", "damaged", "--prune") == ["7-damaged", "3-failed"]
    assert listed(tmp_path) == ["6-running", "5-crashed", "4-stopped", "2-rejected", "1-accepted"]


def test_pruning_by_size_keeps_the_last_runs_that_fit(tmp_path: Path, kept: Recorder):
    large = tmp_path / "runs" / "4-stopped" / "blobs" / "aa" / "b"
    large.parent.mkdir(parents=True)
    large.write_bytes(bytes(2_000_000))
    assert listed(tmp_path, "--beyond", "2MB") == ALL[3:]
    assert listed(tmp_path, "--beyond", "2.1MB") == []
    assert listed(tmp_path, "--beyond", "2MB", "--state", "accepted", "--prune") == ["1-accepted"]
    assert listed(tmp_path) == ALL[:-1]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["--state", "happy"],
            "no run can be 'happy': --state knows running, accepted, answered, not-accepted, ",
        ),
        (["--beyond", "much"], "'much' is not a size: write it as 500MB or 2GB"),
        (["--prune"], "--prune removes the runs that are listed: say which, such as by --older-than 30 or "),
    ],
)
def test_what_cannot_be_meant_is_said(tmp_path: Path, kept: Recorder, arguments: list[str], told: str):
    result = in_this_process("runs", "--run-dir", str(tmp_path / "runs"), *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert told in result.stderr
    assert len(os.listdir(tmp_path / "runs")) == 8


@pytest.mark.skipif(os.geteuid() != 0, reason="as root, to be two users")
@pytest.mark.parametrize("command", [["runs"], ["show", "last"], ["show", "runs/1"]])
def test_runs_of_another_user_are_said_to_be_theirs_with_what_to_do(
    command: list[str], enterable: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(enterable)
    monkeypatch.setenv("CODEACT_TEAM_RUN_DIR", "runs")
    os.mkdir("runs", 0o700)
    os.seteuid(65534)
    try:
        result = in_this_process(*command)
    finally:
        os.seteuid(0)
    assert result.returncode == 2
    assert re.search(r"^error: \S*runs belongs to root, and only its owner can use it\. Keep", result.stderr)
    assert "by --run-dir or CODEACT_TEAM_RUN_DIR, or keep none by --no-record" in result.stderr
