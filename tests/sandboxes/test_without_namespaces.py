"""Code that is confined without namespaces: what Landlock alone would let it do, and what it may."""

from __future__ import annotations

import json
import os
import signal
import socket
import textwrap
from pathlib import Path
from typing import Any

import pytest
from sandboxes.confined_host import alive, children
from sandboxes.confined_support import host
from support.executing import wait_until, why_not_confined
from support.variations import mostly_long

from codeact_team.sandbox.confined.protocol import Confinement
from codeact_team.sandbox.confined.supervisor import users
from codeact_team.sandbox.system.kernel import ABI_OF_SCOPES, landlock_abi

pytestmark = pytest.mark.skipif(why_not_confined() is not None, reason=str(why_not_confined()))

BEGIN = """
import ctypes, errno, fcntl, os, signal, socket, struct, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
outside = int(sys.argv[1])
def call(number, *arguments):
    result = libc.syscall(ctypes.c_long(number), *(a if isinstance(a, bytes) or a is None else ctypes.c_long(a) for a in arguments))
    if result < 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def attempt(action, *arguments):
    try: print("done", action(*arguments))
    except OSError as error: print(errno.errorcode[error.errno])
"""
X86 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="it makes calls by their numbers on x86_64")


def run(workspace: Path, code: str, *mode: str) -> list[str]:
    """Run code without namespaces. What it says, by line."""
    report = run_beside(workspace, code, *mode)
    assert report["lives"]
    assert report["code"] == 0, report["output"]
    return report["output"].splitlines()


def run_beside(workspace: Path, code: str, *mode: str) -> dict[str, Any]:
    file = workspace.parent / f"{workspace.name}.py"
    file.write_text(BEGIN + textwrap.dedent(code))
    with host(str(file), workspace, "required", "namespaces", *mode) as process:
        report = json.loads(process.communicate(timeout=60)[0])
    assert "error" not in report, report["error"]
    return report


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (made := tmp_path / "workspace").mkdir()
    return made


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory that may be read, with a file that everybody may write as far as its mode says."""
    (made := tmp_path / "data").mkdir()
    (made / "file").write_text("data")
    (made / "file").chmod(0o666)
    return made


@pytest.mark.parametrize("version", mostly_long([1, 2, 4, 6]))
@pytest.mark.parametrize("rights", mostly_long(["", "capabilities"]))
def test_no_attack_succeeds_with_an_older_landlock(tmp_path: Path, version: int, rights: str) -> None:
    modes = ("required", "namespaces", f"landlock-{version}", *rights.split())
    with host("report", tmp_path, *modes) as process:
        report = json.loads(process.communicate(timeout=60)[0])
    assert (report["done"], report["survivors"], report["said"]) == ([], 0, [])


@X86
@pytest.mark.parametrize("version", mostly_long([1, 2, 4, 7]))
def test_a_file_that_may_be_read_cannot_be_changed(workspace: Path, data: Path, version: int) -> None:
    file = str(data / "file")
    before = os.stat(file)
    code = f"""
        file = {file!r}.encode()
        opened = os.open(file, os.O_RDONLY)
        flags = (ctypes.c_int * 1)(0x10)
        for number, *arguments in (
            (2, file, os.O_RDONLY | os.O_TRUNC), (257, -100, file, os.O_RDONLY | os.O_TRUNC), (76, file, 0),
            (90, file, 0o777), (91, opened, 0o777), (268, -100, file, 0o777), (452, -100, file, 0o777, 0), (452, opened, b"", 0o777, 0x1000),
            (92, file, 0, 0), (93, opened, 0, 0), (94, file, 0, 0), (260, -100, file, 0, 0, 0), (260, opened, b"", 0, 0, 0x1000),
            (132, file, None), (235, file, None), (261, -100, file, None), (280, -100, file, None, 0), (280, opened, None, None, 0),
            (188, file, b"user.a", b"b", 1, 0), (189, file, b"user.a", b"b", 1, 0), (190, opened, b"user.a", b"b", 1, 0),
            (197, file, b"user.a"), (198, file, b"user.a"), (199, opened, b"user.a"),
            (16, opened, 0x40086602, bytes(flags)), (16, opened, 0x401C5820, bytes(28)),
        ):
            attempt(call, number, *arguments)
        os.symlink(file, "link")
        attempt(os.chmod, "link", 0o777); attempt(os.chmod, f"/proc/self/fd/{{opened}}", 0o777)
        attempt(os.getxattr, file, "user.a"); attempt(os.listxattr, file)
    """
    said = run(workspace, code, f"readable={data}", f"landlock-{version}")
    assert len(said) == 30
    assert not any(line.startswith("done") for line in said), said
    after = os.stat(file)
    assert (after.st_mode, after.st_size, after.st_mtime_ns, after.st_ctime_ns) == (
        before.st_mode,
        before.st_size,
        before.st_mtime_ns,
        before.st_ctime_ns,
    )


def test_files_of_its_own_can_be_changed_however_they_are_named(workspace: Path) -> None:
    code = """
        open("a", "w").close(); os.mkdir("d"); open("d/x", "w").close()
        os.chmod("a", 0o640); print(oct(os.stat("a").st_mode & 0o777))
        with open("a", "r+") as file:
            os.fchmod(file.fileno(), 0o600); os.utime(file.fileno(), (5, 6)); os.setxattr(file.fileno(), "user.a", b"1")
        print(oct(os.stat("a").st_mode & 0o777), os.stat("a").st_mtime, os.getxattr("a", "user.a"), os.listxattr("a"))
        # links: absolute ones inside, and one that is itself meant
        os.symlink(os.path.abspath("a"), "link")
        os.chmod("link", 0o444); print(oct(os.stat("a").st_mode & 0o777))
        os.utime("link", (1, 1), follow_symlinks=False); print(os.stat("a").st_mtime, os.lstat("link").st_mtime)
        # by a descriptor of a directory, and from another directory
        place = os.open("d", os.O_RDONLY)
        os.chmod("x", 0o611, dir_fd=place); print(oct(os.stat("d/x").st_mode & 0o777))
        os.chdir("d"); os.chmod("x", 0o622); os.chmod("../a", 0o633); os.chdir("..")
        print(oct(os.stat("d/x").st_mode & 0o777), oct(os.stat("a").st_mode & 0o777))
        # a name that crosses a page, one of any bytes, and those that are too long or none
        import mmap
        memory = mmap.mmap(-1, 2 * mmap.PAGESIZE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        memory[mmap.PAGESIZE - 2:mmap.PAGESIZE + 2] = b"d/x\\0"
        call(90, address + mmap.PAGESIZE - 2, 0o700)
        print(oct(os.stat("d/x").st_mode & 0o777), oct(os.stat("d").st_mode & 0o777) != "0o700")
        open(b"\\xff\\n", "w").close(); os.chmod(b"\\xff\\n", 0o600); print(oct(os.stat(b"\\xff\\n").st_mode & 0o777))
        for name in (b"x" * 5000, b"x" * 300, b"", b"a/b", b"gone"): attempt(os.chmod, name, 0o600)
        attempt(call, 90, 8, 0o600); attempt(call, 90, -1, 0o600)
        attempt(os.chmod, "a", 0o4755)
    """
    assert run(workspace, code) == [
        "0o640",
        "0o600 6.0 b'1' ['user.a']",
        "0o444",
        "6.0 1.0",
        "0o611",
        "0o622 0o633",
        "0o700 True",
        "0o600",
        "ENAMETOOLONG",
        "ENAMETOOLONG",
        "ENOENT",
        "ENOTDIR",
        "ENOENT",
        "EFAULT",
        "EFAULT",
        "EPERM",
    ]


@pytest.mark.parametrize("version", mostly_long([4, 7]))
def test_signals_go_to_its_own_processes_only(workspace: Path, version: int) -> None:
    code = """
        own = subprocess.Popen(["sleep", "60"], start_new_session=True)
        other = os.pidfd_open(outside)
        for action in (
            lambda: os.kill(outside, 0), lambda: os.kill(outside, 9), lambda: os.kill(os.getppid(), 9), lambda: os.kill(-os.getpgid(outside), 9),
            lambda: signal.pidfd_send_signal(other, 9), lambda: call(234, outside, outside, 9), lambda: call(200, outside, 9),
            lambda: call(129, outside, 9, bytes(128)), lambda: call(297, outside, outside, 9, bytes(128)),
        ): attempt(action)
        attempt(os.kill, own.pid, signal.SIGSTOP); attempt(os.kill, own.pid, signal.SIGCONT)
        attempt(signal.pidfd_send_signal, os.pidfd_open(own.pid), signal.SIGTERM); print(own.wait())
        group = [subprocess.Popen(["sleep", "60"], process_group=0)]
        group += [subprocess.Popen(["sleep", "60"], process_group=group[0].pid) for _ in range(3)]
        attempt(os.killpg, group[0].pid, signal.SIGKILL); print([one.wait() for one in group])
        signal.signal(signal.SIGUSR1, lambda *_: print("heard")); signal.raise_signal(signal.SIGUSR1); os.kill(os.getpid(), signal.SIGUSR1)
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        attempt(os.kill, 999999, 0)
        last = [subprocess.Popen(["sleep", "60"], start_new_session=True) for _ in range(3)]
        attempt(os.kill, -1, signal.SIGKILL); print([one.wait() for one in last])
    """
    code = code.replace("process_group=0", "preexec_fn=os.setpgrp").replace(
        "process_group=group[0].pid", "preexec_fn=lambda: os.setpgid(0, group[0].pid)"
    )
    by_kernel = version >= ABI_OF_SCOPES
    if by_kernel and landlock_abi() < ABI_OF_SCOPES:
        pytest.skip("the kernel has an older Landlock")
    refused = ["EPERM", "EPERM", "EPERM", "EPERM" if by_kernel else "ESRCH", *["EPERM"] * 5]
    assert run(workspace, code, f"landlock-{version}") == [
        *refused,
        "done None",
        "done None",
        "done None",
        "-15",
        "done None",
        "[-9, -9, -9, -9]",
        "heard",
        "heard",
        "heard",
        "ESRCH",
        "done None",
        "[-9, -9, -9]",
    ]


@pytest.mark.skipif(landlock_abi() < ABI_OF_SCOPES, reason="the kernel has no scopes")
@X86
def test_what_is_kept_apart_within_a_sandbox_signals_nothing_else_there(workspace: Path) -> None:
    code = """
        own = subprocess.Popen(["sleep", "60"])
        if not os.fork():
            call(446, call(444, struct.pack("QQQ", 0, 0, 2), 24, 0), 0)
            attempt(os.kill, own.pid, 9); attempt(os.kill, os.getppid(), 9)
            sys.stdout.flush(); os._exit(0)
        os.wait(); own.kill(); print(own.wait())
    """
    assert run(workspace, code) == ["EPERM", "EPERM", "-9"]


@X86
@pytest.mark.parametrize(("flags", "more"), mostly_long([(4, None), (0, 8)]))
def test_what_a_signal_by_descriptor_cannot_carry_is_refused(
    workspace: Path, flags: int, more: int | None
) -> None:
    code = f"attempt(call, 424, os.pidfd_open(os.getpid()), 0, {more}, {flags})"
    assert run(workspace, code, "landlock-4") == ["EPERM" if more else "EINVAL"]


@X86
def test_processes_and_threads_are_counted(workspace: Path) -> None:
    code = """
        def sleep(): time.sleep(60)
        children = []
        try:
            while len(children) < 60:
                if not (child := os.fork()): sleep()
                children.append(child)
        except BlockingIOError: pass
        print(len(children) < 20)
        for child in children: os.kill(child, 9); os.waitpid(child, 0)
        started = 0
        try:
            while started < 300: threading.Thread(target=sleep, daemon=True).start(); started += 1
        except RuntimeError: pass
        print(0 < started < 20, flush=True)
        # a child of the parent would be nobody's
        attempt(call, 56, 0x8000 | signal.SIGCHLD, 0, 0, 0, 0)
        # one after the other there may be any number
        attempt(os.fork)
        os._exit(0)
    """
    assert run(workspace, code, "pids=20") == ["True", "True", "EPERM", "EAGAIN"]
    one_by_one = """
        for _ in range(200):
            if not (child := os.fork()): os._exit(0)
            os.waitpid(child, 0)
        print("all")
    """
    assert run(workspace, one_by_one, "pids=10") == ["all"]


@pytest.mark.long
@X86
@pytest.mark.skipif(os.geteuid() != 0, reason="only root hides the control groups that would count, too")
def test_those_that_start_at_once_are_counted(workspace: Path) -> None:
    # each copies the memory, and the others wait for that
    code = """
        memory = bytearray(300 << 20)
        for place in range(0, len(memory), 4096): memory[place] = 1
        begin, end, made = threading.Event(), threading.Event(), []
        def start():
            begin.wait()
            if not (child := libc.syscall(57)): libc.pause()
            made.append(child); end.wait()
        threads = [threading.Thread(target=start, daemon=True) for _ in range(15)]
        for thread in threads: thread.start()
        begin.set()
        while len(made) < len(threads): time.sleep(0.01)
        print(len(os.listdir("/proc/self/task")) + sum(child > 0 for child in made), flush=True)
        os._exit(0)
    """
    assert run(workspace, code, "pids=20", "cgroups") == ["20"]


def test_sockets_reach_what_it_has_bound_itself_and_nothing_else(workspace: Path) -> None:
    with socket.socket(socket.AF_UNIX) as of_the_host:
        of_the_host.bind(str(workspace / "of-the-host"))
        of_the_host.listen()
        code = """
            unix = socket.AF_UNIX
            for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW): attempt(socket.socket, unix, kind); attempt(socket.socketpair, unix, kind)
            attempt(socket.socket, socket.AF_INET)
            attempt(lambda: socket.socket(unix).connect("of-the-host"))
            attempt(lambda: socket.socket(unix).bind("\\0name")); attempt(lambda: socket.socket(unix).connect("\\0name"))
            attempt(lambda: socket.socket(unix).bind("/tmp/elsewhere")); attempt(lambda: socket.socket(unix).bind("gone/x"))
            for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
                server = socket.socket(unix, kind)
                os.umask(0o077); server.bind(f"s{kind}"); server.listen(1)
                print(server.getsockname(), oct(os.stat(f"s{kind}").st_mode & 0o777), server.getblocking(), os.get_inheritable(server.fileno()))
                attempt(lambda: socket.socket(unix, kind).bind(f"s{kind}"))
                client = socket.socket(unix, kind); client.setblocking(False); client.connect(os.path.abspath(f"s{kind}"))
                attempt(client.connect, f"s{kind}")
                accepted, _ = server.accept()
                client.send(b"hello"); print(accepted.recv(5), client.getpeername(), client.getblocking())
            server = socket.socket(unix); os.unlink("s1"); server.bind("s1"); server.listen(1)
            # it takes nobody: those that wait hinder no other question, and go on when it does
            many = [socket.socket(unix) for _ in range(2)]
            for one in many: one.connect("s1")
            waiting = socket.socket(unix)
            thread = threading.Thread(target=waiting.connect, args=("s1",)); thread.start()
            refusing = socket.socket(unix); refusing.setblocking(False); attempt(refusing.connect, "s1")
            os.chmod("s1", 0o700); print(thread.is_alive())
            for _ in range(3): server.accept()
            thread.join(10); print(thread.is_alive())
        """
        assert run(workspace, code) == [
            *["EPERM"] * 8,
            "EACCES",
            "ENOENT",
            "s1 0o700 True False",
            "EADDRINUSE",
            "EISCONN",
            "b'hello' s1 False",
            "s5 0o700 True False",
            "EADDRINUSE",
            "EISCONN",
            "b'hello' s5 False",
            "EAGAIN",
            "True",
            "False",
        ]


@pytest.mark.parametrize("seconds", mostly_long([0.5, 5]))
def test_a_socket_of_the_host_in_the_place_of_its_own_is_not_reached(workspace: Path, seconds: float) -> None:
    with socket.socket(socket.AF_UNIX) as of_the_host:
        of_the_host.bind(str(workspace / "of-the-host"))
        of_the_host.listen()
        code = f"""
            os.mkdir("a"); os.mkdir("b"); os.link("of-the-host", "b/s")
            os.symlink("a", "here"); os.symlink("b", "there")
            if not (other := os.fork()):
                while True: libc.renameat2(-100, b"here", -100, b"there", 2)
            reached, until = 0, time.monotonic() + {seconds}
            while time.monotonic() < until and not reached:
                for _ in range(20):
                    try: socket.socket(socket.AF_UNIX).bind("here/s")
                    except OSError: pass
                    try: os.unlink("a/s")
                    except OSError: pass
                try: socket.socket(socket.AF_UNIX).connect("of-the-host"); reached = 1
                except OSError: pass
            os.kill(other, 9); print(reached)
        """
        assert run(workspace, code) == ["0"]


@pytest.mark.long
def test_a_signal_interrupts_a_connection_that_waits(workspace: Path) -> None:
    code = """
        server = socket.socket(socket.AF_UNIX); server.bind("s"); server.listen(0)
        first = socket.socket(socket.AF_UNIX); first.connect("s")
        class Alarm(Exception): pass
        def ring(*_): raise Alarm
        signal.signal(signal.SIGALRM, ring); signal.alarm(1)
        try: socket.socket(socket.AF_UNIX).connect("s")
        except Alarm: print("rung")
        # a call that its handler wants to go on does
        signal.signal(signal.SIGALRM, lambda *_: print("rung")); signal.siginterrupt(signal.SIGALRM, False); signal.alarm(1)
        threading.Timer(3, server.accept).start()
        attempt(socket.socket(socket.AF_UNIX).connect, "s")
    """
    assert run(workspace, code) == ["rung", "rung", "done None"]


SERVER_WITHOUT_SOCKETS = """
import asyncio
async def serve():
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    print(server.sockets[0].getsockname())
asyncio.run(serve())
"""


@pytest.mark.parametrize("code", mostly_long(["socket.socket()", SERVER_WITHOUT_SOCKETS]))
def test_sockets_of_the_network_are_refused_in_words(workspace: Path, code: str) -> None:
    # from a file, so that the traceback shows lines of it
    (workspace / "program.py").write_text(f"import socket\n{code}")
    report = run_beside(workspace, "os.execv(sys.executable, [sys.executable, 'program.py'])")
    assert "network (network: none, as the code runs confined, and no loopback" in report["diagnosis"]


def test_terminals_are_its_own_and_counted(workspace: Path) -> None:
    main, inner = os.openpty()
    code = f"""
        import fcntl, pty, termios, tty
        child, terminal = pty.fork()
        if child == 0:
            os.execvp("sh", ["sh", "-c", "tty >said; echo to it >/dev/tty; stty size; read typed; exit $typed"])
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 77, 0, 0))
        os.write(terminal, b"3\\n")
        ended = os.waitpid(child, 0)[1] >> 8
        shown = b""
        # what is written arrives in pieces, and at the end is an error
        while b"to it" not in shown: shown += os.read(terminal, 1000)
        print(open("said").read().startswith("/dev/pts/"), ended, b"to it" in shown)
        os.close(terminal)
        attempt(os.open, {os.ttyname(inner)!r}, os.O_RDWR | os.O_NOCTTY)
        attempt(os.open, "/dev/tty", os.O_RDWR)
        # that of another process of the sandbox, and one that is gone
        main, inner = os.openpty()
        print(os.ttyname(inner), flush=True)
        if not (child := os.fork()):
            attempt(os.open, os.ttyname(inner), os.O_RDWR | os.O_NOCTTY)
            sys.stdout.flush(); os._exit(0)
        os.waitpid(child, 0)
        name = os.ttyname(inner)
        os.close(main); os.close(inner)
        attempt(os.open, name, os.O_RDWR | os.O_NOCTTY)
        for _ in range(300): [os.close(end) for end in os.openpty()]
        opened = []
        try:
            while len(opened) < 200: opened.append(os.openpty())
        except OSError as error: print(len(opened), errno.errorcode[error.errno])
    """
    try:
        said = run(workspace, code)
        assert said[:3] == ["True 3 True", "EACCES", "ENXIO"]
        assert said[3] != os.ttyname(inner)
        assert said[4:] == ["EACCES", "EIO", "128 ENOSPC"]
    finally:
        os.close(main)
        os.close(inner)


@pytest.mark.long
def test_a_terminal_counts_until_both_its_ends_are_closed(workspace: Path) -> None:
    code = """
        kept = []
        try:
            while len(kept) < 200:
                main, inner = os.openpty()
                os.close(main); kept.append(inner)
        except OSError as error: print(len(kept), errno.errorcode[error.errno])
        for inner in kept[:5]: os.close(inner)
        for _ in range(5): kept += os.openpty()
        attempt(os.openpty)
    """
    assert run(workspace, code) == ["128 ENOSPC", "ENOSPC"]


@pytest.mark.long
def test_shared_memory_is_given_by_a_setting(workspace: Path) -> None:
    code = """
        import multiprocessing
        try: print(multiprocessing.Lock().acquire())
        except OSError as error: print(errno.errorcode[error.errno])
    """
    assert run(workspace, code) == ["EACCES"]
    assert run(workspace, code, "shared_memory=true") == ["True"]


def test_a_name_makes_no_socket_another_one_and_hinders_none(workspace: Path, tmp_path: Path) -> None:
    # the kernel lists names as they are, line for line
    with socket.socket(socket.AF_UNIX) as of_the_host:
        of_the_host.bind(f"{tmp_path}/a\nb")
        code = """
            true, liar, odd = (socket.socket(socket.AF_UNIX) for _ in range(3))
            attempt(liar.bind, f"\\n: 00000002 00000000 00010000 0002 01 {os.stat(true.fileno()).st_ino} x")
            attempt(odd.bind, b"\\xff\\r")
            attempt(true.bind, "true"); print(true.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE))
        """
        assert run(workspace, code) == ["EPERM", "done None", "done None", "1"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives directories to others")
def test_root_gives_away_no_directory_in_the_place_of_the_workspace(workspace: Path, tmp_path: Path) -> None:
    os.chown(workspace, 1000, 1000)
    status = os.stat(workspace)
    settings = Confinement(
        readable=[],
        lent=[],
        workspace=str(workspace),
        workspace_identity=[status.st_dev, status.st_ino],
        is_temporary=False,
        shared_memory=False,
        private=str(tmp_path),
        workspace_mib=None,
        memory_mib=1,
        pids=1,
        cpus=1,
        tmpfs_mib=1,
    )
    opened = settings.open_workspace()
    workspace.rename(tmp_path / "moved")
    workspace.mkdir()
    users.give(users.User(2000, 2000), opened)
    assert (os.stat(tmp_path / "moved").st_uid, os.stat(workspace).st_uid) == (2000, 0)
    with pytest.raises(OSError, match="was replaced"):
        users.user_without_namespaces(settings)


HONEST = """
import asyncio, multiprocessing, shutil, sqlite3, tarfile, zipfile
shutil.copy2(sys.executable, "copy"); print(os.access("copy", os.X_OK))
os.makedirs("tree/a/b"); open("tree/a/b/c", "w").write("x"); shutil.copytree("tree", "tree2"); shutil.rmtree("tree")
with tarfile.open("t.tar", "w") as tar: tar.add("tree2")
with tarfile.open("t.tar") as tar: tar.extractall("out")
print(open("out/tree2/a/b/c").read())
with sqlite3.connect("base") as base: base.execute("create table t (x)"); base.execute("insert into t values (1)")
print(sqlite3.connect("base").execute("select * from t").fetchall())
async def echo():
    async def answer(reader, writer): writer.write(await reader.readline()); await writer.drain(); writer.close()
    async with await asyncio.start_unix_server(answer, "socket"):
        reader, writer = await asyncio.open_unix_connection("socket")
        writer.write(b"echo\\n"); print(await reader.readline()); writer.close()
    process = await asyncio.create_subprocess_exec("sleep", "60"); process.terminate(); print(await process.wait())
asyncio.run(echo())
manager = multiprocessing.get_context("fork").Manager()
shared = manager.list([1]); shared.append(2); print(list(shared)); manager.shutdown()
print(subprocess.run("sleep 60 & kill $!; wait $!; echo $?; (trap 'echo heard' TERM; kill $$ 2>/dev/null; true) & wait; cat <(echo substituted)", shell=True, executable="/bin/bash", capture_output=True, text=True).stdout.split()[:1])
if shutil.which("git"):
    git = "git init -q . && git -c user.name=n -c user.email=e add copy && git -c user.name=n -c user.email=e commit -qm m && git log --oneline | wc -l"
    print(subprocess.run(git, shell=True, capture_output=True, text=True, env={**os.environ, "HOME": os.getcwd()}).stdout.strip())
else: print(1)
"""


def test_honest_programs_work(workspace: Path) -> None:
    assert run(workspace, HONEST, "capabilities") == [
        "True",
        "x",
        "[(1,)]",
        "b'echo\\n'",
        "-15",
        "[1, 2]",
        "['143']",
        "1",
    ]


@pytest.mark.long
def test_many_who_ask_at_once_are_all_answered(workspace: Path) -> None:
    code = """
        children = []
        for number in range(50):
            if not (child := os.fork()):
                open(f"f{number}", "w").close()
                for turn in range(200): os.chmod(f"f{number}", 0o600 | turn % 8)
                os._exit(os.stat(f"f{number}").st_mode & 0o777 != 0o600 | 199 % 8)
            children.append(child)
        print({os.waitpid(child, 0)[1] for child in children})
    """
    assert run(workspace, code) == ["{0}"]


@pytest.mark.parametrize("victim", mostly_long(["its supervising process", "the process of the host"]))
def test_all_that_lives_ends_with_whatever_is_killed(workspace: Path, victim: str) -> None:
    with host("hang", workspace, "required", "namespaces") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        mark = f"orphan-{process.pid}"
        assert len(alive(mark)) >= 2
        [zygote] = [child for child in children(process.pid) if child in alive("confined/supervisor")]
        [supervisor] = children(zygote)
        os.kill(process.pid if victim == "the process of the host" else supervisor, signal.SIGKILL)
        wait_until(lambda: not alive(mark), seconds=10)


@X86
@pytest.mark.long
def test_calls_of_a_32_bit_program_are_there_for_nobody(workspace: Path) -> None:
    code = """
        import mmap
        # mov eax, 15 (chmod); int 0x80; ret
        program = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        program.write(bytes([0xB8, 15, 0, 0, 0, 0xCD, 0x80, 0xC3]))
        address = ctypes.addressof(ctypes.c_char.from_buffer(program))
        print(ctypes.CFUNCTYPE(ctypes.c_int)(address)() == -errno.ENOSYS)
    """
    assert run(workspace, code) == ["True"]


@X86
@pytest.mark.long
def test_no_second_listener_is_made_and_the_first_is_not_the_codes(workspace: Path) -> None:
    code = """
        # one instruction: allow
        class Program(ctypes.Structure): _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
        allow = ctypes.create_string_buffer(struct.pack("=HBBI", 6, 0, 0, 0x7FFF0000))
        given = Program(1, ctypes.addressof(allow))
        attempt(call, 317, 1, 1 << 3, ctypes.addressof(given))
        print(sorted(os.listdir("/proc/self/fd")) if os.access("/proc/self/fd", os.R_OK) else "closed")
        ours = [fd for fd in range(3, 100) if os.path.exists(f"/proc/self/fd/{fd}")]
        print([os.readlink(f"/proc/self/fd/{fd}") for fd in ours])
        left, right = socket.socketpair()
        with open("sent", "w") as file: socket.send_fds(left, [b"x"], [file.fileno()])
        _, (received,), _, _ = socket.recv_fds(right, 1, 1)
        os.fchmod(received, 0o600); print(oct(os.stat("sent").st_mode & 0o777))
    """
    said = run(workspace, code)
    assert said[0] == "EBUSY"
    assert "seccomp" not in said[2]
    assert said[3] == "0o600"


@pytest.mark.long
def test_a_workspace_that_is_moved_stays_the_codes_and_its_old_path_is_nobodys(workspace: Path) -> None:
    code = f"""
        open("a", "w").close()
        print("ready", flush=True)
        while not os.path.exists("go"): time.sleep(0.01)
        os.chmod("a", 0o600); print(oct(os.stat("a").st_mode & 0o777))
        attempt(os.chmod, {str(workspace)!r} + "/of-another", 0o777)
    """
    file = workspace.parent / "moved.py"
    file.write_text(BEGIN + textwrap.dedent(code))
    moved = workspace.with_name("moved")
    with host(str(file), workspace, "required", "namespaces") as process:
        wait_until((workspace / "a").exists, seconds=20)
        workspace.rename(moved)
        workspace.mkdir()
        (workspace / "of-another").touch(0o600)
        (moved / "go").touch()
        report = json.loads(process.communicate(timeout=60)[0])
    assert report["output"].splitlines() == ["ready", "0o600", "EPERM"]
    assert (workspace / "of-another").stat().st_mode & 0o777 == 0o600
