"""Tools, workbenches and approval in YAML: what loads, what a dump keeps, and what is refused where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from autogen_agentchat.base import TaskResult
from autogen_ext.models.openai import OpenAIChatCompletionClient
from autogen_ext.tools.mcp import McpWorkbench, StdioServerParams, StreamableHttpServerParams
from support.agents import TOOL_FIELDS
from support.openai_server import ScriptedServer, Text
from support.serving import mcp_over_http

from codeact_team.agents.code_executor import CodeExecutorAgent
from codeact_team.agents.codeact.agent import CodeActAgent
from codeact_team.agents.observations import ExecutionRecord
from codeact_team.config import yaml12
from codeact_team.config.dumping import dump_config
from codeact_team.config.loading import load_config, validate_config
from codeact_team.core.providers import DEFAULT_NAMESPACES, Policy
from codeact_team.errors import ConfigError, WorkbenchError
from codeact_team.executors.confined import ConfinedSessionCodeExecutor
from codeact_team.runs.opening import open_team

TOKEN = "the-token-of-the-server"
WRITTEN = "a-token-that-came-from-no-variable"
WITH_TESTS = Policy(DEFAULT_NAMESPACES | {"support"})
TOOLS = """\
  tools: ["support.shop:price"]
  workbench:
    - provider: autogen_ext.tools.mcp.McpWorkbench
      config:
        server_params:
          type: StreamableHttpServerParams
          url: ${MCP_URL}
          headers: {Authorization: "Bearer ${MCP_TOKEN}"}
  tool_limits:
    timeout: 30.5
    timeouts: {"slow.*": 90.0}
    max_parallel: 3
    repeatable: [stock.*]
    max_calls: 40
  approval:
    - {tool: price, decision: allow, at_most: 20}
    - {code: "*rm -rf*", decision: deny, reason: nothing is deleted here}
    - {tool: "*", arguments: {number: "1*"}, decision: ask}
  approval_timeout: park
  approval_handler: support.shop:agree
"""
AGENT = """\
provider: codeact_team.%s
config:
  name: clerk
  model_client:
    provider: autogen_ext.models.openai.OpenAIChatCompletionClient
    config: {model: gpt-4.1-2025-04-14}
  code_executor:
    provider: codeact_team.ConfinedSessionCodeExecutor
    config: {confinement: best_effort}
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-a-test")
    monkeypatch.setenv("MCP_URL", "http://127.0.0.1:9/mcp")
    monkeypatch.setenv("MCP_TOKEN", TOKEN)


def written(folder: Path, text: str) -> Path:
    path = folder / "clerk.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("agent", [CodeActAgent, CodeExecutorAgent])
def test_every_field_survives_load_and_dump_and_no_secret_is_written(agent: type[Any], tmp_path: Path):
    source = written(tmp_path, AGENT % agent.__name__ + TOOLS)
    loaded = load_config(source, policy=WITH_TESTS)
    assert isinstance(loaded, agent)
    dumped = dump_config(loaded)
    assert TOKEN not in dumped
    assert load_and_dump(tmp_path, dumped) == dumped
    given: Any = yaml12.parse(AGENT % agent.__name__ + TOOLS)[0]
    again: Any = yaml12.parse(dumped)[0]
    for name in TOOL_FIELDS:
        if name != "workbench":
            assert without_nulls(again["config"][name]) == given["config"][name], name
    params = again["config"]["workbench"][0]["config"]["server_params"]
    assert params["url"] == "${MCP_URL}"
    assert params["headers"] == {"Authorization": "Bearer ${MCP_TOKEN}"}


@pytest.mark.parametrize(
    "params",
    [
        StreamableHttpServerParams(
            url="http://127.0.0.1:9/mcp", headers={"Authorization": f"Bearer {WRITTEN}"}
        ),
        StdioServerParams(command="server", env={"SHOP_TOKEN": WRITTEN}),
    ],
)
def test_a_secret_given_in_python_is_not_dumped(params: Any):
    # keys are written in clear from headers and URLs
    executor = ConfinedSessionCodeExecutor(confinement="best_effort")
    agent = CodeActAgent(
        "clerk",
        OpenAIChatCompletionClient(model="gpt-4.1-2025-04-14"),
        executor,
        workbench=McpWorkbench(params),
    )
    with pytest.raises(ConfigError) as caught:
        dump_config(agent)
    assert "config.workbench.0.config.server_params" in str(caught.value)
    assert WRITTEN not in str(caught.value)


def load_and_dump(folder: Path, text: str) -> str:
    return dump_config(load_config(written(folder, text), policy=WITH_TESTS))


def without_nulls(value: Any) -> Any:
    if isinstance(value, list):
        return [without_nulls(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item not in (None, {}, "")}  # pyright: ignore[reportUnknownVariableType]
    return value


@pytest.mark.filterwarnings("ignore:Use `streamable_http_client` instead:DeprecationWarning")
async def test_a_team_from_yaml_calls_functions_and_servers_over_http_as_its_rules_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    code = (
        "order = tools.order_desk.get_order(17)\nprint(order['lines'][0]['sku'], tools.price('bolt'))\n"
        "print(tools.order_desk.many_things()[1])"
    )
    async with (
        mcp_over_http() as url,
        ScriptedServer([Text(f"```python\n{code}\n```"), Text("A bolt costs 0.5.")]) as server,
    ):
        monkeypatch.setenv("MCP_URL", url)
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        async with open_team(written(tmp_path, AGENT % "CodeActAgent" + TOOLS), policy=WITH_TESTS) as team:
            result = await team.run(task="What is in order 17?")
    assert isinstance(result, TaskResult)
    record = ExecutionRecord.from_metadata(result.messages[-1].metadata)  # type: ignore[union-attr]
    assert record is not None
    assert record.output.startswith("bolt 0.5\n<Media image/png, ")
    assert [(entry.name, entry.by, entry.reason) for entry in record.approvals] == [
        ("order_desk.get_order", "handler", "order_desk.get_order is fine"),
        ("price", "rule 1", ""),
    ]
    assert TOKEN not in str(server.requests)


@pytest.mark.filterwarnings("ignore:Use `streamable_http_client` instead:DeprecationWarning")
async def test_a_server_that_cannot_be_reached_is_told_when_the_team_opens(tmp_path: Path):
    source = written(tmp_path, AGENT % "CodeActAgent" + TOOLS)
    with pytest.raises(WorkbenchError, match=r"MCP server 'http://127.0.0.1:9/mcp' does not start") as caught:
        async with open_team(source, policy=WITH_TESTS) as team:
            await team.run(task="Never asked.")
    assert TOKEN not in str(caught.value)


def test_a_function_outside_the_allow_list_is_refused_by_its_place(tmp_path: Path):
    source = written(tmp_path, AGENT % "CodeActAgent" + TOOLS)
    with pytest.raises(ConfigError) as caught:
        validate_config(source)
    said = str(caught.value)
    assert "config.tools.0: 'support.shop.price' lies outside the allowed namespaces" in said
    assert "config.approval_handler: 'support.shop.agree' lies outside" in said


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("tools: [3]", "config.tools.0: expected a component .* or text, got 3"),
        ("tool_limits: {max_calls: 0}", "config.tool_limits.max_calls: has to be greater than or equal to 1"),
        ("tool_limits: {max_paralel: 2}", "unknown key; did you mean 'max_parallel'"),
        ('approval: [{tool: "*", decision: asc}]', "config.approval.0.decision: .* did you mean 'ask'"),
        ('approval: [{tool: "*", code: "*", decision: ask}]', "config.approval.0: a rule has one of"),
    ],
)
def test_a_wrong_field_is_told_by_its_place(tmp_path: Path, field: str, said: str):
    with pytest.raises(ConfigError, match=said):
        validate_config(written(tmp_path, f"{AGENT % 'CodeActAgent'}  {field}\n"))
