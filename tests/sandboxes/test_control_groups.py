"""Limits of control groups below those of others, and groups that are made at once."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from codeact_team.sandbox.confined.protocol import Confinement
from codeact_team.sandbox.confined.supervisor import control_groups


@pytest.mark.parametrize(
    ("quotas", "cpus", "given"),
    [
        # of the outermost first; -1: none
        ((-1, -1), 1.0, "100000"),
        ((-1, 50_000), 1.0, "50000"),
        ((30_000, 50_000), 1.0, "30000"),
        ((-1, 50_000), 0.2, "20000"),
    ],
)
def test_below_a_group_with_fewer_processors_a_sandbox_gets_those(
    tmp_path: Path, quotas: tuple[int, int], cpus: float, given: str
) -> None:
    directory = tmp_path
    for name, quota in zip(("", "inner"), quotas, strict=True):
        directory /= name
        directory.mkdir(exist_ok=True)
        (directory / "cpu.cfs_quota_us").write_text(str(quota))
        (directory / "cpu.cfs_period_us").write_text("100000")
    hierarchy = control_groups._Hierarchy(1, str(tmp_path), str(directory), frozenset({"cpu"}))
    settings = Confinement([], [], "", [], False, False, "", None, 1024, 256, cpus, 64)
    files = control_groups._limit_files(settings, "cpu", hierarchy)
    assert files["cpu.cfs_quota_us"] == given


def test_groups_that_are_made_at_once_are_not_removed_as_orphans(tmp_path: Path) -> None:
    def make() -> None:
        for _ in range(500):
            control_groups._remove_orphans(str(tmp_path))
            directory, lock = control_groups._make_locked(str(tmp_path))
            try:
                assert os.path.isdir(directory)
            finally:
                os.rmdir(directory)
                os.close(lock)

    with ThreadPoolExecutor(4) as threads:
        for made in [threads.submit(make) for _ in range(4)]:
            made.result()
