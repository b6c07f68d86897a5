"""Python programs that begin with everything imported: a process that has imported it forks them.

To import the command line with AutoGen takes more than two seconds of a processor, its other work a tenth of that.
Such a program has its own process, group, standard streams, environment and directory, and the signals of one that a
shell has started; it ends as any other program. What the start itself does is tested with real starts.

The lower half is the tests' side.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import gc
import importlib
import json
import logging
import os
import pkgutil
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import IO, Any, Self, cast

_STREAMS = ("stdin", "stdout", "stderr")
_CONFIG = """
provider: codeact_team.CodeActAgent
config:
  name: coder
  model_client:
    provider: autogen_ext.models.replay.ReplayChatCompletionClient
    config:
      chat_completions: ["```python\\nprint('it')\\n```", It.]
      model_info: {vision: false, function_calling: false, json_output: true, structured_output: false, family: unknown}
  code_executor:
    provider: codeact_team.ConfinedSessionCodeExecutor
    config: {confinement: best_effort, packages: []}
"""


def _prepare() -> None:
    """Import everything, and do once what is slow the first time."""
    from weak_engine import accept_if_asked

    import codeact_team
    import codeact_team.cli

    accept_if_asked()
    for name in codeact_team.__all__:
        getattr(codeact_team, name)
    for module in pkgutil.iter_modules(codeact_team.cli.__path__, "codeact_team.cli."):
        importlib.import_module(module.name)
    for name in ("autogen_ext.tools.mcp", "mcp.server.fastmcp", "uvicorn"):
        importlib.import_module(name)
    import typer.main

    from codeact_team.cli.app import app

    # what the command line looks like is the same in each
    get_command = functools.cache(typer.main.get_command)
    typer.main.get_command = get_command
    get_command(app)
    os.environ |= {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": "http://127.0.0.1:9"}
    for config in ("team", "codeact"):
        codeact_team.load_config(config)
    asyncio.run(_ask_nobody())
    logging.disable(logging.WARNING)
    with suppress(codeact_team.SandboxError):
        asyncio.run(_run_once())
    logging.disable(logging.NOTSET)


async def _run_once() -> None:
    """Have an agent run code confined, and keep the run: what that loads, and what this kernel enforces, is known then."""
    import codeact_team

    with tempfile.TemporaryDirectory() as directory:
        async with codeact_team.open_team(_CONFIG, record=f"{directory}/run") as coder:
            await coder.run(task="Go.")


async def _ask_nobody() -> None:
    from autogen_core.models import UserMessage
    from autogen_ext.models.openai import OpenAIChatCompletionClient
    from openai import OpenAIError
    from openai.types.chat import ChatCompletion

    client = OpenAIChatCompletionClient(model="gpt-4.1", max_retries=0)
    with suppress(OpenAIError):
        await client.create([UserMessage(content="", source="user")])
    await client.close()
    # what an answer consists of is worked out with the first
    message = {"role": "assistant", "content": ""}
    ChatCompletion.construct(
        choices=[{"index": 0, "finish_reason": "stop", "message": message}],
        usage={"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    )


def _serve(listener: socket.socket) -> dict[str, Any] | None:
    """Fork for each request; what to run is returned in the new process, and nothing once the tests have ended."""
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    # its other end is closed when the tests end, however they do
    selector.register(0, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fd == 0:
                return None
            if key.fileobj is listener:
                # who has been stopped before its request keeps nobody waiting
                selector.register(listener.accept()[0], selectors.EVENT_READ)
                continue
            selector.unregister(key.fileobj)
            if isinstance(key.fileobj, int):
                os.close(key.fd)
                _tell_the_end(*key.data)
                continue
            asked = cast("socket.socket", key.fileobj)
            message, streams, _, _ = socket.recv_fds(asked, 1 << 20, 3)
            if not message:
                # who wanted to ask has gone
                asked.close()
                continue
            request = json.loads(message)
            if not (pid := os.fork()):
                selector.close()
                for each in (listener, asked):
                    each.detach()
                _begin(request, streams)
                return request
            for stream in streams:
                os.close(stream)
            with suppress(BrokenPipeError):
                asked.send(b"%d" % pid)
            selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, asked))


def _tell_the_end(pid: int, asked: socket.socket) -> None:
    _, status, used = os.wait4(pid, 0)
    # whoever does not wait for it has gone
    with asked, suppress(BrokenPipeError):
        asked.send(b"%d %f" % (os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime))


def _begin(request: dict[str, Any], streams: Sequence[int]) -> None:
    """Make this process what a new one would be."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    if request["terminal"]:
        import fcntl
        import termios

        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    else:
        os.setpgid(0, 0)
    signal.signal(signal.SIGHUP, signal.SIG_IGN if request["nohup"] else signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None
    sys.executable = request.get("executable", sys.executable)
    # those of this process remember what their descriptors were
    encoding = os.environ.get("PYTHONIOENCODING")
    sys.stdin = sys.__stdin__ = open(0, closefd=False, encoding=encoding)
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False, encoding=encoding)
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)


def _run(arguments: list[str]) -> None:
    if arguments[0] == "-m":
        sys.argv, sys.path[0] = arguments[1:], os.getcwd()
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = arguments, os.path.dirname(arguments[0])
        runpy.run_path(arguments[0], run_name="__main__")


def _main() -> None:
    listener = socket.socket(fileno=int(sys.argv[1]))
    _prepare()
    # what is there now is never looked at again, so it stays shared and is not taken apart at the end of each
    gc.collect()
    gc.freeze()
    if (request := _serve(listener)) is not None:
        code = 0
        try:
            _run(request["arguments"])
        except SystemExit as error:
            if not isinstance(error.code, int | None):
                raise
            code = error.code or 0
        _leave(code)


def _leave(code: int) -> None:
    """End as Python does, but for taking all modules apart: that takes seven times as long as a small program."""
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
    gc.collect()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        # as Python tells it
        sys.exit(code)
    os._exit(code)


class Forked:
    """A program that was started, with the interface of ``subprocess.Popen`` as far as tests need it."""

    def __init__(self, asked: socket.socket, pipes: Mapping[str, IO[bytes]]) -> None:
        self.pid = int(asked.recv(16))
        self.returncode: int | None = None
        self.stdin, self.stdout, self.stderr = (pipes.get(name) for name in _STREAMS)
        self._asked = asked

    def wait(self, timeout: float) -> int:
        """Wait until it has ended; its exit code.

        Raises:
            subprocess.TimeoutExpired: If it has not after ``timeout`` seconds.
        """
        if self.returncode is None:
            self._asked.settimeout(timeout)
            try:
                code, seconds = self._asked.recv(64).split()
            except TimeoutError:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout) from None
            self.returncode = int(code)
            _used.append(float(seconds))
            self._asked.close()
        return self.returncode

    def communicate(self, input: bytes = b"", *, timeout: float) -> tuple[bytes, bytes]:
        """Give it ``input``, wait for its end, and return what it has written to standard output and error."""
        with ThreadPoolExecutor() as pool:
            written = pool.submit(self._write, input)
            output, errors = (pool.submit(self._read, stream) for stream in (self.stdout, self.stderr))
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
            written.result()
            return output.result(), errors.result()

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _read(self, stream: IO[bytes] | None) -> bytes:
        return stream.read() if stream else b""

    def _write(self, data: bytes) -> None:
        # who does not read shows that in another way
        with suppress(BrokenPipeError), self.stdin or nullcontext() as stdin:
            if stdin and data:
                stdin.write(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        if failure is not None:
            # nobody stops it any more
            self.kill()
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream:
                stream.close()
        with self._asked:
            self.wait(60)


_used: list[float] = []
servers: list[int] = []
"""The processes of the servers that this process, or one it is a fork of, has started."""


def processor_time() -> float:
    """How many seconds of a processor the programs took that this process has started here, and waited for."""
    return sum(_used)


@functools.cache
def address() -> str:
    """Where the server of this process and its forks listens. It ends with this process."""
    directory = tempfile.mkdtemp()
    path = f"{directory}/socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()
        number = listener.fileno()
        server = subprocess.Popen(
            [sys.executable, __file__, str(number)],
            pass_fds=[number],
            stdin=subprocess.PIPE,
            process_group=0,
        )
    servers.append(server.pid)

    def end() -> None:
        server.communicate()
        shutil.rmtree(directory)

    atexit.register(end)
    return path


def forked_by_command(*arguments: str) -> list[str]:
    """What runs this, with a start of Python that imports next to nothing, where only a command can be given."""
    return [sys.executable, "-I", "-S", str(Path(__file__).with_name("fork.py")), address(), *arguments]


def start(
    arguments: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    stdin: int = subprocess.DEVNULL,
    stdout: int = subprocess.PIPE,
    stderr: int = subprocess.PIPE,
    terminal: bool = False,
    nohup: bool = False,
    executable: str = sys.executable,
) -> Forked:
    """Start a Python program.

    Args:
        arguments: What the command line has behind ``python``: a file, or ``-m`` and a module, and their arguments.
        cwd: Its directory.
        environment: All its variables.
        stdin: A descriptor, or what ``subprocess`` has in its place; as are ``stdout`` and ``stderr``.
        terminal: Whether ``stdin`` is to be the terminal that controls it.
        nohup: Whether it is to outlive that, as what the program of this name starts.
        executable: What it runs other Python programs by: its ``sys.executable``.
    """
    request = {
        "arguments": arguments,
        "cwd": str(cwd),
        "environment": dict(environment),
        "terminal": terminal,
        "nohup": nohup,
        "executable": executable,
    }
    pipes: dict[str, IO[bytes]] = {}
    with ExitStack() as theirs:

        def given(descriptor: int) -> int:
            theirs.callback(os.close, descriptor)
            return descriptor

        descriptors: list[int] = []
        for name, stream in zip(_STREAMS, (stdin, stdout, stderr), strict=True):
            if stream == subprocess.DEVNULL:
                stream = given(os.open(os.devnull, os.O_RDWR))
            elif stream == subprocess.STDOUT:
                stream = descriptors[_STREAMS.index("stdout")]
            elif stream == subprocess.PIPE:
                reading, writing = os.pipe()
                stream = given(reading if name == "stdin" else writing)
                pipes[name] = open(writing, "wb", 0) if name == "stdin" else open(reading, "rb")
            descriptors.append(stream)
        asked = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            asked.connect(address())
            socket.send_fds(asked, [json.dumps(request).encode()], descriptors)
        except BaseException:
            # else the other side waits for a request for ever
            asked.close()
            raise
        return Forked(asked, pipes)


if __name__ == "__main__":
    _main()
