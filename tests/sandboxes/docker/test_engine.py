"""Which engine is meant, and its errors in our words."""

from __future__ import annotations

import asyncio
import inspect
import os
import socket
import tempfile
import threading
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import docker.errors
import pytest
import requests
import urllib3
from support.executing import run
from support.forwarding import forward

from codeact_team.errors import EngineError
from codeact_team.executors.docker import DockerCommandLineCodeExecutor
from codeact_team.sandbox.docker import engine as engine_room
from codeact_team.sandbox.docker.address import engine_url
from codeact_team.sandbox.docker.config import DockerSandboxConfig
from codeact_team.sandbox.docker.engine import connect, open_stream, translated
from codeact_team.sandbox.docker.sandbox import DockerSandbox

ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "BuildError": ("said", []),
    "ContainerError": (None, 1, "command", "image", "stderr"),
    "JSONDecodeError": ("said", "{", 0),
}


@pytest.fixture
def real_engine() -> str:
    """The engine that this machine uses, before ``no_settings`` hides it."""
    try:
        return engine_url()
    except EngineError:
        return ""


@pytest.fixture(autouse=True)
def no_settings(real_engine: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever engine this machine uses."""
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ("npipe:////./pipe/docker_engine", "'npipe:////./pipe/docker_engine' is not an engine's address"),
        ("garbage", "'garbage' is not an engine's address: set DOCKER_HOST"),
        ("localhost:2375", "'localhost:2375' is not an engine's address"),
        ("ftp://user:secret@machine", "'ftp://machine' is not an engine's address"),
        ("tcp://machine:notaport", "no container engine answers at tcp://machine:notaport"),
        ("tcp://machine", "no container engine answers at tcp://machine"),
        ("tcp://", "no container engine answers"),
        ("tcp://[bad", "no container engine answers"),
        (
            "unix:///nowhere/docker.sock",
            r"answers at unix:///nowhere/docker.sock \(No such file or directory\): start Docker .*point DOCKER_HOST",
        ),
        ("tcp://user:secret@127.0.0.1:1", "answers at tcp://127.0.0.1:1"),
        ("tcp://127.0.0.1:{port}", "no container engine answers at tcp://127.0.0.1"),
    ],
)
async def test_engine_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, host: str, message: str) -> None:
    with socket.socket() as unused:
        # bound, but nobody listens
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("DOCKER_HOST", host.format(port=unused.getsockname()[1]))
        with pytest.raises(EngineError, match=message) as caught:
            await run(DockerCommandLineCodeExecutor(), "print(1)")
    assert "secret" not in str(caught.value)


def test_a_socket_that_the_user_may_not_use() -> None:
    # one that root cannot reach there is not
    with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX) as engine:
        os.chmod(directory, 0o755)
        place = f"{directory}/engine.sock"
        engine.bind(place)
        os.chmod(place, 0o600 if os.geteuid() == 0 else 0)
        engine.listen()
        with unprivileged(), pytest.raises(EngineError, match=f"may not use .* at unix://{place} .*: add"):
            connect(f"unix://{place}")


@contextmanager
def unprivileged() -> Generator[None]:
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


def test_an_engine_that_does_not_answer_is_not_taken_for_one_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_room, "GREETING_TIMEOUT", 0.2)
    place = tmp_path / "engine.sock"
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(str(place))
        engine.listen()
        with pytest.raises(EngineError, match="did not answer in time: it hangs"):
            connect(f"unix://{place}")


@contextmanager
def serving(answer: bytes) -> Generator[str]:
    """Something that is no engine: gives every connection the same answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    ],
)
def test_something_else_that_answers(answer: bytes) -> None:
    with serving(answer) as url, pytest.raises(EngineError):
        connect(url)


@pytest.mark.parametrize(
    "answer", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1\r\n\r\n", b"x" * 100_000, b"HTTP/1.1 500 Oh\r\nContent-Length: x\r\n\r\n"]
)  # fmt: skip
def test_stream_that_something_else_answers(answer: bytes) -> None:
    class Version:
        api_version = "1.41"
        timeout = 10

    with serving(answer) as url, pytest.raises(EngineError):
        open_stream(Version(), url, "/exec/1/start")


@pytest.mark.docker
def test_stream_that_the_engine_refuses(real_engine: str) -> None:
    with (
        closing(connect(real_engine)) as client,
        pytest.raises(EngineError, match=r"refused: .*[Nn]o such exec"),
    ):
        open_stream(client, real_engine, "/exec/nowhere/start", {"Detach": False, "Tty": False})


def exceptions() -> list[Exception]:
    modules: tuple[Any, ...] = (docker.errors, requests.exceptions)
    found = [
        value(*ARGUMENTS.get(name, ("said",)))
        for module in modules
        for name, value in inspect.getmembers(module, inspect.isclass)
        if issubclass(value, Exception)
        and not issubclass(value, Warning)
        and value.__module__ == module.__name__
    ]
    others = (urllib3.exceptions.ProtocolError, OSError, TimeoutError, ConnectionResetError, PermissionError)
    return [*found, *(kind("said") for kind in others)]


@pytest.mark.parametrize("error", exceptions(), ids=lambda error: type(error).__name__)
def test_no_error_of_the_client_is_left_unmapped(error: Exception) -> None:
    with pytest.raises(EngineError) as caught, translated("unix:///engine.sock"):
        raise error
    assert caught.value.__cause__ is error


@pytest.mark.docker
async def test_engine_over_plain_tcp(real_engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forwarding: list[asyncio.Task[None]] = []

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        forwarding.append(asyncio.ensure_future(forward(reader, writer, real_engine)))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with server:
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        async with DockerSandbox(DockerSandboxConfig()) as sandbox:
            process = await sandbox.supervise()
            program = b"import os\nleft = 1_000_000\nwhile left: left -= os.write(1, os.read(0, left))\nos.read(0, 1)"
            await process.write(b"%d\n%b" % (len(program), program) + bytes(1_000_000))
            received = 0
            while received < 1_000_000:
                received += len(await process.read())
            await sandbox.kill()
            assert await process.read() == b""
            assert (await process.wait()).code == 137
            await process.aclose()
    # every connection ends with the sandbox
    async with asyncio.timeout(10):
        await asyncio.gather(*forwarding)
