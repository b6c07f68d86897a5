"""The table of platforms says what was seen, and nothing that was not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from platforms import matrix

SKIPPED = {"tests/sandboxes/docker/test_seccomp.py::test_a": "skipped: no profile"}
FAILED = {"tests/executors/test_b.py::test_c": "failed: no"}
SEEN: dict[str, Any] = {
    "versions": {"system": "Debian 12", "kernel": "6.1", "control groups": "2", "python": "3.11"},
    "choice": "all",
    "passed": 7,
    "others": {},
}


@pytest.fixture
def exceptions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "exceptions.toml"
    file.write_text(
        '[[exception]]\nrows = ["podman*"]\ntests = ["test_seccomp.py"]\nreason = "It takes a file."\n'
    )
    monkeypatch.setattr(matrix, "EXCEPTIONS", file)


def test_the_guides_table_is_that_of_the_results() -> None:
    guide = matrix.GUIDE.read_text()
    assert guide == matrix.with_table(guide, matrix.read_results()), "tests/platforms/run --table writes it"


@pytest.mark.usefixtures("exceptions")
def test_a_test_that_fails_or_is_skipped_is_a_failure_unless_it_is_listed_for_the_platform() -> None:
    assert matrix.sorted_out("podman-rootless", SKIPPED | FAILED) == (FAILED, {"It takes a file.": 1})
    assert matrix.sorted_out("docker", SKIPPED | FAILED) == (SKIPPED | FAILED, {})


@pytest.mark.usefixtures("exceptions")
def test_the_table_tells_failures_exceptions_refusals_and_what_was_not_tried() -> None:
    text = matrix.table(
        {
            "docker": SEEN,
            "podman": {**SEEN, "others": SKIPPED},
            "gvisor": {**SEEN, "others": FAILED},
            "podman-rootless": {**SEEN, "refused": "it cannot"},
        }
    )
    tried = "Debian 12, kernel 6.1, control groups v2, Python 3.11"
    for line in (
        f"| Linux, Docker | {tried} | works: 7 tests |  |",
        f"| Linux, Podman as root | {tried} | works: 7 tests | It takes a file. (1) |",
        f"| Linux, gVisor in Docker | {tried} | fails: 1 of 8 tests |  |",
        f"| Linux, Podman, rootless | {tried} | refused: “it cannot”. Where that is accepted, it works: 7 tests |  |",
        "| Linux, confined (user) | | not tried | |",
    ):
        assert line in text.splitlines()
