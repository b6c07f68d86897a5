"""Who follows only the first pages, on a Debian machine that has nothing, has done all of it in an hour, as an ordinary user.

The machine is a container that asks nothing of its engine, where code is confined without namespaces.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest
from documents import PAGES, Block, blocks_of, commands_of
from markdown_it import MarkdownIt
from running import PageRun, replies_of
from support.checkout import copy_checkout
from support.fork_server import Forked
from support.openai_server import ScriptedServer
from support.terminal import Terminal, terminal_of

TUTORIAL_MINUTES, MINUTES = 10, 60
USER = 1000


class OnAnEmptyMachine(PageRun):
    """Runs pages, one after the other, in a container of Debian, into which nothing was installed but Python.

    Args:
        container: Its id.
        home: The home directory of the user, which is in the container at the same place.
        variables: Variables besides those of a terminal.

    Attributes:
        seconds: What each step took, by the page and its heading.
    """

    def __init__(self, container: str, home: Path, **variables: str) -> None:
        found = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        usual = {"HOME": str(home), "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
        super().__init__("first-hour", home, {**usual, **variables}, found)
        self._container = container
        self._checkout = home / "codeact_team"
        self.seconds: dict[tuple[str, str], float] = {}

    def clone(self, origin: str) -> None:
        """Get what a clone and the README need, and clone it."""
        with self._timed("", "Clone it"):
            self._as_root("apt-get update -q && apt-get install -qy git python3-venv")
            cloned = self.bash(f"git clone -q {origin} {self._checkout}", self._top, {})
            assert cloned.returncode == 0, cloned.stdout

    def follow(self, name: str, blocks: Sequence[Block]) -> None:
        """Run blocks of a page, which begins in the directory of the project."""
        self._directory = self._checkout
        for heading, block in _below_headings(PAGES[name], blocks):
            with self._timed(name, heading):
                self._run(block)

    def install(self, block: Block) -> None:
        for command in commands_of(block):
            if command.text.startswith("apt-get "):
                self._as_root(command.text)
            else:
                self._run_command(command)

    def bash(
        self, script: str, directory: Path, environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        return _run([*self._exec(directory, environment), "bash", "-c", script])

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
        user = f"{USER}:{USER}"
        return [
            "docker",
            "exec",
            "-i",
            *options,
            "-u",
            user,
            "-w",
            str(directory),
            *variables,
            self._container,
        ]

    def _as_root(self, script: str) -> None:
        done = _run(["docker", "exec", self._container, "bash", "-c", script])
        assert done.returncode == 0, done.stdout

    @contextmanager
    def _timed(self, name: str, heading: str) -> Generator[None]:
        began = time.monotonic()
        yield
        step = (name, heading)
        self.seconds[step] = self.seconds.get(step, 0.0) + time.monotonic() - began


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )


def _below_headings(page: Path, blocks: Sequence[Block]) -> Iterator[tuple[str, Block]]:
    """Each block with the heading above it."""
    tokens = MarkdownIt().parse(page.read_text())
    headings = [
        (token.map[0], inline.content)
        for token, inline in pairwise(tokens)
        if token.type == "heading_open" and token.map
    ]
    for block in blocks:
        yield [title for line, title in headings if line < block.line][-1], block


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The home directory of an ordinary user."""
    (home := tmp_path / "home").mkdir()
    os.chown(home, USER, USER)
    return home


@pytest.fixture
def machine(tmp_path: Path, home: Path) -> Generator[str]:
    """A container with the network of this machine, and the certificates that hold in it; `/origin` is a bundle of what is to be committed."""
    origin = copy_checkout(tmp_path / "origin")
    author = ["-c", "user.name=Anybody", "-c", "user.email=anybody@example.org"]
    bundle = tmp_path / "origin.bundle"
    commit, pack = (
        [*author, "commit", "-qm", "All of it"],
        ["bundle", "create", "-q", str(bundle), "--all", "HEAD"],
    )
    for command in (["init", "-q"], ["add", "-A"], commit, pack):
        subprocess.run(["git", *command], cwd=origin, check=True)
    certificates = Path(os.environ.get("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt"))
    options = ["-v", f"{certificates}:/certificates.crt:ro", "-e", "PIP_CERT=/certificates.crt"]
    options += ["-v", f"{bundle}:/origin:ro", "-v", f"{home}:{home}", "--network", "host"]
    run = ["docker", "run", "-d", "--rm", *options, "python:3-slim", "sleep", "infinity"]
    container = subprocess.run(run, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    yield container
    subprocess.run(["docker", "rm", "-f", container], check=True, capture_output=True)


@pytest.mark.long
@pytest.mark.docker
@pytest.mark.timeout(1800)
def test_the_first_hour_takes_no_longer_on_an_empty_machine(machine: str, home: Path) -> None:
    with (
        ScriptedServer.in_thread(replies_of("guides/first-hour")) as server,
        OnAnEmptyMachine(machine, home, OPENAI_BASE_URL=server.base_url) as run,
    ):
        run.clone("/origin")
        [first, *_] = [block for block in blocks_of(PAGES["README"]) if block.language == "console install"]
        run.follow("README", [first])
        for name in ("tutorial", "guides/first-hour"):
            run.follow(name, blocks_of(PAGES[name]))
        assert not server.unused
    print("seconds")
    for (name, heading), seconds in run.seconds.items():
        print(f"{seconds:7.1f}  {name:18} {heading}")
    print(f"{sum(run.seconds.values()):7.1f}  all of it")
    tutorial = sum(seconds for (name, _), seconds in run.seconds.items() if name == "tutorial")
    assert tutorial < 60 * TUTORIAL_MINUTES
    assert sum(run.seconds.values()) < 60 * MINUTES
