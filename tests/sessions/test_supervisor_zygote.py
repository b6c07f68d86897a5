"""Interpreters are forked from one that has run the setup and no block."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from support.supervisor import Supervised, in_docker, supervised

from codeact_team.sandbox.system.framing import frame
from codeact_team.session.protocol import RUN_HEAD, Kind

# of the interpreter, and of what it was forked from
PROCESSES = """
import os
children = open(f"/proc/{os.getppid()}/task/{os.getppid()}/children").read().split()
print(os.getpid(), *sorted({int(child) for child in children} - {os.getpid()}))
"""


@pytest.fixture(params=["plain", pytest.param("container", marks=[pytest.mark.docker, pytest.mark.long])])
def container(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    """The name of the container that a supervisor runs in, if it runs in one."""
    return None if request.param == "plain" else f"zygote-{tmp_path.name}-{os.getpid()}"


@pytest.fixture
def fresh(container: str | None, tmp_path: Path) -> Generator[Supervised]:
    """One that has run nothing."""
    if container is None:
        with supervised(tmp_path) as one:
            yield one
        return
    prefix = [*in_docker()]
    prefix[2:2] = ["--name", container]
    with supervised(tmp_path, prefix=prefix, python="python3") as one:
        yield one


def set_up(one: Supervised, code: str) -> None:
    one.numbers += 1
    one.send(frame(Kind.SETUP, RUN_HEAD.pack(one.interpreter, one.numbers), code.encode()))
    assert one.result().report is not None


def processes(one: Supervised) -> tuple[int, int]:
    interpreter, zygote = map(int, one.run(PROCESSES).text.split())
    return interpreter, zygote


def test_interpreters_come_from_one_zygote(fresh: Supervised) -> None:
    one = fresh
    set_up(one, "made = []")
    first, zygote = processes(one)
    one.run("made.append(1)")
    one.restart()
    second, same = processes(one)
    assert (second != first, same) == (True, zygote)
    assert one.run("print(made)").text == "[]\n"
    assert not one.run("import os; os._exit(3)").ran or one.interpreter > 2
    assert processes(one)[1] == zygote
    assert one.run("print(made)").text == "[]\n"


def test_a_setup_that_is_known_does_not_run_again(fresh: Supervised) -> None:
    one = fresh
    set_up(one, "import time; made = time.time()")
    made = one.run("print(made)").text
    for _ in range(2):
        one.restart()
        set_up(one, "import time; made = time.time()")
        assert one.run("print(made)").text == made
    # one that comes later runs in each interpreter
    one.restart()
    one.run("pass")
    set_up(one, "late = made")
    assert one.run("print(late is made)").text == "True\n"


@pytest.mark.parametrize(
    "setup",
    [
        pytest.param(
            "import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start(); x = 1",
            id="thread",
        ),
        pytest.param("file = open('kept', 'w'); x = 1", id="file"),
        pytest.param("import socket; pair = socket.socketpair(); x = 1", id="socket", marks=pytest.mark.long),
    ],
)
def test_a_setup_that_cannot_be_forked_runs_anew_in_each_interpreter(fresh: Supervised, setup: str) -> None:
    one = fresh
    for _ in range(2):
        set_up(one, setup)
        assert (
            one.run("import os, signal; signal.raise_signal(0); os.kill(os.getpid(), 0); print(x)").text
            == "1\n"
        )
        assert one.run(PROCESSES).text.split()[1:] == []
        one.restart()


def test_a_zygote_that_dies_is_replaced(fresh: Supervised, container: str | None) -> None:
    one = fresh
    set_up(one, "made = []")
    interpreter, zygote = processes(one)
    # it can be killed from outside the sandbox only, as by the memory limit; it is dead once its supervisor has seen that
    shell = ["sh", "-c", f"kill -9 {zygote} && while kill -0 {zygote} 2>/dev/null; do sleep 0.01; done"]
    subprocess.run(shell if container is None else ["docker", "exec", container, *shell], check=True)
    # the living one goes on; what follows it is told to be new, and has what the host makes anew
    assert one.run("made.append(1); print(made)").text == "[1]\n"
    assert one.run("import os; os._exit(1)").loss
    set_up(one, "made = []")
    assert one.run("print(made)").text == "[]\n"
    # nothing is left running that could reach another one
    one.restart()
    set_up(one, "made = []")
    assert interpreter not in processes(one)


def test_interpreters_that_are_forked_are_as_any_other(fresh: Supervised) -> None:
    one = fresh
    code = """
        import os, resource, signal, subprocess, sys, threading
        signal.raise_signal(signal.SIGCONT)
        os.kill(os.getpid(), 0)
        open("/proc/self/environ").close()
        print(subprocess.run([sys.executable, "-c", "print(2)"], capture_output=True, text=True).stdout.strip())
        print(os.getpgid(0) == os.getsid(0) == os.getpid(), threading.current_thread() is threading.main_thread())
    """
    assert one.run(f"if True:{code}").text == "2\nTrue True\n"
    one.start("import time\ntry: time.sleep(60)\nexcept KeyboardInterrupt: print('interrupted'); raise")
    time.sleep(0.2)
    one.interrupt()
    result = one.result()
    assert "interrupted" in result.text
    assert result.report is not None


def test_a_shell_may_come_first(fresh: Supervised) -> None:
    one = fresh
    set_up(one, "made = 1")
    assert one.sh("echo 1").text == "1\n"
    assert one.run("print(made)").text == "1\n"


def test_interpreters_do_not_share_the_position_in_a_file_that_the_setup_has_opened(
    fresh: Supervised,
) -> None:
    one = fresh
    set_up(one, "import os; file = os.open('/etc/passwd', os.O_RDONLY)")
    assert one.run("print(len(os.read(file, 3)), os.lseek(file, 0, os.SEEK_CUR))").text == "3 3\n"
    one.restart()
    set_up(one, "import os; file = os.open('/etc/passwd', os.O_RDONLY)")
    assert one.run("print(os.lseek(file, 0, os.SEEK_CUR))").text == "0\n"
