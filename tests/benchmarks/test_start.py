"""What a whole command takes of a processor, with a model that answers at once, beside the smallest programs of others.

``pytest -m benchmark --workers 0 -s tests/benchmarks/test_start.py``. All run in the same environment, below ``build/suites``.
"""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import pytest
from benchmarks.conftest import Figures
from benchmarks.test_peers import REQUIREMENTS, ratio, shown
from rich.console import Console
from rich.table import Table
from suites.environments import suite_environment, type_check
from support.openai_server import Body, ScriptedServer, Text

HERE = Path(__file__).parent
PROGRAMS = {"AutoGen": HERE / "minimal_autogen.py", "smolagents": HERE / "minimal_smolagents.py"}
COMMAND, ROUNDS = "codeact-team run codeact-confined", 9


@pytest.fixture(scope="module")
def python() -> Path:
    return suite_environment("peers", *REQUIREMENTS)


def at_once(request: Body) -> Text:
    """An answer, as each of them wants it."""
    wants_code = "final_answer" in str(request["messages"])
    return Text("<code>\nfinal_answer('hello')\n</code>" if wants_code else "hello")


def processor_milliseconds(
    command: Sequence[str | Path], environment: Mapping[str, str], directory: Path
) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    printed = subprocess.run(
        command, env=environment, cwd=directory, stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    assert printed.strip() == "hello", printed
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


@pytest.mark.benchmark
@pytest.mark.timeout(1200)
def test_a_whole_command(python: Path, tmp_path: Path, figure: Figures) -> None:
    commands: dict[str, list[str | Path]] = {
        COMMAND: [python.with_name("codeact-team"), "run", "codeact-confined", "-q", "hi"],
        **{name: [python, "-W", "ignore", program, "hi"] for name, program in PROGRAMS.items()},
    }
    with ScriptedServer.in_thread(at_once) as server:
        environment = {**os.environ, "OPENAI_API_KEY": "key-of-a-test", "OPENAI_BASE_URL": server.base_url}
        # that of Python's modules is written by the first of the rounds, which does not count
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        rounds = [
            {
                name: processor_milliseconds(command, environment, tmp_path)
                for name, command in commands.items()
            }
            for _ in range(1 + ROUNDS)
        ][1:]
    found = {name: median(each[name] for each in rounds) for name in commands}
    table = Table(
        "", "processor, ms", "ratio", title="from nothing to the answer of a model that answers at once"
    )
    for name, milliseconds in found.items():
        table.add_row(name, f"{milliseconds:.0f}", ratio(milliseconds, found[COMMAND]))
    Console(width=120).print(table)
    ours, autogen, smolagents = found.values()
    peers = {"smolagents": f"{shown(smolagents)} ({ratio(smolagents, ours)})"}
    figure(
        f"Processor time of a whole run: `{COMMAND}`",
        shown(ours),
        shown(autogen),
        ratio(autogen, ours),
        peers,
    )


@pytest.mark.suites
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_the_programs_of_others_are_type_checked(python: Path, program: Path) -> None:
    type_check(python, program)
