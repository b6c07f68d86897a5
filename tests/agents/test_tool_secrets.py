"""What the host knows stays there: its environment, the model's key and the credentials of tools."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from support.agents import turn
from support.codeact import agent_of, outputs, own_session, py
from support.openai_server import ScriptedServer, Text

from codeact_team.agents.codeact.agent import CodeActAgent
from codeact_team.core.executor_interface import SessionCodeExecutor
from codeact_team.executors.docker import DockerSessionCodeExecutor

SECRET = "correct-horse-battery-staple"
SEARCH = f"""
import gc, os, sys

secret = {SECRET[::-1]!r}[::-1].encode()
found = []

def look(where, data):
    if secret in data:
        found.append(where)

def read(path, where):
    try:
        with open(path, "rb", buffering=0) as file:
            look(where, file.read(1 << 20))
    except (OSError, ValueError):
        pass

tools.whoami()
look("environment", repr(os.environ).encode())
for pid in filter(str.isdigit, os.listdir("/proc")):
    for name in ("environ", "cmdline", "mounts", "stack", "syscall"):
        read(f"/proc/{{pid}}/{{name}}", f"{{name}} of {{pid}}")
    try:
        maps = open(f"/proc/{{pid}}/maps").read().splitlines()
        memory = open(f"/proc/{{pid}}/mem", "rb", buffering=0)
    except OSError:
        continue
    if int(pid) == os.getpid():
        continue
    for line in maps:
        begin, end = (int(part, 16) for part in line.split()[0].split("-"))
        try:
            memory.seek(begin)
            look(f"memory of {{pid}}", memory.read(min(end - begin, 1 << 24)))
        except (OSError, ValueError, OverflowError):
            pass
for folder in (".", "/tmp", "/run", "/home", "/root", "/var/tmp"):
    for base, _, names in os.walk(folder):
        for name in names:
            read(os.path.join(base, name), os.path.join(base, name))
for thing in gc.get_objects():
    if isinstance(thing, dict):
        for key, value in list(thing.items()):
            if isinstance(value, str) and value.encode("utf-8", "replace") == secret:
                found.append(f"an object: {{key!r}}")
for name in dir(tools):
    try:
        look(f"tools.{{name}}", repr(vars(getattr(tools, name))).encode("utf-8", "replace"))
    except TypeError:
        pass
del secret  # not to be told by its name
print("found:", found)
"""


@pytest.fixture(params=[pytest.param("docker", marks=[pytest.mark.docker, pytest.mark.long]), "confined"])
async def executor(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[SessionCodeExecutor]:
    monkeypatch.setenv("SHOP_TOKEN", SECRET)
    if request.param == "confined":
        async with own_session(work_dir=tmp_path) as confined:
            yield confined
    else:
        async with DockerSessionCodeExecutor(work_dir=tmp_path) as docker:
            yield docker


async def test_code_that_looks_everywhere_finds_no_secret_of_the_host(executor: SessionCodeExecutor):
    credentials: dict[str, Any] = {"token": SECRET}

    async def whoami() -> str:
        """Who the tool is logged in as."""
        assert credentials["token"] == SECRET
        return "somebody"

    async def fail() -> str:
        """Fails."""
        raise PermissionError("the shop refuses")

    replies = [Text(py(SEARCH)), Text(py("tools.fail()")), Text("Nothing.")]
    async with ScriptedServer(replies) as server:
        agent: CodeActAgent = agent_of(server.client(api_key=SECRET), executor, tools=[whoami, fail])
        items = await turn(agent)
    searched, failed = outputs(items)
    assert searched.startswith("found: []\n"), searched
    assert "ToolError: the shop refuses" in failed or "ToolError: PermissionError: the shop refuses" in failed
    assert "/" not in failed.partition("ToolError")[2], "no path of the host"
    assert all(SECRET not in str(request) for request in server.requests)
