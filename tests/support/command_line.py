"""The command line as its users have it: a process of its own, told by its exit code and its streams.

Most are forked from a process that has imported the command line; ``COMMAND`` is for tests of what a real start does
with signals, streams and imports.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support import fork_server
from typer.testing import CliRunner

from codeact_team.cli.app import app
from codeact_team.executors.packages.installer import settings_for_uv

COMMAND = [sys.executable, "-m", "codeact_team"]

CONFINED = (
    "config.participants.executor.config.code_executor="
    "{provider: codeact_team.ConfinedCommandLineCodeExecutor, config: {confinement: best_effort}}"
)
"""An override that lets the code of a shipped team run without Docker, on any machine."""
NO_PACKAGES = "config.participants.executor.config.code_executor.config.packages=[]"
"""An override that lets a shipped team start without a package index."""
NO_HTTP_RETRIES = "config.participants.coder.config.model_client.config.max_retries=0"

CODE = "Here:\n```python\nprint('the answer is', 6 * 7)\n```\n"
FAILS = "Here:\n```python\nprint('before')\n1 / 0\n```\n"
RETRY: dict[str, Any] = {"reason": "Multiply instead.", "retry": True}
ACCEPT: dict[str, Any] = {"problems": [], "accepted": True, "next_step": ""}
REJECT: dict[str, Any] = {"problems": ["It is wrong."], "accepted": False, "next_step": "Start again."}


def environment(**variables: str) -> dict[str, str]:
    """This process's environment without what would change how the command behaves, and with ``variables``."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OPENAI_", "LOCAL_", "CODEACT_", "PYTEST_"))
        and name not in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS", "LINES")
    }
    return {**kept, **variables}


def with_index(**variables: str) -> dict[str, str]:
    """The same for pip and uv, which find packages and certificates where pip of this machine does."""
    found, _ = settings_for_uv(environment(**variables))
    del found["SSL_CERT_DIR"]
    # as pip does, which takes the best version of all indexes
    return {"UV_INDEX_STRATEGY": "unsafe-best-match", **found}


def codeact_team(
    *arguments: str, cwd: Path, stdin: str | bytes = b"", **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    with fork_server.start(
        [*COMMAND[1:], *arguments], cwd=cwd, environment=environment(**variables), stdin=subprocess.PIPE
    ) as process:
        stdout, stderr = process.communicate(stdin.encode() if isinstance(stdin, str) else stdin, timeout=110)
        code = process.wait(110)
    return subprocess.CompletedProcess(arguments, code, stdout.decode(), stderr.decode())


def in_this_process(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command without a process of its own, which takes a second to import what is imported here already."""
    result = CliRunner().invoke(app, arguments, input=stdin)
    return subprocess.CompletedProcess(arguments, result.exit_code, result.stdout, result.stderr)


def without_advice(stderr: str) -> str:
    """What a run says beside its answer, without how it goes on."""
    return re.sub(r"^to go on.*: codeact-team resume \S+.*\n", "", stderr, flags=re.MULTILINE)


def run_team(
    base_url: str, *arguments: str, cwd: Path, overrides: Sequence[str] = (CONFINED, NO_HTTP_RETRIES)
) -> subprocess.CompletedProcess[str]:
    """Run the shipped team for local models against ``base_url``."""
    return codeact_team(
        "run", "local-model", *arguments, *set_all(overrides), cwd=cwd, **local_model(base_url)
    )


def run_code(
    code: str, *arguments: str, cwd: Path, work_dir: str | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run code that is the task of the shipped executor: accepted if it works, with what it prints for an answer.

    It needs no model, no session and no agents beside it, which would take longer than all else.
    """
    settings = json.dumps({"confinement": "best_effort", "work_dir": work_dir})
    provider = "codeact_team.ConfinedCommandLineCodeExecutor"
    confined = f"config.code_executor={{provider: {provider}, config: {settings}}}"
    task = f"```python\n{code}\n```"
    return codeact_team("run", "executor", task, "-s", confined, *arguments, cwd=cwd, **variables)


def talker(folder: Path, answers: Sequence[str] = ()) -> str:
    """A config for an agent that only talks, and needs no sandbox.

    Args:
        folder: Where to write it.
        answers: What it says, instead of asking the scripted model.
    """
    client: dict[str, Any] = {
        "provider": "autogen_ext.models.openai.OpenAIChatCompletionClient",
        "config": {
            "model": "${LOCAL_MODEL}",
            "base_url": "${LOCAL_BASE_URL}",
            "api_key": "none",
            "max_retries": 0,
            "model_info": {
                "vision": False,
                "function_calling": False,
                "json_output": True,
                "structured_output": False,
                "family": "unknown",
            },
        },
    }
    if answers:
        provider = "autogen_ext.models.replay.ReplayChatCompletionClient"
        client = {"provider": provider, "config": {"chat_completions": answers}}
    settings = {
        "name": "helper",
        "description": "Talks.",
        "model_client": client,
        "reflect_on_tool_use": False,
        "tool_call_summary_format": "{result}",
    }
    config = {"provider": "autogen_agentchat.agents.AssistantAgent", "config": settings}
    (folder / "talker.json").write_text(json.dumps(config))
    return "talker.json"


def limited_talker(folder: Path, answer: str) -> str:
    """A config for a team that a limit ends once its agent has said this."""
    settings = {"participants": [json.loads((folder / talker(folder, [answer])).read_text())], "max_turns": 1}
    team = {"provider": "autogen_agentchat.teams.RoundRobinGroupChat", "config": settings}
    (folder / "team.json").write_text(json.dumps(team))
    return "team.json"


def local_model(base_url: str) -> dict[str, str]:
    return {"LOCAL_MODEL": "scripted-model", "LOCAL_BASE_URL": base_url}


def set_all(overrides: Sequence[str]) -> list[str]:
    return [argument for override in overrides for argument in ("-s", override)]


def lines(stdout: str) -> list[dict[str, Any]]:
    """What ``--json`` printed."""
    return [json.loads(line) for line in stdout.splitlines()]


def messages(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages of AutoGen's among the lines."""
    return [event["message"] for event in events if event["type"] == "message"]
