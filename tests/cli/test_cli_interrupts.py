"""Ctrl-C, SIGTERM and a closed terminal, each in the middle of something."""

from __future__ import annotations

import asyncio
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from support.command_line import (
    COMMAND,
    CONFINED,
    NO_PACKAGES,
    environment,
    lines,
    local_model,
    set_all,
    talker,
    without_advice,
)
from support.fork_server import Forked, start
from support.openai_server import ScriptedServer, Slow, Text
from support.terminal import on_a_terminal
from support.waiting import until

from codeact_team.sandbox.docker.address import engine_url
from codeact_team.sandbox.docker.container import LABEL
from codeact_team.sandbox.docker.engine import connect

ALONE = "config.code_executor={provider: codeact_team.ConfinedCommandLineCodeExecutor, config: {confinement: best_effort}}"
SLEEPS = "fast asleep"
"""What code prints, in one piece, once it sleeps; the code itself has it in two."""


def sleeps(seconds: str) -> Text:
    """A model's answer: code that waits for a process of its own, which sleeps so long."""
    code = f"import subprocess\nsleeper = subprocess.Popen(['sleep', '{seconds}'])"
    return Text(f"```python\n{code}\nprint('fast ' + 'asleep', flush=True)\nsleeper.wait()\n```\n")


def sleepers(seconds: str) -> list[str]:
    """The processes of this machine, containers included, that sleep so long."""
    found: list[str] = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(file.read_text(errors="replace").replace("\0", " ").strip())
    return [command for command in found if command == f"sleep {seconds}"]


@contextmanager
def running(
    base_url: str,
    *arguments: str,
    cwd: Path,
    overrides: Sequence[str] = (),
    config: str = "local-model",
    nohup: bool = False,
    **variables: str,
) -> Generator[Forked]:
    """The command at work, in a process group of its own, as a shell starts it."""
    with start(
        [*COMMAND[1:], "run", config, "A task", *arguments, *set_all(overrides)],
        cwd=cwd,
        environment=environment(**local_model(base_url), **variables),
        nohup=nohup,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for_output(process: Forked, text: str) -> None:
    assert process.stdout is not None
    seen = b""
    while text.encode() not in seen:
        line = process.stdout.readline()
        assert line, f"{text!r} never came, but {seen!r}"
        seen += line


def wait_for_request(server: ScriptedServer) -> None:
    while not server.requests:
        time.sleep(0.01)


def end(process: Forked) -> tuple[str, str]:
    """The rest of what it prints. What it waits for, code or an answer, takes longer than its end may."""
    stdout, stderr = process.communicate(timeout=50)
    return stdout.decode(), stderr.decode()


def containers_of(process: Forked) -> list[str]:
    with closing(connect(engine_url())) as client:
        owned = {"label": f"{LABEL}={platform.node()}:{process.pid}"}
        return [container["Id"] for container in client.containers(all=True, filters=owned)]


def test_ctrl_c_during_a_model_call_ends_at_once(tmp_path: Path):
    with (
        ScriptedServer.in_thread([Slow(60, Text("late"))]) as server,
        running(server.base_url, cwd=tmp_path, overrides=[CONFINED]) as process,
    ):
        wait_for_output(process, "A task\n")
        wait_for_request(server)
        os.killpg(process.pid, signal.SIGINT)
        stdout, stderr = end(process)
    assert process.returncode == 130
    assert without_advice(stderr).splitlines()[-1] == "error: interrupted"
    assert "── stopped · 1 message " in stdout
    assert "Traceback" not in stderr


@pytest.mark.parametrize(
    ("number", "times", "code"),
    [
        pytest.param(signal.SIGINT, 5, 130, id="INT"),
        pytest.param(signal.SIGTERM, 1, 143, id="TERM", marks=pytest.mark.long),
    ],
)
def test_a_signal_during_execution_stops_the_code_and_is_told_as_the_result_however_impatient_the_user(
    tmp_path: Path, number: signal.Signals, times: int, code: int
):
    with (
        ScriptedServer.in_thread([sleeps(f"{code}.25")]) as server,
        running(server.base_url, "--json", cwd=tmp_path, overrides=[CONFINED]) as process,
    ):
        wait_for_output(process, SLEEPS)
        # a process that has begun may still be without its arguments
        asyncio.run(until(lambda: sleepers(f"{code}.25")))
        for _ in range(times):
            # it may have ended by the first
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            time.sleep(0.02)
        stdout, stderr = end(process)
    assert process.returncode == code
    last = lines(stdout)[-1]
    assert (last["type"], last["exit_code"], last["ending"]) == ("result", code, "stopped")
    assert (last["accepted"], last["usage"]["prompt_tokens"]) == (False, 100)
    assert "Traceback" not in stderr
    assert sleepers(f"{code}.25") == []


def test_a_terminal_that_is_closed_ends_the_run_in_order(tmp_path: Path):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    command = ("run", "executor", sleeps("60.25").text, "-s", ALONE)
    with on_a_terminal(*command, cwd=tmp_path, TMPDIR=str(temporary)) as terminal:
        terminal.wait_for(SLEEPS)
        assert list(temporary.iterdir())
        terminal.hang_up()
        assert terminal.process.wait(timeout=30) == 129
    assert sleepers("60.25") == []
    assert list(temporary.iterdir()) == []


def test_what_is_to_outlive_its_terminal_does(tmp_path: Path):
    with (
        ScriptedServer.in_thread([Slow(0.5, Text("Here."))]) as server,
        running(server.base_url, cwd=tmp_path, config=talker(tmp_path), nohup=True) as process,
    ):
        wait_for_request(server)
        os.killpg(process.pid, signal.SIGHUP)
        stdout, _ = end(process)
    assert process.returncode == 0
    assert "── helper\nHere.\n" in stdout


def test_what_outlives_its_terminal_may_go_on_to_print_there(tmp_path: Path):
    outliving = tmp_path / "outliving.py"
    outliving.write_text(
        "import runpy, signal\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\nrunpy.run_module('codeact_team', run_name='__main__')"
    )
    with (
        ScriptedServer.in_thread([Slow(0.5, Text("Here."))]) as server,
        on_a_terminal(
            *("run", talker(tmp_path), "A task"),
            cwd=tmp_path,
            command=[sys.executable, str(outliving)],
            **local_model(server.base_url),
        ) as terminal,
    ):
        wait_for_request(server)
        terminal.hang_up()
        assert terminal.process.wait(timeout=30) == 0


@pytest.mark.long
@pytest.mark.docker
def test_ctrl_c_during_execution_leaves_no_container(tmp_path: Path):
    with (
        ScriptedServer.in_thread([sleeps("62.25")]) as server,
        running(server.base_url, cwd=tmp_path, overrides=[NO_PACKAGES]) as process,
    ):
        wait_for_output(process, SLEEPS)
        before = containers_of(process)
        os.killpg(process.pid, signal.SIGINT)
        _, stderr = end(process)
        assert process.returncode == 130
        assert without_advice(stderr) == "error: interrupted\n"
        assert (len(before), containers_of(process)) == (1, [])


def test_ctrl_c_while_the_task_is_read_is_no_traceback_either(tmp_path: Path):
    command = [*COMMAND[1:], "run", "quickstart", "-"]
    with start(command, cwd=tmp_path, environment=environment(), stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        # more than a pipe holds: once this is written, the command is reading
        written, most = 0, b"x" * (1 << 20)
        while written < len(most):
            written += process.stdin.write(most[written:])
        os.killpg(process.pid, signal.SIGINT)
        _, stderr = end(process)
    assert process.returncode == 130
    assert stderr == "error: interrupted\n"


INTERRUPTED_IMPORT = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
from codeact_team.cli import main
main()
"""


@pytest.mark.parametrize(
    ("module", "code", "said"),
    [
        ("typer", -signal.SIGINT, ""),
        ("rich.console", -signal.SIGINT, ""),
        pytest.param(
            "autogen_agentchat", 128 + signal.SIGINT, "error: interrupted\n", marks=pytest.mark.long
        ),
    ],
)
def test_an_interrupt_while_the_command_is_imported_is_no_traceback(
    tmp_path: Path, module: str, code: int, said: str
):
    result = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT.format(module=module), "runs"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (result.returncode, result.stdout, result.stderr) == (code, "", said)
