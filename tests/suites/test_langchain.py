"""LangChain's tests of a sandbox pass in both of ours, and deep agents work there."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from suites.environments import (
    EXAMPLES,
    ROOT,
    Outcome,
    file_of_guide,
    run_program,
    run_suite,
    suite_environment,
    type_check,
)
from support.openai_server import AnyReply, Text, ToolCalls

SUITE = Path(__file__).with_name("langchain_suite.py")
CHECKS = Path(__file__).with_name("deepagents_checks.py")
ADAPTERS = ROOT / "codeact_team" / "adapters"
EXAMPLE = EXAMPLES / "deep_agent.py"

pytestmark = [pytest.mark.suites, pytest.mark.timeout(900)]
in_both = pytest.mark.parametrize("where", [pytest.param("docker", marks=pytest.mark.docker), "confined"])


def _python() -> Path:
    return suite_environment("langchain", "codeact-team[deepagents]", "langchain-tests", "langchain-openai")


def _outcomes(where: str, directory: Path) -> Mapping[str, Outcome]:
    directory.mkdir()
    shutil.copy(SUITE, directory)
    options = ("-o", "asyncio_mode=auto", "-W", "ignore::pytest.PytestRemovedIn10Warning")
    return run_suite(_python(), *options, SUITE.name, cwd=directory, environment={"WHERE": where})


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Outcome]:
    """The outcomes with processes of this machine: the newest releases of the suite and of deepagents do not agree in all."""
    return _outcomes("plain", tmp_path_factory.mktemp("langchain") / "plain")


@in_both
def test_the_suite_passes_as_far_as_with_plain_processes(
    where: str, plain: Mapping[str, Outcome], tmp_path: Path
) -> None:
    passed = {name for name, outcome in plain.items() if outcome.status == "passed"}
    assert len(passed) >= 79
    ours = _outcomes(where, tmp_path / where)
    failed = [f"{name}: {ours[name].details}" for name in passed if ours[name].status != "passed"]
    assert not failed, "\n\n".join(failed)


_GROWTH = """python3 -c '
import csv
sales = {(row["region"], row["year"]): float(row["revenue"]) for row in csv.DictReader(open("sales.csv"))}
for region, year in sales:
    if year == "2025":
        print(region, format(sales[region, "2025"] / sales[region, "2024"] - 1, ".1%"))
'
"""


def _analyst(body: Any) -> AnyReply:
    """Computes with the shell, writes what it has seen to a file, and answers."""
    found = re.search(r"Your files are in (\S+), and", str(body["messages"]))
    assert found is not None
    match [message["content"] for message in body["messages"] if message["role"] == "tool"]:
        case []:
            return ToolCalls([("execute", {"command": _GROWTH})])
        case [growth]:
            arguments = {"file_path": f"{found[1]}/report.md", "content": f"# Growth\n{growth}"}
            return ToolCalls([("write_file", arguments)])
        case _:
            return Text("East grew most.")


@in_both
def test_a_deep_agent_works_in_the_sandbox(where: str, tmp_path: Path) -> None:
    output = run_program(_python(), EXAMPLE, where, replies=_analyst, cwd=tmp_path)
    assert "# Growth\nNorth 5.3%\nEast 27.3%\nSouth -2.6%\nWest 11.7%\n" in output
    assert output.endswith("\nEast grew most.\n")


@pytest.mark.docker
def test_the_program_of_the_guide_works(tmp_path: Path) -> None:
    (program := tmp_path / "report.py").write_text(file_of_guide("report.py"))
    shutil.copy(EXAMPLES / "sales.csv", tmp_path)
    replies = [
        ToolCalls([("execute", {"command": "tail -n +2 sales.csv | wc -l >report.md"})]),
        Text("It has 8."),
    ]
    assert run_program(_python(), program, replies=replies, cwd=tmp_path) == "It has 8.\n8\n\n"


@in_both
def test_the_adapter_keeps_its_promises(where: str, tmp_path: Path) -> None:
    shutil.copy(CHECKS, tmp_path)
    outcomes = run_suite(_python(), CHECKS.name, cwd=tmp_path, environment={"WHERE": where})
    assert {name: each for name, each in outcomes.items() if each.status != "passed"} == {}


def test_types() -> None:
    type_check(_python(), SUITE, CHECKS, ADAPTERS / "deepagents.py", EXAMPLE)
