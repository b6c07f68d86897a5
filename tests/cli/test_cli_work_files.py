"""Files in and files out, from the command line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.command_line import codeact_team, lines
from support.openai_server import ScriptedServer, Text
from support.wheels import make_wheel, use_index

ALONE = "config.code_executor={provider: codeact_team.ConfinedSessionCodeExecutor, config: {confinement: best_effort}}"
CODE = r"""```python
import csv
print([row['region'] for row in csv.DictReader(open('sales.csv'))], open('notes/a.txt').read())
open('chart\n\x1b[31m.svg', 'w').write('<svg/>')
```"""


@pytest.mark.parametrize("as_json", [False, pytest.param(True, marks=pytest.mark.long)])
def test_data_goes_in_and_files_come_out(tmp_path: Path, as_json: bool) -> None:
    (tmp_path / "sales.csv").write_text("region,total\nEast,3\n")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("mind the gap")
    both = ("--data", "sales.csv", "--data", "notes/", "--out", "result", "-o", "result/answer.txt")
    options = ["--json"] if as_json else []
    with ScriptedServer.in_thread([Text(CODE), Text("East grew most.")]) as server:
        keys = {"OPENAI_API_KEY": "a-key", "OPENAI_BASE_URL": server.base_url}
        told = codeact_team("run", "codeact", "Which?", "-s", ALONE, *both, *options, cwd=tmp_path, **keys)
        assert server.unused == ()
    assert told.returncode == 0, told.stderr
    name = "chart␤␛[31m.svg"
    assert sorted(os.listdir(tmp_path / "result")) == ["answer.txt", name]
    if not as_json:
        assert "['East'] mind the gap\n" in told.stdout
        end = "\n   made result/chart␤␛[31m.svg · 6 bytes\n\n── answer\nEast grew most.\n"
        assert told.stdout.endswith(end)
        return
    files = lines(told.stdout)[-1]["files"]
    found: dict[str, object] = {
        "path": name,
        "size": 6,
        "change": "made",
        "found_at": f"result/{name}",
        "problem": "",
    }
    found["is_copy"] = True
    assert len(files[0].pop("sha256")) == 64
    assert files == [found]


def test_what_cannot_be_given_or_taken_is_told_before_a_model_is_paid(tmp_path: Path) -> None:
    with ScriptedServer.in_thread([]) as server:
        keys = {"OPENAI_API_KEY": "a-key", "OPENAI_BASE_URL": server.base_url}
        for options, said in {
            ("--data", "salse.csv"): f"error: data: there is no salse.csv (looked for in {tmp_path})\n",
            (
                "--out",
                "/proc/x",
            ): "error: the directory /proc/x for files cannot be made: /proc cannot hold directories; ",
        }.items():
            result = codeact_team("run", "codeact", "A", "-s", ALONE, *options, cwd=tmp_path, **keys)
            assert (result.returncode, said in result.stderr) == (2, True), result.stderr
        assert server.requests == []
    assert os.listdir(tmp_path) == []


@pytest.mark.long
def test_a_copy_of_a_file_that_was_there_before_is_no_change_of_the_result(tmp_path: Path) -> None:
    (tmp_path / "coding").mkdir()
    (tmp_path / "coding" / "report.txt").write_text("old")
    code = Text("```python\nopen('report.txt', 'a').write('!')\nopen('chart.svg', 'w').write('-')\n```")
    work_dir = "config.code_executor.config.work_dir=coding"
    with ScriptedServer.in_thread([code, Text("Done."), code, Text("Done.")]) as server:
        keys = {"OPENAI_API_KEY": "a-key", "OPENAI_BASE_URL": server.base_url}
        command = ("run", "codeact", "Add.", "-s", ALONE, "-s", work_dir)
        inside = codeact_team(*command, cwd=tmp_path, **keys)
        outside = codeact_team(*command, "--out", "result", cwd=tmp_path, **keys)
        replayed = codeact_team("replay", "last", cwd=tmp_path, **keys)
    assert "\n   changed coding/report.txt · 4 bytes\n" in inside.stdout, inside.stderr
    assert "\n   copied result/report.txt · 5 bytes\n" in outside.stdout
    # what a replay makes is gone at its end
    assert "── as recorded · " in replayed.stdout, replayed.stderr
    assert "workspace-0/" not in replayed.stdout + replayed.stderr


@pytest.mark.long
def test_packages_are_added_for_one_run_and_readers_by_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = use_index(tmp_path, monkeypatch)
    for name in ("shapes", "colours", "pyarrow"):
        make_wheel(index, name)
    work = tmp_path / "work"
    work.mkdir()
    (work / "a.parquet").write_text("1")
    code = "```python\nimport shapes, colours, pyarrow\nprint(shapes.version, colours.version)\n```"
    alone = ALONE.replace("best_effort", "best_effort, packages: [shapes]")
    options = ["--package", "colours", "--data", "a.parquet", "-s", alone]
    with ScriptedServer.in_thread([Text(code), Text("Done.")]) as server:
        keys = {
            "OPENAI_API_KEY": "a-key",
            "OPENAI_BASE_URL": server.base_url,
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
        }
        result = codeact_team("run", "codeact", "A", *options, cwd=work, **keys)
        nowhere = codeact_team("run", "codeact", "A", "--package", "nowhere", "-s", alone, cwd=work, **keys)
        assert len(server.requests) == 2
    assert result.returncode == 0, result.stderr
    assert "\n1.0 1.0\n" in result.stdout
    assert result.stderr.count("to read the data: pyarrow (for a.parquet)\n") == 1
    assert nowhere.returncode == 2
    assert "error: the packages shapes, nowhere cannot be installed for " in nowhere.stderr
