"""The command line of Deep Agents Code finds our sandboxes, and works in them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from suites.environments import ROOT, file_of_guide, run_program, suite_environment, type_check
from support.openai_server import AnyReply, Text, ToolCalls

ADAPTER = ROOT / "codeact_team" / "adapters" / "deepagents_code.py"
SETTINGS = ".deepagents/config.toml"

pytestmark = [pytest.mark.suites, pytest.mark.timeout(900)]


def _python() -> Path:
    requirements = ("codeact-team[deepagents]", "deepagents-code")
    _, *overrides = file_of_guide("overrides.txt").splitlines()
    return suite_environment("deepagents-code", *requirements, python="3.12", overrides=overrides)


_EATS_MEMORY = "exec python3 -c 'b = bytes(1) * (1 << 34)'"


def _coder(body: Any) -> AnyReply:
    """Runs a command, and says what it has printed, and in which directory it is to work."""
    if printed := [message["content"] for message in body["messages"] if message["role"] == "tool"]:
        directory = re.search(r"remote Linux sandbox\*\* at `(.+?)`", str(body["messages"]))
        limit = re.search(r"memory_mib: \d+", printed[0])
        return Text(f"{printed[0].split()[:2]} in {directory and directory[1]}, {limit and limit[0]}")
    command = f"echo $((6 * 7)) >answer.txt; cat answer.txt; pwd; {_EATS_MEMORY}"
    return ToolCalls([("execute", {"command": command})])


@pytest.mark.parametrize("where", [pytest.param("docker", marks=pytest.mark.docker), "confined"])
def test_its_command_works_in_the_sandbox(where: str, tmp_path: Path) -> None:
    python = _python()
    (settings := tmp_path / SETTINGS).parent.mkdir()
    settings.write_text(file_of_guide(SETTINGS))
    output = run_program(
        python,
        python.with_name("dcode"),
        *(
            "--non-interactive",
            "What is 6 * 7?",
            "--sandbox",
            f"codeact-{where}",
            "--model",
            "openai:gpt-4.1",
        ),
        # the scripted server has no Responses API
        *("--model-params", '{"use_responses_api": false}'),
        replies=_coder,
        cwd=tmp_path,
        environment={"HOME": str(tmp_path), "COLUMNS": "200"},
    )
    answer = re.search(r"\['42', '(/.+)'\] in (/.+), memory_mib: (\d+)", output)
    assert answer is not None, output
    assert answer[1] == answer[2]
    # the settings in the guide are those of containers
    assert where == "confined" or answer[3] == "1024"


def test_types() -> None:
    type_check(_python(), ADAPTER)
