"""Models whose servers leave their thoughts in the text: what is only thought is neither run nor said."""

from __future__ import annotations

from typing import Any

import pytest
from autogen_agentchat.base import Response
from autogen_agentchat.messages import TextMessage, ThoughtEvent
from autogen_core.code_executor import CodeBlock
from support.agents import PRINTS_42, Foreign, contents, turn, yes
from support.codeact import agent_of as codeact_of
from support.codeact import outputs, py
from support.openai_server import ScriptedServer, Text

from codeact_team.agents.code_executor import CodeExecutorAgent
from codeact_team.agents.observations import Ending
from codeact_team.agents.reflection_agent import ReflectionAgent
from codeact_team.executors.confined import ConfinedSessionCodeExecutor
from codeact_team.models.verdicts import Verdict

Session = ConfinedSessionCodeExecutor

DRAFT = "Perhaps:\n```python\nraise SystemExit('this was only a draft')\n```"
PRINTS = CodeBlock(code="print(42)\n", language="python")


def thoughts(items: Any) -> list[str]:
    return [item.content for item in items if isinstance(item, ThoughtEvent)]


def last(items: Any) -> TextMessage:
    assert isinstance(items[-1], Response)
    message = items[-1].chat_message
    assert isinstance(message, TextMessage)
    return message


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("opening", ["<think>", "<thinking>\n", ""])
async def test_an_executor_agent_runs_and_says_what_comes_after_the_thought(opening: str, stream: bool):
    closing = "</thinking>" if "thinking" in opening else "</think>"
    replies = [
        Text(f"{opening}{DRAFT}\n{closing}\n{PRINTS_42}"),
        Text(f"{opening}Done.\n{closing}\nIt is 42."),
    ]
    async with ScriptedServer(replies) as server:
        agent = CodeExecutorAgent(
            "a",
            executor := Foreign(),
            model_client=server.client(),
            approval_func=yes,
            model_client_stream=stream,
        )
        items = await turn(agent)
    assert executor.executed == [PRINTS]
    assert thoughts(items) == [DRAFT, "Done."]
    assert last(items).content == "It is 42."
    assert "only a draft" not in str(server.requests[1]["messages"]), "nor is it sent to the model again"


async def test_a_thought_that_is_cut_off_is_not_run():
    async with ScriptedServer([Text(f"<think>\n{DRAFT}\nor", finish_reason="length")]) as server:
        agent = CodeExecutorAgent("a", executor := Foreign(), model_client=server.client(), approval_func=yes)
        items = await turn(agent)
    assert executor.executed == []
    assert thoughts(items) == [f"{DRAFT}\nor"]
    assert "draft" not in last(items).content


async def test_what_another_agent_has_only_thought_of_is_not_run():
    agent = CodeExecutorAgent("a", executor := Foreign(), approval_func=yes)
    await turn(agent, TextMessage(content=f"<think>{DRAFT}</think>\n{PRINTS_42}", source="coder"))
    await turn(agent, TextMessage(content=f"{DRAFT}</think>\n{PRINTS_42}", source="coder"))
    assert executor.executed == [PRINTS, PRINTS]
    message = TextMessage(content=f"<think>\n{DRAFT}", source="coder")
    assert await agent.extract_code_blocks_from_messages([message]) == []


async def test_a_reviewers_thoughts_are_no_verdict():
    verdict = Verdict(accepted=False, problems=["It is 41."])
    thought = f"Could it be {Verdict(accepted=True).model_dump_json()}?"
    async with ScriptedServer([Text(f"{thought}\n</think>\n\n{verdict.model_dump_json()}")]) as server:
        items = await turn(ReflectionAgent("reflection", server.client()))
    assert Verdict.from_metadata(last(items).metadata) == verdict
    assert thoughts(items) == [thought]


async def test_an_agent_that_acts_by_code_neither_runs_its_thoughts_nor_answers_with_them(session: Session):
    replies = [
        Text(f"<think>{DRAFT}</think>{py('print(6 * 7)')}"),
        Text("<think>That was the wrong"),
        Text("<think>It is 42.</think>The answer is 42."),
    ]
    async with ScriptedServer(replies) as server:
        items = await turn(codeact_of(server, session))
    assert outputs(items) == ["42\n"]
    assert thoughts(items) == [DRAFT, "That was the wrong", "It is 42."]
    assert (last(items).content, Ending.from_metadata(last(items).metadata)) == (
        "The answer is 42.",
        Ending.ANSWERED,
    )
    assert "nothing but a thought" in contents(server.requests[2])[-1]
