"""What every executor does with code that is out to do harm."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import tempfile
from pathlib import Path
from typing import Any

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from support.executing import FRESH, Kind, long_where, one_part, run, usually
from support.waiting import until

from codeact_team.core.execution import Outcome
from codeact_team.errors import SandboxError
from codeact_team.executors.base import SandboxedCodeExecutor
from codeact_team.executors.workspace.directory import WorkspaceDirectory


def seen(file: Path) -> tuple[str, int]:
    return file.read_text(), stat.S_IMODE(file.stat().st_mode)


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of the host that code is to read or change, with a secret inside."""
    victim = tmp_path / "victim"
    victim.write_text("secret")
    victim.chmod(0o644)
    return victim


async def test_no_network(executor: SandboxedCodeExecutor) -> None:
    with (
        socket.create_server(("0.0.0.0", 0)) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
    ):
        udp.bind(("0.0.0.0", 0))
        for sock in (tcp, udp):
            sock.setblocking(False)
        hosts = ["127.0.0.1", "172.17.0.1", "host.docker.internal", socket.gethostname()]
        code = f"""
import socket
for host in {hosts}:
    try:
        socket.create_connection((host, {tcp.getsockname()[1]}), 1)
        print("tcp to", host)
    except OSError: pass
    try:
        socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", (host, {udp.getsockname()[1]}))
    except OSError: pass
for name in ("example.com", "pypi.org"):
    try: print("dns", socket.getaddrinfo(name, 80))
    except OSError: pass
print("tried")
"""
        assert (await run(executor, code)).output == "tried\n"
        for sock in (tcp, udp):
            with pytest.raises(BlockingIOError):
                sock.accept() if sock is tcp else sock.recv(1)


async def test_files_of_the_host_are_out_of_reach(executor: SandboxedCodeExecutor, victim: Path) -> None:
    code = f"""
import os
for path in ("{victim}", "/proc/1/root{victim}", "/proc/{os.getpid()}/root{victim}", os.path.relpath("{victim}")):
    for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR | os.O_TRUNC):
        try:
            os.close(os.open(path, flags))
            print("opened", path, flags)
        except OSError: pass
for act in (os.unlink, os.rmdir, lambda path: os.chmod(path, 0o777), lambda path: os.link(path, "linked")):
    try:
        act("{victim}")
        print("did it")
    except OSError: pass
print("tried")
"""
    assert (await run(executor, code)).output == "tried\n"
    assert seen(victim) == ("secret", 0o644)


@one_part
async def test_hosts_environment_is_not_passed_on(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    executor = kind.make(environment={"SHOWN": "yes"})
    result = await run(executor, "env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'", language="sh")
    await executor.stop()
    assert "SHOWN=yes\n" in result.output
    assert "sk-secret" not in result.output


@usually("confined", among=FRESH)
@pytest.mark.parametrize("name", ["next.py", "folder/next.py", None], ids=["file", "folder", "by content"])
async def test_planted_links_do_not_reach_the_host(
    executor: SandboxedCodeExecutor, work_dir: Path, victim: Path, name: str | None
) -> None:
    # code once made the host overwrite any file: by a link where the host was to write the next block
    code = "print('next')" if name is None else f"# filename: {name}\nprint('next')"
    first = await run(executor, code)
    assert first.code_file is not None
    place = Path(first.code_file).relative_to(work_dir)
    plant = f"""
import os, shutil
place, victim = "{place}", "{victim}"
if "/" in place:
    shutil.rmtree("folder")
    os.symlink(os.path.dirname(victim), "folder")
    victim = os.path.basename(victim)
else:
    os.unlink(place)
    os.symlink(victim, place)
"""
    assert (await run(executor, plant)).exit_code == 0
    again = await run(executor, code)
    assert seen(victim) == ("secret", 0o644)
    assert sorted(os.listdir(victim.parent)) == ["victim"]
    assert again.code_file == first.code_file
    if name != "folder/next.py":
        assert again.output == "next\n"
        assert stat.S_ISREG(os.lstat(first.code_file).st_mode)
    await run(executor, "rm -rf folder", language="sh")


async def test_no_rights(executor: SandboxedCodeExecutor, work_dir: Path) -> None:
    result = await run(executor, "cat /proc/self/status; touch made", language="sh")
    status = dict(line.split(":\t", 1) for line in result.output.splitlines() if ":\t" in line)
    assert {
        name: status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
    } == dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), "0" * 16)
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"
    # the workspace's owner, so that code and host can both use it
    assert os.stat(work_dir / "made").st_uid == os.stat(work_dir).st_uid


async def test_only_the_workspace_and_temporary_files_are_writable(executor: SandboxedCodeExecutor) -> None:
    code = """
import os, tempfile
with tempfile.TemporaryFile() as file: file.write(b"x")
with open("here", "w") as file: file.write("x")
for directory in ("/", "/usr", "/usr/bin", "/etc", "/var", "/root", "/home", "/sys", "/proc", "/proc/sys/kernel"):
    try:
        with open(os.path.join(directory, "planted"), "x"): print("wrote into", directory)
    except OSError: pass
print("tried")
"""
    assert (await run(executor, code)).output == "tried\n"


@usually("docker", "confined")
async def test_programs_that_code_makes_can_run(executor: SandboxedCodeExecutor) -> None:
    code = "printf '#!/bin/sh\\necho made' > made.sh; chmod +x made.sh; ./made.sh"
    assert (await run(executor, code, language="sh")).output == "made\n"


SET_ID_ATTACKS = """
import ctypes, os, platform, struct
libc = ctypes.CDLL(None, use_errno=True)
x86, here, create = platform.machine() == "x86_64", -100, os.O_CREAT | os.O_WRONLY
os.close(os.open("own", create, 0o644))
def call(name, *arguments):
    if libc[name](*arguments) < 0:
        raise OSError(ctypes.get_errno(), "refused")
def nameless():
    fd = os.open(".", os.O_TMPFILE | os.O_WRONLY, 0o4755)
    os.link(f"/proc/self/fd/{fd}", "nameless", follow_symlinks=True)
def queued():
    # an io_uring opens files by itself
    call("syscall", 425, 1, ctypes.create_string_buffer(120))
attempts = [
    lambda: os.chmod("own", 0o4755),
    lambda: os.chmod("own", 0o2755),
    lambda: os.fchmod(os.open("own", os.O_RDONLY), 0o6755),
    lambda: call("fchmodat", here, b"own", 0o4755, 0),
    lambda: call("syscall", 452, here, b"own", 0o4755, 0),
    lambda: os.open("opened", create, 0o4755),
    lambda: os.open("opened", create, 0o2755),
    lambda: call("creat", b"created", 0o4755),
    lambda: call("syscall", 437, here, b"unseen", struct.pack("=QQQ", create, 0o4755, 0), 24),
    lambda: os.mknod("made", 0o104755),
    lambda: os.mkdir("directory", 0o2755),
    nameless,
    queued,
]
if x86:
    attempts += [
        lambda: call("syscall", 90, b"own", 0o4755),
        lambda: call("syscall", 2, b"opened by the old call", create, 0o4755),
        lambda: call("syscall", 85, b"created by the old call", 0o4755),
        lambda: call("syscall", 133, b"made by the old call", 0o104755, 0),
    ]
for number, attempt in enumerate(attempts):
    try: attempt()
    except OSError: pass
    else: print("worked:", number)
print("tried")
"""


async def test_no_file_gives_its_owners_rights_to_others_of_the_host(
    executor: SandboxedCodeExecutor, work_dir: Path
) -> None:
    # code left files of root's with the set-user-ID bit on the host
    usual = """
import os
os.chmod("own", 0o755); os.mkdir("shared"); os.chmod("shared", 0o1777)
os.close(os.open("usual", os.O_CREAT | os.O_WRONLY, 0o640))
print(*(oct(os.stat(path).st_mode & 0o7777) for path in ("own", "shared", "usual")))
"""
    assert (await run(executor, SET_ID_ATTACKS)).output == "tried\n"
    modes = [os.lstat(work_dir / name).st_mode for name in os.listdir(work_dir)]
    assert not any(mode & (stat.S_ISUID | stat.S_ISGID) for mode in modes)
    assert (await run(executor, usual)).output == "0o755 0o1777 0o640\n"


def test_a_workspace_that_is_made_is_closed_to_others_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = os.umask(0)
    try:
        made = [WorkspaceDirectory(str(tmp_path / "named")).make(), WorkspaceDirectory(None).make()]
    finally:
        os.umask(before)
    assert [stat.S_IMODE(directory.stat().st_mode) for directory in made] == [0o700, 0o700]


async def test_processes_of_the_host_are_out_of_reach(executor: SandboxedCodeExecutor) -> None:
    code = f"""
import os, signal
for pid in ({os.getpid()}, {os.getppid()}):
    try:
        os.kill(pid, signal.SIGKILL)
        print("killed")
    except OSError: pass
print("tried")
"""
    assert (await run(executor, code)).output == "tried\n"


HOSTILE = {
    "kills its parents": """
import os, signal
for _ in range(5): os.kill(os.getppid(), signal.SIGKILL)
""",
    "kills all it can reach": "import os; os.kill(-1, 9); print('alone')",
    "kills all it can reach, for ever": """
import os
if os.fork() == 0:
    os.setsid()
    while True:
        try: os.kill(-1, 9)
        except OSError: pass
""",
    "kills the first process": "import os; os.kill(1, 9)",
    "stops the others": """
import os, signal
for pid in range(1, os.getpid()):
    try: os.kill(pid, signal.SIGSTOP)
    except OSError: pass
""",
    "writes to the first process' output": """
for fd in (1, 2):
    try:
        with open(f"/proc/1/fd/{fd}", "wb", buffering=0) as file:
            for _ in range(1000): file.write(bytes(range(256)) * 16 + b"ready\\n")
    except OSError: pass
""",
    "writes for ever after its end": """
import os
if os.fork() == 0:
    os.setsid()
    while True: os.write(1, b"noise\\n")
""",
    "writes the engine's frames": """
import os
os.write(1, b"\\1\\0\\0\\0\\xff\\xff\\xff\\xff" * 1000)
""",
    "forges its end": """
import glob, os, re, sys, time
def mark():
    for line in open(f"/proc/{os.getppid()}/maps"):
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        if "[heap]" in line or "[stack]" in line:
            with open(f"/proc/{os.getppid()}/mem", "rb") as memory:
                memory.seek(start)
                yield from re.findall(rb"[0-9a-f]{32}", memory.read(end - start))
try:
    for one in set(mark()): os.write(1, one + b" 0 0 0 0\\n")
except OSError: pass
print("forged")
""",
}
IN_A_CONTAINER = [
    HOSTILE[name]
    for name in ("kills all it can reach", "writes to the first process' output", "forges its end")
]
"""What has another process to reach there, and is usually tried there, too."""


@pytest.mark.parametrize("code", HOSTILE.values(), ids=HOSTILE)
@long_where(lambda kind, code: kind == "docker-session" or (kind == "docker" and code not in IN_A_CONTAINER))
async def test_a_block_harms_no_other(hasty: SandboxedCodeExecutor, kind: Kind, code: str) -> None:
    if kind.name.endswith("session") and code == HOSTILE["writes for ever after its end"]:
        # what it writes belongs to the next block, by intent; until somebody ends it
        await run(hasty, code)
        await hasty.restart()
        return
    result = await run(hasty, code)
    assert result.outcome in (Outcome.COMPLETED, Outcome.LOST, Outcome.TIMED_OUT)
    for number in range(2):
        following = await run(hasty, f"print({number})")
        assert (following.output, following.exit_code) == (f"{number}\n", 0)


STOPS_THE_OTHERS = """
for pid in range(2, os.getpid()):
    try:
        if pid != os.getppid(): os.kill(pid, signal.SIGSTOP)
    except OSError: pass
time.sleep(60)
"""
SAYS_SENT = "takes the signals away and says they were sent"
STUBBORN = {
    "takes the signals away": """
while True:
    try: os.read(os.open("/proc/1/fd/0", os.O_RDONLY), 1000)
    except OSError: time.sleep(0.01)
""",
    SAYS_SENT: """
while True:
    try:
        words = os.read(os.open("/proc/1/fd/0", os.O_RDONLY), 1000)
        os.write(os.open("/proc/1/fd/1", os.O_WRONLY), words.split(b" ")[-1])
    except OSError: time.sleep(0.01)
""",
    "fills the first process' output": """
while True:
    try: os.write(os.open("/proc/1/fd/1", os.O_WRONLY), bytes(60_000))
    except OSError: time.sleep(0.01)
""",
}
BEAT = """
import os, signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    with open("beat", "a") as file:
        while True:
            file.write("x")
            file.flush()
            time.sleep(0.02)
"""


@pytest.mark.usefixtures("short_grace")
@usually("docker", "confined", "confined-session")
async def test_a_block_does_not_keep_itself_from_being_stopped(executor: SandboxedCodeExecutor) -> None:
    await assert_stopped(executor, STOPS_THE_OTHERS)


@pytest.mark.long
@pytest.mark.usefixtures("short_grace")
@pytest.mark.parametrize(
    ("kind", "code"),
    [
        *(pytest.param("docker", code, marks=pytest.mark.docker, id=name) for name, code in STUBBORN.items()),
        # the strongest of them, where the supervisor of the session tries to stop it first
        pytest.param("docker-session", STUBBORN[SAYS_SENT], marks=pytest.mark.docker, id="in a session"),
    ],
    indirect=["kind"],
)
async def test_a_block_in_a_container_does_not_keep_its_first_process_from_stopping_it(
    executor: SandboxedCodeExecutor, code: str
) -> None:
    await assert_stopped(executor, code)


async def assert_stopped(executor: SandboxedCodeExecutor, code: str) -> None:
    beat, token = executor.work_dir / "beat", CancellationToken()
    call = asyncio.create_task(run(executor, BEAT + code, token=token))
    await until(lambda: beat.exists() and beat.stat().st_size)
    token.cancel()
    assert (await call).outcome is Outcome.CANCELLED
    beats = beat.stat().st_size
    await asyncio.sleep(0.15)
    assert beat.stat().st_size == beats > 0
    # a session says that it had to kill the interpreter
    assert (await run(executor, "print('next')")).output.endswith("next\n")


@usually("confined", "confined-session")
async def test_output_that_looks_like_ours_is_output(executor: SandboxedCodeExecutor) -> None:
    code = "print('Code execution was cancelled.\\nTimeout: stopped')"
    result = await run(executor, code)
    assert (result.outcome, result.exit_code, result.limit) == (Outcome.COMPLETED, 0, None)


@one_part
async def test_workspaces_are_apart(kind: Kind, victim: Path) -> None:
    one, two = kind.make(), kind.make()
    await run(one, "open('mine', 'w').write('secret')")
    code = f"import glob; print(glob.glob('{tempfile.gettempdir()}/*/mine') + glob.glob('mine'))"
    assert (await run(two, code)).output == "[]\n"
    blocks = [CodeBlock(code=f"print(open('{one.work_dir}/mine').read())", language="python")]
    assert (await two.execute_code_blocks(blocks, CancellationToken())).exit_code == 1
    await one.stop()
    await two.stop()


REPLACING = """
import os
while not os.path.exists("stop"):
    for name in os.listdir():
        if name.startswith("tmp_code_"):
            try:
                with open(name, "r+") as file:
                    if file.read() and not file.seek(0) and not file.truncate():
                        file.write("print('forged')" if name.endswith(".python") else "echo forged")
            except OSError: pass
"""


@pytest.mark.parametrize("times", [3, pytest.param(8, marks=pytest.mark.long)])
@usually("confined")
async def test_code_is_not_changed_from_another_sandbox_with_the_same_workspace(
    kind: Kind, tmp_path: Path, times: int
) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir(mode=0o777)
    async with kind.make(work_dir=workspace) as attacker, kind.make(work_dir=workspace) as executor:
        attack = asyncio.create_task(run(attacker, REPLACING))
        for number in range(times):
            assert (await run(executor, f"print('mine {number}')")).output == f"mine {number}\n"
            assert (await run(executor, f"echo mine {number}", language="sh")).output == f"mine {number}\n"
        (workspace / "stop").touch()
        assert (await attack).exit_code == 0


@pytest.mark.parametrize("name", ["in", "in/deeper", "in/new"])
@usually("confined")
async def test_a_workspace_within_another_s_is_not_led_elsewhere(
    kind: Kind, tmp_path: Path, name: str
) -> None:
    outer, victim = tmp_path / "outer", tmp_path / "victim"
    for directory in (outer / "in" / "deeper", victim / "deeper"):
        directory.mkdir(parents=True)
    async with kind.make(work_dir=outer) as attacker:
        replace = f"import os\nos.rename('in', 'old')\nos.symlink({str(victim)!r}, 'in')"
        assert (await run(attacker, replace)).exit_code == 0
    executor = kind.make(work_dir=outer / name)
    with pytest.raises(SandboxError, match=r"work_dir .*in is a link to .*victim|work_dir .*Not a directory"):
        await run(executor, "open('harm', 'w')")
    await executor.stop()
    assert [path.name for path in victim.rglob("*")] == ["deeper"]


class Replaced:
    """Puts a link in a directory's place while the host looks a path up for the ``first`` and the ``first + 1``th time."""

    def __init__(self, directory: Path, victim: Path, first: int) -> None:
        self._directory = directory
        self._victim = victim
        self._first = first
        self.count = 0
        """How often the host has looked."""

    def watch(self, name: str, patch: pytest.MonkeyPatch) -> None:
        real = getattr(os, name)

        def call(path: Any, *args: Any, **settings: Any) -> Any:
            if self._directory.name not in str(path).split("/"):
                return real(path, *args, **settings)
            if self.count == self._first:
                self._directory.rename(self._directory.with_name("aside"))
                self._directory.symlink_to(self._victim)
            self.count += 1
            try:
                return real(path, *args, **settings)
            finally:
                if self.count == self._first + 2:
                    self.put_back()

        patch.setattr(os, name, call)

    def put_back(self) -> None:
        if self._directory.is_symlink():
            self._directory.unlink()
            self._directory.with_name("aside").rename(self._directory)


@pytest.mark.long
async def test_a_workspace_is_not_led_elsewhere_by_a_link_that_comes_and_goes_while_it_starts(
    kind: Kind, tmp_path: Path
) -> None:
    inner, victim = tmp_path / "outer" / "within", tmp_path / "victim"
    for directory in (inner, victim):
        directory.mkdir(parents=True, mode=0o755)
    (victim / "file").write_text("secret")
    first, looked = 0, 1
    while first < looked:
        replaced = Replaced(inner, victim, first)
        executor = kind.make(work_dir=inner)
        with pytest.MonkeyPatch.context() as patch:
            for name in ("open", "stat", "lstat", "readlink", "access", "mkdir"):
                replaced.watch(name, patch)
            try:
                output = (await run(executor, "print(open('file').read()); open('harm', 'w')")).output
            except SandboxError as error:
                output = str(error)
            await executor.stop()
        replaced.put_back()
        assert "secret" not in output.splitlines(), first
        assert os.listdir(victim) == ["file"], first
        first, looked = first + 1, replaced.count
    assert looked > 2


def test_a_workspace_s_way_that_leads_to_itself_is_told(kind: Kind, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    executor = kind.make(work_dir=tmp_path / "loop" / "in")
    assert list(executor.relaxations) == []
    with pytest.raises(SandboxError, match=r"loop is a link to loop"):
        asyncio.run(run(executor, "1"))


@usually("confined", "confined-session")
async def test_a_workspace_that_is_replaced_by_a_link_while_it_is_used_is_not_left(
    kind: Kind, tmp_path: Path
) -> None:
    outer, victim = tmp_path / "outer", tmp_path / "victim"
    for directory in (outer / "in", victim):
        directory.mkdir(parents=True)
    (victim / "file").write_text("secret")
    async with kind.make(work_dir=outer / "in") as executor:
        assert (await run(executor, "open('file', 'w').write('mine')")).exit_code == 0
        [file] = (await executor.workspace.changed()).files
        (outer / "in").rename(outer / "old")
        (outer / "in").symlink_to(victim)
        (tmp_path / "out").mkdir()
        [saved] = await executor.workspace.save([file], tmp_path / "out")
        assert saved.copy is None
        assert "planted" in saved.problem
        with pytest.raises(OSError, match="planted"):
            await executor.workspace.add("harm", b"")
        with pytest.raises(SandboxError, match="is a link to"):
            await run(executor, "open('harm', 'w')")
    assert os.listdir(victim) == ["file"]
