from __future__ import annotations

import asyncio
import os
import platform
import subprocess
import sys
from contextlib import closing

import pytest
from support.executing import wait_until

from codeact_team.sandboxes.docker.container import LABEL
from codeact_team.sandboxes.docker.engine import connect, engine_url
from codeact_team.sandboxes.docker.strays import Stray, list_strays, remove

pytestmark = pytest.mark.docker

LEAVE = """
import asyncio, os
from codeact_team import DockerCommandLineCodeExecutor
asyncio.run(DockerCommandLineCodeExecutor(**{settings}).start())
print(os.getpid(), flush=True)
{then}
"""


def leave(settings: dict[str, object], then: str = "os._exit(0)") -> str:
    """Let a process make a container and end; returns the owner."""
    program = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LEAVE.format(settings=settings, then=then)],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return f"{platform.node()}:{program.stdout.strip()}"


async def strays_of(*owners: str) -> list[Stray]:
    return [stray for stray in await list_strays() if stray.owner in owners]


async def test_containers_whose_owner_has_ended_are_found_and_removed() -> None:
    name = f"codeact-stray-{os.getpid()}"
    running, stopped = await asyncio.gather(
        asyncio.to_thread(leave, {"stop_container": False, "container_name": name}),
        asyncio.to_thread(leave, {"auto_remove": False, "work_dir": None}),
    )
    # the second ends with its owner, and is not removed
    found: list[Stray] = []

    def settled() -> bool:
        found[:] = asyncio.run(strays_of(running, stopped))
        return sorted(stray.state for stray in found) == ["exited", "running"]

    await asyncio.to_thread(wait_until, settled, seconds=10)
    assert {(stray.owner, stray.state) for stray in found} == {(running, "running"), (stopped, "exited")}
    assert {stray.image for stray in found} == {"python:3-slim"}
    assert name in {stray.name for stray in found}
    await remove(found)
    assert await strays_of(running, stopped) == []
    # somebody else was faster
    await remove(found)


async def test_containers_with_an_owner_are_left_alone() -> None:
    owners = [
        f"{platform.node()}:{os.getpid()}",
        f"{platform.node()}:1",
        "another-host:1",
        f"{platform.node()}:x",
    ]
    with closing(connect(engine_url())) as client:
        made = [
            client.create_container("python:3-slim", "true", labels={LABEL: owner})["Id"] for owner in owners
        ]
        try:
            assert await strays_of(*owners) == []
        finally:
            for container in made:
                client.remove_container(container)


@pytest.mark.skipif(sys.platform != "linux", reason="when a process started is read from /proc")
def test_a_number_that_was_given_again_is_no_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    # as after a restart of the machine: the owner's number is that of a process younger than the container
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as younger:
        owner = f"{platform.node()}:{younger.pid}"
        with closing(connect(engine_url())) as client:
            made = client.create_container("python:3-slim", "true", labels={LABEL: owner})["Id"]
            try:
                assert asyncio.run(strays_of(owner)) == []
                monkeypatch.setattr("codeact_team.sandboxes.docker.strays._CLOCK_SKEW", -3600)
                (stray,) = asyncio.run(strays_of(owner))
                assert (stray.id, stray.state) == (made, "created")
            finally:
                client.remove_container(made)
        younger.communicate(b"\n")
