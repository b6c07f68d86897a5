"""A run that was killed goes on, and ends as one that was left alone."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cli.command_line import environment
from support import fork_server
from support.openai_server import AnyReply, Body, ScriptedServer, Text

from codeact_team.journal import RecordedRun, find_run

PROGRAM = Path(__file__).with_name("killed_run.py")


@dataclass
class Story:
    """A config, and what its model says by how much was said before."""

    config: dict[str, Any]
    replies: Sequence[AnyReply]

    def reply(self, body: Body) -> AnyReply:
        said = sum(message["role"] == "assistant" for message in body["messages"])
        return self.replies[min(said, len(self.replies) - 1)]


def python(code: str) -> Text:
    return Text(f"```python\n{code}\n```")


CLIENT = {
    "provider": "autogen_ext.models.openai.OpenAIChatCompletionClient",
    "config": {"model": "gpt-4o", "max_retries": 0},
}
SESSION = Story(
    {
        "provider": "codeact_team.CodeActAgent",
        "config": {
            "name": "coder",
            "model_client": CLIENT,
            "tools": ["killed_run:book"],
            "code_executor": {
                "provider": "codeact_team.ConfinedSessionCodeExecutor",
                "config": {"confinement": "best_effort", "work_dir": "work"},
            },
        },
    },
    [
        python("open('log.txt', 'a').write('one\\n')\nfirst = tools.book(amount=5)\nprint(first)"),
        python("numbers = [first, 7]\nopen('log.txt', 'a').write('two\\n')\nprint(numbers)"),
        python(
            "first += tools.book(amount=3)\nopen('log.txt', 'a').write('three\\n')\n"
            "final_answer(f'{first} {numbers} {open(\"log.txt\").read().split()}')"
        ),
    ],
)
ANSWER = "3 [1, 7] ['one', 'two', 'three']"


def run(folder: Path, server: ScriptedServer, nth: int, how: str, *arguments: str) -> tuple[int, str, str]:
    variables = environment(
        OPENAI_API_KEY="sk-of-the-test-0123456789",
        OPENAI_BASE_URL=server.base_url,
        PYTHONPATH=str(PROGRAM.parent),
    )
    with fork_server.start(
        [str(PROGRAM), str(nth), how, *arguments], cwd=folder, environment=variables, stdin=subprocess.DEVNULL
    ) as process:
        stdout, stderr = process.communicate(timeout=100)
        return process.wait(100), stdout.decode(), stderr.decode()


def start(
    folder: Path, server: ScriptedServer, story: Story, nth: int, how: str = "after"
) -> tuple[int, str, str]:
    (folder / "config.json").write_text(json.dumps(story.config))
    (folder / "work").mkdir(exist_ok=True)
    return run(folder, server, nth, how, "run", "config.json", "Go.", "-q", "--allow", "killed_run")


def resume(folder: Path, server: ScriptedServer, nth: int = 0, how: str = "after") -> tuple[int, str, str]:
    return run(folder, server, nth, how, "resume", "last", "-q", "--allow", "killed_run")


def unknown_calls(folder: Path) -> int:
    recorded = RecordedRun(find_run("last", folder / ".codeact-team" / "runs"))
    return sum(
        "it is unknown what became of this call" in json.dumps(each.outcome)
        for each in recorded.effects()
        if each.kind == "tool_call"
    )


def check(folder: Path, code: int, stdout: str, stderr: str) -> None:
    effects = (folder / "effects.txt").read_text().split() if (folder / "effects.txt").exists() else []
    if unknown_calls(folder):
        # told to the code, which has not repeated it by itself
        assert len(effects) <= 3, stderr
        return
    assert (code, stdout.strip()) == (0, ANSWER), stderr
    assert effects == ["5", "3"]
    assert (folder / "work" / "log.txt").read_text() == "one\ntwo\nthree\n"


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("how", ["before", "torn", "after"])
def test_a_session_killed_at_every_entry(tmp_path: Path, how: str) -> None:
    with ScriptedServer.in_thread(SESSION.reply) as server:
        code, stdout, stderr = start(tmp_path, server, SESSION, 0)
        assert (code, stdout.strip()) == (0, ANSWER), stderr
        entries = int(re.findall(r"\d+", stderr)[-1])
        for nth in range(2, entries + 1):
            folder = tmp_path / str(nth)
            folder.mkdir()
            start(folder, server, SESSION, nth, how)
            check(folder, *resume(folder, server))
