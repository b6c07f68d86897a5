"""``codeact-team run`` keeps what has happened."""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
from pathlib import Path

import pytest
from support.command_line import (
    ACCEPT,
    CODE,
    CONFINED,
    codeact_team,
    local_model,
    run_code,
    run_team,
    set_all,
    talker,
)
from support.openai_server import HttpError, Json, ScriptedServer, Text

from codeact_team.core.events import ModelCallEnded, RunBegan
from codeact_team.journal.recorded_run import RecordedRun
from codeact_team.journal.result import RunEnding, RunResult
from codeact_team.journal.run_directory import RunDirectory

KEY = "sk-a-key-that-nobody-may-see-0123456789"


def recorded(folder: Path) -> RecordedRun:
    [run] = [path for path in folder.iterdir() if (path / "run.json").exists()]
    return RecordedRun(RunDirectory(run))


@pytest.mark.long
def test_a_run_is_kept_below_the_working_directory_with_all_that_happened(tmp_path: Path) -> None:
    with ScriptedServer.in_thread([Text(CODE), Json(ACCEPT)]) as server:
        result = run_team(server.base_url, "Multiply.", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    run = recorded(tmp_path / ".codeact-team" / "runs")
    assert (run.about.task, run.about.working_directory) == ("Multiply.", str(tmp_path))
    assert not run.is_running
    events = list(run.events())
    # what a team needs starts before it works
    begin = [event.type for event in events if not event.type.startswith("sandbox_")]
    assert begin[:2] == ["opened", "run_began"]
    assert [event.record for event in events if isinstance(event, RunBegan)] == [
        f".codeact-team/runs/{run.about.id}"
    ]
    assert sum(isinstance(event, ModelCallEnded) for event in events) == 2
    last = run.result()
    assert isinstance(last, RunResult)
    assert last.ending is RunEnding.ACCEPTED
    effects = [effect for effect in run.effects() if effect.kind != "time_reading"]
    assert [effect.kind for effect in effects] == ["description", "model_call", "block", "model_call"]
    assert "the answer is 42" in json.dumps(effects[2].outcome)
    assert all(effect.ended is not None and effect.error is None for effect in effects)


def test_nobody_else_can_read_it_and_git_does_not_see_it(tmp_path: Path) -> None:
    codeact_team("run", talker(tmp_path, ["Hello."]), "Greet.", cwd=tmp_path)
    runs = tmp_path / ".codeact-team" / "runs"
    run = recorded(runs).directory.path
    assert {stat.S_IMODE(os.stat(path).st_mode) for path in (runs, run)} == {0o700}
    assert {stat.S_IMODE(os.stat(path).st_mode) for path in run.iterdir() if path.is_file()} == {0o600}
    assert (runs / ".gitignore").read_text() == "*\n"


def test_no_credential_is_kept(tmp_path: Path) -> None:
    code = f"import base64; print({KEY!r}, base64.b64encode({KEY!r}.encode()))"
    assert run_code(code, cwd=tmp_path, OPENAI_API_KEY=KEY).returncode == 0
    runs = tmp_path / ".codeact-team" / "runs"
    kept = [path for path in runs.rglob("*") if path.is_file()]
    assert len(kept) > 3
    assert [path for path in kept if KEY[3:20].encode() in path.read_bytes()] == []
    assert "OPENAI_API_KEY#" in recorded(runs).directory.lines.read_text()


def test_a_run_may_be_kept_elsewhere_or_not_at_all(tmp_path: Path) -> None:
    config = talker(tmp_path, ["Hello.", "Hello."])
    codeact_team("run", config, "Greet.", "--run-dir", "kept", cwd=tmp_path)
    assert recorded(tmp_path / "kept").about.task == "Greet."
    codeact_team("run", config, "Greet.", "--no-record", cwd=tmp_path)
    assert not (tmp_path / ".codeact-team").exists()


def test_a_file_with_a_credential_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / ".env").write_bytes(b"\xff OPENAI_API_KEY=" + KEY.encode())
    assert run_code("print(6 * 7)", cwd=tmp_path, work_dir="work", OPENAI_API_KEY=KEY).returncode == 0
    runs = tmp_path / ".codeact-team" / "runs"
    assert '".env"' in recorded(runs).directory.lines.read_text()
    assert [path for path in runs.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()] == []


@pytest.mark.long
def test_a_run_that_a_limit_has_ended_says_how_it_goes_on_and_that_is_so(tmp_path: Path) -> None:
    most = "config.termination_condition.config.conditions.1.config.max_messages"
    with ScriptedServer.in_thread([Text(CODE), Json(ACCEPT)]) as server:
        variables = local_model(server.base_url)
        ran = codeact_team(
            *("run", "local-model", "Multiply.", *set_all([CONFINED, f"{most}=2"])), cwd=tmp_path, **variables
        )
        shown = codeact_team("show", "last", cwd=tmp_path)
        [advice] = re.findall("^to go on with a higher limit: codeact-team (.*)$", ran.stderr, re.MULTILINE)
        assert (ran.returncode, advice in shown.stderr) == (1, True)
        assert advice.endswith(f" -s {most}=4")
        resumed = codeact_team(*shlex.split(advice), cwd=tmp_path, **variables)
        replayed = codeact_team("replay", "last", "-q", cwd=tmp_path, **variables)
    assert (resumed.returncode, len(server.requests)) == (0, 2), resumed.stderr
    assert "to go on" not in resumed.stderr
    assert replayed.returncode == 0, "it has the limit with which the run came to its end"


def test_a_run_that_has_failed_says_how_it_goes_on_to_people_only(tmp_path: Path) -> None:
    with ScriptedServer.in_thread(lambda _: HttpError(503)) as server:
        told = [
            codeact_team(
                "run", talker(tmp_path), "Greet.", *more, cwd=tmp_path, **local_model(server.base_url)
            ).stderr
            for more in ([], ["-q"], ["--json"], ["--no-record"])
        ]
    assert [("to go on: codeact-team resume .codeact-team/runs/" in each) for each in told] == [
        *(True, False, False, False)
    ]
