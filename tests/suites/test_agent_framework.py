"""Agents of Microsoft's Agent Framework work in both sandboxes, with the newest release of the framework."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from suites.environments import (
    EXAMPLES,
    ROOT,
    assert_passed,
    run_program,
    run_suite,
    suite_environment,
    type_check,
)
from support.openai_server import Text, ToolCalls

AGENTS = Path(__file__).with_name("agent_framework_agents.py")
ADAPTERS = ROOT / "codeact_team" / "adapters"
EXAMPLE = EXAMPLES / "framework_agent.py"

pytestmark = [pytest.mark.suites, pytest.mark.timeout(900)]
in_both = pytest.mark.parametrize("where", [pytest.param("docker", marks=pytest.mark.docker), "confined"])


def _python() -> Path:
    return suite_environment(
        "agent-framework",
        "codeact-team[agent-framework]",
        "agent-framework-openai",
        "aiohttp",
        "pytest-asyncio",
    )


@in_both
def test_agents_work_in_the_sandbox(where: str, tmp_path: Path) -> None:
    shutil.copy(AGENTS, tmp_path)
    variables = {"WHERE": where, "PYTHONPATH": f"{tmp_path}:{ROOT / 'tests'}"}
    options = ("-o", "asyncio_mode=auto", AGENTS.name)
    assert_passed(run_suite(_python(), *options, cwd=tmp_path, environment=variables))


_REFUND = """
left = []
with open("output/refunds.csv", "w") as file:
    for order in tools.late_orders():
        try:
            print(tools.refund(order["number"], order["paid"]), file=file)
        except tools.ToolDenied as denial:
            left.append(order)
"""


@in_both
def test_the_example_remembers_what_was_denied(where: str, tmp_path: Path) -> None:
    replies = [
        ToolCalls([("execute_code", {"code": _REFUND})]),
        Text("All but one are paid back."),
        ToolCalls([("execute_code", {"code": "assert sum(order['paid'] for order in left) == 900"})]),
        Text("900 could not be paid back."),
    ]
    output = run_program(_python(), EXAMPLE, where, replies=replies, cwd=tmp_path)
    assert output == (
        "--- output/refunds.csv\n17: paid back 40.0\n19: paid back 25.0\n\n"
        "All but one are paid back.\n900 could not be paid back.\n"
    )


def test_types() -> None:
    files = [ADAPTERS / "agent_framework.py", ADAPTERS / "agent_framework_bridge.py", AGENTS, EXAMPLE]
    type_check(_python(), *files)
