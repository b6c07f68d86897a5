"""A run whose code calls tools of the host, and whose person approves, at a real terminal."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.fork_server import forked_by_command
from support.openai_server import ScriptedServer, Text
from support.terminal import CTRL_C, CTRL_D, ENTER, Terminal, on_a_terminal

SERVER = Path(__file__).parents[2] / "examples" / "mcp_server.py"
CONFIG = """\
provider: codeact_team.CodeActAgent
config:
  name: keeper
  model_client:
    provider: autogen_ext.models.openai.OpenAIChatCompletionClient
    config: {model: gpt-4.1}
  code_executor:
    provider: codeact_team.%s
    config: {}
  workbench:
    - provider: autogen_ext.tools.mcp.McpWorkbench
      config:
        server_params: %s
  approval:
    - {tool: stock.order, decision: ask, reason: it costs money}
"""
CODE = """\
```python
few = [name for name in tools.stock.articles() if tools.stock.count(name) < 10]
try:
    import urllib.request
    urllib.request.urlopen("http://1.1.1.1", timeout=1)
except OSError:
    print("no network")
try:
    print([tools.stock.order(name, pieces=50) for name in few])
except tools.ToolDenied as error:
    print(error)
```"""


READY = "\n> "
TASK = "Order what there is little of."


def written(folder: Path, sandbox: str) -> str:
    command, *arguments = forked_by_command(str(SERVER))
    server = {"type": "StdioServerParams", "command": command, "args": arguments}
    path = folder / "keeper.yaml"
    path.write_text(CONFIG % (f"{sandbox}SessionCodeExecutor", json.dumps(server)))
    return str(path)


@pytest.fixture
def config(tmp_path: Path) -> str:
    return written(tmp_path, "Confined")


def model(server: ScriptedServer) -> dict[str, str]:
    return {"OPENAI_API_KEY": "key-of-a-test", "OPENAI_BASE_URL": server.base_url}


@contextmanager
def asked(config: str, folder: Path, *replies: Text) -> Generator[tuple[Terminal, ScriptedServer]]:
    """A terminal that shows the question."""
    with (
        ScriptedServer.in_thread(replies) as server,
        on_a_terminal("run", config, "--allow-unsafe", TASK, cwd=folder, **model(server)) as terminal,
    ):
        terminal.wait_for(
            '── keeper wants to call stock.order\n| article: "gear"\n| pieces: 50\nit costs money\n'
        )
        terminal.wait_for(") >")
        yield terminal, server


@pytest.mark.long
@pytest.mark.parametrize("sandbox", [pytest.param("Docker", marks=pytest.mark.docker), "Confined"])
def test_three_tools_of_an_mcp_server_in_one_block_one_of_them_approved_at_the_terminal(
    sandbox: str, tmp_path: Path
):
    config = written(tmp_path, sandbox)
    with asked(config, tmp_path, Text(CODE), Text("50 gears were ordered.")) as (terminal, server):
        terminal.type("y", ENTER)
        terminal.wait_for("✓ tools.stock.order · ")
        terminal.wait_for("\n['ordered 50 of gear']\n")
        terminal.wait_for("── answered")
        terminal.wait_for("tools.stock.articles: 1 call, ")
        terminal.wait_for("tools.stock.count: 3 calls, ")
        terminal.wait_for("tools.stock.order: 1 call, ")
        terminal.wait_for("── answer\n50 gears were ordered.\n")
        assert terminal.end() == 0
    assert "def tools.stock.order(article: str, pieces: int)" in str(server.requests[0])


@pytest.mark.long
def test_in_a_chat_a_person_is_asked_between_their_messages_and_always_holds_until_a_reset(
    config: str, tmp_path: Path
):
    order = Text("```python\nprint(tools.stock.order('nut', 1))\n```")
    replies = [order, Text("One nut."), order, Text("Two nuts."), order, order, Text("Three nuts.")]
    with (
        ScriptedServer.in_thread(replies) as server,
        on_a_terminal("chat", config, "--allow-unsafe", cwd=tmp_path, **model(server)) as terminal,
    ):
        say(terminal, "One nut, please.")
        terminal.wait_for("keeper wants to call stock.order")
        terminal.wait_for(") >")
        terminal.type("a", ENTER)
        terminal.wait_for("One nut.")
        say(terminal, "Another one.")
        terminal.wait_for("Two nuts.")
        say(terminal, "/reset")
        say(terminal, "A third one.")
        terminal.wait_for("keeper wants to call stock.order")
        terminal.wait_for(") >")
        terminal.type(CTRL_C)
        terminal.wait_for("── stopped")
        say(terminal, "A third one.")
        terminal.wait_for(") >")
        terminal.type("y", ENTER)
        terminal.wait_for("Three nuts.")
        terminal.wait_for(READY)
        terminal.type(CTRL_D)
        assert terminal.end() == 0


def say(terminal: Terminal, message: str) -> None:
    terminal.wait_for(READY)
    terminal.type(message, ENTER)
