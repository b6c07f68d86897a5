"""Pseudo-terminals of a confined sandbox: its own, a limited number, and none of the machine's."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest
from sandboxes.confined_support import line, python, run, started

from codeact_team.sandbox.base import Cause
from codeact_team.sandbox.confined.sandbox import ConfinedSandbox
from codeact_team.sandbox.system.kernel import PROCESS_TERMINALS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="by namespaces of Linux")

IN_A_TERMINAL = """if True:
    import fcntl, os, pty, struct, sys, termios
    child, terminal = pty.fork()
    if child == 0:
        input()
        os.execvp("sh", ["sh", "-c", sys.argv[1]])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 77, 0, 0))
    os.write(terminal, b"\\n")
    try:
        while said := os.read(terminal, 1024):
            print(said.decode(), end="")
    except OSError:
        pass
    os.waitpid(child, 0)
"""
KEEP_ONE = """if True:
    import os
    main, inner = os.openpty()
    print(os.ttyname(inner), *sorted(os.listdir("/dev/pts")))
    input()
"""
OPEN_ALL = """if True:
    import os
    found = []
    try:
        while True:
            found.append(os.openpty())
    except OSError as error:
        print(len(found), error.strerror)
"""


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncGenerator[ConfinedSandbox]:
    async with started(tmp_path) as sandbox:
        if Cause.UNSEEN not in sandbox.limits:
            pytest.skip("this machine forbids namespaces")
        yield sandbox


@pytest.fixture
def of_the_machine() -> Generator[str]:
    """A terminal of this machine that is open."""
    main, inner = os.openpty()
    yield os.ttyname(inner)
    os.close(main)
    os.close(inner)


async def test_a_program_runs_in_one_of_the_size_that_it_has(sandbox: ConfinedSandbox) -> None:
    output, exit = await python(sandbox, IN_A_TERMINAL, "tty; stty size; echo to it > /dev/tty; exit 3")
    assert output.split("\r\n")[1:] == ["/dev/pts/0", "33 77", "to it", ""]
    assert exit.code == 0
    assert (await run(sandbox, "sh", "-c", "echo > /dev/tty"))[1].code != 0


async def test_an_interrupt_typed_into_one_ends_only_what_runs_in_it(sandbox: ConfinedSandbox) -> None:
    code = """if True:
        import os, pty
        child, terminal = pty.fork()
        if child == 0:
            os.execvp("sh", ["sh", "-c", "echo up; exec sleep 600"])
        os.read(terminal, 1024)
        os.write(terminal, b"\\x03")
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert (await python(sandbox, code))[0] == "-2\n"
    assert (await python(sandbox, "print('goes on')"))[0] == "goes on\n"


async def test_it_sees_and_opens_neither_those_of_the_machine_nor_of_another_sandbox(
    sandbox: ConfinedSandbox, tmp_path_factory: pytest.TempPathFactory, of_the_machine: str
) -> None:
    process = await sandbox.spawn([sandbox.python, "-c", KEEP_ONE])
    assert await line(process) == b"/dev/pts/0 0 ptmx\n"
    async with started(tmp_path_factory.mktemp("another"), readable=["/dev"]) as another:
        assert (await python(another, KEEP_ONE))[0].startswith("/dev/pts/0 0 ptmx\n")
        output, _ = await python(another, f"import os; os.open('{of_the_machine}', os.O_RDWR)")
        assert "No such file" in output
    await process.aclose()


async def test_there_are_enough_but_not_all_of_the_machine(
    sandbox: ConfinedSandbox, of_the_machine: str
) -> None:
    output, _ = await python(sandbox, OPEN_ALL)
    count, _, reason = output.partition(" ")
    assert 100 <= int(count) <= 128
    assert reason == "No space left on device\n"
    # they end with their program
    assert (await python(sandbox, KEEP_ONE))[0].startswith("/dev/pts/0 0 ptmx\n")


async def test_the_machines_own_devices_get_no_directory_of_ours(tmp_path: Path) -> None:
    async with started(tmp_path, readable=["/dev"]) as sandbox:
        assert (await run(sandbox, "echo", "said"))[0] == b"said\n"
    assert PROCESS_TERMINALS.removeprefix("/dev/") not in os.listdir("/dev")
