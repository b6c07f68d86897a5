from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest
from support.executing import KINDS
from support.waiting import until

from codeact_team.errors import EngineError, SandboxError
from codeact_team.executors.docker import DockerCommandLineCodeExecutor, DockerSessionCodeExecutor
from codeact_team.runs.result import is_of_infrastructure


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


@pytest.mark.docker
async def test_an_image_without_python_is_an_error_that_says_so_and_leaves_nothing() -> None:
    before = KINDS["docker-session"].held()
    executor = DockerSessionCodeExecutor(environment={"PATH": "/nowhere"})
    with pytest.raises(SandboxError, match=r"no interpreter can be started in the sandbox: .*python3"):
        await executor.start()
    assert KINDS["docker-session"].held() == before


@pytest.mark.long
@pytest.mark.docker
async def test_a_sandbox_that_is_lost_while_its_interpreter_starts_may_be_replaced(tmp_path: Path) -> None:
    python, kind = tmp_path / "python3", KINDS["docker-session"]
    python.write_text("#!/bin/sh\ntouch here\nsleep 600\n")
    python.chmod(0o755)
    executor = DockerSessionCodeExecutor(work_dir=tmp_path, environment={"PATH": "/workspace:/usr/bin:/bin"})
    before = kind.held()
    starting = asyncio.ensure_future(executor.start())
    await until((tmp_path / "here").exists)
    await asyncio.to_thread(kind.lose, kind.held() - before)
    with pytest.raises(SandboxError, match="lost while its interpreter started: the container") as caught:
        await starting
    assert is_of_infrastructure(caught.value)
