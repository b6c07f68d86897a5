"""Code that is known, or seen, to have been cut off is never run."""

from __future__ import annotations

from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.agents import CodeExecutorAgent as AutoGenAgent
from autogen_agentchat.messages import CodeExecutionEvent, CodeGenerationEvent, TextMessage
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.code_executor import CodeBlock, CodeResult
from support.agents import FAILS, PRINTS_42, RETRY, Foreign, answer, contents, record_of, turn, yes
from support.openai_server import AnyReply, Filtered, Json, ScriptedServer, Text, Truncated
from support.variations import mostly_long

from codeact_team.agents.code_executor import CodeExecutorAgent
from codeact_team.models.clients import wrap_client

CUT = "Here:\n```sh\nrm -rf /data/ca"
WHOLE_BUT_CUT = f"{PRINTS_42}\nand then:\n```sh\nrm -rf /data/ca"
PRINTS = CodeBlock(code="print(42)\n", language="python")


def agent_of(server: ScriptedServer, executor: Foreign, **settings: Any) -> CodeExecutorAgent:
    usual: dict[str, Any] = {"max_retries_on_error": 1, "approval_func": yes}
    return CodeExecutorAgent("executor", executor, model_client=server.client(), **usual | settings)


def coder(text: str) -> TextMessage:
    return TextMessage(content=text, source="coder")


BROKEN: dict[str, tuple[AnyReply, str]] = {
    "at the token limit": (Truncated(CUT), "token limit"),
    "at the token limit, after a whole block": (Truncated(WHOLE_BUT_CUT), "token limit"),
    "at the token limit, between two blocks": (Truncated(f"{PRINTS_42}\nand th"), "token limit"),
    "at the token limit, before any code": (Truncated("First of all, I will"), "token limit"),
    "by a filter": (Filtered(CUT), "content filter"),
    "nobody says why": (Text(CUT, finish_reason="eos"), "inside a code block"),
    "in a thought": (Truncated(f"<think>\n{CUT}"), "token limit"),
    "after a thought": (Text(f"<think>\n{CUT}"), "nothing but a thought"),
}


@pytest.mark.parametrize("stream", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize(("reply", "why"), mostly_long(BROKEN.values(), usual=2), ids=list(BROKEN))
async def test_a_model_whose_reply_was_cut_off_is_asked_anew(reply: AnyReply, why: str, stream: bool):
    executor = Foreign()
    async with ScriptedServer([reply, Text(PRINTS_42), Text("It is 42.")]) as server:
        agent = agent_of(server, executor, model_client_stream=stream)
        items = await turn(agent)
    assert executor.executed == [PRINTS]
    assert why in contents(server.requests[1])[-1]
    events = [item for item in items if isinstance(item, CodeGenerationEvent | CodeExecutionEvent)]
    assert [item.retry_attempt for item in events] == [0, 1, 1]
    assert why in events[0].to_text()


@pytest.mark.parametrize(("reply", "why"), mostly_long(BROKEN.values(), usual=2), ids=list(BROKEN))
async def test_without_another_attempt_the_answer_says_so_and_nobody_else_runs_it(reply: AnyReply, why: str):
    executor = Foreign()
    async with ScriptedServer([reply]) as server:
        agent = agent_of(server, executor, max_retries_on_error=0)
        message = await answer(agent)
    assert why in message.content
    await turn(CodeExecutorAgent("other", executor, approval_func=yes), message)
    assert executor.executed == []


async def test_an_attempt_that_was_cut_off_is_one_of_those_that_mend_an_error():
    executor = Foreign(CodeResult(exit_code=1, output="ZeroDivisionError"))
    replies = [Text(FAILS), Json(RETRY), Truncated(CUT), Text(PRINTS_42), Text("It is 42.")]
    async with ScriptedServer(replies) as server:
        message = await answer(agent_of(server, executor, max_retries_on_error=2))
    assert [block.code for block in executor.executed] == ["1 / 0\n", "print(42)\n"]
    assert (message.content, record_of(message).attempts) == ("It is 42.", 2)


async def test_a_model_that_has_stopped_by_itself_may_have_forgotten_the_closing_fence():
    executor = Foreign()
    async with ScriptedServer([Text("Here:\n```python\nprint(42)\n"), Text("It is 42.")]) as server:
        await turn(agent_of(server, executor))
    assert executor.executed == [PRINTS]


@pytest.mark.parametrize("stream", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize(("reason", "runs"), [("stop", [PRINTS]), ("length", [])])
async def test_so_may_the_model_of_an_agent_of_autogens(reason: str, runs: list[CodeBlock], stream: bool):
    executor = Foreign()
    reply = Text("Here:\n```python\nprint(42)\n", finish_reason=reason)
    async with ScriptedServer([reply]) as server:
        coder = AssistantAgent("coder", wrap_client(server.client()), model_client_stream=stream)
        runner = CodeExecutorAgent("runner", executor, approval_func=yes)
        await RoundRobinGroupChat([coder, runner], max_turns=2).run(task="Go.")
    assert executor.executed == runs


@pytest.mark.parametrize(
    "text",
    [CUT, WHOLE_BUT_CUT, "```python\nx = '''\nrm", "> ```sh\n> rm -rf /data/ca", "<execute>\nrm("],
)
async def test_another_agents_code_without_an_end_is_not_run(text: str):
    # it was run as far as it went
    executor = Foreign()
    agent = CodeExecutorAgent("executor", executor, approval_func=yes)
    message = await answer(agent, coder(text))
    assert executor.executed == []
    assert message.content.startswith(AutoGenAgent.NO_CODE_BLOCKS_FOUND_MESSAGE)
    assert "cut off: coder]" in message.content


async def test_beside_whole_code_of_others_it_is_left_out_and_named():
    executor = Foreign()
    agent = CodeExecutorAgent("executor", executor, approval_func=yes)
    message = await answer(agent, coder(PRINTS_42), coder(CUT))
    assert executor.executed == [PRINTS]
    assert message.content.startswith("42\n")
    assert message.content.endswith("cut off: coder]")


async def test_where_there_is_a_model_it_writes_the_code_anew_within_the_retries():
    executor = Foreign()
    async with ScriptedServer([Text(PRINTS_42)]) as server:
        agent = agent_of(server, executor, code_from_messages=True, reflect=False)
        items = await turn(agent, coder(CUT))
        assert "cut off: coder]" in contents(server.requests[0])[-1]
    assert executor.executed == [PRINTS]
    generated = [item.to_text() for item in items if isinstance(item, CodeGenerationEvent)]
    assert ["cut off: coder]" in text for text in generated] == [True, False]


async def test_without_retries_that_model_is_not_asked():
    executor = Foreign()
    async with ScriptedServer([]) as server:
        agent = agent_of(server, executor, code_from_messages=True, max_retries_on_error=0)
        assert "cut off: coder]" in (await answer(agent, coder(CUT))).content
    assert executor.executed == []
