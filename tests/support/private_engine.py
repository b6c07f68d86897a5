"""A Docker engine of its own, in namespaces of its own: it can be killed, and nobody else's containers are lost with it."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Self

from support.processes import processes_below
from support.waiting import until

from codeact_team.errors import EngineError
from codeact_team.sandbox.docker.config import DockerSandboxConfig
from codeact_team.sandbox.docker.engine import connect

_IMAGE = DockerSandboxConfig().image
_NAMESPACES = ["--net", "--mount", "--pid", "--ipc", "--uts"]
_FIRST = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); print(flush=True); signal.pause()"
"""What the namespaces live by; it reaps what nobody waits for."""


class PrivateEngine:
    """An engine that has the image of sandboxes from the machine's own one, and no network. An asynchronous context manager."""

    def __init__(self) -> None:
        # names of sockets are short
        self._directory = Path(tempfile.mkdtemp(prefix="engine-", dir="/tmp"))

    @property
    def url(self) -> str:
        """What to set ``DOCKER_HOST`` to."""
        return f"unix://{self._directory}/socket"

    async def __aenter__(self) -> Self:
        # what is told of a system's containerd is not meant for this one
        first = [
            "sh",
            "-c",
            'mount -t tmpfs none /run && exec "$@"',
            "",
            sys.executable,
            "-I",
            "-S",
            "-c",
            _FIRST,
        ]
        self._namespaces = await asyncio.create_subprocess_exec(
            *["unshare", *_NAMESPACES, "--mount-proc", "--fork", "--kill-child", *first],
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert self._namespaces.stdout is not None
            await self._namespaces.stdout.readline()
            await self.start()
            loading = await asyncio.create_subprocess_shell(
                f"docker save {_IMAGE} | docker --host {self.url} load",
                stdout=asyncio.subprocess.DEVNULL,
            )
            assert await loading.wait() == 0
        except BaseException:
            await self._end()
            raise
        return self

    async def start(self) -> None:
        """Start it, again if it was killed."""
        place, group = self._directory, self._directory.name
        with (place / "log").open("ab") as log:
            self._engine = await self._within(
                *["dockerd", f"--host={self.url}", f"--pidfile={place}/pid", f"--cgroup-parent=/{group}"],
                *[
                    "--bridge=none",
                    "--iptables=false",
                    f"--data-root={place}/data",
                    f"--exec-root={place}/exec",
                ],
                output=log.fileno(),
            )
        await until(self._answers, seconds=60)

    async def kill(self) -> None:
        """Kill it alone. Its containers go on, until it is started again and finds them."""
        killing = await self._within("sh", "-c", f"kill -KILL $(cat {self._directory}/pid)")
        assert await killing.wait() == 0
        await self._engine.wait()

    async def _within(self, *command: str, output: int | None = None) -> asyncio.subprocess.Process:
        [first, *_] = processes_below(self._namespaces.pid)
        return await asyncio.create_subprocess_exec(
            *["nsenter", f"--target={first}", *_NAMESPACES, *command], stdout=output, stderr=output
        )

    def _answers(self) -> bool:
        assert self._engine.returncode is None, (self._directory / "log").read_text()
        try:
            connect(self.url).close()
        except EngineError:
            return False
        return True

    async def __aexit__(self, *_: object) -> None:
        await self._end()

    async def _end(self) -> None:
        # all that is in the namespaces goes with their first process
        self._namespaces.kill()
        await self._namespaces.wait()
        # what was in them ends a little later
        await until(self._groups_are_removed)
        await asyncio.to_thread(shutil.rmtree, self._directory)

    def _groups_are_removed(self) -> bool:
        for pattern in ("*/{}/*/", "*/{}/"):
            for group in Path("/sys/fs/cgroup").glob(pattern.format(self._directory.name)):
                try:
                    group.rmdir()
                except OSError:
                    return False
        return True
