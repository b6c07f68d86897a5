"""The tests of smolagents' Docker executor pass with ours in both sandboxes, and code agents work there."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from suites.environments import (
    EXAMPLES,
    ROOT,
    assert_passed,
    file_of_guide,
    run_program,
    run_suite,
    source_distribution,
    suite_environment,
    type_check,
)
from support.openai_server import Text

SUITE = Path(__file__).with_name("smolagents_suite.py")
CHECKS = Path(__file__).with_name("smolagents_checks.py")
ADAPTERS = ROOT / "codeact_team" / "adapters"
EXAMPLE = EXAMPLES / "smol_agent.py"
MARKERS = "import pytest\n\nrequire_run_all = pytest.mark.skip('it needs services')\n"
"""A helper of the tests that the source distribution does not have."""

pytestmark = [pytest.mark.suites, pytest.mark.timeout(900)]
in_both = pytest.mark.parametrize("where", [pytest.param("docker", marks=pytest.mark.docker), "confined"])


def _python() -> Path:
    return suite_environment("smolagents", "codeact-team[smolagents]", "smolagents[openai]")


def _unpack_tests(directory: Path) -> None:
    script = "from importlib.metadata import version; print(version('smolagents'), end='')"
    version = subprocess.run([_python(), "-c", script], stdout=subprocess.PIPE, text=True, check=True).stdout
    with tarfile.open(source_distribution("smolagents", version)) as archive:
        content = archive.extractfile(f"smolagents-{version}/tests/test_remote_executors.py")
        assert content is not None
        (helpers := directory / "tests" / "utils").mkdir(parents=True)
        (helpers.parent / "test_remote_executors.py").write_bytes(content.read())
        (helpers / "markers.py").write_text(MARKERS)


@in_both
def test_the_suite_passes(where: str, tmp_path: Path) -> None:
    _unpack_tests(tmp_path)
    shutil.copy(SUITE, tmp_path)
    outcomes = run_suite(_python(), SUITE.name, cwd=tmp_path, environment={"WHERE": where})
    assert_passed(outcomes)
    assert sum(each.status == "passed" for each in outcomes.values()) == 10


_STEPS = [
    """Thought: I ask for the revenue of each region.
<code>
sales = {region: revenue(region) for region in ("North", "East", "South", "West")}
print(sales["East"])
</code>""",
    """Thought: {'2024': 287500.0, '2025': 366100.0} is the answer of the tool. I compare.
<code>
growth = {region: 100 * (years["2025"] / years["2024"] - 1) for region, years in sales.items()}
best = max(growth, key=growth.get)
final_answer(f"{best}: {growth[best]:.1f} %")
</code>""",
]


@in_both
def test_a_code_agent_works_in_the_sandbox(where: str, tmp_path: Path) -> None:
    replies = [Text(step) for step in _STEPS]
    assert run_program(_python(), EXAMPLE, where, replies=replies, cwd=tmp_path) == "East: 27.3 %\n"


@pytest.mark.docker
def test_the_program_of_the_guide_works(tmp_path: Path) -> None:
    (program := tmp_path / "prices.py").write_text(file_of_guide("prices.py"))
    code = "<code>\nimport numpy\nfinal_answer(numpy.sum([price(a) for a in ('bolts', 'nuts', 'screws')]))\n</code>"
    assert run_program(_python(), program, replies=[Text(code)], cwd=tmp_path) == "1.0\n"


@in_both
def test_the_adapter_keeps_its_promises(where: str, tmp_path: Path) -> None:
    shutil.copy(CHECKS, tmp_path)
    outcomes = run_suite(_python(), CHECKS.name, cwd=tmp_path, environment={"WHERE": where})
    assert {name: each for name, each in outcomes.items() if each.status != "passed"} == {}


def test_types() -> None:
    type_check(_python(), SUITE, CHECKS, ADAPTERS / "smolagents.py", EXAMPLE)
