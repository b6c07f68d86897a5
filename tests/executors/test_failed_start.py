from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from codeact_team import DockerCommandLineCodeExecutor, EngineError


def content(directory: Path) -> list[Path]:
    return list(directory.iterdir())


async def test_a_start_that_fails_leaves_no_temporary_workspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    executor = DockerCommandLineCodeExecutor()
    with pytest.raises(EngineError, match="no container engine answers"):
        await executor.start()
    assert content(tmp_path) == []
    with pytest.raises(RuntimeError, match="not properly initialized"):
        _ = executor.work_dir
