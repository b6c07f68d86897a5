"""What every executor does with code that opens a pseudo-terminal."""

from __future__ import annotations

from support.executing import run, usually

from codeact_team.executors.base import SandboxedCodeExecutor

CODE = """
import os, pty
child, terminal = pty.fork()
if child == 0:
    os.execvp("sh", ["sh", "-c", "tty; stty size < /dev/tty; read line; echo got $line"])
os.write(terminal, b"a line\\n")
said = b""
try:
    while chunk := os.read(terminal, 1024):
        said += chunk
except OSError:
    pass
print(said.decode().split("\\r\\n"), os.waitpid(child, 0)[1], sorted(os.listdir("/dev/pts")))
"""


@usually("docker", "confined")
async def test_code_runs_a_program_in_a_terminal_of_the_sandboxs_own(executor: SandboxedCodeExecutor) -> None:
    result = await run(executor, CODE)
    assert result.exit_code == 0, result.output
    for part in ("/dev/pts/0", "0 0", "got a line", "0 ['0', 'ptmx']"):
        assert part in result.output
