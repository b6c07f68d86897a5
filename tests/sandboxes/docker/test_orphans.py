from __future__ import annotations

import asyncio
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest
from support.executing import wait_until
from support.fork_server import Forked, start
from support.forwarding import engine_that_can_hang

from codeact_team.sandbox.docker.address import engine_url
from codeact_team.sandbox.docker.config import DockerSandboxConfig
from codeact_team.sandbox.docker.container import LABEL, NAMESPACE_LABEL
from codeact_team.sandbox.docker.description import describe
from codeact_team.sandbox.docker.engine import at_engine, connect
from codeact_team.sandbox.docker.leftovers import Orphan, list_orphans, remove_orphan
from codeact_team.sandbox.docker.sandbox import DockerSandbox

pytestmark = pytest.mark.docker


def leaving(settings: dict[str, object], environment: Mapping[str, str] = os.environ) -> Forked:
    """A process that makes a container and ends."""
    program = Path(__file__).with_name("leaving_owner.py")
    return start([str(program), json.dumps(settings)], cwd=program.parent, environment=environment, stderr=2)


def leave(settings: dict[str, object]) -> str:
    """Let such a process end; returns the owner."""
    with leaving(settings) as program:
        said, _ = program.communicate(timeout=60)
    return f"{platform.node()}:{said.decode().strip()}"


async def orphans_of(*owners: str) -> list[Orphan]:
    return [orphan for orphan in await list_orphans() if orphan.owner in owners]


async def test_containers_whose_owner_has_ended_are_found_and_removed() -> None:
    name = f"codeact-orphan-{os.getpid()}"
    outlives = not at_engine(describe).is_podman
    stopped = await asyncio.to_thread(leave, {"auto_remove": False, "container_name": name})
    # it ends with its owner, and is not removed; under Podman, every container does
    expected = {(stopped, "exited")}
    if outlives:
        expected.add((await asyncio.to_thread(leave, {"stop_container": False}), "running"))
    owners = [owner for owner, _ in expected]
    found: list[Orphan] = []

    def settled() -> bool:
        found[:] = asyncio.run(orphans_of(*owners))
        return {(orphan.owner, orphan.state) for orphan in found} == expected

    await asyncio.to_thread(wait_until, settled, seconds=10)
    assert all(orphan.image.endswith("python:3-slim") for orphan in found)
    assert name in {orphan.name for orphan in found}
    for orphan in found:
        await remove_orphan(orphan)
    assert await orphans_of(*owners) == []
    # somebody else was faster
    await remove_orphan(found[0])


def leave_unstarted(directory: Path) -> str:
    """Kill a process between the making of its container and the start; returns the owner."""
    with engine_that_can_hang(directory, hang_at="/start HTTP/1.1") as engine:
        # the note of that engine is not for other runs: it is gone soon
        places = {"DOCKER_HOST": engine.url, "TMPDIR": str(directory)}
        with leaving({}, {**os.environ, **places}) as program:
            try:
                wait_until(lambda: engine.hangs, seconds=60)
            finally:
                program.kill()
    return f"{platform.node()}:{program.pid}"


async def test_containers_that_never_started_are_removed_by_the_next_start(tmp_path: Path) -> None:
    owner = await asyncio.to_thread(leave_unstarted, tmp_path)
    # a start of another test that runs beside this one may have removed it already, or be about to
    assert {orphan.state for orphan in await orphans_of(owner)} <= {"created", "removing"}
    with closing(connect(engine_url())) as client:
        labels = {LABEL: f"{platform.node()}:{2**22}", NAMESPACE_LABEL: "pid:[1]"}
        # who made this one cannot be seen from here
        foreign = client.create_container("python:3-slim", "true", labels=labels)["Id"]
        try:
            async with DockerSandbox(DockerSandboxConfig()):
                pass
            assert await orphans_of(owner) == []
            assert client.inspect_container(foreign)["State"]["Status"] == "created"
        finally:
            client.remove_container(foreign)


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
            assert await orphans_of(*owners) == []
        finally:
            for container in made:
                client.remove_container(container)


@pytest.mark.skipif(sys.platform != "linux", reason="when a process started is read from /proc")
def test_a_number_that_was_given_again_is_no_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    # as after a restart of the machine: the owner's number is that of a process younger than the container
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as younger:
        owner = f"{platform.node()}:{younger.pid}"
        with closing(connect(engine_url())) as client:
            made = client.create_container("python:3-slim", "true", labels={LABEL: owner})["Id"]
            try:
                assert asyncio.run(orphans_of(owner)) == []
                monkeypatch.setattr("codeact_team.sandbox.docker.leftovers._CLOCK_SKEW", -3600)
                (orphan,) = asyncio.run(orphans_of(owner))
                assert (orphan.id, orphan.state) == (made, "created")
            finally:
                client.remove_container(made)
        younger.communicate(b"\n")
