"""The command line of Deep Agents Code finds our sandboxes, and works in them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from suites.environments import ROOT, run_program, suite_environment, type_check
from support.openai_server import AnyReply, Text, ToolCalls

ADAPTER = ROOT / "codeact_team" / "adapters" / "deepagents_code.py"
# what AutoGen and LangGraph's server declare excludes each other; both work with these
OVERRIDES = ("protobuf>=6.33.5,<7", "jsonschema-rs>=0.54")

pytestmark = [pytest.mark.suites, pytest.mark.timeout(900)]


def _python() -> Path:
    requirements = ("codeact-team[deepagents]", "deepagents-code")
    return suite_environment("deepagents-code", *requirements, python="3.12", overrides=OVERRIDES)


def _coder(body: Any) -> AnyReply:
    """Runs a command, and says what it has printed, and in which directory it is to work."""
    if printed := [message["content"] for message in body["messages"] if message["role"] == "tool"]:
        directory = re.search(r"remote Linux sandbox\*\* at `(.+?)`", str(body["messages"]))
        return Text(f"{printed[0].split()[:2]} in {directory and directory[1]}")
    return ToolCalls([("execute", {"command": "echo $((6 * 7)) >answer.txt; cat answer.txt; pwd"})])


@pytest.mark.parametrize("where", [pytest.param("docker", marks=pytest.mark.docker), "confined"])
def test_its_command_works_in_the_sandbox(where: str, tmp_path: Path) -> None:
    python = _python()
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
    answer = re.search(r"\['42', '(/.+)'\] in (/.+)", output)
    assert answer is not None, output
    assert answer[1] == answer[2]


def test_types() -> None:
    type_check(_python(), ADAPTER)
