"""A program that was killed does the same again, and ends as one that was left alone."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path

import pytest
from stories import GIVEN_UP, SESSION
from support import fork_server
from support.command_line import environment
from support.openai_server import ScriptedServer

PROGRAM = Path(__file__).with_name("killed_program.py")


def run(folder: Path, server: ScriptedServer, nth: int, how: str = "after") -> tuple[int, str, str]:
    variables = environment(OPENAI_API_KEY="sk-of-the-test-0123456789", OPENAI_BASE_URL=server.base_url)
    variables["PYTHONPATH"] = str(PROGRAM.parent)
    with fork_server.start(
        [str(PROGRAM), str(nth), how], cwd=folder, environment=variables, stdin=subprocess.DEVNULL
    ) as process:
        stdout, stderr = process.communicate(timeout=100)
        return process.wait(100), stdout.decode(), stderr.decode()


def prepared(folder: Path) -> Path:
    (folder / "work").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(SESSION.config))
    return folder


def left(folder: Path) -> tuple[str, str]:
    return (folder / "effects.txt").read_text(), (folder / "work" / "log.txt").read_text()


@pytest.mark.long
def test_a_program_that_is_killed_goes_on_to_the_same_end(tmp_path: Path) -> None:
    with ScriptedServer.in_thread(SESSION.reply) as server:
        alone = prepared(tmp_path / "alone")
        code, expected, stderr = run(alone, server, 0)
        assert (code, expected.count("\n")) == (0, 2), stderr
        entries = int(re.findall(r"\d+", stderr)[-1])
        for nth in (1, round(entries * 0.4), round(entries * 0.8)):
            killed = prepared(tmp_path / str(nth))
            assert run(killed, server, nth, "torn")[0] == -signal.SIGKILL
            code, stdout, stderr = run(killed, server, 0)
            # where a tool was just being called, nobody knows what became of that
            if GIVEN_UP not in stdout:
                assert (code, stdout, left(killed)) == (0, expected, left(alone)), stderr
