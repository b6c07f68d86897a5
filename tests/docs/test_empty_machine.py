"""Who follows only the tutorial, on a Debian machine that has nothing, has done all of it in ten minutes."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import cast

import pytest
from documents import PAGES, ROOT, Block, commands_of
from running import PageRun
from support.fork_server import Forked
from support.terminal import Terminal, terminal_of

MINUTES = 10


class OnAnEmptyMachine(PageRun):
    """Runs a page in a container of Debian, into which nothing was installed but Python."""

    def __init__(self, container: str, directory: Path) -> None:
        found = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        super().__init__("tutorial", directory, {"HOME": str(directory), "TERM": "xterm-256color"}, found)
        self._container = container

    def install(self, block: Block) -> None:
        here, self._directory = self._directory, Path("/project")
        for command in commands_of(block):
            self._run_command(command)
        self._directory = here

    def bash(
        self, script: str, directory: Path, environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        command = [*self._exec(directory, environment), "bash", "-c", script]
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )

    def terminal(
        self, command: Sequence[str], directory: Path, environment: Mapping[str, str]
    ) -> AbstractContextManager[Terminal]:
        arguments = [*self._exec(directory, environment, "-t"), *command]

        def begin(terminal: int) -> Forked:
            process = subprocess.Popen[bytes](
                arguments, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True
            )
            # its interface is that, as far as a terminal needs it
            return cast("Forked", process)

        return terminal_of(begin)

    def _exec(self, directory: Path, environment: Mapping[str, str], *options: str) -> Sequence[str]:
        variables = [part for name, text in environment.items() for part in ("-e", f"{name}={text}")]
        return ["docker", "exec", "-i", *options, "-w", str(directory), *variables, self._container]


@pytest.fixture
def machine(tmp_path: Path) -> Generator[str]:
    """A container with the network of this machine, and the certificates that hold in it."""
    volumes = [f"{ROOT}:/project:ro", f"{tmp_path}:{tmp_path}"]
    certificates = Path(os.environ.get("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt"))
    options = ["-v", f"{certificates}:/certificates.crt:ro", "-e", "PIP_CERT=/certificates.crt"]
    options += [part for volume in volumes for part in ("-v", volume)]
    # as a machine has it: code can be confined
    options += ["--security-opt", "seccomp=unconfined", "--cap-add", "SYS_ADMIN", "--network", "host"]
    run = ["docker", "run", "-d", "--rm", *options, "python:3-slim", "sleep", "infinity"]
    container = subprocess.run(run, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    yield container
    subprocess.run(["docker", "rm", "-f", container], check=True, capture_output=True)


@pytest.mark.long
@pytest.mark.docker
@pytest.mark.timeout(900)
def test_the_tutorial_takes_ten_minutes_on_an_empty_machine(machine: str, tmp_path: Path) -> None:
    began = time.monotonic()
    with OnAnEmptyMachine(machine, tmp_path) as run:
        run.run(PAGES["tutorial"])
    works = time.monotonic() - began
    print(f"the machine works for {works:.0f} s of the tutorial")
    assert works < 60 * MINUTES
