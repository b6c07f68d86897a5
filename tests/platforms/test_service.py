"""The unit for systemd: systemd knows all that it says, and its command does what it is for."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.command_line import codeact_team
from support.executing import why_not_confined

UNIT = Path(__file__).resolve().parents[2] / "examples/deployment/codeact-team.service"
PROGRAM, SETTINGS = "/opt/codeact-team/bin/codeact-team", "/etc/codeact-team"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="this machine has no systemd-analyze")
def test_systemd_knows_all_that_the_unit_says(tmp_path: Path) -> None:
    here = Path(sys.executable).with_name("codeact-team")
    (copy := tmp_path / UNIT.name).write_text(UNIT.read_text().replace(PROGRAM, str(here)))
    verified = subprocess.run(["systemd-analyze", "verify", copy], stderr=subprocess.PIPE, text=True)
    # the guide says that systemd knows this since 254
    said = [line for line in verified.stderr.splitlines() if "'DelegateSubgroup'" not in line]
    assert (verified.returncode, said) == (0, [])


@pytest.mark.long
@pytest.mark.skipif((why_not := why_not_confined()) is not None, reason=str(why_not))
def test_the_command_of_the_unit_works_on_the_tasks(tmp_path: Path) -> None:
    [command] = re.findall(r"^ExecStart=(.*)$", UNIT.read_text(), re.MULTILINE)
    program, *arguments = shlex.split(command.replace(SETTINGS, str(tmp_path)))
    assert program == PROGRAM
    codeact_team("init", "agent.yaml", "--template", "quickstart-codeact", cwd=tmp_path)
    (tmp_path / "tasks.jsonl").write_text('{"text": "What did the bakery sell?"}\n' * 2)
    ran = codeact_team(*arguments, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    results = (tmp_path / "result/results.jsonl").read_text().splitlines()
    assert [json.loads(line)["outcome"] for line in results] == ["answered", "answered"]
