"""How much memory is left, as the files of the kernel say."""

from __future__ import annotations

from pathlib import Path

from codeact_team.executors.warm_sandboxes import available

MIB = 1 << 20


def machine(root: Path, groups: str) -> None:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(
        "MemTotal:  8192000 kB\nMemFree:  10 kB\nMemAvailable:    4096000 kB\n"
    )
    (root / "proc/self/cgroup").write_text(groups)


def group(directory: Path, files: dict[str, str]) -> None:
    directory.mkdir(parents=True)
    for name, text in files.items():
        (directory / name).write_text(text)


def test_it_is_what_the_machine_has_where_no_group_limits_it(tmp_path: Path) -> None:
    machine(tmp_path, "0::/\n")
    assert available(tmp_path) == 4000 * MIB


def test_a_group_above_limits_it_too(tmp_path: Path) -> None:
    machine(tmp_path, "0::/service/worker\n")
    mount = tmp_path / "sys/fs/cgroup"
    stat = f"anon 5\ninactive_file {MIB}\n"
    group(
        mount / "service", {"memory.max": f"{9 * MIB}\n", "memory.current": f"{3 * MIB}", "memory.stat": stat}
    )
    group(mount / "service/worker", {"memory.max": "max\n", "memory.current": "5", "memory.stat": stat})
    assert available(tmp_path) == 7 * MIB


def test_so_does_one_of_the_first_version_as_a_container_sees_it(tmp_path: Path) -> None:
    machine(tmp_path, "5:cpu:/docker/ab\n4:memory:/docker/ab\n0::/docker/ab\n")
    mount = tmp_path / "sys/fs/cgroup/memory"
    stat = f"inactive_file 7\ntotal_inactive_file {2 * MIB}\n"
    files = {
        "memory.limit_in_bytes": str(8 * MIB),
        "memory.usage_in_bytes": str(3 * MIB),
        "memory.stat": stat,
    }
    group(mount, files)
    assert available(tmp_path) == 7 * MIB


def test_nothing_is_known_of_other_systems(tmp_path: Path) -> None:
    assert available(tmp_path) is None
