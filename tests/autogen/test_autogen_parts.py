"""What AutoGen's own agents use goes through the dispatcher, and is known by name where it does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent, CodeExecutorAgent, UserProxyAgent
from autogen_agentchat.conditions import MaxMessageTermination, TimeoutTermination
from autogen_agentchat.messages import TextMessage
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_agentchat.tools import AgentTool
from autogen_core import CancellationToken, FunctionCall
from autogen_core.code_executor import CodeBlock, CodeExecutor, CodeResult
from autogen_core.memory import ListMemory, MemoryContent
from autogen_core.models import CreateResult, ModelFamily, RequestUsage
from autogen_core.tools import BaseStreamTool, FunctionTool, StaticStreamWorkbench, StaticWorkbench
from autogen_ext.models.replay import ReplayChatCompletionClient
from autogen_ext.tools.mcp import McpWorkbench, StdioServerParams
from pydantic import BaseModel
from support.fork_server import forked_by_command
from support.serving import SERVER
from support.text_agent import TextAgent

import codeact_team
from codeact_team.core.effects import Dispatcher, Effect, Event, Perform
from codeact_team.core.events import BlockEnded, QuestionAnswered, ToolCallBegan, ToolCallEnded, dump, load
from codeact_team.tools.autogen_parts import bypassing_parts, unwrap, wrap
from codeact_team.tools.toolbox import Toolbox

INFO: Any = {
    "vision": False,
    "function_calling": True,
    "json_output": True,
    "structured_output": True,
    "family": ModelFamily.UNKNOWN,
}


def calls(name: str, arguments: str) -> CreateResult:
    call = FunctionCall(id="1", name=name, arguments=arguments)
    return CreateResult(
        finish_reason="function_calls", content=[call], usage=RequestUsage(0, 0), cached=False
    )


def asks(name: str, arguments: str) -> ReplayChatCompletionClient:
    return ReplayChatCompletionClient([calls(name, arguments)], model_info=INFO)


class Journal:
    """What intercepts effects: first it records, then it answers from what it has recorded."""

    def __init__(self) -> None:
        self.known: list[tuple[Any, Any]] = []
        self.told: list[Event] = []

    async def record(self, effect: Effect[Any], do: Perform) -> Any:
        outcome = await do()
        self.known.append((effect.request(), effect.dump(outcome)))
        return outcome

    async def answer(self, effect: Effect[Any], do: Perform) -> Any:
        (data,) = [data for request, data in self.known if request == effect.request()]
        return effect.load(data)

    def recording(self) -> Dispatcher:
        dispatcher = Dispatcher(self.record)
        dispatcher.listen(self.told.append)
        return dispatcher


async def said(agent: Any, task: str = "go") -> str:
    return (await agent.run(task=task)).messages[-1].to_text()


async def told_and_repeated(make: Any, task: str = "go") -> tuple[list[Event], str]:
    """What is told of a run, and what the agent says; the same, with nothing done, as the run is repeated."""
    journal = Journal()
    with journal.recording():
        first = await said(make(), task)
    with Dispatcher(journal.answer):
        assert await said(make(), task) == first
    told = [event for event in journal.told if not event.type.startswith("model_call")]
    assert [dump(load(dump(event))) for event in told] == [dump(event) for event in told]
    return told, first


async def test_calls_of_a_tool_pass_the_dispatcher() -> None:
    done: list[int] = []

    def double(number: int) -> int:
        """Twice as much."""
        done.append(number)
        return 2 * number

    def make() -> AssistantAgent:
        tool = wrap(FunctionTool(double, description="Twice."))
        return AssistantAgent("one", wrap(asks("double", '{"number": 4}')), tools=[tool])

    told, answer = await told_and_repeated(make)
    assert (answer, done) == ("8", [4])
    began, ended = told
    assert isinstance(began, ToolCallBegan)
    assert isinstance(ended, ToolCallEnded)
    assert (began.name, began.arguments, ended.outcome) == ("double", '{"number": 4}', "ok")


class Said(BaseModel):
    text: str


class Steps(BaseStreamTool[Said, Said, Said]):
    def __init__(self) -> None:
        super().__init__(Said, Said, "steps", "Steps.")

    async def run(self, args: Said, cancellation_token: CancellationToken) -> Said:
        return args

    async def run_stream(
        self, args: Said, cancellation_token: CancellationToken
    ) -> AsyncGenerator[Any, None]:
        yield TextMessage(content="meanwhile", source="steps")
        yield args


@pytest.mark.parametrize("wrapped_as", ["tool", "workbench"])
async def test_a_streaming_tool_still_streams(wrapped_as: str) -> None:
    def make() -> AssistantAgent:
        client = wrap(asks("steps", '{"text": "a"}'))
        if wrapped_as == "tool":
            return AssistantAgent("one", client, tools=[wrap(Steps())])
        return AssistantAgent("one", client, workbench=wrap(StaticStreamWorkbench([Steps()])))

    told, answer = await told_and_repeated(make)
    assert [type(event) for event in told] == [ToolCallBegan, ToolCallEnded]
    assert "a" in answer
    streamed = [getattr(item, "content", None) async for item in make().run_stream(task="go")]
    assert "meanwhile" in streamed


async def test_an_error_of_a_workbench_is_told_as_one() -> None:
    def fail() -> str:
        """Fail."""
        raise ValueError("no luck")

    journal = Journal()
    with journal.recording():
        workbench = wrap(StaticWorkbench([FunctionTool(fail, description="Fail.")]))
        assert [schema["name"] for schema in await workbench.list_tools()] == ["fail"]
        assert (await workbench.call_tool("fail", {})).is_error
    ended = journal.told[-1]
    assert isinstance(ended, ToolCallEnded)
    assert (ended.outcome, ended.error) == ("failed", "no luck")


class Executor(CodeExecutor):
    component_config_schema = BaseModel
    ran = 0

    async def execute_code_blocks(
        self, code_blocks: list[CodeBlock], cancellation_token: CancellationToken
    ) -> CodeResult:
        self.ran += 1
        return CodeResult(exit_code=0, output=f"ran {self.ran}")

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def restart(self) -> None: ...


async def approve(_: Any) -> Any:
    return codeact_team.ApprovalResponse(approved=True, reason="")


async def test_a_call_of_an_mcp_server_is_cancelled_without_an_error() -> None:
    # the one who cancelled got an AttributeError of AutoGen's
    command, *arguments = forked_by_command(SERVER)
    params = StdioServerParams(command=command, args=arguments, read_timeout_seconds=60)
    async with McpWorkbench(params) as own:
        workbench, token = wrap(own), CancellationToken()
        call = asyncio.create_task(workbench.call_tool("wait_for_ever", {"who": "it"}, token))
        await workbench.call_tool("when", {"event": "it waits"}, CancellationToken())
        token.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert not (await workbench.call_tool("add", {"a": 1}, CancellationToken())).is_error


async def test_blocks_of_an_executor_pass_the_dispatcher() -> None:
    executor = Executor()

    def make() -> CodeExecutorAgent:
        return CodeExecutorAgent("one", wrap(executor), approval_func=approve)

    told, answer = await told_and_repeated(make, "```python\n1\n```")
    assert (answer, executor.ran) == ("ran 1", 1)
    ended = told[-1]
    assert isinstance(ended, BlockEnded)
    assert (ended.exit_code, ended.output) == (0, "ran 1")


async def test_what_a_memory_adds_passes_the_dispatcher() -> None:
    memories = [
        ListMemory(memory_contents=[MemoryContent(content="be brief", mime_type="text/plain")]),
        ListMemory(),
    ]

    def make() -> AssistantAgent:
        client = wrap(ReplayChatCompletionClient(["fine"]))
        return AssistantAgent("one", client, memory=[wrap(memories.pop(0))])

    journal = Journal()
    with journal.recording():
        assert await said(make()) == "fine"
    with Dispatcher(journal.answer):
        # the request to the model is the same, though this memory is empty
        assert await said(make()) == "fine"
    assert "be brief" in str(journal.known[1][0])


async def test_a_person_is_asked_through_the_dispatcher() -> None:
    prompts: list[str] = []

    def enter(prompt: str) -> str:
        prompts.append(prompt)
        return "42"

    told, answer = await told_and_repeated(lambda: wrap(UserProxyAgent("me", input_func=enter)))
    assert (answer, len(prompts)) == ("42", 1)
    answered = told[-1]
    assert isinstance(answered, QuestionAnswered)
    assert answered.text == "42"


def test_a_wrapper_is_invisible_in_a_dump_and_taken_off_by_our_agents() -> None:
    for part in (ListMemory(), StaticWorkbench([]), StaticStreamWorkbench([])):
        assert wrap(part).dump_component() == part.dump_component()
        assert wrap(wrap(part)) is not part
        assert unwrap(wrap(wrap(part))) is part
    assert Toolbox([], [wrap(StaticWorkbench([]))]).dump_workbenches() == [
        StaticWorkbench([]).dump_component()
    ]


TEAM = """
provider: autogen_agentchat.teams.RoundRobinGroupChat
config:
  participants:
    - provider: autogen_agentchat.agents.AssistantAgent
      config:
        name: one
        model_client: &client
          provider: autogen_ext.models.replay.ReplayChatCompletionClient
          config: {chat_completions: []}
        workbench:
          - provider: autogen_core.tools.StaticStreamWorkbench
            config: {tools: []}
        memory: &memory
          - provider: autogen_core.memory.ListMemory
            config: {}
        description: ""
        system_message: ""
        reflect_on_tool_use: false
        tool_call_summary_format: "{result}"
    - provider: autogen_agentchat.agents.CodeExecutorAgent
      config:
        name: two
        code_executor:
          provider: codeact_team.ConfinedCommandLineCodeExecutor
          config: {}
    - provider: codeact_team.CodeActAgent
      config:
        name: three
        model_client: *client
        code_executor:
          provider: codeact_team.ConfinedSessionCodeExecutor
          config: {}
        memory: *memory
        workbench:
          - provider: autogen_core.tools.StaticStreamWorkbench
            config: {tools: []}
    - provider: autogen_agentchat.agents.UserProxyAgent
      config: {name: me}
"""


@pytest.mark.filterwarnings("ignore:No approval function set")
def test_what_a_config_loads_passes_the_dispatcher_and_dumps_as_before(tmp_path: Any) -> None:
    (tmp_path / "team.yaml").write_text(TEAM)
    team = codeact_team.load_config(tmp_path / "team.yaml")
    assert bypassing_parts(team) == []
    assert "Wrapped" not in codeact_team.dump_config(team)


class Own(TextAgent):
    """An agent of a program's own."""


async def test_our_agents_pass_the_dispatcher_once_whatever_they_are_given() -> None:
    told: list[Event] = []
    memory = ListMemory(memory_contents=[MemoryContent(content="be brief", mime_type="text/plain")])
    with Dispatcher() as dispatcher:
        dispatcher.listen(told.append)
        client: Any = ReplayChatCompletionClient(["```python\n1\n```", "Done."], model_info=INFO)
        agent = codeact_team.CodeExecutorAgent(
            "one", wrap(Executor()), model_client=client, memory=[memory], approval_func=approve
        )
        await said(agent)
    assert bypassing_parts(agent) == []
    kinds = [type(event) for event in told]
    assert (kinds.count(BlockEnded), kinds.count(ToolCallEnded)) == (1, 1)


def test_a_part_that_bypasses_the_dispatcher_is_known_by_name() -> None:
    client = ReplayChatCompletionClient([], model_info=INFO)
    inner = AssistantAgent("inner", wrap(client))
    tools: Any = [AgentTool(inner), FunctionTool(said, description="Run."), wrap(Steps())]
    agents: list[Any] = [
        AssistantAgent("one", wrap(client), tools=tools, handoffs=["two"]),
        AssistantAgent("two", ReplayChatCompletionClient([]), memory=[ListMemory()]),
        UserProxyAgent("me"),
        Own("own", "own"),
        CodeExecutorAgent("runner", wrap(Executor()), approval_func=approve),
    ]
    ending = TimeoutTermination(9) | MaxMessageTermination(9)
    team = RoundRobinGroupChat(agents, termination_condition=ending)
    assert bypassing_parts(team) == [
        "CodeExecutorAgent 'runner'",
        "FunctionTool 'said'",
        "ListMemory 'default_list_memory'",
        "Own 'own'",
        "ReplayChatCompletionClient",
        "TimeoutTermination",
        "UserProxyAgent 'me'",
    ]
