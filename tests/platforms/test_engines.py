"""The engines that this machine can have beside its own: a few of the conformance tests' questions, put to each."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from platforms import matrix
from support.executing import goes_on, run

from codeact_team.core.execution import Outcome
from codeact_team.errors import EngineError
from codeact_team.executors.docker import DockerCommandLineCodeExecutor, DockerSessionCodeExecutor
from codeact_team.sandbox.docker.config import LimitField
from codeact_team.sandbox.docker.engine import connect

pytestmark = [pytest.mark.docker, pytest.mark.long, pytest.mark.timeout(600)]

LIMITS: Sequence[LimitField] = ("memory_mib", "cpus", "pids")
FLOOD = "data = bytearray(300 << 20)"


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Generator[Callable[[str], str]]:
    """Starts an engine, which is then the one of the executors, and says where it is."""
    matrix.make_image()
    started = list[list[str]]()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        # where a normal user can read it
        for name in ("engine", "limited_runc"):
            shutil.copy(matrix.HERE / name, place)
        Path(place).chmod(0o755)

        def start(kind: str) -> str:
            command = [*(matrix.becoming_user() if kind.endswith("rootless") else []), f"{place}/engine"]
            started.append([*command, "stop", kind])
            output = subprocess.run(
                [*command, "start", kind, matrix.IMAGE], stdout=subprocess.PIPE, check=True
            )
            monkeypatch.setenv("DOCKER_HOST", url := output.stdout.decode().strip())
            return url

        yield start
        for command in started:
            subprocess.run(command, check=True)


@pytest.mark.parametrize("kind", ["podman", "podman-rootless", "docker-rootless", "gvisor"])
async def test_code_runs_and_is_stopped_limited_and_gone(kind: str, start: Callable[[str], str]) -> None:
    url = start(kind)
    # what is root's belongs to nobody in the containers of a rootless engine
    settings: dict[str, Any] = {"workspace": "container", "memory_mib": 200}
    if kind.endswith("rootless"):
        with pytest.raises(
            EngineError, match=r"cannot enforce memory_mib, cpus, pids: a rootless engine needs"
        ):
            await DockerSessionCodeExecutor(**settings).start()
        settings["unenforced_limits"] = LIMITS
    async with DockerSessionCodeExecutor(timeout=20, **settings) as session:
        await run(session, "x = 1")
        assert (await run(session, "print(x)")).output == "1\n"
        timed_out = await session.run_code_blocks(
            [CodeBlock(code="while True: pass", language="python")], CancellationToken(), seconds=2
        )
        assert timed_out.outcome is Outcome.TIMED_OUT
        assert (await run(session, "print(x)")).output == "1\n"
        too_much = await run(session, FLOOD)
        if kind == "gvisor":
            # which counts the container as a whole
            assert too_much.outcome is Outcome.LOST
        else:
            assert "memory_mib: 200" in str(too_much.limit)
        assert await goes_on(session)
        if kind == "gvisor":
            # `pids` counts programs of the code, and none of gVisor's threads, which are many for each
            many = await run(session, "sleep 60 & " * 60 + "echo up", language="sh")
            assert many.output == "up\n"
            refused = await run(session, "sleep 60 & " * 300, language="sh")
            assert "pids: 256" in str(refused.limit)
    async with DockerCommandLineCodeExecutor(timeout=20, **settings) as command_line:
        assert (await run(command_line, "print(1)")).output == "1\n"
        assert await goes_on(command_line)
    with closing(connect(url)) as client:
        assert not client.containers(all=True)
