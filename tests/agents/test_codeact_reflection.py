"""A reflection on the answer, which may send the agent back to work."""

from __future__ import annotations

from typing import Any

from autogen_agentchat.base import Response
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.messages import ThoughtEvent
from autogen_agentchat.teams import RoundRobinGroupChat
from support.agents import TASK, answer, contents, record_of, replay, turn
from support.codeact import agent_of, py
from support.openai_server import Json, ScriptedServer, Text

from codeact_team.agents.observations import Ending
from codeact_team.agents.teams import ReflectionTermination
from codeact_team.executors.confined import ConfinedSessionCodeExecutor
from codeact_team.models.verdicts import REFLECTION_SYSTEM_MESSAGE, Verdict

Session = ConfinedSessionCodeExecutor

SHOW = Text(py("print(6 * 7)"))
FINE = Json({"problems": [], "accepted": True, "next_step": ""})
NOT_YET = Json({"problems": ["Nothing was run."], "accepted": False, "next_step": "Run it."})


def verdict_of(message: Any) -> Verdict | None:
    return Verdict.from_metadata(message.metadata)


async def test_an_accepted_answer_is_the_response_with_the_verdict(session: Session):
    async with ScriptedServer([SHOW, Text("It is 42."), FINE]) as server:
        items = await turn(agent_of(server, session, max_reflections=1))
    judging = server.requests[2]["messages"]
    assert judging[0] == {"role": "system", "content": REFLECTION_SYSTEM_MESSAGE}
    assert [TASK in str(judging), "<output>\\n42" in str(judging), "It is 42." in str(judging)] == [True] * 3
    final = items[-1]
    assert isinstance(final, Response)
    assert final.chat_message.to_text() == "It is 42."
    assert verdict_of(final.chat_message) == Verdict(accepted=True)
    assert [item.content for item in items if isinstance(item, ThoughtEvent)] == ["Accepted."]


async def test_an_answer_that_is_not_accepted_sends_the_agent_back_to_work(session: Session):
    replies = [Text("Surely 41."), NOT_YET, SHOW, Text("It is 42."), FINE]
    async with ScriptedServer(replies) as server:
        items = await turn(agent_of(server, session, max_reflections=1))
    asked = contents(server.requests[2])
    assert asked[-2] == "Surely 41."
    assert "Nothing was run." in asked[-1]
    assert "Run it." in asked[-1]
    thoughts = [item.content for item in items if isinstance(item, ThoughtEvent)]
    assert thoughts == ["Surely 41.", "Not accepted.\n- Nothing was run.\nNext: Run it.", "Accepted."]
    final = items[-1]
    assert isinstance(final, Response)
    assert (final.chat_message.to_text(), verdict_of(final.chat_message)) == (
        "It is 42.",
        Verdict(accepted=True),
    )


async def test_a_value_given_to_final_answer_is_judged_as_well(session: Session):
    replies = [Text(py("final_answer(41)")), NOT_YET, Text(py("final_answer(42)")), FINE]
    async with ScriptedServer(replies) as server:
        message = await answer(agent_of(server, session, max_reflections=1))
    assert message.content == "42"
    assert contents(server.requests[1])[-2] == "41"


async def test_an_answer_in_words_takes_the_place_of_one_given_by_code(session: Session):
    replies = [Text(py("final_answer(41)")), NOT_YET, Text("It is 42."), FINE]
    async with ScriptedServer(replies) as server:
        message = await answer(agent_of(server, session, max_reflections=1))
    assert (message.content, record_of(message).answer) == ("It is 42.", None)


async def test_it_goes_back_no_more_often_than_allowed_and_then_says_that_it_was_not_accepted(
    session: Session,
):
    replies = [Text("41"), NOT_YET, Text("41!"), NOT_YET]
    async with ScriptedServer(replies) as server:
        message = await answer(agent_of(server, session, max_reflections=1))
    assert (message.content, Ending.from_metadata(message.metadata)) == ("41!", Ending.ANSWERED)
    verdict = verdict_of(message)
    assert verdict is not None
    assert not verdict.accepted


async def test_it_does_not_go_back_where_a_budget_is_spent(session: Session):
    async with ScriptedServer([SHOW, Text("It is 42."), NOT_YET]) as server:
        message = await answer(agent_of(server, session, max_reflections=3, max_steps=2))
    assert message.content == "It is 42."
    assert verdict_of(message) is not None


async def test_no_tokens_are_spent_on_it_where_there_are_none(session: Session):
    async with ScriptedServer([Text("It is 42.", prompt_tokens=500)]) as server:
        message = await answer(agent_of(server, session, max_reflections=3, max_tokens=100))
    verdict = verdict_of(message)
    assert message.content == "It is 42."
    assert verdict is not None
    assert (verdict.accepted, verdict.problems) == (
        False,
        ["The answer was not reviewed: a limit was reached before that."],
    )


async def test_an_answer_made_at_the_end_of_a_budget_is_not_judged(session: Session):
    replies = [Text("41"), NOT_YET, SHOW, Text("Perhaps 42.")]
    async with ScriptedServer(replies) as server:
        message = await answer(agent_of(server, session, max_reflections=1, max_steps=2))
    assert (message.content, verdict_of(message)) == ("Perhaps 42.", None)


async def test_a_verdict_that_cannot_be_read_does_not_accept_and_costs_no_further_work(session: Session):
    async with ScriptedServer([Text("It is 42."), Text("Lovely!"), Text("Lovely!")]) as server:
        message = await answer(agent_of(server, session, max_reflections=3))
    verdict = verdict_of(message)
    assert verdict is not None
    assert not verdict.accepted
    assert "could not be read" in verdict.problems[0]


async def test_its_tokens_count(session: Session):
    async with ScriptedServer([Text("It is 42."), FINE]) as server:
        message = await answer(agent_of(server, session, max_reflections=1))
    assert message.models_usage is not None
    assert message.models_usage.prompt_tokens == 200


async def test_without_it_no_call_is_spent(session: Session):
    client = replay("It is 42.")
    message = await answer(agent_of(client, session))
    assert (len(client.create_calls), verdict_of(message)) == (1, None)


async def test_an_accepted_answer_ends_a_team(session: Session):
    async with ScriptedServer([Text("It is 42."), FINE]) as server:
        team = RoundRobinGroupChat(
            [agent_of(server, session, max_reflections=1)],
            termination_condition=ReflectionTermination() | MaxMessageTermination(9),
        )
        result = await team.run(task=TASK)
    assert result.stop_reason == "coder accepted the work"
