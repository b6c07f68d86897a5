"""The profile of system calls, against a real engine; and what happens where an engine does not enforce it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from support.forwarding import engine_with

from codeact_team.errors import EngineError
from codeact_team.sandbox.base import warn_once
from codeact_team.sandbox.docker.config import DockerSandboxConfig
from codeact_team.sandbox.docker.description import describe
from codeact_team.sandbox.docker.engine import at_engine
from codeact_team.sandbox.docker.sandbox import DockerSandbox

pytestmark = pytest.mark.docker

ATTACKS = """
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "refused")
buffer = ctypes.create_string_buffer(128)
x86 = os.uname().machine == "x86_64"
families = {"vsock": (40, 1, 0), "crypto": (38, 5, 0), "packet": (17, 3, 0), "bluetooth": (31, 3, 0), "tipc": (30, 1, 0)}
attempts = {
    "io_uring": lambda: call(425, 1, buffer),
    "netlink beyond routes": lambda: socket.socket(16, socket.SOCK_RAW, 12),
    "namespaces": lambda: call(272 if x86 else 97, 0x10000000),
    "key ring": lambda: call(250 if x86 else 219, 0, -3, 0),
    "page faults": lambda: call(323 if x86 else 282, 1),
    "memory of another process": lambda: call(310 if x86 else 270, os.getpid(), buffer, 0, buffer, 0, 0),
    "another personality": lambda: call(135 if x86 else 92, 0x40000),
    "clone3 into namespaces": lambda: call(435, (ctypes.c_uint64 * 11)(0x10000000), 88),
    **{f"{name} socket": lambda args=args: socket.socket(*args) for name, args in families.items()},
}
for name, attempt in attempts.items():
    try: attempt()
    except PermissionError: pass
    except OSError as error:
        # what the kernel does not have says nothing about the profile
        if error.errno != 38: print(name, error)
    else: print("worked:", name)
print("tried")
"""

ORDINARY = """
import asyncio, concurrent.futures, ctypes, mmap, multiprocessing, os, resource, select, shutil, signal, socket, sqlite3
import subprocess, tempfile
def square(number): return number * number
def serve():
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind("socket"); server.listen(); client.connect("socket")
        with server.accept()[0] as accepted: client.send(b"x"); return accepted.recv(1)
async def main():
    process = await asyncio.create_subprocess_exec("cat", stdin=-1, stdout=-1)
    return (await process.communicate(b"asyncio"))[0]
if __name__ == "__main__":
    with concurrent.futures.ThreadPoolExecutor(4) as threads: assert sum(threads.map(square, range(9))) == 204
    with multiprocessing.Pool(2) as pool: assert sum(pool.map(square, range(9))) == 204
    assert subprocess.run("echo a | tr a b; sleep 0 & wait", shell=True, capture_output=True).stdout == b"b\\n"
    assert asyncio.run(main()) == b"asyncio"
    assert serve() == b"x"
    assert socket.getaddrinfo("localhost", 80)
    with sqlite3.connect("data") as data: data.execute("pragma journal_mode=wal"); data.execute("create table t (x)")
    with tempfile.NamedTemporaryFile() as file, mmap.mmap(-1, 4096) as memory: memory.write(b"x"); file.write(b"y")
    os.makedirs("tree/inner"); open("tree/file", "w").close(); os.chmod("tree/file", 0o755)
    shutil.copytree("tree", "copy"); shutil.move("copy", "moved"); os.utime("moved"); os.symlink("moved", "link")
    shutil.make_archive("archive", "gztar", "tree"); shutil.unpack_archive("archive.tar.gz", "unpacked")
    shutil.rmtree("tree")
    signal.signal(signal.SIGALRM, lambda *_: None); signal.setitimer(signal.ITIMER_REAL, 0.01); signal.pause()
    poll = select.epoll(); poll.close(); os.close(os.eventfd(0)); os.close(os.memfd_create("x"))
    os.sched_getaffinity(0); resource.getrlimit(resource.RLIMIT_NOFILE); os.nice(1); os.getrandom(8)
    print("done")
"""


def container(work_dir: Path | None = None, **settings: Any) -> DockerSandbox:
    return DockerSandbox(DockerSandboxConfig(**settings), work_dir=work_dir)


async def output(sandbox: DockerSandbox, code: str) -> str:
    process = await sandbox.spawn_beside([sandbox.python, "-c", code])
    await process.close_stdin()
    said = b""
    while chunk := await process.read():
        said += chunk
    await process.aclose()
    return said.decode()


async def test_what_attackers_use_is_refused_and_ordinary_programs_run() -> None:
    async with container() as sandbox:
        assert await output(sandbox, ATTACKS) == "tried\n"
        assert await output(sandbox, f"open('program.py', 'w').write({ORDINARY!r})") == ""
        run = "import runpy; runpy.run_path('program.py', run_name='__main__')"
        assert await output(sandbox, run) == "done\n"


@pytest.fixture
def open_dir() -> Generator[Path]:
    """A directory of this user's that others of this machine can enter."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.mark.long
@pytest.mark.skipif(os.getuid() != 0, reason="only root's files would give root's rights")
async def test_without_the_profile_root_does_not_run_code_where_others_can_enter(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path, open_dir: Path
) -> None:
    if at_engine(describe).is_podman:
        pytest.skip("Podman gets the profile as a file, which cannot be changed on the way")
    # code left files of root's with the set-user-ID bit there
    async with engine_with({b"SCMP_ACT_ERRNO": b"SCMP_ACT_ALLOW"}, monkeypatch, tmp_path):
        with pytest.raises(EngineError, match=r"set-id modes.*chmod 700"):
            async with container(open_dir):
                pass
        # whoever owns it can open it
        os.chown(open_dir, 65534, 65534)
        os.chmod(open_dir, 0o777)
        with pytest.raises(EngineError, match="set-id modes"):
            async with container(open_dir, user="0:0"):
                pass
        os.chown(open_dir, 0, 0)
        os.chmod(open_dir, 0o700)
        async with container(open_dir):
            pass
    assert "seccomp" not in caplog.text


@pytest.mark.skipif(os.getuid() != 0, reason="only root's files would give root's rights")
async def test_an_engine_that_takes_no_profile_is_told_of_and_root_does_not_run_code_there(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    open_dir: Path,
) -> None:
    # another test may have had this process say so
    warn_once.cache_clear()
    async with engine_with({b"name=seccomp": b"name=nothing"}, monkeypatch, tmp_path):
        with pytest.raises(EngineError, match="set-id modes"):
            async with container(open_dir):
                pass
    assert "no system calls are filtered" in caplog.text
