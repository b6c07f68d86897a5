"""A run that Ctrl-C has stopped while its code ran goes on as if that code had just begun."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

from cli.command_line import codeact_team, environment
from support import fork_server
from support.openai_server import AnyReply, ScriptedServer, Text


def test_code_that_was_stopped_runs_again_with_the_variables_of_before(tmp_path: Path) -> None:
    go = tmp_path / "go"
    go.write_text("")

    def model(body: Any) -> AnyReply:
        match sum(message["role"] == "assistant" for message in body["messages"]):
            case 0:
                return Text("```python\nx = 'kept'\n```")
            case 1:
                wait = f"import time\nprint('be' + 'gun', flush=True)\nwhile not open({str(go)!r}).read():\n    time.sleep(0.01)"
                return Text(f"```python\n{wait}\nprint('x is', x)\n```")
            case _:
                return Text("It is kept." if "x is kept" in str(body["messages"][-1]) else "It is lost.")

    executor = {"confinement": "best_effort", "packages": [], "readable": [str(go)]}
    config: dict[str, Any] = {
        "name": "coder",
        "model_client": {
            "provider": "autogen_ext.models.openai.OpenAIChatCompletionClient",
            "config": {"model": "gpt-4o", "max_retries": 0},
        },
        "code_executor": {"provider": "codeact_team.ConfinedSessionCodeExecutor", "config": executor},
        "stream_output": True,
    }
    (tmp_path / "coder.json").write_text(
        json.dumps({"provider": "codeact_team.CodeActAgent", "config": config})
    )
    with ScriptedServer.in_thread(model) as server:
        variables = {"OPENAI_API_KEY": "key-of-a-test", "OPENAI_BASE_URL": server.base_url}
        command = ["-m", "codeact_team", "run", "coder.json", "Go."]
        with fork_server.start(
            command, cwd=tmp_path, environment=environment(**variables), stdin=subprocess.DEVNULL
        ) as process:
            assert process.stdout is not None
            while b"begun" not in process.stdout.readline():
                pass
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
        assert process.returncode == 130
        go.write_text("go")
        result = codeact_team("resume", "last", cwd=tmp_path, **variables)
        assert result.returncode == 0, result.stdout + result.stderr
        assert result.stdout.endswith("It is kept.\n")
        assert len(server.requests) == 3
