"""The conformance suite of maf-sandbox passes in both sandboxes, through a backend of these tests."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from suites.environments import assert_passed, run_suite, suite_environment, type_check

FILES: Sequence[Path] = [Path(__file__).with_name(name) for name in ("maf_backend.py", "maf_conformance.py")]

pytestmark = [pytest.mark.suites, pytest.mark.timeout(900)]


def _python() -> Path:
    # it needs Python 3.12, and brings the release of the framework that it is made for
    return suite_environment("maf-sandbox", "maf-sandbox", python="3.12")


@pytest.mark.parametrize("where", [pytest.param("docker", marks=pytest.mark.docker), "confined"])
def test_the_suite_of_maf_sandbox_passes(where: str, tmp_path: Path) -> None:
    for file in FILES:
        shutil.copy(file, tmp_path)
    outcomes = run_suite(_python(), "maf_conformance.py", cwd=tmp_path, environment={"WHERE": where})
    assert len(outcomes) == 19
    assert_passed(outcomes)


def test_the_backend_of_these_tests_is_type_checked() -> None:
    type_check(_python(), *FILES)
