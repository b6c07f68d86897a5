from __future__ import annotations

import asyncio
import os
import resource
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from support.executing import KINDS
from support.waiting import until

from codeact_team.errors import EngineError, SandboxError
from codeact_team.executors.confined import ConfinedSessionCodeExecutor
from codeact_team.executors.docker import DockerCommandLineCodeExecutor, DockerSessionCodeExecutor
from codeact_team.journal.result import is_of_infrastructure


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


@contextmanager
def without_descriptors() -> Generator[None]:
    """Within it, this process may open only a few files more."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 10, limits[1]))
    held: list[int] = []
    try:
        with suppress(OSError):
            while True:
                held.append(os.dup(2))
        for _ in range(3):
            os.close(held.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in held:
            os.close(descriptor)


async def test_a_process_that_may_open_nothing_more_is_told_so(tmp_path: Path) -> None:
    executor = ConfinedSessionCodeExecutor(work_dir=tmp_path, confinement="best_effort")
    with without_descriptors():
        with pytest.raises(SandboxError, match=r"its limit of [\d,]+ open files and connections.*ulimit -n"):
            await executor.start()
    async with executor:
        assert (
            await executor.execute_code_blocks([CodeBlock("1", "python")], CancellationToken())
        ).output == "1\n"
