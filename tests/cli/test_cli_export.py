"""``codeact-team export``, with a log that Inspect itself reads, and ``runs --path``."""

from __future__ import annotations

import base64
import json
import os
import sys
import zipfile
from pathlib import Path
from urllib.parse import quote

import pytest
from support.command_line import codeact_team, in_this_process, talker
from support.recorded import recorder

from codeact_team.core.events import RunBegan


def ran(folder: Path, *answers: str) -> list[str]:
    """Run an agent that says these things, each in a run of its own; their ids."""
    for answer in answers:
        codeact_team("run", talker(folder, [answer]), "A task", cwd=folder)
    return sorted(path.name for path in (folder / ".codeact-team" / "runs").iterdir() if path.is_dir())


@pytest.mark.long
def test_runs_become_a_log_that_inspect_reads(tmp_path: Path):
    from inspect_ai.log import read_eval_log

    first, second = ran(tmp_path, "One.", "Two.")
    result = codeact_team("export", first, second, first, f"logs/{first}.eval", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (0, f"logs/{first}.eval\n"), result.stderr
    assert "inspect view --log-dir logs" in result.stderr
    samples = read_eval_log(str(tmp_path / "logs" / f"{first}.eval")).samples or ()
    assert [sample.id for sample in samples] == [first, second]
    # both may have begun in one second
    assert {sample.messages[-1].text for sample in samples} == {"One.", "Two."}


@pytest.mark.long
def test_no_credential_is_in_a_log_however_it_is_spelled(tmp_path: Path):
    from inspect_ai.log import read_eval_log

    key = 's3cr3t/"k&ey-0123456789é'
    spelled = [
        key,
        json.dumps(key)[1:-1],
        json.dumps(key, ensure_ascii=False)[1:-1],
        json.dumps(json.dumps(key))[1:-1],
        quote(key, safe=""),
        base64.b64encode(key.encode()).decode(),
    ]
    name = talker(tmp_path, [" ".join(spelled)])
    codeact_team("run", name, f"Say {' '.join(spelled)}", cwd=tmp_path, MY_API_KEY=key)
    for file in ("log.json", "log.eval"):
        assert codeact_team("export", "last", file, cwd=tmp_path, MY_API_KEY=key).returncode == 0
    text = json.dumps(read_eval_log(str(tmp_path / "log.eval")).model_dump(mode="json"), ensure_ascii=False)
    for log in (text, (tmp_path / "log.json").read_text()):
        assert "MY_API_KEY" in log
        # the end of what is in base64 depends on what comes after it
        assert not [each for each in spelled if each[:-4] in log or json.dumps(each)[1:-5] in log]


def test_several_runs_go_only_into_what_takes_several(tmp_path: Path):
    for name in ("1", "2"):
        recorder(tmp_path / "runs", name, RunBegan(span=1, task="Look.")).close()
    runs = ["--run-dir", str(tmp_path / "runs")]
    told = in_this_process("export", "1", "2", str(tmp_path / "both.zip"), *runs)
    assert told.returncode == 0, told.stderr
    with zipfile.ZipFile(tmp_path / "both.zip") as packed:
        assert {name.partition("/")[0] for name in packed.namelist()} == {"1", "2"}
    refused = in_this_process("export", "1", "2", str(tmp_path / "both.md"), *runs)
    assert (refused.returncode, "takes one run" in refused.stderr) == (2, True)


def test_a_script_gets_the_directory_of_a_run(tmp_path: Path):
    recorder(tmp_path / "runs", "1", RunBegan(span=1, task="Look.")).close()
    runs = ["--run-dir", str(tmp_path / "runs")]
    assert in_this_process("runs", "--path", "last", *runs).stdout == f"{tmp_path}/runs/1\n"
    missing = in_this_process("runs", "--path", "2", *runs)
    assert (missing.returncode, missing.stdout) == (2, "")
    both = in_this_process("runs", "--path", "last", "--prune", *runs)
    assert (both.returncode, "leave the other options out" in both.stderr) == (2, True)


@pytest.mark.long
def test_what_is_not_there_or_not_possible_is_named(tmp_path: Path):
    (name,) = ran(tmp_path, "One.")
    journal = tmp_path / ".codeact-team" / "runs" / name / "run.json"
    runs = ["--run-dir", str(journal.parents[1])]
    missing = in_this_process("export", "nobody", "x.zip", *runs)
    assert missing.returncode == 2
    assert "'nobody'" in missing.stderr
    wrong = in_this_process("export", name, "log.txt", *runs)
    assert wrong.returncode == 2
    assert (
        "log.txt is not a file that can be written: after the run, name a file that ends in .ipynb"
        in wrong.stderr
    )
    nameless = in_this_process("export", "x.zip", *runs)
    assert (nameless.returncode, "say which run to write to x.zip" in nameless.stderr) == (2, True)
    journal.write_text("{")
    damaged = in_this_process("export", name, str(tmp_path / "x.eval"), *runs)
    assert damaged.returncode == 2
    assert str(journal) in damaged.stderr.replace("\n", "")
    assert not (tmp_path / "x.eval").exists()


def test_the_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (name,) = ran(tmp_path, "One.")
    for module in [module for module in sys.modules if module.startswith("codeact_team.runs.inspect_")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "inspect_ai.log", None)
    monkeypatch.setitem(sys.modules, "inspect_ai.event", None)
    log = str(tmp_path / "logs" / "1.eval")
    result = in_this_process("export", name, log, "--run-dir", str(tmp_path / ".codeact-team" / "runs"))
    assert result.returncode == 2
    assert "`pip install '.[inspect]'` in a checkout" in result.stderr.replace("\n", " ")


@pytest.mark.long
def test_a_log_is_written_where_the_person_looks_whatever_a_foreign_run_says(tmp_path: Path):
    (name,) = ran(tmp_path, "One.")
    about = tmp_path / ".codeact-team" / "runs" / name / "run.json"
    victim = tmp_path / "victim.eval"
    victim.write_text("old")
    about.write_text(about.read_text().replace(f'"{name}"', '"../victim"'))
    (tmp_path / "logs").mkdir()
    result = codeact_team("export", str(about.parent), f"logs/{name}.eval", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (0, f"logs/{name}.eval\n"), result.stderr
    (tmp_path / "logs" / f"{name}.eval").unlink()
    (tmp_path / "logs" / f"{name}.eval").symlink_to(victim)
    result = codeact_team("export", str(about.parent), f"logs/{name}.eval", cwd=tmp_path)
    assert result.returncode == 2
    assert "it is a link" in result.stderr
    assert victim.read_text() == "old"
    assert os.listdir(tmp_path / "logs") == [f"{name}.eval"]
