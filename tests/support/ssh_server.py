"""An SSH server of this machine, and a way to it for the ``ssh`` command of a test."""

from __future__ import annotations

import asyncio
import getpass
import os
import shutil
import socket
import stat
from pathlib import Path
from typing import Self

from support.waiting import until


class SshServer:
    """An SSH server, with a key that it lets in. An asynchronous context manager.

    The keys and the settings of this user stay out of it: :attr:`path` begins with a directory whose ``ssh`` is the real one
    with the settings of the test.
    """

    def __init__(self, place: Path) -> None:
        self._place = place
        self._ssh = shutil.which("ssh")
        self.port = _free_port()
        self.path = f"{place}/bin:{os.environ['PATH']}"
        """For the variable ``PATH``."""
        self.machine = f"ssh://{getpass.getuser()}@127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        place = self._place
        for name in ("host", "user", "stranger"):
            made = await asyncio.create_subprocess_exec(
                "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", place / name
            )
            assert await made.wait() == 0
        shutil.copy(place / "user.pub", place / "authorized")
        settings = {
            "Port": self.port,
            "ListenAddress": "127.0.0.1",
            "HostKey": place / "host",
            "AuthorizedKeysFile": place / "authorized",
            "PidFile": "none",
            "StrictModes": "no",
            "UsePAM": "no",
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
            "PermitRootLogin": "prohibit-password",
        }
        (place / "sshd_config").write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
        host = (place / "host.pub").read_text()
        (place / "known").write_text(f"[127.0.0.1]:{self.port} {host}")
        self.let_in("user")
        # sshd wants it, and only its service makes it
        os.makedirs("/run/sshd", exist_ok=True)
        sshd = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
        assert sshd is not None
        self._server = await asyncio.create_subprocess_exec(
            sshd, "-D", "-e", "-f", place / "sshd_config", stderr=asyncio.subprocess.DEVNULL
        )
        await until(self._listens)
        return self

    def let_in(self, key: str) -> None:
        """Have the ``ssh`` of the test use the key ``user``, or ``stranger``, which the server does not know."""
        place = self._place
        (place / "bin").mkdir(exist_ok=True)
        command = place / "bin" / "ssh"
        options = f"-F none -o IdentitiesOnly=yes -i {place / key} -o UserKnownHostsFile={place / 'known'}"
        command.write_text(f'#!/bin/sh\nexec {self._ssh} {options} "$@"\n')
        command.chmod(command.stat().st_mode | stat.S_IXUSR)

    def _listens(self) -> bool:
        with socket.socket() as connection:
            return connection.connect_ex(("127.0.0.1", self.port)) == 0

    async def __aexit__(self, *_: object) -> None:
        self._server.terminate()
        await self._server.wait()


def _free_port() -> int:
    """A port of this machine where nothing listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
