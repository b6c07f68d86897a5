"""The program inside the sandbox, run as a plain subprocess or in a container, and asked as the host asks it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codeact_team.files import trees
from codeact_team.sandbox.base import receiving
from codeact_team.sandbox.system.framing import FrameReader, frame
from codeact_team.session import shipping
from codeact_team.session.connection import Greeting, read_report
from codeact_team.session.protocol import FROM_SUPERVISOR, RUN_HEAD, Kind, ResultFrame

PATIENCE = 30.0
"""Seconds that an answer may take on a machine that is busy with other things."""


# the interpreter's end of the pipe of reports is the one pipe that it can write to and that is not stdout; of those
# that it can read, the pipe of answers is made after the one of commands
REPORTS = """
import fcntl, os, struct, sys
def pipes(mode):
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            if fd > 2 and fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == mode:
                name = os.readlink(f"/proc/self/fd/{fd}")
                if name.startswith("pipe:") and name != os.readlink("/proc/self/fd/1"):
                    yield fd
        except OSError:
            pass
def reports():
    return next(pipes(os.O_WRONLY))
def answers():
    return max(pipes(os.O_RDONLY))
def packed(kind, payload):
    return struct.pack(">BI", kind, len(payload)) + payload
def write(kind, payload):
    data = packed(kind, payload)
    while data:
        data = data[os.write(reports(), data):]
def answer():
    def exactly(count):
        data = bytearray()
        while len(data) < count:
            data += os.read(fd, min(count - len(data), 1 << 20))
        return bytes(data)
    fd = answers()
    kind, length = struct.unpack(">BI", exactly(5))
    data = exactly(length)
    return kind, data[:16], data[16:]
def token():
    frame = sys._getframe()
    while frame:
        for value in () if frame.f_locals is frame.f_globals else frame.f_locals.values():
            if isinstance(value, bytes) and len(value) == 16:
                return value
        frame = frame.f_back
"""
"""Code by which a block speaks for the interpreter."""


class Ended(Exception):
    """The supervisor has ended."""


@dataclass
class Result:
    """What came of a block."""

    account: ResultFrame
    report: dict[str, Any] | None
    output: bytes
    artifacts: list[tuple[dict[str, Any], bytes]]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.account, name)

    @property
    def text(self) -> str:
        return self.output.decode()


@dataclass
class Supervised:
    """A supervisor, as its host sees it."""

    process: subprocess.Popen[bytes]
    unguarded: str | None = None
    interpreter: int = 0
    numbers: int = 0

    def __post_init__(self) -> None:
        self._reader = FrameReader(FROM_SUPERVISOR)
        self._arrived: deque[tuple[int, bytes]] = deque()

    def send(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def read(self, seconds: float = PATIENCE) -> bytes:
        """What comes next, whatever it is.

        Raises:
            Ended: If nothing will.
        """
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        readable, _, _ = select.select([fd], [], [], seconds)
        assert readable, "the supervisor does not answer"
        if not (data := os.read(fd, 1 << 20)):
            raise Ended
        return data

    def receive(self) -> tuple[int, bytes]:
        while not self._arrived:
            self._arrived.extend(self._reader.feed(self.read()))
        return self._arrived.popleft()

    def expect(self, kind: Kind) -> bytes:
        came, payload = self.receive()
        assert came == kind, f"{came!r}: {payload!r}"
        return payload

    def start(self, code: str, language: str = "python") -> None:
        self.numbers += 1
        self.send(block(code, language, self.interpreter, self.numbers))

    def output_until(self, mark: bytes) -> bytes:
        """Read output until ``mark`` was in it."""
        output = b""
        while mark not in output:
            output += self.expect(Kind.OUTPUT)
        return output

    def result(self) -> Result:
        output, artifacts = bytearray(), list[tuple[dict[str, Any], bytes]]()
        while True:
            kind, payload = self.receive()
            if kind == Kind.OUTPUT:
                output += payload
            elif kind == Kind.ARTIFACT:
                head, _, data = payload.partition(b"\n")
                artifacts.append((json.loads(head), data))
            else:
                assert kind == Kind.RESULT, f"{kind!r}: {payload!r}"
                account = ResultFrame.unpack(payload)
                if account.interpreter:
                    self.interpreter = account.present
                report = read_report(account.report)
                output += account.output
                return Result(account, report and report.model_dump(), bytes(output), artifacts)

    def run(self, code: str, language: str = "python") -> Result:
        self.start(code, language)
        return self.result()

    def sh(self, code: str) -> Result:
        return self.run(code, "sh")

    def interrupt(self) -> None:
        self.send(frame(Kind.INTERRUPT))

    def kill(self) -> None:
        self.send(frame(Kind.KILL))

    def tell_tools(self, *declarations: dict[str, Any]) -> None:
        self.send(frame(Kind.TOOLS, json.dumps({"tools": declarations}).encode()))

    def answer(self, number: int, value: Any) -> None:
        self.send(frame(Kind.ANSWER, json.dumps({"id": number, "content": [{"value": value}]}).encode()))

    def restart(self) -> None:
        self.send(frame(Kind.RESTART))
        self.greeted()

    def begin_anew(self) -> None:
        """End whatever runs, and go on with a fresh interpreter that has no tools."""
        self.send(frame(Kind.RESTART))
        while (received := self.receive())[0] != Kind.READY:
            pass
        self.tell_tools()
        self._take_greeting(received[1])

    def greeted(self) -> None:
        self._take_greeting(self.expect(Kind.READY))

    def _take_greeting(self, payload: bytes) -> None:
        greeting = Greeting.model_validate_json(payload)
        self.interpreter, self.unguarded = greeting.interpreter, greeting.unguarded

    def put(self, path: str, data: bytes) -> str | None:
        """What went wrong, if something did."""
        self.send(frame(Kind.PUT, json.dumps({"path": path}).encode() + b"\n", data))
        return self._failure()

    def get(self, path: str) -> bytes | str:
        """The content, or what went wrong."""
        self.send(frame(Kind.GET, json.dumps({"path": path}).encode()))
        pieces: list[bytes] = []
        while True:
            kind, payload = self.receive()
            if kind == Kind.FAILED:
                return json.loads(payload)["error"]
            if kind == Kind.DONE:
                return b"".join(pieces)
            assert kind == Kind.FILE
            pieces.append(payload)

    def files(self) -> dict[str, int]:
        self.send(frame(Kind.LIST))
        return dict(json.loads(self.expect(Kind.DONE))["files"])

    def ends(self, seconds: float = PATIENCE) -> bool:
        """Wait until it has ended, whatever it says meanwhile."""
        try:
            while True:
                self.read(seconds)
        except Ended:
            self.process.wait(seconds)
            return True

    def _failure(self) -> str | None:
        kind, payload = self.receive()
        return None if kind == Kind.DONE else json.loads(payload)["error"]


def block(code: str, language: str = "python", interpreter: int = 1, number: int = 1) -> bytes:
    """The frame that has a block run."""
    if language == "python":
        return frame(Kind.RUN, RUN_HEAD.pack(interpreter, number), code.encode())
    return frame(Kind.SHELL, language.encode(), b"\n", code.encode())


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until ``condition`` holds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.01)


@contextlib.contextmanager
def supervised(
    directory: Path,
    *,
    prefix: Sequence[str] = (),
    python: str = sys.executable,
    environment: Mapping[str, str] | None = None,
) -> Generator[Supervised]:
    """A supervisor that has been started.

    Args:
        directory: Its workspace.
        prefix: What comes before the command, such as ``docker run``.
        python: The interpreter.
        environment: Variables beside this process's.
    """
    process = subprocess.Popen(
        [*prefix, *receiving(python)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=directory,
        env={**os.environ, **(environment or {})},
    )
    with process:
        one = Supervised(process)
        try:
            one.send(shipping.payload())
            one.greeted()
            yield one
        finally:
            with contextlib.suppress(BrokenPipeError):
                assert process.stdin is not None
                process.stdin.close()
            end = time.monotonic() + PATIENCE
            with contextlib.suppress(Ended):
                while time.monotonic() < end:
                    one.read()


class SharedSupervisor:
    """A supervisor for the tests of a module, one after the other: each begins with a fresh interpreter."""

    def __init__(self, directory: Path, **start: Any) -> None:
        self.workspace = directory / "workspace"
        self.workspace.mkdir()
        self._start = start
        self._running = contextlib.ExitStack()
        self._supervisor: Supervised | None = None

    def get(self) -> Supervised:
        if self._supervisor is not None:
            try:
                self._supervisor.begin_anew()
            except (Ended, OSError):
                self.close()
            except AssertionError:
                # it hangs, and would do so at its end
                self._supervisor.process.kill()
                self.close()
        self._clear_workspace()
        if self._supervisor is None:
            self._supervisor = self._running.enter_context(supervised(self.workspace, **self._start))
        return self._supervisor

    def close(self) -> None:
        self._supervisor = None
        self._running.close()
        self._clear_workspace()

    def _clear_workspace(self) -> None:
        # pytest cannot remove a deep tree
        for entry in list(os.scandir(self.workspace)):
            if entry.is_dir(follow_symlinks=False):
                trees.remove(entry.path)
            else:
                os.unlink(entry)


IN_DOCKER = (
    *("docker", "run", "--rm", "-i", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
    *("--read-only", "--network", "none", "--tmpfs", "/tmp:mode=1777,size=32m", "-w", "/workspace"),
    *("--log-driver", "none", "--pids-limit", "64", "-m", "128m", "--memory-swap", "128m"),
)


def in_docker(user: str = "65534") -> Sequence[str]:
    """What runs a command in a hardened container."""
    return (*IN_DOCKER, "--tmpfs", f"/workspace:uid={user},size=32m,exec", "-u", user, "python:3-slim")
