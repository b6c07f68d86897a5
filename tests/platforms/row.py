"""Runs the executors' tests on the platform where it is, and prints what was seen as JSON. ``run`` calls it there.

``row.py KIND TAR [--suites | --brief] [--measure] [--without-namespaces] [--left-out=PART]…``: KIND is one of ``engine``'s, or ``confined``; TAR is its image. ``--suites`` runs
the conformance suites and the sessions' tests, ``--brief`` some of each group of tests; both one after the other, with all the time
that they need on a slow machine. ``--measure`` compares a session's first result with the engine's own ``run --rm``. ``--without-namespaces``: where this process, and
all that it starts, can make none, as in containers and on Ubuntu. ``--left-out``: not the tests that have this in their names.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock

from codeact_team.executors.docker import DockerSessionCodeExecutor
from codeact_team.sandbox.docker.address import engine_url
from codeact_team.sandbox.docker.config import DockerSandboxConfig
from codeact_team.sandbox.docker.description import describe, refusal
from codeact_team.sandbox.docker.engine import connect

HERE = Path(__file__).resolve().parent
TESTS = ["tests/executors", "tests/sandboxes"]
BRIEF = {
    "executors/test_conformance_basics.py": [
        "test_result_of_code_that_succeeds",
        "test_blocks_run_one_after_the_other_in_one_workspace",
        "test_output_comes_while_the_code_runs",
        "test_life_cycle",
        "test_a_lost_sandbox_is_a_result_and_the_next_call_gets_a_new_one",
    ],
    "executors/test_conformance_limits.py": [
        "test_task_cancels",
        "test_result_names_the_limit_and_its_field",
        "test_fork_bomb_is_contained",
        "test_a_host_killed_with_9_leaves_nothing_behind",
    ],
    "executors/test_conformance_security.py": [
        "test_no_network",
        "test_files_of_the_host_are_out_of_reach",
        "test_planted_links_do_not_reach_the_host",
        "test_no_rights",
        "test_only_the_workspace_and_temporary_files_are_writable",
        "test_no_file_gives_its_owners_rights_to_others_of_the_host",
        "test_processes_of_the_host_are_out_of_reach",
    ],
    "executors/test_conformance_guards.py": [
        "test_no_process_of_ours_can_be_read_or_traced",
        "test_no_file_and_no_end_of_a_process_signals_a_process_of_ours",
    ],
    "executors/test_confined_session_attacks.py": ["test_no_attack_succeeds"],
    "executors/test_executor_processes.py": [
        "test_a_job_outlives_the_call",
        "test_a_time_out_ends_everything",
    ],
    "executors/test_hostile_processes.py": ["test_the_memory_limit_names_what_it_kills"],
    "executors/test_session_executors.py": [
        "test_variables_live_on",
        "test_a_time_out_keeps_the_variables",
        "test_code_that_takes_no_interrupt_loses_the_variables_and_says_so",
    ],
    "executors/test_session_files.py": ["test_files_go_in_and_out"],
    "executors/test_session_losses.py": ["test_memory_is_named_as_the_reason"],
    "executors/test_session_tools.py": [
        "test_code_calls_functions_of_the_host",
        "test_a_time_out_while_a_call_waits_ends_all_and_keeps_the_variables",
    ],
    "executors/test_session_tools_hostile.py": ["test_one_session_cannot_reach_the_calls_of_another"],
    "executors/test_forks.py": [
        "test_forks_have_the_variables_and_go_ways_of_their_own",
        "test_a_session_is_set_back_to_a_checkpoint_as_often_as_one_likes",
    ],
    "sandboxes/test_confined_enforcement.py": [],
    "sandboxes/docker/test_seccomp.py": [],
}
"""Of each group some, and none whose result depends on how fast the machine is; all of a file where none is named."""
SUITES = [
    "executors/test_conformance_*.py",
    "executors/test_session_*.py",
    "executors/test_forks.py",
    "executors/test_docker_executor.py",
    "executors/test_confined_session_attacks.py",
    "sandboxes/test_confined_enforcement.py",
    "sandboxes/docker/test_seccomp.py",
]
"""What an executor promises on each platform, and the attacks."""
WITHOUT = {"test_session_endurance.py"}
"""Takes an emulated machine hours."""
LEFT_OUT = "--left-out="
PATIENTLY = ["--workers", "0", "-vv", "--timeout", "900"]
NOT_ITS_END = ["-W", "ignore::pytest.PytestUnraisableExceptionWarning"]
"""A test that fails once more may leave open what it has opened, which must not end the row."""


class Reports:
    """Part of pytest: keeps how each test ended, and leaves some out, by parts of their names.

    What has an error before or after it has failed, too. One that fails may leave something that makes others fail.
    """

    def __init__(self, left_out: Sequence[str]) -> None:
        self._left_out = left_out
        self.passed = set[str]()
        self.others = dict[str, str]()

    @property
    def failed(self) -> list[str]:
        """The tests that failed."""
        return [test for test, how in self.others.items() if how.startswith("failed") and "::" in test]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed or report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else _last_line(report)
            self.others.setdefault(report.nodeid, f"{report.outcome}: {reason}")
        elif report.when == "call":
            self.passed.add(report.nodeid)

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        left_out = [item for item in items if any(part in item.nodeid for part in self._left_out)]
        self.others |= {item.nodeid: "left out" for item in left_out}
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.outcome != "passed":
            self.others[report.nodeid] = f"{report.outcome}: {report.longrepr}"


def _last_line(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return (crash.message if crash else str(report.longrepr)).partition("\n")[0][:300]


def engine(action: str, *arguments: str) -> str:
    command = [str(HERE / "engine"), action, *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def first_result(kind: str) -> dict[str, float]:
    """The seconds of a session to its first result, and of the engine's own ``run --rm``, in turns."""

    async def session() -> float:
        began = time.monotonic()
        # accepts what the engine cannot enforce
        async with DockerSessionCodeExecutor(unenforced_limits=["memory_mib", "cpus", "pids"]) as executor:
            result = await executor.execute_code_blocks(
                [CodeBlock(code="print('up')", language="python")], CancellationToken()
            )
            assert result.output == "up\n"
            return time.monotonic() - began

    both = [(asyncio.run(session()), float(engine("plain", kind))) for _ in range(9)]
    ours, its = (round(statistics.median(each[2:]), 3) for each in zip(*both, strict=True))
    return {"session": ours, "engine": its, "ratio": round(ours / its, 2)}


def versions() -> dict[str, str]:
    groups = "2" if Path("/sys/fs/cgroup/cgroup.controllers").exists() else "1"
    system = platform.freedesktop_os_release()["PRETTY_NAME"].partition(" GNU/Linux ")[::2]
    return {
        "system": f"{system[0]} {system[1].partition(' ')[0]}".strip(),
        "kernel": ".".join(platform.release().split("-")[0].split(".")[:2]),
        "control groups": groups,
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
    }


def chosen(choice: str) -> list[str]:
    """The arguments of pytest for the tests of a choice."""
    if choice == "all":
        return TESTS
    if choice == "suites":
        files = [file for pattern in SUITES for file in sorted(Path("tests").glob(pattern))]
        return PATIENTLY + [str(file) for file in files if file.name not in WITHOUT]
    named = [(f"tests/{file}", test) for file, tests in BRIEF.items() for test in tests or [""]]
    return PATIENTLY + [f"{file}::{test}".removesuffix("::") for file, test in named]


def ran(*arguments: str, left_out: Sequence[str] = ()) -> Reports:
    """How tests ended. Their own output is for who watches."""
    reports = Reports(left_out)
    output = os.dup(1)
    os.dup2(2, 1)
    # the package is here already, and its plugin asserts nothing
    try:
        pytest.main(["-q", "-W", "ignore::pytest.PytestAssertRewriteWarning", *arguments], [reports])
    except (pytest.PytestUnraisableExceptionWarning, ExceptionGroup):
        # what a test that failed has left open
        if not reports.failed:
            raise
    os.dup2(output, 1)
    os.close(output)
    return reports


def tried(kind: str, options: Sequence[str]) -> dict[str, Any]:
    choice = next((each for each in ("brief", "suites") if f"--{each}" in options), "all")
    seen: dict[str, Any] = {"versions": versions(), "choice": choice}
    if kind != "confined":
        with closing(connect(engine_url())) as client:
            description = describe(client, engine_url())
        seen["versions"]["engine"] = f"{description.product} {description.version.partition('+')[0]}"
        seen["refused"] = refusal(description, DockerSandboxConfig())
        if seen["refused"]:
            os.environ["CODEACT_TEAM_ACCEPT_UNENFORCED"] = "1"
        if "--measure" in options:
            # before this process has all that the tests leave in its memory
            seen["first result"] = first_result(kind)
    # of the long ones, too: most are variations
    mark = f"{'not docker' if kind == 'confined' else 'docker'} and (long or not long)"
    began = time.monotonic()
    parts = [each.removeprefix(LEFT_OUT) for each in options if each.startswith(LEFT_OUT)]
    reports = ran("-m", mark, *chosen(choice), left_out=parts)
    seen["others"], seen["alone"] = reports.others, 0
    if failed := reports.failed:
        # a race that only a busy machine loses: alone, they decide
        again = ran("-m", "long or not long", *PATIENTLY, *NOT_ITS_END, *failed)
        seen["alone"] = len(again.passed - again.others.keys())
        kept = {test: how for test, how in reports.others.items() if test not in failed}
        seen["others"] = kept | again.others
    seen["seconds"] = round(time.monotonic() - began)
    seen["passed"] = len(reports.passed - reports.others.keys()) + seen["alone"]
    return seen


def take_namespaces_away() -> None:
    """For good, from this process and all that it starts."""
    sys.path.insert(0, str(HERE.parent))
    from sandboxes.confined_host import do_without

    do_without(["namespaces"])


def main(kind: str, image: str, *options: str) -> None:
    os.chdir(HERE.parent.parent)
    if "--without-namespaces" in options:
        take_namespaces_away()
    if kind != "confined":
        os.environ["DOCKER_HOST"] = engine("start", kind, image)
    try:
        print(json.dumps(tried(kind, options)))
    finally:
        if kind != "confined":
            engine("stop", kind)


if __name__ == "__main__":
    main(*sys.argv[1:])
