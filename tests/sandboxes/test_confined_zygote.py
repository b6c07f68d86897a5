"""The process that the supervising processes of all confined sandboxes are forks of."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from sandboxes.confined_host import alive
from sandboxes.confined_support import confined, control_groups, line, run, skip_if_not_confined, started
from sandboxes.conftest import Supervisors
from support.waiting import until

from codeact_team.errors import ConfinementError
from codeact_team.sandbox.confined.config import ConfinedSandboxConfig
from codeact_team.sandbox.confined.control import SupervisingProcess
from codeact_team.sandbox.confined.protocol import Confinement, Message

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="code is confined on Linux only")


@pytest.fixture
def workspaces(tmp_path: Path) -> list[Path]:
    skip_if_not_confined()
    found = [tmp_path / f"{number}" for number in range(12)]
    for workspace in found:
        workspace.mkdir()
    return found


async def test_it_begins_with_the_first_sandbox_and_ends_with_the_last(
    workspaces: list[Path], supervisors: Supervisors
) -> None:
    assert supervisors() == []
    first, *others = sandboxes = [confined(workspace) for workspace in workspaces]
    await asyncio.gather(*(sandbox.start() for sandbox in sandboxes))
    zygote, *supervising = supervisors()
    assert len(supervising) == len(sandboxes)
    # what it was given for a start is closed at the latest before a stop that comes after it ends
    await others.pop().stop()
    held = len(os.listdir(f"/proc/{zygote}/fd"))
    await asyncio.gather(*(sandbox.stop() for sandbox in others))
    # but for what it needs to clean up after each
    assert len(os.listdir(f"/proc/{zygote}/fd")) == held - len(others)
    await others[0].start()
    assert supervisors()[0] == zygote
    await asyncio.gather(first.stop(), others[0].stop())
    assert supervisors() == []


async def test_if_it_is_killed_all_sandboxes_are_lost_and_can_be_replaced(
    workspaces: list[Path], supervisors: Supervisors
) -> None:
    mark = f"lost-{os.getpid()}"
    async with AsyncExitStack() as stack:
        one, other = [await stack.enter_async_context(started(workspace)) for workspace in workspaces[:2]]
        process = await one.spawn([one.python, "-c", "print(1); import time; time.sleep(60)", mark])
        assert await line(process) == b"1\n"
        zygote, *supervising = supervisors()
        groups = [group for one in supervising for group in control_groups(one)]
        os.kill(zygote, signal.SIGKILL)
        assert await process.read() == b""
        assert (await process.wait()).lost is not None
        await process.aclose()
        await until(lambda: not one.running and not other.running, seconds=5)
        await until(lambda: not alive(mark), seconds=5)
        await asyncio.gather(one.start(), other.start())
        assert zygote not in supervisors()
        assert (await run(one, "echo", "again"))[0] == b"again\n"
        # nobody was left to remove them
        assert not any(map(Path.exists, groups))
    assert supervisors() == []


async def test_a_supervising_process_that_is_killed_with_something_unread_is_known_to_be_gone(
    tmp_path: Path,
) -> None:
    # the other side is told of it by an error, and not by the end of the stream
    (private := tmp_path / "private").mkdir()
    limits = ConfinedSandboxConfig().model_dump(include={"memory_mib", "pids", "cpus", "tmpfs_mib"})
    status = os.stat(tmp_path)
    settings = Confinement(
        readable=["/usr"],
        lent=[],
        workspace=str(tmp_path),
        workspace_identity=(status.st_dev, status.st_ino),
        is_temporary=False,
        shared_memory=False,
        private=str(private),
        workspace_mib=None,
        **limits,
    )
    control = SupervisingProcess(settings)
    control.send(Message.KILL)
    control.kill()
    assert not control.alive

    async def listen() -> None:
        # it may have been quick enough to answer once
        await control.wait_until_ready()
        await control.wait_until_ready()

    with pytest.raises(ConfinementError, match=r"ended at its start|process is gone"):
        await listen()
    await control.close()
    assert not private.exists()
