"""``--json`` as programs have it: each thing told when it happens."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from support.command_line import COMMAND, codeact_team, environment, lines, messages
from support.fork_server import start
from support.openai_server import AnyReply, Garbage, HttpError, ScriptedServer, Text

PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(100)
TOOLS = '''\
import asyncio
from pathlib import Path


async def fetch(page: str) -> str:
    """Fetch a page.

    Args:
        page: Which one.
    """
    # a pipe, which has nothing to read before somebody writes
    return await asyncio.to_thread(Path("page").read_text)
'''
CODE = f"""\
```python
class Picture:
    def _repr_png_(self):
        return {PICTURE!r}

found = tools.fetch("one")
print(found)
Picture()
```"""


def client() -> dict[str, Any]:
    return {
        "provider": "autogen_ext.models.openai.OpenAIChatCompletionClient",
        "config": {"model": "gpt-4.1"},
    }


def agent(folder: Path) -> list[str]:
    """The command for an agent whose code runs in a session and may call a tool."""
    (folder / "slow_tools.py").write_text(TOOLS)
    executor = {
        "provider": "codeact_team.ConfinedSessionCodeExecutor",
        "config": {"confinement": "best_effort"},
    }
    settings = {
        "name": "helper",
        "model_client": client(),
        "code_executor": executor,
        "tools": ["slow_tools:fetch"],
        "model_client_stream": True,
        "stream_output": True,
    }
    (folder / "agent.json").write_text(
        json.dumps({"provider": "codeact_team.CodeActAgent", "config": settings})
    )
    return ["run", "agent.json", "--allow", "slow_tools", "Fetch it.", "--json"]


def autogen_s(folder: Path) -> list[str]:
    """The command for an agent of AutoGen's own, which only talks."""
    settings = {
        "name": "helper",
        "model_client": client(),
        "model_client_stream": True,
        "description": "an agent",
        "reflect_on_tool_use": False,
        "tool_call_summary_format": "{result}",
    }
    provider = "autogen_agentchat.agents.AssistantAgent"
    (folder / "agent.json").write_text(json.dumps({"provider": provider, "config": settings}))
    return ["run", "agent.json", "Hi.", "--json"]


def variables(server: ScriptedServer, folder: Path) -> dict[str, str]:
    return {"OPENAI_API_KEY": "a-key", "OPENAI_BASE_URL": server.base_url, "PYTHONPATH": str(folder)}


def test_a_call_of_a_tool_is_told_before_it_ends_and_what_came_of_the_block_in_full(tmp_path: Path):
    os.mkfifo(tmp_path / "page")
    with (
        ScriptedServer.in_thread([Text(CODE), Text("It is there.")]) as server,
        start(
            [*COMMAND[1:], *agent(tmp_path)],
            cwd=tmp_path,
            environment=environment(**variables(server, tmp_path)),
        ) as process,
    ):
        assert process.stdout is not None
        before: list[dict[str, Any]] = []
        while not before or before[-1]["type"] != "tool_call_began":
            before.append(json.loads(process.stdout.readline()))
        (tmp_path / "page").write_text("a page")
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    after = lines(stdout.decode())
    call, ended = before[-1], next(event for event in after if event["type"] == "tool_call_ended")
    assert (call["agent"], call["name"], json.loads(call["arguments"])) == (
        "helper",
        "fetch",
        {"page": "one"},
    )
    assert (ended["span"], ended["name"], ended["outcome"]) == (call["span"], "fetch", "ok")
    block, result = (
        next(event for event in before if event["type"] == "block_began"),
        next(event for event in after if event["type"] == "block_ended"),
    )
    assert block["span"] == call["parent"] == result["span"]
    assert (result["exit_code"], result["outcome"]) == (0, "completed")
    assert {"found", "Picture"} <= {name["name"] for name in result["names"]}
    digest = hashlib.sha256(PICTURE).hexdigest()
    picture = {"mime_type": "image/png", "size": len(PICTURE), "sha256": digest, "file": None}
    [artifact] = result["artifacts"]
    assert [form["mime_type"] for form in artifact.pop("other_forms")] == ["text/plain"]
    assert artifact == picture
    assert "iVBORw0KGgo" not in stdout.decode()
    assert after[-1]["tools"] == [
        {"name": "fetch", "outcomes": {"ok": 1}, "seconds": after[-1]["tools"][0]["seconds"]}
    ]


def test_what_is_told_piece_by_piece_is_told_once(tmp_path: Path):
    os.mkfifo(tmp_path / "page")
    with ScriptedServer.in_thread([Text("```python\nprint('a' + 'b')\n```"), Text("It is ab.")]) as server:
        result = codeact_team(*agent(tmp_path), cwd=tmp_path, **variables(server, tmp_path))
    assert result.returncode == 0, result.stderr
    events = lines(result.stdout)
    said = {event["message_id"]: "" for event in events if event["type"] in ("words", "output")}
    for event in events:
        if event["type"] in ("words", "output"):
            said[event["message_id"]] += event["text"]
    written, executed, answered = messages(events)[1:]
    assert [said.pop(message["id"]) for message in (written, executed, answered)] == [
        written["content"],
        executed["result"]["output"],
        answered["content"],
    ]
    assert said == {}


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (Text("Hello."), None),
        (Garbage(), "answered with something that is not a streamed chat completion"),
    ],
)
def test_autogen_s_own_agent_tells_its_model_s_words_once_or_why_there_are_none(
    tmp_path: Path, reply: AnyReply, told: str | None
):
    with ScriptedServer.in_thread([reply]) as server:
        result = codeact_team(*autogen_s(tmp_path), cwd=tmp_path, **variables(server, tmp_path))
    *events, last = lines(result.stdout)
    if told is None:
        pieces = [event for event in events if event["type"] == "words"]
        assert "".join(piece["text"] for piece in pieces) == "Hello."
        assert {piece["message_id"] for piece in pieces} == {messages(events)[-1]["id"]}
    else:
        assert (result.returncode, last["ending"]) == (2, "failed")
        assert last["error"].startswith(f"the model's server at {server.base_url} {told}")


def test_what_a_server_quotes_of_a_key_is_in_no_line(tmp_path: Path):
    refusal = HttpError(401, "Incorrect API key provided: sk-proj-abcdefgh12345678.")
    with ScriptedServer.in_thread([refusal]) as server:
        result = codeact_team(*autogen_s(tmp_path), cwd=tmp_path, **variables(server, tmp_path))
    failed = [event for event in lines(result.stdout) if event["type"] == "model_call_ended"]
    assert "Incorrect API key provided: (a key)" in failed[0]["error"]
    assert "abcdefgh" not in result.stdout + result.stderr


@pytest.mark.long
def test_a_typed_answer_is_json_in_the_result(tmp_path: Path):
    command = agent(tmp_path)
    config = json.loads((tmp_path / "agent.json").read_text())
    config["config"]["output_schema"] = {"type": "object", "required": ["total"]}
    (tmp_path / "agent.json").write_text(json.dumps(config))
    wrong, right = (Text(f"```python\nfinal_answer({{{name!r}: 42}})\n```") for name in ("sum", "total"))
    with ScriptedServer.in_thread([wrong, right]) as server:
        result = codeact_team(*command, cwd=tmp_path, **variables(server, tmp_path))
    assert result.returncode == 0, result.stderr
    events = lines(result.stdout)
    assert json.loads(events[-1]["answer"]) == {"total": 42}
    [thought] = [message for message in messages(events) if message["type"] == "ThoughtEvent"]
    assert (
        thought["content"]
        == """The answer is not taken: answer: "total" is a required property (it is a mapping of 1)."""
    )
