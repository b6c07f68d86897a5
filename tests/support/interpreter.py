"""The interpreter of a session as its supervisor starts it, with its pipes in the hands of a test."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Self

from codeact_team.core.execution import Artifact
from codeact_team.sandbox.system.framing import FrameReader, frame
from codeact_team.session import shipping
from codeact_team.session.connection import read_artifact
from codeact_team.session.protocol import FROM_INTERPRETER, LAUNCHER, RUN_HEAD, TOKEN_BYTES, Kind

_TIMEOUT = 30.0
"""Seconds after which a test fails; nothing here takes a tenth of it."""

_BEGIN = "_at_first = {*globals(), '_at_first', '_name', 'tools'}"
_FORGET = "for _name in {*globals()} - _at_first: del globals()[_name]"


@dataclass
class Ran:
    """What came of a block."""

    output: str
    report: dict[str, Any]
    shown: list[Artifact] = field(default_factory=list[Artifact])

    @property
    def artifacts(self) -> list[tuple[str, bytes]]:
        """The best form of each artifact, with its type."""
        return [(one.mime_type, one.data) for one in self.shown]

    @property
    def saved_in(self) -> list[str | None]:
        """For each artifact the file in which the code has saved it itself."""
        return [one.file for one in self.shown]

    @property
    def exit_code(self) -> int:
        return self.report["exit_code"]

    @property
    def interrupted(self) -> bool:
        return self.exit_code == 130

    @property
    def answer(self) -> str | None:
        return self.report.get("answer")

    @property
    def names(self) -> dict[str, dict[str, str | None]]:
        return {described["name"]: described for described in self.report["names"]}


@dataclass
class Call:
    """A call of a tool, as the host gets it."""

    number: int
    name: str
    arguments: dict[str, Any]
    size: int


class Gone(Exception):
    """The interpreter has exited."""

    def __init__(self, status: int, output: str) -> None:
        super().__init__(f"the interpreter exited with {status}: {output}")
        self.status = status
        self.output = output


class RunningInterpreter:
    """A real interpreter process. One block at a time.

    Args:
        workspace: Its working directory.
        python: What runs it.
        environment: More of its environment.
    """

    def __init__(
        self, workspace: Path, *, python: str = sys.executable, environment: dict[str, str] | None = None
    ) -> None:
        commands, self._commands = os.pipe()
        self._reports, reports = os.pipe()
        answers, self._answers = os.pipe()
        self._output, output = os.pipe()
        self._control, control = socket.socketpair()
        # behind the program that a supervisor receives first
        size, _, payload = shipping.payload().partition(b"\n")
        payload = payload[int(size) :]
        bootstrap = (resources.files("codeact_team.session") / "runner" / "bootstrap.py").read_bytes()
        arguments = [
            str(commands),
            str(len(bootstrap)),
            str(len(payload) - len(bootstrap)),
            "codeact_team.session.runner.interpreter.interpreter",
            str(commands),
        ]
        self.process = subprocess.Popen(
            [python, "-u", "-c", LAUNCHER, *arguments, str(reports), str(answers), str(control.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(commands, reports, answers, control.fileno()),
            cwd=workspace,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        for fd in (commands, reports, answers, output):
            os.close(fd)
        control.close()
        self._frames = FrameReader(FROM_INTERPRETER)
        self._frames_waiting: deque[tuple[int, bytes]] = deque()
        self.unanswered_calls: deque[Call] = deque()
        self.cancelled: list[int] = []
        self.blocks = 0
        self.in_a_block = False
        """Whether one was begun whose end has not come."""
        self._written = b""
        self._token = b""
        self._ended = False
        self.send_raw(payload)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._control.close()
        for fd in (self._commands, self._reports, self._answers, self._output):
            if fd >= 0:
                os.close(fd)
        self._commands = self._reports = self._answers = self._output = -1

    def hang_up(self) -> int:
        """Close the pipe of the commands; the exit status."""
        os.close(self._commands)
        self._commands = -1
        return self.process.wait(_TIMEOUT)

    def run(self, code: str) -> Ran:
        """Run a block.

        Raises:
            Gone: If the interpreter has exited.
        """
        self.start(code)
        return self.finish()

    def start(self, code: str) -> None:
        self.blocks += 1
        self.in_a_block = True
        self._token = os.urandom(TOKEN_BYTES)
        self._written = b""
        self.unanswered_calls.clear()
        self.cancelled.clear()
        self.send_raw(frame(Kind.RUN, self._token, RUN_HEAD.pack(1, self.blocks), code.encode()))

    def interrupt(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)

    def interrupt_when(self, text: str) -> Ran:
        """Wait for the block that runs to write ``text``, interrupt it, and wait for its end."""
        self.interrupt_when_only(text)
        return self.finish()

    def interrupt_when_only(self, text: str) -> None:
        """Wait for the block that runs to write ``text``, and interrupt it."""
        deadline = time.monotonic() + _TIMEOUT
        while text.encode() not in self._written:
            assert time.monotonic() < deadline, self._written
            if self._readable(self._output):
                self._take_output()
        self.interrupt()

    def finish(self) -> Ran:
        """Wait for the end of the block that runs.

        Raises:
            Gone: If the interpreter has exited.
        """
        shown: list[Artifact] = []
        while True:
            kind, payload = self._next_frame()
            if kind == Kind.REPORT:
                self.in_a_block = False
                said = json.loads(payload[1:] or b"{}")
                least = {"exit_code": payload[0], "names": list[Any](), "omitted_names": 0, "denied": False}
                report: dict[str, Any] = {**least, **said}
                return Ran(self._written.decode(), report, shown)
            if kind == Kind.ARTIFACT:
                shown.append(read_artifact(payload))
            else:
                self._take_call(kind, payload)

    def declare(self, *declarations: dict[str, Any]) -> None:
        """Offer these tools, and no others, from the next block on."""
        payload = json.dumps({"tools": declarations}).encode()
        self.send_raw(frame(Kind.TOOLS, bytes(TOKEN_BYTES), payload))

    def next_call(self) -> Call:
        """Wait for the block that runs to call a tool."""
        while not self.unanswered_calls:
            kind, payload = self._next_frame()
            assert kind in (Kind.CALL, Kind.CANCEL), payload
            self._take_call(kind, payload)
        return self.unanswered_calls.popleft()

    def wait_for_cancel(self) -> int:
        """Wait for a call to be cancelled: its id."""
        while not self.cancelled:
            self._take_call(*self._next_frame())
        return self.cancelled.pop(0)

    def unanswered(self) -> list[Call]:
        """The calls that have come and that :meth:`next_call` has not returned, once nothing more comes."""
        while self._frames_waiting or self._readable(self._reports, wait=0.2):
            kind, payload = self._next_frame()
            if kind == Kind.REPORT:
                self._frames_waiting.appendleft((kind, self._token + payload))
                break
            self._take_call(kind, payload)
        return list(self.unanswered_calls)

    def answer(self, number: int, *values: object) -> None:
        self.send_answer({"id": number, "content": [{"value": value} for value in values]})

    def refuse(self, number: int, error: str, outcome: str = "failed") -> None:
        self.send_answer({"id": number, "error": error, "outcome": outcome})

    def send_answer(self, answer: object, token: bytes | None = None) -> None:
        payload = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_answer_raw(frame(Kind.ANSWER, token or self._token, payload))

    def send_answer_raw(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._answers, view) :]

    def _take_call(self, kind: int, payload: bytes) -> None:
        said = json.loads(payload)
        if kind == Kind.CANCEL:
            self.cancelled.append(said["id"])
        else:
            self.unanswered_calls.append(Call(said["id"], said["name"], said["arguments"], len(payload)))

    def _next_frame(self) -> tuple[int, bytes]:
        """The next frame, without its token.

        Raises:
            Gone: If the interpreter has exited.
        """
        deadline = time.monotonic() + _TIMEOUT
        while not self._frames_waiting:
            assert time.monotonic() < deadline, f"nothing comes: {self._written!r}"
            self._readable(self._reports, self._output)
            self._take_output()
            if not self._readable(self._reports, wait=0):
                continue
            data = os.read(self._reports, 1 << 20)
            status = None if data else self.process.wait(_TIMEOUT)
            # all that it has written by now belongs to the block
            self._take_output()
            if status is not None:
                raise Gone(status, self._written.decode())
            self._frames_waiting.extend(self._frames.feed(data))
        kind, payload = self._frames_waiting.popleft()
        assert payload[:TOKEN_BYTES] == self._token
        return kind, payload[TOKEN_BYTES:]

    def open_descriptors(self) -> list[str]:
        return sorted(os.listdir(f"/proc/{self.process.pid}/fd"))

    def memory(self) -> int:
        """Bytes of resident memory."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def cpu_seconds(self) -> float:
        """Time on the processor so far, of all its threads."""
        nanoseconds = Path(f"/proc/{self.process.pid}/schedstat").read_text().split()[0]
        return int(nanoseconds) / 1e9

    def send_raw(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._commands, view) :]

    def _readable(self, *fds: int, wait: float = 0.5) -> bool:
        return bool(select.select([fd for fd in fds if fd >= 0], [], [], wait)[0])

    def _take_output(self) -> None:
        while self._output >= 0 and self._readable(self._output, wait=0):
            data = os.read(self._output, 1 << 20)
            self._written += data
            if not data:
                os.close(self._output)
                self._output = -1


class SharedInterpreter:
    """An interpreter for the tests of a module, one after the other: each begins without variables and with block 1."""

    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace
        self._running: RunningInterpreter | None = None

    def get(self) -> RunningInterpreter:
        if self._running is not None and self._running.in_a_block:
            # a test has failed meanwhile; it may have hung, and the next would hang as well
            self.close()
        if self._running is not None:
            try:
                self._running.run(_FORGET)
                self._running.blocks = 0
            except (AssertionError, Gone, OSError):
                self.close()
        if self._running is None:
            self._running = RunningInterpreter(self._workspace)
            self._running.run(_BEGIN)
            self._running.blocks = 0
        return self._running

    def close(self) -> None:
        if self._running is not None:
            self._running.close()
            self._running = None
