"""A real Ray cluster whose nodes are all on this machine, each with processes of its own, which can be killed or stopped."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from support.processes import is_worker, processes_below
from support.waiting import until

_ADDRESS = "127.0.0.1"
_STORE = str(80 << 20)
_QUICK = {
    # a node that does not answer is given up after some ten seconds, not after a minute
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1500",
    "RAY_health_check_failure_threshold": "5",
    "RAY_USAGE_STATS_ENABLED": "0",
}


def authenticated(directory: Path) -> dict[str, str]:
    """Variables by which clusters know whom to let in; without a token Ray makes one in the user's home directory."""
    token = directory / "token"
    token.write_text(secrets.token_hex(32))
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}


class RayNode:
    """A node: the process that has started it, and all below."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    def processes(self) -> list[int]:
        return [self._process.pid, *processes_below(self._process.pid)]

    def workers(self) -> list[int]:
        return [process for process in self.processes() if is_worker(process)]

    def signal(self, number: signal.Signals) -> None:
        for process in self.processes():
            with suppress(ProcessLookupError):
                os.kill(process, number)

    async def kill(self) -> None:
        """As if its power was cut."""
        # nothing that it has started outlives the moment between two of them
        self.signal(signal.SIGSTOP)
        self.signal(signal.SIGKILL)
        await self._process.wait()


class RayCluster:
    """A cluster: a head that takes no tasks, and nodes. An asynchronous context manager.

    Args:
        nodes: How many there are at first.
    """

    def __init__(self, nodes: int = 0) -> None:
        self._first = nodes
        self.nodes: list[RayNode] = []
        self._started: list[RayNode] = []
        # names of sockets are short
        self._directory = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
        with socket.create_server((_ADDRESS, 0)) as free:
            self._port = free.getsockname()[1]

    @property
    def address(self) -> str:
        return f"{_ADDRESS}:{self._port}"

    async def __aenter__(self) -> Self:
        options = ["--head", f"--port={self._port}", "--num-cpus=0", f"--temp-dir={self._directory}"]
        try:
            self.head = await self._start([*options, "--include-dashboard=false"])
            # those of one machine are in each other's way while they start
            for _ in range(self._first):
                await self.add_node()
        except BaseException:
            await self._kill()
            raise
        return self

    async def add_node(self, *before: str, cpus: int = 1) -> RayNode:
        """Start a node.

        Args:
            before: What runs the command, such as ``unshare``.
            cpus: Processors for tasks.
        """
        node = await self._start([f"--address={self.address}", f"--num-cpus={cpus}"], before)
        self.nodes.append(node)
        return node

    async def _start(self, options: Sequence[str], before: Sequence[str] = ()) -> RayNode:
        ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
        ports = ["--min-worker-port=0", "--max-worker-port=0", f"--node-ip-address={_ADDRESS}"]
        with tempfile.TemporaryFile() as output:
            process = await asyncio.create_subprocess_exec(
                *before,
                *ray,
                *ports,
                f"--object-store-memory={_STORE}",
                *options,
                env={**os.environ, **_QUICK},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            self._started.append(node := RayNode(process))

            def said() -> str:
                return os.pread(output.fileno(), 1 << 20, 0).decode(errors="replace")

            await until(lambda: "--block" in said() or process.returncode is not None, seconds=60)
            assert process.returncode is None, said()
        return node

    async def __aexit__(self, *_: object) -> None:
        await self._kill()

    async def _kill(self) -> None:
        for node in reversed(self._started):
            await node.kill()
        shutil.rmtree(self._directory, ignore_errors=True)
