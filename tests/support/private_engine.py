"""A Docker engine of its own, in namespaces of its own: it can be killed, and nobody else's containers are lost with it."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
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
_HAND_OVER = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()))
os.execvp(sys.argv[2], sys.argv[2:])
"""
"""Starts a program as systemd does, with what it listens at."""


class PrivateEngine:
    """An engine that has the image of sandboxes from the machine's own one, and no network. An asynchronous context manager.

    Args:
        tls: A directory with the certificates of :func:`make_certificates`: the engine listens at :attr:`port` of this machine,
            too.
    """

    def __init__(self, tls: Path | None = None) -> None:
        self._tls = tls
        # made here, as the engine has a network of its own
        self._listener = socket.create_server(("127.0.0.1", 0)) if tls is not None else None
        # names of sockets are short
        self._directory = Path(tempfile.mkdtemp(prefix="engine-", dir="/tmp"))

    @property
    def port(self) -> int:
        """Where it listens for TLS."""
        assert self._listener is not None
        return int(self._listener.getsockname()[1])

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
        over_tls = list[str]()
        if self._tls is not None:
            files = {"tlscacert": "ca.pem", "tlscert": "server.pem", "tlskey": "server-key.pem"}
            named = [f"--{option}={self._tls / file}" for option, file in files.items()]
            over_tls = ["--host=fd://", "--tlsverify", *named]
        with (place / "log").open("ab") as log:
            self._engine = await self._within(
                *["dockerd", f"--host={self.url}", f"--pidfile={place}/pid", f"--cgroup-parent=/{group}"],
                *[
                    "--bridge=none",
                    "--iptables=false",
                    f"--data-root={place}/data",
                    f"--exec-root={place}/exec",
                    *over_tls,
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
        listener = -1 if self._listener is None else self._listener.fileno()
        handing_over = [] if listener < 0 else [sys.executable, "-I", "-S", "-c", _HAND_OVER, str(listener)]
        return await asyncio.create_subprocess_exec(
            *["nsenter", f"--target={first}", *_NAMESPACES, *handing_over, *command],
            stdout=output,
            stderr=output,
            pass_fds=[listener] if listener >= 0 else [],
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
        if self._listener is not None:
            self._listener.close()
        # all that is in the namespaces goes with their first process
        self._namespaces.kill()
        await self._namespaces.wait()
        # what was in them ends a little later
        await until(self._groups_are_removed)
        await asyncio.to_thread(self._remove)

    def _remove(self) -> None:
        shutil.rmtree(self._directory)
        # else every run on this machine would ask this engine for a week
        for note in Path(tempfile.gettempdir()).glob("codeact-team-*.start"):
            with suppress(FileNotFoundError):
                if self.url in note.read_text():
                    note.unlink()

    def _groups_are_removed(self) -> bool:
        for pattern in ("*/{}/*/", "*/{}/"):
            for group in Path("/sys/fs/cgroup").glob(pattern.format(self._directory.name)):
                try:
                    group.rmdir()
                except OSError:
                    return False
        return True


def make_certificates(place: Path) -> None:
    """Make the files that ``dockerd`` and the ``docker`` command take for TLS: those of the engine, and in ``place`` itself the client's."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=place, check=True, capture_output=True)

    new = ["req", "-newkey", "rsa:2048", "-nodes", "-subj"]
    openssl(*new, "/CN=authority", "-x509", "-days", "2", "-keyout", "ca-key.pem", "-out", "ca.pem")
    for name, more in (("server", "subjectAltName=IP:127.0.0.1"), ("client", "extendedKeyUsage=clientAuth")):
        openssl(*new, f"/CN={name}", "-keyout", f"{name}-key.pem", "-out", f"{name}.csr")
        (place / "more").write_text(more)
        signed = [
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca-key.pem",
            "-CAcreateserial",
            "-days",
            "2",
            "-extfile",
            "more",
        ]
        openssl("x509", "-req", "-in", f"{name}.csr", *signed, "-out", f"{name}.pem")
    (place / "client.pem").rename(place / "cert.pem")
    (place / "client-key.pem").rename(place / "key.pem")
