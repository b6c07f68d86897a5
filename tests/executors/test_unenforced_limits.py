"""An engine that cannot enforce a limit is refused, unless the config accepts that by name."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from support.executing import run
from support.forwarding import ROOTLESS, engine_with

from codeact_team.errors import EngineError
from codeact_team.executors.docker import DockerCommandLineCodeExecutor, DockerSessionCodeExecutor
from codeact_team.sandbox.docker.config import LimitField

pytestmark = pytest.mark.docker

NOTHING = {b'"MemoryLimit":true': b'"MemoryLimit":null', b'"PidsLimit":true': b'"PidsLimit":null', b'"CpuCfsQuota":true': b'"CpuCfsQuota":null'}  # fmt: skip
"""What an engine says that can enforce no limit."""
OUTSIDE = {b"/proc/1/cgroup": b"/proc/1/limits"}
"""Has another file compared with the control group of a program, as if that were outside the container's."""
LIMITS: Sequence[LimitField] = ("memory_mib", "cpus", "pids")
FORKS = """
import os, time
n = 0
try:
    for n in range(200):
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
finally:
    print(n)
"""


@pytest.fixture
async def weak(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncGenerator[None]:
    """The engine of this machine, which says that it can limit nothing."""
    async with engine_with(NOTHING, monkeypatch, tmp_path):
        yield


@pytest.mark.usefixtures("weak")
@pytest.mark.parametrize("accepted", [[], ["cpus", "pids"]])
async def test_it_is_refused_with_the_names_of_the_limits_and_what_to_do(accepted: list[LimitField]) -> None:
    missing = [name for name in LIMITS if name not in accepted]
    with pytest.raises(
        EngineError,
        match=rf"cannot enforce {', '.join(missing)}: .*; or accept it with `unenforced_limits: \[{', '.join(missing)}\]`",
    ):
        async with DockerSessionCodeExecutor(unenforced_limits=accepted):
            pass


@pytest.mark.long
@pytest.mark.usefixtures("weak")
async def test_what_needs_no_control_group_still_holds() -> None:
    settings: dict[str, Any] = {
        "workspace": "container",
        "memory_mib": 200,
        "pids": 20,
        "unenforced_limits": [*LIMITS],
    }
    async with DockerSessionCodeExecutor(**settings) as executor:
        result = await run(executor, "data = bytearray(300 << 20)")
        assert "MemoryError" in result.output
        assert "memory (memory_mib: 200)" in str(result.limit)
        assert (await run(executor, "print(len(bytearray(50 << 20)))")).output == f"{50 << 20}\n"
    async with DockerCommandLineCodeExecutor(**settings) as executor:
        result = await run(executor, FORKS)
        assert "BlockingIOError" in result.output
        assert int(result.output.split()[0]) < 20


@pytest.mark.long
@pytest.mark.parametrize("changes", [ROOTLESS, ROOTLESS | OUTSIDE])
async def test_a_rootless_engine_is_refused_if_programs_are_outside_the_control_group_of_their_container(
    changes: dict[bytes, bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"workspace": "container", "memory_mib": 200}
    async with engine_with(changes, monkeypatch, tmp_path):
        refused = pytest.raises(
            EngineError, match=r"cannot enforce memory_mib, cpus, pids: .*systemctl --user"
        )
        with refused if changes != ROOTLESS else nullcontext():
            async with DockerSessionCodeExecutor(**settings) as executor:
                assert (await run(executor, "print('limited')")).output == "limited\n"
        async with DockerSessionCodeExecutor(**settings, unenforced_limits=[*LIMITS]) as executor:
            assert "MemoryError" in (await run(executor, "data = bytearray(300 << 20)")).output
