"""Runs of format 3 that another version has recorded are listed, shown and replayed; what is not known of them is shown as such."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.command_line import in_this_process, lines
from support.recorded import recorder, result
from support.variations import mostly_long

from codeact_team.journal.log import encode, read_log
from codeact_team.journal.run_directory import About, RunDirectory
from codeact_team.journal.seal import user_key
from codeact_team.runs.replaying import replay_run

FORMAT_3 = Path(__file__).with_name("format-3")
"""A run as the first version with this format has recorded it. It is never recorded anew."""
WEATHER = {"rain": 1}

Entries = list[dict[str, Any]]


def with_unknown_kinds(entries: Entries) -> Entries:
    at = entries[5]["at"]
    asked = {"agent": "coder", "place": "config.mind", "key": "abc", "request": {"to": "you"}}
    others: Entries = [
        {"at": at, "begin": "telepathy", "span": 9001, "parent": 1, **asked},
        {"at": at, "end": "telepathy", "span": 9001, "outcome": {"heard": True}},
        {"at": at, "type": "comet_seen", "parent": None, "tail": 3},
        {"at": at, "weather": WEATHER},
    ]
    return [*entries[:6], *others, *entries[6:]]


def with_unknown_fields(entries: Entries) -> Entries:
    for entry in entries:
        entry["mood"] = "fine"
        if "begin" in entry:
            entry["facts"] = {**entry.get("facts", {}), "tide": "low"}
        if isinstance(entry.get("outcome"), dict):
            entry["outcome"]["usage_of_the_moon"] = 1
    return entries


KINDS = [
    'telepathy {"to": "you"} · done',
    "of another version: comet_seen {",
    "of another version: weather {",
]
FIELDS = [
    'of another version: run_began {"mood": "fine"}',
    'of another version: model_call {"mood": "fine", "tide": "low"}',
    'of another version: result {"mood": "fine"}',
    'of another version: files {"mood": "fine"}',
]


@pytest.fixture(params=mostly_long(["fields", "kinds", "as it was"]))
def told(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """What ``show`` says of what is not known in the run ``runs/it``, in which there is something of that sort, or nothing."""
    run = tmp_path / "runs" / "it"
    shutil.copytree(FORMAT_3, run)
    changes: dict[str, tuple[Callable[[Entries], Entries], list[str]]] = {
        "as it was": (lambda entries: entries, []),
        "kinds": (with_unknown_kinds, KINDS),
        "fields": (with_unknown_fields, FIELDS),
    }
    change, said = changes[request.param]
    journal = run / "journal.jsonl"
    entries = [
        {name: value for name, value in each.items() if name not in ("mac", "crc")}
        for each in read_log(journal)
    ]
    journal.write_bytes(b"".join(map(encode, change(entries))))
    return said


def test_it_is_listed_and_shown(told: list[str], tmp_path: Path):
    runs = ("--run-dir", str(tmp_path / "runs"))
    [listed] = lines(in_this_process("runs", "--json", *runs).stdout)
    assert (listed["state"], listed["problem"], listed["steps"]) == ("answered", None, 4)
    shown = in_this_process("show", "it", *runs)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "── answered · 10 messages" in shown.stdout
    for text in told:
        assert shown.stdout.count(text) == 1, shown.stdout
    assert ("of another version" in shown.stdout) == bool(told)


def test_programs_and_browsers_get_it_whole(told: list[str], tmp_path: Path):
    runs = ("--run-dir", str(tmp_path / "runs"))
    events = in_this_process("show", "it", "--json", *runs)
    assert events.returncode == 0, events.stderr
    others = [event for event in lines(events.stdout) if event["type"] == "other_event"]
    assert bool(others) == bool(told)
    assert [event["data"] for event in others if event["name"] == "weather"] in ([], [{"weather": WEATHER}])
    assert lines(events.stdout)[-1]["type"] == "result"
    page = in_this_process("show", "it", "--html", str(tmp_path / "page.html"), *runs)
    assert page.returncode == 0, page.stderr
    assert ("comet_seen" in (tmp_path / "page.html").read_text()) == (told == KINDS)


async def test_it_is_replayed(told: list[str], tmp_path: Path):
    found = await replay_run(tmp_path / "runs" / "it", trusted=True)
    if sys.version_info[:2] == (3, 11):
        assert (found.difference, found.is_whole, found.blocks) == (None, True, 4)
    else:
        # the traceback of its second block is one of 3.11
        assert "Traceback" in (found.difference or "")
        assert found.blocks == 1


def test_a_description_with_unknown_fields_is_still_its_users(tmp_path: Path):
    made = recorder(tmp_path, "it", result())
    made.close()
    about = json.loads((tmp_path / "it" / "run.json").read_text())
    later = About.model_validate({**about, "colour": "red"}).sealed(user_key())
    (tmp_path / "it" / "run.json").write_text(later.model_dump_json())
    assert RunDirectory(tmp_path / "it").chain() is not None
    (tmp_path / "it" / "run.json").write_text(later.model_dump_json().replace("red", "blue"))
    assert RunDirectory(tmp_path / "it").chain() is None
