"""What is written through to the disk survives a power cut."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.command_line import in_this_process, talker

from codeact_team.journal.recorder import Recorder
from codeact_team.journal.run_directory import About, RunDirectory

ABOUT = About(id="it", task="Go.", config="team.yaml", working_directory="/", versions={})


class Disk:
    """Knows what a power cut would leave of a directory: what was in each file and directory when it was synced last."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self._root = root
        self._kept: dict[int, bytes | dict[str, int]] = {}
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, self._noting(getattr(os, name)))

    def _noting(self, sync: Callable[[int], None]) -> Callable[[int], None]:
        def synced(descriptor: int) -> None:
            sync(descriptor)
            path = Path(f"/proc/self/fd/{descriptor}")
            self._kept[path.stat().st_ino] = content_of(path)

        return synced

    def lost(self) -> list[Path]:
        """What would not be there, or not be whole, after a power cut now."""
        paths = [self._root, *self._root.rglob("[!.]*")]
        return [path for path in paths if self._kept.get(path.stat().st_ino) != content_of(path)]


def content_of(path: Path) -> bytes | dict[str, int]:
    if path.is_dir():
        with os.scandir(path) as entries:
            return {inside.name: inside.inode() for inside in entries}
    return path.read_bytes()


def test_each_entry_is_on_the_disk_with_all_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch, tmp_path)
    recorder = Recorder.create(tmp_path / "made" / "runs", ABOUT, "provider: any\n", {}, sync=True)
    for n in range(3):
        recorder.write(value=recorder.packed(f"{n}" * 5000))
        assert disk.lost() == []
    recorder.close()


def test_a_run_that_goes_on_so_is_there_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder.create(tmp_path, ABOUT, "provider: any\n", {})
    recorder.write(value=recorder.packed("old" * 5000))
    recorder.close()
    disk = Disk(monkeypatch, tmp_path)
    recorder, _ = Recorder.reopen(RunDirectory(tmp_path / "it"), {}, sync=True)
    recorder.write(value=recorder.packed("old" * 5000))
    recorder.close()
    assert disk.lost() == []


@pytest.mark.parametrize("option", [[], ["--sync"]])
def test_the_command_does_so_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    disk = Disk(monkeypatch, tmp_path / "runs")
    result = in_this_process("run", talker(tmp_path, ["Hello."]), "Greet.", "--run-dir", "runs", *option)
    assert result.returncode == 0, result.stderr
    assert (disk.lost() == []) is bool(option)
