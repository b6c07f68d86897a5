"""Runs of stories that are killed, and resumed, and have to end as one that was left alone."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Timer
from typing import Any

from stories import GIVEN_UP, Story
from support import fork_server
from support.command_line import environment
from support.openai_server import ScriptedServer

from codeact_team.journal.log import read_log
from codeact_team.journal.recorded_run import RecordedRun
from codeact_team.journal.run_directory import RunDirectory, find_run, runs_in

PROGRAM = Path(__file__).with_name("killed_run.py")
CALLS = ("tool_call", "part_call")
DELIVERED = ("-o", "answer.txt", "--out", "out")
STOPPED = (-signal.SIGKILL, 128 + signal.SIGINT, 128 + signal.SIGTERM, -signal.SIGINT, -signal.SIGTERM)
"""How it ends then; by the signal itself where it has not come to handling it."""
WAYS = {"kill": signal.SIGKILL, "interrupt": signal.SIGINT, "terminate": signal.SIGTERM, "timeout": None}
"""How a run can be stopped after so many milliseconds: by a signal, or as its time is over then."""
ALLOWED = ("-q", "--allow", "killed_run", "--allow-unsafe")


def launched(folder: Path, server: ScriptedServer, nth: int, how: str, *arguments: str) -> fork_server.Forked:
    """The command at work: see ``killed_run.py``."""
    # temporary workspaces are in the test's own directory
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    variables = environment(
        OPENAI_API_KEY="sk-of-the-test-0123456789",
        OPENAI_BASE_URL=server.base_url,
        PYTHONPATH=str(PROGRAM.parent),
        TMPDIR=str(temporary),
    )
    program = [str(PROGRAM), str(nth), how, *arguments]
    return fork_server.start(program, cwd=folder, environment=variables, stdin=subprocess.DEVNULL)


def run(folder: Path, server: ScriptedServer, nth: int, how: str, *arguments: str) -> tuple[int, str, str]:
    """Run the command, and stop it with the ``nth`` entry, 0 for none; or after so many milliseconds, as :data:`WAYS` say."""
    by_time = how in WAYS
    limit = ["--timeout", str(nth / 1000)] if how == "timeout" else []
    with launched(folder, server, 0 if by_time else nth, how, *arguments, *limit) as process:
        killer = Timer(nth / 1000, partial(process.send_signal, WAYS.get(how) or signal.SIGKILL))
        if by_time and not limit:
            killer.start()
        stdout, stderr = process.communicate(timeout=100)
        killer.cancel()
        return process.wait(100), stdout.decode(), stderr.decode()


def prepare(folder: Path, story: Story) -> None:
    (folder / "config.json").write_text(json.dumps(story.config))
    (folder / "work").mkdir(exist_ok=True)


def start(
    folder: Path, server: ScriptedServer, story: Story, nth: int, how: str = "after", *arguments: str
) -> tuple[int, str, str]:
    prepare(folder, story)
    return run(folder, server, nth, how, "run", "config.json", "Go.", *ALLOWED, *arguments)


def resume(
    folder: Path, server: ScriptedServer, nth: int = 0, how: str = "after", *arguments: str
) -> tuple[int, str, str]:
    return run(folder, server, nth, how, "resume", "last", *ALLOWED, *arguments)


def is_kept(folder: Path) -> bool:
    """Whether the run was killed when there was something to go on with."""
    return any(runs_in(folder / ".codeact-team" / "runs"))


def last_run(folder: Path) -> RunDirectory:
    return find_run("last", folder / ".codeact-team" / "runs")


def told_as_unknown(folder: Path) -> int:
    """How many calls of tools were answered by that nobody knows what became of them."""
    return sum(
        re.search(r"it is unknown what became of this call|whether it was done is not known", dumped)
        is not None
        for dumped in map(json.dumps, _outcomes_of_calls(folder))
    )


def _outcomes_of_calls(folder: Path) -> Iterator[Any]:
    for each in RecordedRun(last_run(folder)).effects():
        if each.kind in CALLS and not each.is_repeated:
            yield each.outcome


def begun_and_ended(entries: Sequence[dict[str, Any]], kind: str) -> tuple[int, int]:
    """Which entries, counted from 1, are the begin and the end of the first effect of a kind."""
    begun = next(n for n, entry in enumerate(entries, 1) if entry.get("begin") == kind)
    span = entries[begun - 1]["span"]
    return begun, next(n for n, entry in enumerate(entries, 1) if "end" in entry and entry["span"] == span)


def ends_of_blocks(entries: Sequence[dict[str, Any]]) -> list[int]:
    """Which entries, counted from 1, are the ends of blocks."""
    return [n for n, entry in enumerate(entries, 1) if "ran" in entry]


def under_way(folder: Path) -> int:
    """How many calls of tools have no end in the journal. One that waits for its approval is not made yet."""
    asked: set[int] = set()
    waiting: dict[int, int] = {}
    first: dict[int, int] = {}
    for entry in read_log(last_run(folder).lines):
        if "begin" in entry and "again" in entry:
            first[entry["span"]] = entry["again"]
        elif entry.get("begin") in CALLS:
            asked.add(entry["span"])
        elif entry.get("begin") == "approval" and "within" in entry:
            waiting[entry["span"]] = entry["within"]
        elif "end" in entry and not entry.get("cancelled"):
            span: int = entry["span"]
            ended = first.get(span, span)
            asked.discard(ended)
            waiting.pop(ended, None)
    return len(asked - {*waiting.values()})


def check(folder: Path, story: Story, code: int, stdout: str, stderr: str, *, unknown: int = 0) -> None:
    """See that a story came to its end, or that it was given up as the outcomes of ``unknown`` calls are not known."""
    assert told_as_unknown(folder) == unknown, stderr
    kept = folder / "effects.txt"
    effects = Counter(kept.read_text().split() if kept.exists() else [])
    # what is given up before any code has run is not accepted
    assert code == 0 or (code == 1 and unknown), stderr
    if unknown:
        assert GIVEN_UP in stdout
        # not repeated
        assert effects <= Counter(story.effects)
        return
    assert stdout.strip() == story.answer, stderr
    assert effects == Counter(story.effects)
    for path, text in story.files.items():
        assert (folder / path).read_text() == text
    if story.delivered is not None:
        assert (delivered(folder, story), (folder / "answer.txt").read_text()) == (story.delivered, stdout), (
            stderr
        )


def delivered(folder: Path, story: Story) -> dict[str, bytes]:
    """The files that the person has got, without the content of those that the model writes anew each time."""
    out = folder / "out"
    files = {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    return files | dict.fromkeys(files.keys() & story.new_each_time, b"")


def alone(folder: Path, server: ScriptedServer, story: Story) -> tuple[Story, int]:
    """Run a story without killing it.

    Returns:
        The story, with the answer that it came to if it had none, and what it has delivered; and the number of its entries
        before that of its result.
    """
    folder.mkdir()
    code, stdout, stderr = start(folder, server, story, 0, "after", *DELIVERED)
    story = replace(story, answer=story.answer or stdout.strip())
    check(folder, story, code, stdout, stderr)
    story = replace(story, delivered=delivered(folder, story))
    return story, int(re.findall(r"(\d+) entries", stderr)[-1]) - 1


def kill_and_resume(folder: Path, server: ScriptedServer, story: Story, *kills: tuple[int, str]) -> int:
    """Kill a story with an entry of its journal, and while it goes on again; at last it has to come to its end.

    Returns:
        How often it was killed when there was something to go on with, and more to do.
    """
    folder.mkdir()
    unknown = times = 0
    for nth, how in [*kills, (0, "after")]:
        is_unknown = is_kept(folder) and not story.repeats
        unknown = told_as_unknown(folder) + under_way(folder) if is_unknown else 0
        go_on = partial(resume, folder, server) if is_kept(folder) else partial(start, folder, server, story)
        code, stdout, stderr = go_on(nth, how, *DELIVERED)
        if code == -signal.SIGTERM and stdout:
            # it had done all, and nothing waits for signals any more
            code = 0
        is_stopped = code in STOPPED or (how == "timeout" and code == 1)
        if not is_stopped:
            # the last one, or it was quicker, or had not so many entries left to write
            check(folder, story, code, stdout, stderr, unknown=unknown)
            break
        times += is_kept(folder)
    return times
