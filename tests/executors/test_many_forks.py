"""However many forks of a session there were, nothing of them is left."""

from __future__ import annotations

import os
import re

import pytest
from support.executing import Kind
from support.in_sessions import output

from codeact_team.executors.session import InterpreterCodeExecutor

HELD = """
import os, re
pids = [pid for pid in os.listdir("/proc") if pid.isdigit()]
print(len(pids), len(os.listdir("/proc/self/fd")), [os.listdir(f".codeact-team/{name}") for name in os.listdir(".codeact-team")])
print(re.search(r"Pss:\\s+(\\d+)", open("/proc/self/smaps_rollup").read())[1])
"""


@pytest.mark.docker
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["docker-session"], indirect=True)
async def test_nothing_is_left_of_many_forks(kind: Kind) -> None:
    # FORKS=10000 takes some minutes
    count = int(os.environ.get("FORKS", "300"))
    async with kind.make(timeout=30) as session:
        assert isinstance(session, InterpreterCodeExecutor)

        async def fork(times: int) -> None:
            for _ in range(times):
                for fork in await session.fork(2):
                    await fork.stop()

        async def held() -> tuple[str, int, int]:
            """What there is in the sandbox and of this process, and the KiB of the interpreter."""
            inside, memory = (await output(session, HELD)).splitlines()
            return inside, len(os.listdir("/proc/self/fd")), int(memory)

        await output(session, "kept = list(range(10_000))")
        await fork(10)
        inside, descriptors, memory = await held()
        await fork(count // 2)
        assert (await held())[:2] == (inside, descriptors)
        assert re.match(r"\d+ \d+ \[\[\]\]$", inside)
        assert (await held())[2] < memory + 2048
