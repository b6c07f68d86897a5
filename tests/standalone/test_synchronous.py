"""Programs without an event loop have the same sandbox."""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from standalone_sandbox import SandboxKind
from support import fork_server

from codeact_team import AsyncSandbox, SandboxError, SyncSandbox, open_sandbox
from codeact_team.session.processes import SandboxProcess
from codeact_team.standalone.synchronous import SyncProcess


@pytest.mark.parametrize(("own", "twin"), [(AsyncSandbox, SyncSandbox), (SandboxProcess, SyncProcess)])
def test_each_method_has_a_twin_with_the_same_parameters(own: type, twin: type) -> None:
    methods = {
        name: method
        for name, method in inspect.getmembers(own, inspect.iscoroutinefunction)
        if not name.startswith("_")
    }
    assert len(methods) > 9
    for name, method in methods.items():
        same: Callable[..., Any] = getattr(twin, "close" if name == "aclose" else name)
        assert not inspect.iscoroutinefunction(same)
        assert [*inspect.signature(same).parameters] == [*inspect.signature(method).parameters], name


def test_it_does_what_the_other_does(sync_sandbox: SyncSandbox) -> None:
    sandbox = sync_sandbox
    sandbox.put("a/b.txt", "text")
    assert (sandbox.get("a/b.txt"), sandbox.list()) == (b"text", {"a/b.txt": 4})
    sandbox.run_python("rows = [1]")
    with sandbox.checkpoint() as point:
        sandbox.run_python("rows.clear()")
        sandbox.rollback(point)
    first, second = sandbox.fork(2)
    first.run_python("rows.append(2)")
    assert [one.run_python("rows").output for one in (sandbox, first, second)] == [
        "[1]\n",
        "[1, 2]\n",
        "[1]\n",
    ]
    with first:
        assert first.workspace_path.startswith(sandbox.workspace_path)
    with pytest.raises(SandboxError, match=r"^the sandbox is closed$"):
        first.run_python("1")


def test_functions_and_callbacks_are_the_programs_and_may_use_the_sandbox(sync_sandbox: SyncSandbox) -> None:
    [fork] = sync_sandbox.fork()
    pieces = list[str]()

    def double(number: int) -> int:
        """Twice the number."""
        return int(fork.run_python(f"2 * {number}").output)

    def note(piece: str) -> None:
        pieces.append(fork.run_python(f"len({piece!r})").output)

    result = sync_sandbox.run_python("print(tools.double(21))", tools=[double], on_output=note)
    assert (result.output, pieces) == ("42\n", ["3\n"])


def test_a_coroutine_of_the_program_cannot_wait_for_itself(sync_sandbox: SyncSandbox) -> None:
    async def note(_: str) -> None:
        sync_sandbox.list()

    with pytest.raises(RuntimeError, match="would wait for itself"):
        sync_sandbox.run_python("print(1)", on_output=note)


def test_several_threads_may_use_it(sync_sandbox: SyncSandbox) -> None:
    results = dict[int, str]()

    def work(number: int) -> None:
        results[number] = sync_sandbox.run_python(f"{number} * {number}").output

    threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: f"{number * number}\n" for number in range(20)}


def test_its_thread_ends_with_it(kind: SandboxKind) -> None:
    before = threading.active_count()
    with open_sandbox(kind) as sandbox:
        sandbox.run_python("1", on_output=lambda _: None)
        assert threading.active_count() > before
    assert threading.active_count() == before
    with pytest.raises(SandboxError, match=r"^the sandbox is closed$"):
        sandbox.run_python("1")
    sandbox.close()


Run = Callable[[Path], tuple[bytes, bytes, int]]
_INTERRUPTED = """
import os, signal, threading
import codeact_team

def interrupt(piece):
    threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGINT)).start()

with codeact_team.open_sandbox(KIND) as sandbox:
    sandbox.run_python("kept = 1")
    try:
        sandbox.run_python("print(kept, flush=True)\\nwhile True: pass", on_output=interrupt)
    except KeyboardInterrupt:
        print("interrupted", sandbox.run_python("kept").output.strip(), flush=True)
    sandbox.run_python("print(kept, flush=True)\\nwhile True: pass", on_output=interrupt)
"""
_ABANDONED = """
import codeact_team

sandbox = codeact_team.open_sandbox(KIND).__enter__()
print(sandbox.run_python("1 + 1").output.strip())
"""


def started(program: Path) -> tuple[bytes, bytes, int]:
    """Run a program as everybody does; what it prints, and its exit code."""
    ended = subprocess.run([sys.executable, program], capture_output=True, timeout=60)
    return ended.stdout, ended.stderr, ended.returncode


def forked(program: Path) -> tuple[bytes, bytes, int]:
    """The same without the time that its imports take."""
    with fork_server.start([str(program)], cwd=program.parent, environment=os.environ) as process:
        return *process.communicate(timeout=60), process.wait(60)


each_start = pytest.mark.parametrize("run", [forked, pytest.param(started, marks=pytest.mark.long)])


def ran(program: str, kind: SandboxKind, run: Run, folder: Path) -> tuple[str, int]:
    file = folder / "program.py"
    file.write_text(program.replace("KIND", repr(kind)))
    stdout, stderr, code = run(file)
    assert b"Error" not in stderr, stderr
    return stdout.decode(), code


@each_start
def test_an_interrupt_cancels_the_call_and_leaves_the_sandbox_well(
    kind: SandboxKind, run: Run, tmp_path: Path
) -> None:
    assert ran(_INTERRUPTED, kind, run, tmp_path) == ("interrupted 1\n", -signal.SIGINT)


@each_start
def test_a_program_that_never_closes_it_ends_all_the_same(
    kind: SandboxKind, run: Run, tmp_path: Path
) -> None:
    assert ran(_ABANDONED, kind, run, tmp_path) == ("2\n", 0)


FORKING = """
import os, sys
from codeact_team import SandboxError, open_sandbox
with open_sandbox("confined", confinement="best_effort") as sandbox:
    sandbox.run_python("x = 1")
    if not (pid := os.fork()):
        try:
            sandbox.run_python("x = 2")
        except SandboxError as error:
            print(error, flush=True)
        sys.exit(3)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), sandbox.run_python("x").output)
"""


def test_a_fork_of_the_process_has_no_sandbox_and_ends(tmp_path: Path) -> None:
    (program := tmp_path / "forking.py").write_text(FORKING)
    with fork_server.start([str(program)], cwd=tmp_path, environment=os.environ) as started:
        stdout, stderr = started.communicate(timeout=100)
    told = b"this sandbox belongs to the process that forked this one: open one here\n3 1\n\n"
    assert stdout == told, stderr.decode()


GREEN = """
from gevent import monkey
monkey.patch_all()
from codeact_team import SandboxError, open_sandbox
try:
    open_sandbox("confined", confinement="best_effort").__enter__()
except SandboxError as error:
    print(error)
"""


@pytest.mark.long
def test_where_gevent_has_replaced_what_it_needs_it_says_so(tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-c", GREEN], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert told.stdout.startswith("gevent has replaced modules that a sandbox needs"), told.stderr
