"""Files in and files out, from the command line."""

from __future__ import annotations

import os
from pathlib import Path

from command_line import codeact_team, lines
from support.openai_server import ScriptedServer, Text

ALONE = "config.code_executor={provider: codeact_team.ConfinedSessionCodeExecutor, config: {confinement: best_effort}}"
CODE = r"""```python
import csv
print([row['region'] for row in csv.DictReader(open('sales.csv'))], open('notes/a.txt').read())
open('chart\n\x1b[31m.svg', 'w').write('<svg/>')
```"""


def test_data_goes_in_and_files_come_out(tmp_path: Path) -> None:
    (tmp_path / "sales.csv").write_text("region,total\nEast,3\n")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("mind the gap")
    both = ("--data", "sales.csv", "--data", "notes/", "--out", "result", "-o", "result/answer.txt")
    replies = [Text(CODE), Text("East grew most.")]
    with ScriptedServer.in_thread([*replies, *replies]) as server:
        keys = {"OPENAI_API_KEY": "a-key", "OPENAI_BASE_URL": server.base_url}
        shown, told = (
            codeact_team("run", "codeact", "Which?", "-s", ALONE, *both, *options, cwd=tmp_path, **keys)
            for options in ([], ["--json"])
        )
        assert server.unused == ()
    assert shown.returncode == 0, shown.stderr
    assert "['East'] mind the gap\n" in shown.stdout
    end = "\n   made result/chart␤␛[31m.svg · 6 bytes\n\n── answer · as shown above\n"
    assert shown.stdout.count("East grew most.") == 1
    assert shown.stdout.endswith(end)
    files = lines(told.stdout)[-1]["files"]
    name = "chart␤␛[31m.svg"
    found = {"path": name, "size": 6, "change": "made", "found_at": f"result/{name}", "problem": ""}
    assert len(files[0].pop("sha256")) == 64
    assert files == [found]
    assert sorted(os.listdir(tmp_path / "result")) == ["answer.txt", name]


def test_what_cannot_be_given_or_taken_is_told_before_a_model_is_paid(tmp_path: Path) -> None:
    with ScriptedServer.in_thread([]) as server:
        keys = {"OPENAI_API_KEY": "a-key", "OPENAI_BASE_URL": server.base_url}
        for options, said in {
            ("--data", "salse.csv"): f"error: data: there is no salse.csv (looked for in {tmp_path})\n",
            (
                "--out",
                "no/such",
            ): "error: the directory no/such for files cannot be made: there is no directory no; ",
        }.items():
            result = codeact_team("run", "codeact", "A", "-s", ALONE, *options, cwd=tmp_path, **keys)
            assert (result.returncode, said in result.stderr) == (2, True), result.stderr
        assert server.requests == []
    assert os.listdir(tmp_path) == []
