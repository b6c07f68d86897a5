"""Ctrl-C, SIGTERM and a sandbox that does not start, each in the middle of something."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import time
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from command_line import (
    ACCEPT,
    COMMAND,
    CONFINED,
    codeact_team,
    environment,
    lines,
    local_model,
    set_all,
)
from support.fork_server import Forked, start
from support.openai_server import Json, ScriptedServer, Slow, Text
from terminal import on_a_terminal

from codeact_team.sandboxes.docker.container import LABEL
from codeact_team.sandboxes.docker.engine import connect, engine_url


def sleeps(seconds: str) -> Text:
    """A model's answer: code that sleeps so long, in a process of its own."""
    code = f"import subprocess\nprint('sleeping', flush=True)\nsubprocess.run(['sleep', '{seconds}'])"
    return Text(f"```python\n{code}\n```\n")


def sleepers(seconds: str) -> list[str]:
    """The processes of this machine, containers included, that sleep so long."""
    found: list[str] = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(file.read_text(errors="replace").replace("\0", " ").strip())
    return [command for command in found if command == f"sleep {seconds}"]


def wait_for_sleeper(seconds: str) -> None:
    while not sleepers(seconds):
        time.sleep(0.02)


@contextmanager
def running(
    base_url: str,
    *arguments: str,
    cwd: Path,
    overrides: Sequence[str],
    **variables: str,
) -> Generator[Forked]:
    """The command at work, in a process group of its own, as a shell starts it."""
    with start(
        [*COMMAND[1:], "run", "local-model", "A task", *arguments, *set_all(overrides)],
        cwd=cwd,
        environment=environment(**local_model(base_url), **variables),
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for_output(process: Forked, text: bytes) -> bytes:
    assert process.stdout is not None
    seen = b""
    while text not in seen:
        line = process.stdout.readline()
        assert line, f"{text!r} never came, but {seen!r}"
        seen += line
    return seen


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
        wait_for_output(process, b"A task\n")
        while not server.requests:
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        stdout, stderr = end(process)
    assert process.returncode == 130
    assert stderr.splitlines()[-1] == "error: interrupted"
    assert "── stopped · 1 message " in stdout
    assert "Traceback" not in stderr


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_during_execution_stops_the_code_and_is_told_as_the_result(
    tmp_path: Path, number: signal.Signals, code: int
):
    with (
        ScriptedServer.in_thread([sleeps(f"{code}.25")]) as server,
        running(server.base_url, "--json", cwd=tmp_path, overrides=[CONFINED]) as process,
    ):
        wait_for_output(process, b"sleeping")
        wait_for_sleeper(f"{code}.25")
        os.killpg(process.pid, number)
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
    with (
        ScriptedServer.in_thread([sleeps("60.25")]) as server,
        on_a_terminal(
            *("run", "local-model", "A task", "-s", CONFINED),
            cwd=tmp_path,
            TMPDIR=str(temporary),
            **local_model(server.base_url),
        ) as terminal,
    ):
        wait_for_sleeper("60.25")
        assert list(temporary.iterdir())
        terminal.hang_up()
        assert terminal.process.wait(timeout=30) == 129
    assert sleepers("60.25") == []
    assert list(temporary.iterdir()) == []


def test_what_is_to_outlive_its_terminal_does(tmp_path: Path):
    with (
        ScriptedServer.in_thread([sleeps("2.75"), Json(ACCEPT)]) as server,
        subprocess.Popen(
            ["nohup", *COMMAND, "run", "local-model", "A task", "-s", CONFINED],
            cwd=tmp_path,
            env=environment(**local_model(server.base_url)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        ) as process,
    ):
        wait_for_sleeper("2.75")
        os.killpg(process.pid, signal.SIGHUP)
        assert process.wait(timeout=50) == 0


def test_an_impatient_user_does_not_break_the_stop(tmp_path: Path):
    with (
        ScriptedServer.in_thread([sleeps("61.25")]) as server,
        running(server.base_url, cwd=tmp_path, overrides=[CONFINED]) as process,
    ):
        wait_for_output(process, b"sleeping")
        wait_for_sleeper("61.25")
        for _ in range(5):
            os.killpg(process.pid, signal.SIGINT)
            time.sleep(0.05)
        _, stderr = end(process)
    assert process.returncode == 130
    assert "Traceback" not in stderr
    assert sleepers("61.25") == []


@pytest.mark.docker
def test_ctrl_c_during_execution_leaves_no_container(tmp_path: Path):
    with (
        ScriptedServer.in_thread([sleeps("62.25")]) as server,
        running(server.base_url, cwd=tmp_path, overrides=[]) as process,
    ):
        wait_for_output(process, b"sleeping")
        wait_for_sleeper("62.25")
        before = containers_of(process)
        os.killpg(process.pid, signal.SIGINT)
        _, stderr = end(process)
        assert process.returncode == 130
        assert stderr == f"made the work_dir {tmp_path / 'coding'}\nerror: interrupted\n"
        assert (len(before), containers_of(process)) == (1, [])


def test_a_sandbox_that_cannot_start_ends_a_model_call_under_way(tmp_path: Path):
    (tmp_path / "coding").mkdir()
    with ScriptedServer.in_thread([Slow(60, Text("late"))]) as server:
        began = time.monotonic()
        result = codeact_team(
            "run",
            "local-model",
            "A task",
            cwd=tmp_path,
            DOCKER_HOST="unix:///nowhere",
            **local_model(server.base_url),
        )
        assert time.monotonic() - began < 20
    assert result.returncode == 2
    assert result.stderr.startswith("error: no container engine answers at unix:///nowhere: start Docker")
    assert result.stderr.count("\n") == 1


def test_ctrl_c_while_the_task_is_read_is_no_traceback_either(tmp_path: Path):
    with subprocess.Popen(
        [*COMMAND, "run", "quickstart", "-"],
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        process_group=0,
    ) as process:
        assert process.stdin is not None
        # more than a pipe holds: once this is written, the command is reading
        process.stdin.write(b"x" * (1 << 20))
        os.killpg(process.pid, signal.SIGINT)
        _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert stderr == b"error: interrupted\n"
