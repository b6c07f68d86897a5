"""What code passes is what the tool gets, whatever its schema, and what it returns is what the code gets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Generator, Mapping
from typing import Any, cast

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from autogen_core.tools import ParametersSchema, StaticWorkbench, TextResultContent, ToolResult, ToolSchema
from hypothesis import HealthCheck, given, settings
from support.executing import why_not_confined
from support.schemas import Call, calls

from codeact_team.agents.agent_config import ToolLimits
from codeact_team.agents.tool_calls import AgentTools
from codeact_team.executors.confined import ConfinedSessionCodeExecutor


class Recorder(StaticWorkbench):
    """A workbench whose one tool has any schema, and notes what it gets."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        super().__init__([])
        self._schema = schema
        self.received: list[Any] = []

    async def list_tools(self) -> list[ToolSchema]:
        return [ToolSchema(name="record", description="", parameters=cast("ParametersSchema", self._schema))]

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        cancellation_token: CancellationToken | None = None,
        call_id: str | None = None,
    ) -> ToolResult:
        self.received.append(arguments)
        return ToolResult(name=name, result=[TextResultContent(content="noted")])


@pytest.fixture(scope="module")
def runner() -> Generator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def executor(runner: asyncio.Runner) -> Generator[ConfinedSessionCodeExecutor]:
    if (reason := why_not_confined()) is not None:
        pytest.skip(reason)
    executor = ConfinedSessionCodeExecutor()
    yield executor
    runner.run(executor.stop())


_HARD_TO_MAKE = [HealthCheck.too_slow, HealthCheck.filter_too_much]


@settings(suppress_health_check=_HARD_TO_MAKE, max_examples=8)
@given(call=calls())
def test_the_value_that_reaches_the_tool_is_the_one_that_the_code_passed(
    runner: asyncio.Runner, executor: ConfinedSessionCodeExecutor, call: Call
):
    arrives(runner, executor, call)


@pytest.mark.long
@settings(suppress_health_check=_HARD_TO_MAKE)
@given(call=calls())
def test_so_is_that_of_many_calls(runner: asyncio.Runner, executor: ConfinedSessionCodeExecutor, call: Call):
    arrives(runner, executor, call)


def arrives(runner: asyncio.Runner, executor: ConfinedSessionCodeExecutor, call: Call) -> None:
    async def passed() -> tuple[str, list[Any]]:
        recorder = Recorder(call.schema)
        agent_tools = AgentTools(
            "agent", tools=(), workbench=recorder, limits=ToolLimits(), approval=(), handler=None
        )
        tools = await agent_tools.begin_turn(CancellationToken())
        code = CodeBlock(code=f"tools.record(**{call.arguments!r})", language="python")
        token = CancellationToken()
        *_, result = [item async for item in executor.execute_code_blocks_stream([code], token, tools=tools)]
        await agent_tools.stop()
        return cast("Any", result).output, recorder.received

    output, received = runner.run(passed())
    assert output == "'noted'\n"
    # of the same types, too: True is 1 and 1.0 to Python; an object of JSON has no order
    assert json.dumps(received, sort_keys=True) == json.dumps([call.arguments], sort_keys=True)
