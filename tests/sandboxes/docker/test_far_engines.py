"""Engines that are reached over SSH and TLS."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import warnings
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from support.executing import run
from support.fork_server import start
from support.private_engine import PrivateEngine, make_certificates
from support.processes import process_lives, processes_below
from support.ssh_server import SshServer
from support.waiting import until
from support.way_out import EgressTo

from codeact_team import open_sandbox
from codeact_team.core.execution import Outcome
from codeact_team.errors import EngineError
from codeact_team.executors.docker import DockerCommandLineCodeExecutor, DockerSessionCodeExecutor
from codeact_team.sandbox.base import WayOut
from codeact_team.sandbox.docker import forwarding
from codeact_team.sandbox.docker.address import engine_url

pytestmark = pytest.mark.docker

OWNER = """
import asyncio, sys
from codeact_team import open_sandbox
async def main():
    async with open_sandbox("docker", workspace="container") as sandbox:
        print((await sandbox.run_python("6 * 7")).output, flush=True)
        await sandbox.run_python("import time; time.sleep(1000)")
asyncio.run(main())
"""


@pytest.fixture(autouse=True)
async def nothing_forwarded() -> AsyncGenerator[None]:
    yield
    forwarding.close()
    # docker leaves a socket open that it could not connect
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[SshServer]:
    """The engine of this machine, behind SSH."""
    async with SshServer(tmp_path) as server:
        monkeypatch.setenv("PATH", server.path)
        monkeypatch.setenv("DOCKER_HOST", server.machine + engine_url().removeprefix("unix://"))
        yield server


def forwarders() -> list[int]:
    """The processes of this one that are SSH connections."""
    return [
        process
        for process in processes_below(os.getpid())
        if b"codeact-team-is-through" in Path(f"/proc/{process}/cmdline").read_bytes()
    ]


async def test_a_session_over_ssh(server: SshServer, tmp_path: Path) -> None:
    """All of it: variables, tools, files of the host, as the engine is on this machine; then programs with their input."""
    workspace = tmp_path / "work"
    workspace.mkdir()
    executor = DockerSessionCodeExecutor(work_dir=workspace)
    async with executor:
        assert (await run(executor, "a = 20", "open('b', 'w').write('c'); a + 1")).output.endswith("21\n")
        assert (workspace / "b").read_text() == "c"
        result = await executor.processes.run(["cat"], input=b"over there")
        assert result.stdout == b"over there"
        [forwarder] = forwarders()
    # one connection serves everything, and later executors
    async with DockerCommandLineCodeExecutor(workspace="container") as second:
        assert (await run(second, "print(1)")).output == "1\n"
    assert forwarders() == [forwarder]


async def test_an_engine_over_ssh_gives_no_way_out(server: SshServer, tmp_path: Path) -> None:
    executor = DockerSessionCodeExecutor(workspace="container")
    executor.life.environment.egress = EgressTo(WayOut(tmp_path, "0" * 64, []))
    with pytest.raises(
        EngineError, match=r"`egress` needs a container engine on this machine.* is at ssh://"
    ):
        await executor.start()


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
async def test_an_ssh_connection_that_breaks_loses_the_sandbox_and_the_next_block_gets_another(
    server: SshServer,
) -> None:
    async with DockerSessionCodeExecutor(workspace="container") as executor:
        assert (await run(executor, "print(1)")).output == "1\n"
        [forwarder] = forwarders()
        block = asyncio.create_task(run(executor, "import time; time.sleep(1000)"))
        await asyncio.sleep(0.2)
        os.kill(forwarder, signal.SIGKILL)
        assert (await block).outcome is Outcome.LOST
        assert (await run(executor, "print(2)")).output.endswith("2\n")
        assert forwarders() not in ([], [forwarder])


async def test_what_ssh_refuses_is_said(server: SshServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.let_in("stranger")
    with pytest.raises(
        EngineError, match=r"over SSH \(.*Permission denied.*\): `ssh 127\.0\.0\.1 true` must work"
    ):
        await run(DockerCommandLineCodeExecutor(), "print(1)")
    server.let_in("user")
    monkeypatch.setenv("DOCKER_HOST", f"{server.machine}/nowhere.sock")
    with pytest.raises(EngineError, match="no container engine answers at ssh://127"):
        await run(DockerCommandLineCodeExecutor(), "print(1)")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("DOCKER_HOST", "ssh://machine")
    with pytest.raises(EngineError, match="install the ssh command"):
        await run(DockerCommandLineCodeExecutor(), "print(1)")


@pytest.mark.long
async def test_the_connection_ends_with_a_process_that_is_killed(server: SshServer, tmp_path: Path) -> None:
    program = tmp_path / "owner.py"
    program.write_text(OWNER)
    # what it leaves is not for the next run on this machine
    (temporary := tmp_path / "tmp").mkdir()
    with start([str(program)], cwd=tmp_path, environment=os.environ | {"TMPDIR": str(temporary)}) as owner:
        assert owner.stdout is not None
        assert await asyncio.to_thread(owner.stdout.readline) == b"42\n"
        below = processes_below(owner.pid)
        assert below
        owner.kill()
    await until(lambda: not any(map(process_lives, below)))


@pytest.mark.long
async def test_a_session_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_certificates(tmp_path)
    async with PrivateEngine(tls=tmp_path) as engine:
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{engine.port}")
        monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
        monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path))
        async with open_sandbox("docker", workspace="container") as sandbox:
            await sandbox.run_python("a = 20")
            assert (await sandbox.run_python("a + 1")).output == "21\n"
            # the end of the input passes through while output still comes
            data = os.urandom(3 << 20)
            result = await sandbox.run(["sh", "-c", "cat; echo end"], input=data, output_limit=4 << 20)
            assert result.stdout == data + b"end\n"
        async with DockerCommandLineCodeExecutor(workspace="container") as executor:
            assert (await run(executor, "print(2)")).output == "2\n"
        (tmp_path / "cert.pem").unlink()
        forwarding.close()
        with pytest.raises(EngineError, match=r"cannot be reached over TLS .*certificate"):
            await run(DockerCommandLineCodeExecutor(), "print(1)")
        (tmp_path / "ca.pem").write_text("nothing")
        with pytest.raises(EngineError, match=r"certificates for .* cannot be used"):
            await run(DockerCommandLineCodeExecutor(), "print(1)")
