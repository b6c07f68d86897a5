"""Inspect's own checks of a sandbox pass in both, and its tasks and tools work there, as its users install them."""

from __future__ import annotations

import os
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
    assert_passed,
    file_of_guide,
    run_program,
    run_suite,
    suite_environment,
)
from support.openai_server import AnyReply, Text, ToolCalls

EXAMPLE = EXAMPLES / "inspect_task.py"
REFUSED = {
    "inspect_self_check::test_exec_as_user": (
        "it adds a user, as root: root of a container has no capabilities, and /etc is read-only; a confined sandbox has one user"
    )
}

pytestmark = [pytest.mark.suites, pytest.mark.timeout(1800)]
in_both = pytest.mark.parametrize("where", [pytest.param("docker", marks=pytest.mark.docker), "confined"])


def _python() -> Path:
    return suite_environment("inspect", "codeact-team[inspect]", "pytest-asyncio")


def _outcomes(file: str, where: str, directory: Path) -> Mapping[str, Outcome]:
    shutil.copy(Path(__file__).with_name(file), directory)
    path = os.pathsep.join(map(str, (directory, ROOT / "tests")))
    variables = {"WHERE": where, "PYTHONPATH": path}
    return run_suite(_python(), "-o", "asyncio_mode=auto", file, cwd=directory, environment=variables)


@in_both
def test_the_self_checks_of_inspect_pass(where: str, tmp_path: Path) -> None:
    outcomes = _outcomes("inspect_self_check.py", where, tmp_path)
    assert_passed(outcomes, but=REFUSED)
    assert sum(each.status == "passed" for each in outcomes.values()) >= 43


@in_both
def test_tasks_and_tools_of_inspect_work(where: str, tmp_path: Path) -> None:
    assert_passed(_outcomes("inspect_tasks.py", where, tmp_path))


_READ = """
import csv
sales = {(row["region"], row["year"]): float(row["revenue"]) for row in csv.DictReader(open("sales.csv"))}
growth = {region: sales[region, "2025"] / sales[region, "2024"] for region, _ in sales}
growth
"""
_WRITE = """
with open("answer.py", "w") as file:
    print(f"growth = {growth}", file=file)
    print("print(WHICH(growth, key=growth.get))", file=file)
"""


def _analyst(body: Any) -> AnyReply:
    """Computes in the interpreter, writes a program by what it knows there, and tries it."""
    which = "min" if "has shrunk" in str(body["messages"]) else "max"
    match [message["content"] for message in body["messages"] if message["role"] == "tool"]:
        case []:
            return ToolCalls([("interpreter", {"code": _READ})])
        case [_]:
            return ToolCalls([("interpreter", {"code": _WRITE.replace("WHICH", which)})])
        case [_, _]:
            return ToolCalls([("bash", {"command": "python3 answer.py"})])
        case said:
            return ToolCalls([("submit", {"answer": said[-1]})])


@in_both
def test_a_model_works_in_the_sandbox_of_a_task(where: str, tmp_path: Path) -> None:
    output = run_program(_python(), EXAMPLE, where, replies=_analyst, cwd=tmp_path)
    assert output == "East: C East\nSouth: C South\n"


def test_the_task_of_the_guide_works(tmp_path: Path) -> None:
    (tmp_path / "primes.py").write_text(file_of_guide("primes.py"))
    program = "print([n for n in range(2, 8000) if all(n % d for d in range(2, n))][999])"
    command = ("eval", "primes.py", "--model", "openai/gpt-4.1", "--display", "plain")
    inspect = _python().with_name("inspect")
    output = run_program(_python(), inspect, *command, replies=[Text(program)], cwd=tmp_path)
    assert re.search(r"accuracy: +1\.0", output)
