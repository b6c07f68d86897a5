"""A run that is stopped from outside goes on as one that was killed: what was under way begins again, or is unknown."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import stories
from stories import said_before
from support import fork_server
from support.command_line import codeact_team, environment
from support.openai_server import AnyReply, Body, ScriptedServer, Slow, Text

PARTS, PROGRAM = (Path(__file__).with_name(name) for name in ("waiting_parts.py", "stopped_program.py"))
ALLOWED = ("--allow", "waiting_parts")


@dataclass(frozen=True)
class Wait:
    """Something that a run waits for when it is stopped.

    Attributes:
        code: The second block, after one that has made ``x``.
        begun: The file that is there once it waits; without one, the model is asked for the second block then.
        after: What the code prints in the end.
        settings: Of the agent.
    """

    code: str
    begun: str | None
    after: str
    settings: dict[str, Any] = field(default_factory=dict[str, Any])


BLOCK = Wait(
    "import time\nopen('begun', 'w').close()\nwhile not open({go!r}).read():\n    time.sleep(0.01)\nprint('x is', x)",
    "work/begun",
    "x is kept",
)
TOOL = Wait(
    "print('x is', x, tools.order())",
    "begun",
    "x is kept ordered",
    {"tools": ["waiting_parts:order"], "tool_limits": {"repeatable": ["order"]}},
)
UNKNOWN_TOOL = Wait(
    "try:\n    print(tools.order())\nexcept tools.ToolError as error:\n    print('x is', x, error)",
    "begun",
    "x is kept it is unknown what became of this call of order",
    {"tools": ["waiting_parts:order"]},
)
QUESTION = Wait(
    "print('x is', x)",
    "begun",
    "x is kept",
    {
        "approval": [{"code": "*print*", "decision": "ask"}, {"code": "*", "decision": "allow"}],
        "approval_handler": "waiting_parts:decide",
    },
)
MODEL = Wait("print('x is', x)", None, "x is kept")
WAITS = [
    pytest.param(BLOCK, id="block"),
    pytest.param(TOOL, id="tool"),
    pytest.param(UNKNOWN_TOOL, id="tool that may not be called twice"),
    pytest.param(QUESTION, id="question"),
    pytest.param(MODEL, id="model"),
]


class Case:
    """A run in a directory of its own, which waits until the file ``go`` says something."""

    def __init__(self, folder: Path, wait: Wait, *, is_team: bool = False) -> None:
        self.folder = folder
        self.wait = wait
        self.go = folder / "go"
        self.go.touch()
        for part in (PARTS, PROGRAM):
            shutil.copy(part, folder)
        (folder / "work").mkdir()
        given: dict[str, Any] = {"tools": [], "max_seconds": 600, **wait.settings}
        config = stories.coder(
            settings={**stories.IN_WORK, "packages": [], "readable": [str(self.go)]},
            **given,
        )
        if is_team:
            config = stories.team(config, max_turns=1)
        (folder / "config.json").write_text(json.dumps(config))

    def reply(self, body: Body) -> AnyReply:
        match said_before(body):
            case 0:
                return stories.python("x = 'kept'")
            case 1:
                answer = stories.python(self.wait.code.format(go=str(self.go)))
                return answer if self.wait.begun or self.go.read_text() else Slow(60, answer)
            case _:
                told = str(body["messages"][-1]["content"])
                return Text("It is kept." if self.wait.after in told else f"It is lost: {told}")

    def environment(self, server: ScriptedServer) -> dict[str, str]:
        return {"OPENAI_API_KEY": "key-of-a-test", "OPENAI_BASE_URL": server.base_url}

    def start(self, server: ScriptedServer, arguments: Sequence[str]) -> fork_server.Forked:
        return fork_server.start(
            arguments,
            cwd=self.folder,
            environment=environment(**self.environment(server)),
            stdin=subprocess.DEVNULL,
        )

    def until_it_waits(self, server: ScriptedServer) -> None:
        begun = self.wait.begun
        while not (len(server.requests) > 1 if begun is None else (self.folder / begun).exists()):
            time.sleep(0.01)

    def resume(self, server: ScriptedServer, *arguments: str) -> subprocess.CompletedProcess[str]:
        self.go.write_text("go")
        return codeact_team(
            "resume", "last", *ALLOWED, *arguments, cwd=self.folder, **self.environment(server)
        )


@pytest.mark.parametrize(
    "wait",
    [WAITS[0], *(pytest.param(*wait.values, id=wait.id, marks=pytest.mark.long) for wait in WAITS[1:])],
)
@pytest.mark.parametrize(
    "how",
    [
        pytest.param(signal.SIGINT, id="INT"),
        # what is told apart after that is what it waits for, not what has stopped it
        pytest.param(signal.SIGTERM, id="TERM", marks=pytest.mark.long),
        pytest.param("time", id="time limit", marks=pytest.mark.long),
    ],
)
def test_what_was_under_way_when_a_run_was_stopped_is_under_way(
    tmp_path: Path, wait: Wait, how: signal.Signals | str
) -> None:
    case = Case(tmp_path, wait)
    with ScriptedServer.in_thread(case.reply) as server:
        limit = ["--timeout", "4"] if how == "time" else []
        command = ["-m", "codeact_team", "run", "config.json", "Go.", *ALLOWED, *limit]
        with case.start(server, command) as process:
            if isinstance(how, signal.Signals):
                case.until_it_waits(server)
                process.send_signal(how)
            output = process.communicate(timeout=60)
        expected = 128 + how if isinstance(how, signal.Signals) else 1
        assert process.returncode == expected, output
        result = case.resume(server)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.endswith("It is kept.\n")


@pytest.mark.parametrize("wait", [WAITS[0], WAITS[2], WAITS[3]])
@pytest.mark.parametrize("how", ["interrupt", "token"])
@pytest.mark.long
@pytest.mark.parametrize("is_team", [False, True], ids=["agent", "team"])
def test_a_program_that_was_stopped_goes_on_where_it_was(
    tmp_path: Path, wait: Wait, how: str, is_team: bool
) -> None:
    case = Case(tmp_path, wait, is_team=is_team)
    with ScriptedServer.in_thread(case.reply) as server:
        program = [str(tmp_path / PROGRAM.name), how]
        with case.start(server, program) as process:
            case.until_it_waits(server)
            process.send_signal(signal.SIGINT)
            # within the time that agents have to end their work, and not with the end of what they wait for
            process.communicate(timeout=60)
        case.go.write_text("go")
        with case.start(server, program) as process:
            stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout.decode()) == (0, "It is kept.\n"), stderr.decode()
