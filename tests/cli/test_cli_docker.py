"""The main job, end to end: the shipped team, its sandbox in Docker, and a model that is scripted."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from support.command_line import ACCEPT, NO_PACKAGES, REJECT, RETRY, codeact_team, lines, messages
from support.openai_server import Json, ScriptedServer, Text

from codeact_team.sandbox.docker.address import engine_url
from codeact_team.sandbox.docker.container import LABEL
from codeact_team.sandbox.docker.engine import connect

TEAM = Path(__file__).parents[2] / "configs" / "team.yaml"
FAILS = "I read the file.\n```python\nprint(open('numbers.txt').read())\n```\n"
REPAIRED = "I make it first.\n```python\nopen('numbers.txt', 'w').write('1 2 3')\nprint('written')\n```\n"
BETTER = "```python\nprint(sum(map(int, open('numbers.txt').read().split())))\n```\n"


@pytest.mark.docker
def test_a_team_writes_fails_repairs_is_sent_back_and_is_accepted(tmp_path: Path):
    replies = [
        Text(FAILS),
        Json(RETRY),
        Text(REPAIRED),
        Json(REJECT),
        Text(BETTER),
        Json({**ACCEPT, "answer": "The sum is 6."}),
    ]
    with ScriptedServer.in_thread(replies) as server:
        result = codeact_team(
            "run",
            str(TEAM),
            *("Add the numbers.", "--json", "-o", "answer.txt", "-s", NO_PACKAGES),
            cwd=tmp_path,
            OPENAI_API_KEY="a-key",
            OPENAI_BASE_URL=server.base_url,
        )
    assert result.returncode == 0, result.stderr
    events = lines(result.stdout)
    said = messages(events)
    executions = [message["result"] for message in said if message["type"] == "CodeExecutionEvent"]
    assert [execution["exit_code"] for execution in executions] == [1, 0, 0]
    assert "FileNotFoundError" in executions[0]["output"]
    assert executions[2]["output"].strip() == "6"
    verdicts = [
        json.loads(message["metadata"]["codeact_team.verdict"])["accepted"]
        for message in said
        if message["source"] == "reflection"
    ]
    assert verdicts == [False, True]
    assert (events[-1]["accepted"], events[-1]["usage"]["prompt_tokens"]) == (True, 600)
    assert (said[-1]["content"], events[-1]["answer"]) == ("The sum is 6.", "The sum is 6.")
    assert (tmp_path / "answer.txt").read_text() == "The sum is 6.\n"
    assert next(tmp_path.rglob("numbers.txt")).read_text() == "1 2 3"
    with closing(connect(engine_url())) as client:
        containers = client.containers(all=True, filters={"label": LABEL})
    mine = [each["Id"] for each in containers if str(tmp_path) in json.dumps(each["Mounts"])]
    assert mine == []


@pytest.mark.long
@pytest.mark.docker
def test_what_makes_the_sandbox_looser_is_told_once(tmp_path: Path):
    container = "config.code_executor.config"
    overrides = ["-s", f"{container}.pids=300", "-s", f"{container}.network=bridge"]
    result = codeact_team("run", "executor", "```sh\necho hello\n```", *overrides, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "hello\n✓ exit code 0\n" in result.stdout
    for relaxation in ("network: bridge", "pids: 300 (default 256)"):
        assert result.stderr.count(f"warning: the sandbox is looser than its default: {relaxation}\n") == 1
