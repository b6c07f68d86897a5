"""Code in the sandbox that tries to read, trace, signal or imitate the supervisor fails."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.executing import why_not_confined
from support.supervisor import block, in_docker, supervised

from codeact_team.errors import SandboxError
from codeact_team.executors.docker import DockerSessionCodeExecutor
from codeact_team.sandbox import system
from codeact_team.sandbox.base import Process
from codeact_team.sandbox.confined.config import ConfinedSandboxConfig
from codeact_team.sandbox.confined.sandbox import ConfinedSandbox
from codeact_team.sandbox.system.framing import FrameReader, frame
from codeact_team.session import shipping
from codeact_team.session.protocol import FROM_SUPERVISOR, Kind, ResultFrame

ATTACKS = (Path(__file__).parent / "guard_attacks.py").read_text()

SHELL_ATTACKS_ON_A_TARGET = """
try() { "$@" 2>/dev/null && echo "worked: $*"; }
for signal in 0 CONT STOP TERM KILL; do
    try kill -$signal $target
    try kill -$signal -$target
    try kill -$signal -1
done
for fd in $(seq 0 40); do
    try dd of=/proc/$target/fd/$fd if=/dev/null conv=notrunc oflag=nonblock
    try dd if=/proc/$target/fd/$fd of=/dev/null count=1 iflag=nonblock
done
try dd if=/proc/$target/mem of=/dev/null count=1 bs=1
echo done
"""
SHELL_ATTACKS = f"target=$PPID\n{SHELL_ATTACKS_ON_A_TARGET}"


def test_the_attacks_work_on_a_process_that_is_not_guarded() -> None:
    # what would be found if the guard did nothing
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as target:
        try:
            ran = subprocess.run(
                [sys.executable, "-c", ATTACKS],
                env={**os.environ, "TARGET": str(target.pid)},
                capture_output=True,
                text=True,
                start_new_session=True,
            )
        finally:
            target.kill()
    worked = {line.removeprefix("worked: ") for line in ran.stdout.splitlines()}
    assert {"open its descriptors", "read its memory", "kill 0", "kill 9", "limit it", "move it"} <= worked
    assert {"queue a signal for a thread", "slow its group down", "set its attributes"} <= worked
    assert {"set its parameters", "starve its group of disk time", "starve all of disk time"} <= worked


def test_code_cannot_reach_its_supervisor(tmp_path: Path) -> None:
    with supervised(tmp_path) as one:
        assert one.unguarded is None
        assert one.run(ATTACKS, "python").text == "done\n"
        assert one.run(SHELL_ATTACKS, "sh").text == "done\n"
        assert one.run("print(1)").text == "1\n"
        assert one.process.poll() is None


def test_signals_are_kept_away_where_system_calls_cannot_be_filtered(tmp_path: Path) -> None:
    # a processor whose numbers of system calls are not known
    with supervised(tmp_path, prefix=("setarch", "i686")) as one:
        worked = {line.removeprefix("worked: ") for line in one.run(ATTACKS).text.splitlines()}
        assert not {deed for deed in worked if "kill" in deed and "everything" not in deed}
        assert not worked & {"signal a pidfd", "signal a directory", "queue a signal"}
        # root, with all its capabilities, reads whatever it likes; then it is said
        reads = {"open its descriptors", "read its memory", "write its memory", "attach to it"}
        assert bool(worked & reads) <= ("can read" in str(one.unguarded))
        assert one.run("print(1)").text == "1\n"


@pytest.mark.long
@pytest.mark.docker
@pytest.mark.parametrize("user", ["65534", "0"])
def test_code_cannot_reach_its_supervisor_in_a_container(tmp_path: Path, user: str) -> None:
    with supervised(tmp_path, prefix=in_docker(user), python="python3") as one:
        assert one.unguarded is None
        assert one.run(ATTACKS, "python").text == "done\n"
        assert one.run(SHELL_ATTACKS, "sh").text == "done\n"
        assert one.run("print(1)").text == "1\n"


# the zygote is the one child of the supervisor beside the interpreter
THE_ZYGOTE = """
import os
[zygote] = {*open(f"/proc/{os.getppid()}/task/{os.getppid()}/children").read().split()} - {str(os.getpid())}
os.environ["TARGET"] = zygote
"""
THE_ZYGOTE_IN_SHELL = """
for target in $(cat /proc/$PPID/task/$PPID/children); do break; done
"""


@pytest.mark.long
@pytest.mark.docker
@pytest.mark.parametrize("user", ["65534", "0"])
def test_code_cannot_reach_what_its_interpreters_are_forked_from(tmp_path: Path, user: str) -> None:
    with supervised(tmp_path, prefix=in_docker(user), python="python3") as one:
        # in a shell that comes before any interpreter, and after
        assert one.run(THE_ZYGOTE_IN_SHELL + SHELL_ATTACKS_ON_A_TARGET, "sh").text == "done\n"
        assert one.run(THE_ZYGOTE + ATTACKS).text == "done\n"
        assert one.run(THE_ZYGOTE_IN_SHELL + SHELL_ATTACKS_ON_A_TARGET, "sh").text == "done\n"
        one.restart()
        assert one.run("print(1)").text == "1\n"


async def test_confined_code_can_only_read_what_its_interpreters_are_forked_from(tmp_path: Path) -> None:
    _, output = await _confined(tmp_path, THE_ZYGOTE + ATTACKS, "python")
    # it has nothing that its forks do not have; the last two are tried only where the sandbox has a user of its own
    readable = {"worked: read its memory", "worked: read its environment", "worked: read its map"}
    assert {*output.splitlines()} <= {*readable, "done"}


WITHOUT_ANY_GUARD = """
import ctypes, os, sys
sys.path.insert(0, os.path.dirname(__file__))
from codeact_team.sandbox.system import filters
# landlock_create_ruleset; and PER_LINUX32, a processor whose numbers of system calls are not known
filters.NUMBERS["landlock_create_ruleset"] = (444, 444)
filters.install([filters.Rule("landlock_create_ruleset")])
ctypes.CDLL(None).personality(8)
os.execvp("python3", ["python3", *sys.argv[1:]])
"""


@pytest.mark.docker
async def test_no_session_runs_where_nothing_keeps_the_code_from_its_supervisor(tmp_path: Path) -> None:
    wrapper = tmp_path / "bin" / "python3"
    wrapper.parent.mkdir()
    wrapper.write_text('#!/bin/sh\nPATH=${PATH#*:}\nexec python3 "$0.py" "$@"\n')
    wrapper.chmod(0o755)
    wrapper.with_name("python3.py").write_text(WITHOUT_ANY_GUARD)
    shutil.copytree(Path(system.__file__).parent, wrapper.with_name("codeact_team") / "sandbox" / "system")
    path = "/workspace/bin:/usr/local/bin:/usr/bin:/bin"
    executor = DockerSessionCodeExecutor(work_dir=tmp_path, environment={"PATH": path})
    with pytest.raises(SandboxError, match="no session can run in this sandbox: code can signal its"):
        await executor.start()
    await executor.stop()


@pytest.mark.parametrize(
    ("code", "language"), [(ATTACKS, "python"), pytest.param(SHELL_ATTACKS, "sh", marks=pytest.mark.long)]
)
async def test_confined_code_cannot_reach_its_supervisor(tmp_path: Path, code: str, language: str) -> None:
    greeting, output = await _confined(tmp_path, code, language)
    assert greeting["unguarded"] is None
    assert output == "done\n"


async def test_confined_code_reads_nothing_of_its_supervisor_that_is_not_for_all_to_see(
    tmp_path: Path,
) -> None:
    # its sandbox opened environ, maps and fd on behalf of the code
    code = """
import os
os.symlink("/proc", "link")
private = "auxv clear_refs cwd environ exe io map_files maps mem numa_maps pagemap root smaps smaps_rollup stack syscall".split()
opened = set()
for place in ("/proc/{0}", "link/{0}", "/proc/self/../{0}", "/proc/{0}/task/{0}"):
    place = place.format(os.getppid())
    for name in os.listdir(f"/proc/self/task/{os.getpid()}"):
        for directory, path in ((None, f"{place}/{name}"), (os.open(place, os.O_PATH), name)):
            try:
                fd = os.open(path, os.O_RDONLY, dir_fd=directory)
                if name in private: os.read(fd, 1)
                for entry in os.listdir(fd) if name == "fd" else (): os.stat(entry, dir_fd=fd)
            except OSError: pass
            else: opened.add(name)
print("children" in opened, *sorted(opened.intersection(["fd", *private])))
with open("/proc/self/environ") as own: print(bool(own.read() and os.listdir("/proc/self/fd")))
"""
    assert (await _confined(tmp_path, code, "python"))[1] == "True\nTrue\n"


async def test_confined_code_can_move_files_and_end_what_it_has_left_running(tmp_path: Path) -> None:
    # a Landlock domain that does not mention it refuses to move files from one directory to another
    code = "mkdir a b; echo x >a/x; mv a/x b/x; sleep 600 & kill $! && cat b/x"
    assert (await _confined(tmp_path, code, "sh"))[1] == "x\n"


async def test_nothing_is_left_of_an_interrupted_block_that_is_confined(tmp_path: Path) -> None:
    # its sandbox does not show a process that was forked by one that has ended at once
    code = """
import os, signal, time
if not os.fork():
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not os.fork():
        while True:
            open("alive", "w").write(str(time.time()))
            time.sleep(0.01)
    os._exit(0)
while not os.path.exists("alive"): time.sleep(0.01)
print("go", flush=True)
time.sleep(600)
"""
    assert "KeyboardInterrupt" in (await _confined(tmp_path, code, "python", interrupt=b"go"))[1]
    before = (tmp_path / "alive").read_text()
    await asyncio.sleep(0.2)
    assert (tmp_path / "alive").read_text() == before


def test_supervised_programs_cannot_read_what_the_interpreter_is_told(tmp_path: Path) -> None:
    with supervised(tmp_path) as one:
        code = "ls -l /proc/self/fd | grep -c pipe"
        # stdout, stderr and where the shell says how it ends; of the interpreter's pipes, none
        assert one.sh(f"{code} 2>/dev/null | cat").text == "3\n"


async def _confined(
    workspace: Path, code: str, language: str, *, interrupt: bytes | None = None
) -> tuple[dict[str, object], str]:
    """What a supervisor says of itself, and the output of a block, which is interrupted once it has said that."""
    if (reason := why_not_confined()) is not None:
        pytest.skip(reason)
    async with ConfinedSandbox(ConfinedSandboxConfig(readable=["/proc"]), workspace=workspace) as sandbox:
        process = await sandbox.supervise()
        await process.write(shipping.payload())
        await process.write(block(code, language))
        try:
            async with asyncio.timeout(30):
                return await _conversation(process, interrupt)
        finally:
            await sandbox.kill()
            await process.aclose()


async def _conversation(process: Process, interrupt: bytes | None) -> tuple[dict[str, object], str]:
    reader, greeting, output = FrameReader(FROM_SUPERVISOR), dict[str, object](), b""
    while data := await process.read():
        for kind, payload in reader.feed(data):
            if kind == Kind.READY:
                greeting = json.loads(payload)
            elif kind == Kind.OUTPUT:
                output += payload
                if interrupt is not None and interrupt in output:
                    interrupt = None
                    await process.write(frame(Kind.INTERRUPT))
            else:
                assert kind == Kind.RESULT
                return greeting, (output + ResultFrame.unpack(payload).output).decode()
    raise AssertionError("the supervisor has ended")
