"""``validate``, ``schema`` and ``init``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from support.command_line import in_this_process, lines
from support.variations import mostly_long

from codeact_team.config.document import read_document


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


CONFIGS = Path(__file__).parents[2] / "configs"


def test_validate_lists_every_problem_of_every_config(tmp_path: Path):
    broken = (CONFIGS / "quickstart.yaml").read_text()
    broken = broken.replace("max_messages: 10", "max_mesages: 10").replace("timeout: 30", "timeout: soon")
    (tmp_path / "broken.yaml").write_text(broken)
    result = in_this_process("validate", "quickstart", "broken.yaml", "nowhere.yaml")
    assert result.returncode == 2
    good, bad, *problems = result.stdout.splitlines()
    assert (good, bad, problems[0]) == ("✓ quickstart", "✗ broken.yaml", "3 problems in broken.yaml:")
    assert re.match(r"  broken.yaml:\d+: config\.participants\.0\..*\.timeout: .*soon", problems[1])
    assert any("did you mean 'max_messages'?" in problem for problem in problems[2:4])
    assert problems[4:] == ["✗ nowhere.yaml", "nowhere.yaml: there is no such file"]
    assert result.stderr == ""


def test_validate_for_programs(tmp_path: Path):
    result = in_this_process("validate", "quickstart", "nowhere.yaml", "--json")
    assert result.returncode == 2
    assert lines(result.stdout) == [
        {"config": "quickstart", "valid": True, "problems": []},
        {
            "config": "nowhere.yaml",
            "valid": False,
            "problems": [
                {
                    "file": "nowhere.yaml",
                    "line": None,
                    "path": None,
                    "text": "nowhere.yaml: there is no such file",
                }
            ],
        },
    ]


def test_validate_for_programs_tells_each_problem_with_its_place(tmp_path: Path):
    file = tmp_path / "broken.yaml"
    file.write_text("provider: codeact_team.ReflectionTermination\nconfig:\n  sauce: x\n  source: [1]\n")
    result = in_this_process("validate", str(file), "--json")
    (line,) = lines(result.stdout)
    places = [(problem["line"], problem["path"]) for problem in line["problems"]]
    assert places == [(3, "config.sauce"), (4, "config.source")]


def test_validate_takes_what_run_takes(tmp_path: Path):
    file = tmp_path / "tool.json"
    file.write_text(json.dumps({"provider": "codeact_team.ReflectionTermination", "config": {}}))
    override = "provider=autogen_ext.code_executors.local.LocalCommandLineCodeExecutor"
    refused = in_this_process("validate", "tool.json", "-s", override)
    assert refused.returncode == 2
    assert "pass --allow-unsafe" in refused.stdout
    assert in_this_process("validate", "tool.json", "-s", override, "--allow-unsafe").returncode == 0


def test_the_schema_is_printed_or_written_and_takes_the_starter(tmp_path: Path):
    printed = in_this_process("schema")
    assert printed.returncode == 0
    written = in_this_process("schema", "-o", "schema.json")
    assert "# yaml-language-server: $schema=schema.json" in written.stdout
    assert json.loads((tmp_path / "schema.json").read_text()) == json.loads(printed.stdout)
    validator: Any = Draft202012Validator(json.loads(printed.stdout))
    validator.validate(read_document(CONFIGS / "team.yaml").data)


def test_a_markdown_file_gets_a_page_for_people(tmp_path: Path):
    result = in_this_process("schema", "-o", "settings.md")
    assert (result.returncode, result.stdout) == (0, "wrote settings.md\n")
    assert "\n## codeact_team.CodeActAgent\n" in (tmp_path / "settings.md").read_text()


def test_init_writes_a_commented_starter_and_spares_what_is_there(tmp_path: Path):
    assert in_this_process("init").returncode == 0
    assert (tmp_path / "team.yaml").read_text() == (CONFIGS / "team.yaml").read_text()
    again = in_this_process("init", "team.yaml", "--template", "quickstart")
    assert again.returncode == 2
    assert again.stderr == "error: team.yaml exists already; --force overwrites it\n"
    assert (tmp_path / "team.yaml").read_text() == (CONFIGS / "team.yaml").read_text()
    forced = in_this_process("init", "team.yaml", "--template", "quickstart", "--force")
    assert forced.returncode == 0
    assert (tmp_path / "team.yaml").read_text() == (CONFIGS / "quickstart.yaml").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    mostly_long(
        [
            (["--template", "teem"], "error: there is no template 'teem'; did you mean 'team'?\n"),
            (
                ["nowhere/team.yaml"],
                "error: the config cannot be written to nowhere/team.yaml: No such file or directory\n",
            ),
            ([".", "--force"], "error: the config cannot be written to .: it is not a file\n"),
        ]
    ),
)
def test_init_says_what_it_cannot_do(tmp_path: Path, arguments: list[str], said: str):
    result = in_this_process("init", *arguments)
    assert (result.returncode, result.stdout, result.stderr) == (2, "", said)
    assert list(tmp_path.iterdir()) == []
