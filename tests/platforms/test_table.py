"""The table of platforms says what was seen, and nothing that was not."""

from __future__ import annotations

from typing import Any

from platforms import matrix

EXCEPTIONS = [{"rows": ["podman*"], "tests": ["test_seccomp.py"], "reason": "Podman takes a file."}]
SEEN: dict[str, Any] = {
    "versions": {"system": "Debian 12", "kernel": "6.1", "control groups": "2", "python": "3.11"},
    "brief": False,
    "passed": 7,
    "failures": {},
    "exceptions": {},
}


def test_the_guides_table_is_that_of_the_results() -> None:
    guide = matrix.GUIDE.read_text()
    assert guide == matrix.with_table(guide, matrix.read_results()), "tests/platforms/run --table writes it"


def test_a_test_that_fails_or_is_skipped_is_a_failure_unless_it_is_listed_for_the_platform() -> None:
    skipped = {"tests/sandboxes/docker/test_seccomp.py::test_a": "skipped: no profile"}
    failed = {"tests/executors/test_b.py::test_c": "failed: no"}
    listed = {"Podman takes a file.": 1}
    assert matrix.sorted_out("podman-rootless", skipped | failed, EXCEPTIONS) == (failed, listed)
    assert matrix.sorted_out("docker", skipped | failed, EXCEPTIONS) == (skipped | failed, {})


def test_the_table_tells_failures_exceptions_refusals_and_what_was_not_tried() -> None:
    exceptions = {"Podman takes a file.": 2}
    text = matrix.table(
        {
            "docker": SEEN,
            "podman": {**SEEN, "exceptions": exceptions},
            "gvisor": {**SEEN, "failures": {"test": "failed: no"}},
            "podman-rootless": {**SEEN, "refused": "it cannot"},
        }
    )
    tried = "Debian 12, kernel 6.1, control groups v2, Python 3.11"
    for line in (
        f"| Linux, Docker | {tried} | works: 7 tests |  |",
        f"| Linux, Podman as root | {tried} | works: 7 tests | Podman takes a file. (2) |",
        f"| Linux, gVisor in Docker | {tried} | fails: 1 of 8 tests |  |",
        f"| Linux, Podman, rootless | {tried} | refused: “it cannot”. Where that is accepted, it works: 7 tests |  |",
        "| Linux, confined (user) | | not tried | |",
    ):
        assert line in text.splitlines()
