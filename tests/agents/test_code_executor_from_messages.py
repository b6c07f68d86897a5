"""Which code in the messages is run, and what the model has to do with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from autogen_agentchat.messages import (
    BaseChatMessage,
    CodeExecutionEvent,
    CodeGenerationEvent,
    HandoffMessage,
    MultiModalMessage,
    StopMessage,
    TextMessage,
    ToolCallSummaryMessage,
)
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeResult
from autogen_core.models import RequestUsage, UserMessage
from support.agents import (
    FAILS,
    GIVE_UP,
    PRINTS_42,
    RETRY,
    TASK,
    Foreign,
    answer,
    calls_of,
    confined,
    contents,
    no,
    picture,
    record_of,
    replay,
    turn,
    user,
    yes,
)
from support.openai_server import Json, ScriptedServer, Text

from codeact_team.agents.code_executor import CodeExecutorAgent
from codeact_team.executors.confined import ConfinedSessionCodeExecutor

ERROR = CodeResult(exit_code=1, output="ZeroDivisionError: division by zero\n")


def coder(text: str) -> TextMessage:
    return TextMessage(content=text, source="coder")


def agent_of(server: ScriptedServer, executor: Any = None, **settings: Any) -> CodeExecutorAgent:
    usual: dict[str, Any] = {"max_retries_on_error": 3, "code_from_messages": True, "approval_func": yes}
    return CodeExecutorAgent(
        "executor", executor or Foreign(), model_client=server.client(), **usual | settings
    )


async def test_the_first_attempt_is_the_coders_and_costs_no_call(session: ConfinedSessionCodeExecutor):
    # with a model client, code already in the messages was ignored
    async with ScriptedServer([]) as server:
        agent = agent_of(server, session, reflect=False, approval_func=None)
        execution, final = await turn(agent, user(TASK), coder(PRINTS_42))
    assert isinstance(execution, CodeExecutionEvent), "and no event says that the agent generated it"
    assert (execution.retry_attempt, execution.result.output) == (0, "42\n")
    message = getattr(final, "chat_message", None)
    assert isinstance(message, TextMessage)
    assert (message.content, message.models_usage) == ("42\n", None)


async def test_on_an_error_the_model_decides_and_writes_it_anew(session: ConfinedSessionCodeExecutor):
    replies = [Json(RETRY), Text(PRINTS_42)]
    async with ScriptedServer(replies) as server:
        agent = agent_of(server, session, reflect=False, approval_func=None)
        *events, final = await turn(agent, user(TASK), coder(FAILS))
    assert [(type(event), getattr(event, "retry_attempt", None)) for event in events] == [
        (CodeExecutionEvent, 0),
        (CodeGenerationEvent, 0),
        (CodeGenerationEvent, 1),
        (CodeExecutionEvent, 1),
    ]
    message = getattr(final, "chat_message", None)
    assert isinstance(message, TextMessage)
    assert (message.content, message.models_usage) == ("42\n", RequestUsage(200, 20))
    record = record_of(message)
    assert [block.code for block in record.superseded] == ["1 / 0\n"]
    assert (record.attempts, record.output) == (2, "42\n")
    decision = contents(server.requests[0])
    assert decision[1:3] == [TASK, FAILS], "the decision sees the task and the coder's code"
    assert "ZeroDivisionError" in decision[3]


async def test_with_reflection_the_model_sums_up_the_coders_result():
    async with ScriptedServer([Text("It is 42.")]) as server:
        message = await answer(agent_of(server), coder(PRINTS_42))
    assert message.content == "It is 42."
    assert contents(server.requests[0])[-1] == "<output>\n42\n\n</output>"


async def test_without_code_in_the_messages_no_model_is_asked():
    async with ScriptedServer([]) as server:
        message = await answer(agent_of(server), coder("I am thinking."))
    assert message.content == CodeExecutorAgent.NO_CODE_BLOCKS_FOUND_MESSAGE
    assert (message.models_usage, message.metadata) == (None, {})


async def test_what_was_said_in_a_turn_without_code_is_known_in_the_next():
    async with ScriptedServer([Json(GIVE_UP)]) as server:
        agent = agent_of(server, Foreign(ERROR), reflect=False)
        await turn(agent, user(TASK), coder("I am thinking."))
        await turn(agent, coder(FAILS))
    assert contents(server.requests[0])[1:4] == [TASK, "I am thinking.", FAILS]


async def test_a_denial_of_the_coders_code_asks_no_model():
    async with ScriptedServer([]) as server:
        message = await answer(agent_of(server, approval_func=no, reflect=False), coder(PRINTS_42))
    assert message.content == "Code execution was not approved. Reason: too risky"


async def test_only_the_code_of_the_sources_is_run():
    executor = Foreign()
    async with ScriptedServer([]) as server:
        agent = agent_of(server, executor, sources=["coder"], reflect=False)
        await turn(agent, user("```sh\nrm -rf .\n```"), coder(PRINTS_42))
    assert [block.code for block in executor.executed] == ["print(42)\n"]


async def test_code_of_an_unsupported_language_beside_the_coders_is_reported():
    async with ScriptedServer([]) as server:
        agent = agent_of(server, reflect=False)
        message = await answer(agent, coder(PRINTS_42 + "```ruby\nputs 42\n```"))
        nothing = await answer(agent, coder("```ruby\nputs 42\n```"))
    note = "[Code not run, its language is not supported here: ruby]"
    assert message.content == f"42\n\n{note}"
    assert nothing.content == f"{CodeExecutorAgent.NO_CODE_BLOCKS_FOUND_MESSAGE}\n{note}"


MESSAGES: list[BaseChatMessage] = [
    TextMessage(content=PRINTS_42, source="user"),
    MultiModalMessage(content=["Look:", picture(), PRINTS_42], source="user"),
    HandoffMessage(
        content=PRINTS_42,
        source="coder",
        target="executor",
        context=[UserMessage(content="```sh\nold\n```", source="user")],
    ),
    StopMessage(content=PRINTS_42, source="coder"),
    ToolCallSummaryMessage(content=PRINTS_42, source="coder", tool_calls=[], results=[]),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
async def test_code_in_messages_of_any_type_is_found(message: BaseChatMessage):
    # code in multi-modal, hand-off, stop or tool-summary messages was never seen
    agent = CodeExecutorAgent("executor", Foreign(), approval_func=yes)
    blocks = await agent.extract_code_blocks_from_messages([message])
    assert [(block.language, block.code) for block in blocks] == [("python", "print(42)\n")]


async def test_what_a_hand_off_brings_along_is_in_the_models_context_once():
    earlier = UserMessage(content="The number is 42.", source="user")
    message = HandoffMessage(content=PRINTS_42, source="coder", target="executor", context=[earlier])
    async with ScriptedServer([Text("It is 42.")]) as server:
        await turn(agent_of(server), message)
    assert contents(server.requests[0])[1:3] == ["The number is 42.", PRINTS_42]


async def test_a_label_that_only_the_executor_knows_is_run_without_further_settings(tmp_path: Path):
    async with confined(tmp_path, languages={"pseudo": "cat"}) as executor:
        agent = CodeExecutorAgent("executor", executor)
        assert "pseudo" in agent.languages
        message = await answer(agent, user("```pseudo\nlet x be 42\n```"))
    assert message.content == "let x be 42\n"


@pytest.mark.parametrize("settings", [{}, {"default_language": "python"}])
async def test_a_fence_without_a_label_runs_only_where_a_default_language_is_set(settings: dict[str, Any]):
    agent = CodeExecutorAgent("executor", Foreign(), approval_func=yes, **settings)
    blocks = await agent.extract_code_blocks_from_messages([user("```\nprint(42)\n```")])
    assert len(blocks) == len(settings)


async def test_a_second_agent_does_not_run_the_users_block_again():
    # the user's own block was executed again by a second agent
    first, second = Foreign(), Foreign()
    team = RoundRobinGroupChat(
        [
            CodeExecutorAgent("first", first, approval_func=yes),
            CodeExecutorAgent("second", second, approval_func=yes),
        ],
        max_turns=2,
    )
    result = await team.run(task=PRINTS_42)
    assert (len(first.executed), len(second.executed)) == (1, 0)
    assert result.messages[-1].to_text() == CodeExecutorAgent.NO_CODE_BLOCKS_FOUND_MESSAGE


async def test_nor_where_the_first_agent_had_to_mend_it():
    second = Foreign()
    async with ScriptedServer([Json(RETRY), Text(PRINTS_42)]) as server:
        first = agent_of(server, Foreign(ERROR), reflect=False)
        team = RoundRobinGroupChat(
            [first, CodeExecutorAgent("second", second, approval_func=yes)], max_turns=2
        )
        await team.run(task=FAILS)
    assert second.executed == []


async def test_nor_where_the_first_agent_quotes_it():
    second = Foreign()
    first = CodeExecutorAgent(
        "first", Foreign(), model_client=replay(PRINTS_42, f"I ran this:\n{PRINTS_42}"), approval_func=yes
    )
    team = RoundRobinGroupChat([first, CodeExecutorAgent("second", second, approval_func=yes)], max_turns=2)
    await team.run(task=TASK)
    assert second.executed == []


async def test_a_second_agent_runs_what_the_first_does_not_support():
    first, second = Foreign(), Foreign()
    team = RoundRobinGroupChat(
        [
            CodeExecutorAgent("first", first, supported_languages=["sh"], approval_func=yes),
            CodeExecutorAgent("second", second, supported_languages=["python"], approval_func=yes),
        ],
        max_turns=2,
    )
    await team.run(task=PRINTS_42 + "```sh\necho 42\n```")
    assert [block.language for block in first.executed + second.executed] == ["sh", "python"]


async def test_a_quoted_block_is_not_run():
    # a python fence inside a text fence was executed
    agent = CodeExecutorAgent("executor", Foreign(), approval_func=yes)
    quoted = f"````text\n{PRINTS_42}\n````"
    assert await agent.extract_code_blocks_from_messages([user(quoted)]) == []


async def test_code_that_the_executor_cannot_run_is_a_result(session: ConfinedSessionCodeExecutor):
    # an unsupported language ended the team
    agent = CodeExecutorAgent("executor", session, supported_languages=["ruby", "python"])
    message = await answer(agent, user("```ruby\nputs 42\n```"))
    assert message.content.startswith("Unsupported language 'ruby'; this executor runs python, ")
    assert record_of(message).outcome == "not_run"


async def test_an_agent_without_a_model_remembers_nothing():
    agent = CodeExecutorAgent("executor", Foreign(), approval_func=yes)
    await turn(agent, user(PRINTS_42))
    assert await agent.model_context.get_messages() == []


async def test_executing_blocks_directly_is_the_same_step():
    client = replay("never said")
    agent = CodeExecutorAgent("executor", Foreign(ERROR), model_client=client, approval_func=yes)
    blocks = await agent.extract_code_blocks_from_messages([user(FAILS)])
    result = await agent.execute_code_block(blocks, CancellationToken())
    assert result.output == (
        "The script ran, then exited with an error (POSIX exit code: 1)\n"
        "Its output was:\nZeroDivisionError: division by zero\n"
    )
    assert calls_of(client) == 0


async def test_an_answer_that_the_code_gives_is_in_the_record(session: ConfinedSessionCodeExecutor):
    agent = CodeExecutorAgent("executor", session)
    message = await answer(agent, user("```python\nprint('some lines')\nfinal_answer({'n': [42]})\n```"))
    assert (message.content, record_of(message).answer) == ("some lines\n", '{"n": [42]}')
    message = await answer(agent, user("```python\nprint('more')\n```"))
    assert record_of(message).answer is None
