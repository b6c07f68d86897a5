"""What ends a run that has no answer: steps, time, tokens, going in circles, errors."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from autogen_agentchat.base import Response
from autogen_core import CancellationToken
from support.agents import (
    GIVE_UP,
    RETRY,
    answer,
    contents,
    no,
    record_of,
    replay,
    turn,
    user,
)
from support.codeact import agent_of, outputs, py
from support.openai_server import Json, ScriptedServer, Slow, Text, Truncated

from codeact_team.agents.code_executor import CodeExecutorAgent
from codeact_team.agents.codeact import config as budget
from codeact_team.agents.codeact.config import Budget, Limits
from codeact_team.agents.observations import Ending
from codeact_team.core.execution import Outcome
from codeact_team.executors.confined import ConfinedSessionCodeExecutor
from codeact_team.models.verdicts import Verdict

Session = ConfinedSessionCodeExecutor

FAILS = py("1 / 0")
LAST = "Code is not run any more."


def counting(number: int) -> str:
    return py(f"print({number})")


async def test_after_the_last_step_one_call_without_code_makes_the_best_answer(session: Session):
    async with ScriptedServer([Text(counting(1)), Text(counting(2)), Text("At least 2.")]) as server:
        message = await answer(agent_of(server, session, max_steps=2))
    assert (message.content, Ending.from_metadata(message.metadata)) == ("At least 2.", Ending.MAX_STEPS)
    assert record_of(message).attempts == 2
    asked = contents(server.requests[2])
    assert asked[-2] == "<output>\n2\n\n</output>", "the latest result is in view"
    assert LAST in asked[-1]
    assert not any(LAST in text for request in server.requests[:2] for text in contents(request))


async def test_code_in_the_last_answer_is_run_by_nobody(session: Session):
    async with ScriptedServer([Text(counting(1)), Text(counting(2)), Text("Yes.")]) as server:
        agent = agent_of(server, session, max_steps=1)
        items = await turn(agent)
        await turn(agent, user("Did it run?"))
    assert outputs(items) == ["1\n"]
    assert isinstance(items[-1], Response)
    other = CodeExecutorAgent("other", session)
    assert await other.extract_code_blocks_from_messages([items[-1].chat_message]) == []  # pyright: ignore[reportArgumentType]
    assert contents(server.requests[2])[-2:] == ["The code in that answer was not run.", "Did it run?"]


async def test_the_question_for_the_last_answer_is_not_part_of_the_conversation(session: Session):
    async with ScriptedServer([Text(counting(1)), Text("One."), Text("Because.")]) as server:
        agent = agent_of(server, session, max_steps=1)
        await turn(agent)
        await turn(agent, user("Why?"))
    assert not any(LAST in text for text in contents(server.requests[2]))


async def test_an_answer_at_the_last_step_is_an_answer(session: Session):
    message = await answer(agent_of(replay("It is 42."), session, max_steps=1))
    assert Ending.from_metadata(message.metadata) is Ending.ANSWERED


async def test_each_run_has_its_own_budget(session: Session):
    agent = agent_of(replay(counting(1), "One.", counting(2), "Two."), session, max_steps=2)
    for expected in ("One.", "Two."):
        message = await answer(agent)
        assert (message.content, Ending.from_metadata(message.metadata)) == (expected, Ending.ANSWERED)


async def test_the_tokens_of_all_calls_count(session: Session):
    replies = [
        Text(counting(1), prompt_tokens=50, completion_tokens=10),
        Text(counting(2), prompt_tokens=35, completion_tokens=5),
        Text("At least 2.", prompt_tokens=1000),
    ]
    async with ScriptedServer(replies) as server:
        message = await answer(agent_of(server, session, max_tokens=100))
    assert Ending.from_metadata(message.metadata) is Ending.MAX_TOKENS
    assert record_of(message).output == "2\n", "code that was paid for is run"
    assert message.models_usage is not None
    assert message.models_usage.prompt_tokens == 1085, "the last call happens all the same"


async def test_code_that_runs_when_the_time_is_over_is_stopped_and_the_model_told(session: Session):
    sleeps = py("import time\nprint('begun')\ntime.sleep(60)")
    await session.start()
    async with ScriptedServer([Text(sleeps), Text("No idea.")]) as server:
        message = await answer(agent_of(server, session, max_seconds=2))
    assert (message.content, Ending.from_metadata(message.metadata)) == ("No idea.", Ending.MAX_SECONDS)
    record = record_of(message)
    assert (record.outcome, record.limit) == (Outcome.TIMED_OUT, "max_seconds: 2")
    seen = contents(server.requests[1])[-2]
    assert "begun" in seen
    assert "The time for this task is over; the code was stopped." in seen


async def test_a_call_of_the_model_that_takes_too_long_is_stopped(session: Session):
    await session.start()
    slow = Slow(60, Text("never said"))
    async with ScriptedServer([Text(counting(1)), slow, Text("At least 1.")]) as server:
        message = await answer(agent_of(server, session, max_seconds=2))
        await server.wait_until(lambda server: server.disconnects == 1)
    assert (message.content, Ending.from_metadata(message.metadata)) == ("At least 1.", Ending.MAX_SECONDS)


@pytest.mark.parametrize(
    ("ending", "streamed"),
    [(Ending.MAX_SECONDS, False), (Ending.MAX_SECONDS, True), (Ending.MAX_STEPS, False)],
)
async def test_the_last_call_is_given_some_time_more_and_then_stopped_too(
    session: Session, monkeypatch: pytest.MonkeyPatch, ending: Ending, streamed: bool
):
    # with a server that hangs, a run of 5 seconds was still waiting after a minute
    monkeypatch.setattr(budget, "LAST_CALL_SECONDS", 0.3)
    await session.start()
    before = [Text(counting(1))] if ending is Ending.MAX_STEPS else [Slow(60, Text("never said"))]
    last = Slow(60, Text("nor this"))
    seconds = 2 if ending is Ending.MAX_STEPS else 0.3
    limits: dict[str, Any] = {"max_seconds": seconds, "max_steps": 1, "model_client_stream": streamed}
    async with ScriptedServer([*before, last]) as server:
        message = await answer(agent_of(server, session, **limits))
        # a busy machine may not get so far as to make the first call
        await server.wait_until(lambda server: server.disconnects >= 1)
    assert Ending.from_metadata(message.metadata) is ending
    assert message.content == "The time for this task is over, and the model did not answer in time."


async def test_waiting_for_approval_counts_as_well(session: Session):
    async def undecided(request: Any) -> Any:
        await asyncio.sleep(30)

    await session.start()
    message = await answer(
        agent_of(replay(counting(1), "Nobody said yes."), session, max_seconds=0.5, approval_func=undecided)
    )
    assert (message.content, Ending.from_metadata(message.metadata)) == (
        "Nobody said yes.",
        Ending.MAX_SECONDS,
    )


async def test_a_reflection_that_takes_too_long_leaves_the_answer(session: Session):
    async with ScriptedServer([Text("It is 42."), Slow(30, Text("never said"))]) as server:
        message = await answer(agent_of(server, session, max_seconds=3, max_reflections=1))
    assert (message.content, Ending.from_metadata(message.metadata)) == ("It is 42.", Ending.ANSWERED)
    verdict = Verdict.from_metadata(message.metadata)
    assert verdict is not None
    assert not verdict.accepted, "an answer that was to be reviewed, and was not"


async def test_the_same_code_with_the_same_result_is_noticed_told_and_ended(session: Session):
    same = Text(counting(1))
    async with ScriptedServer([same, same, same, same, Text("It is 1.")]) as server:
        message = await answer(agent_of(server, session))
    told = [
        "The same code has had the same result before" in contents(request)[-1]
        for request in server.requests[:4]
    ]
    assert told == [False, False, True, True]
    assert (message.content, Ending.from_metadata(message.metadata)) == ("It is 1.", Ending.STUCK)
    assert record_of(message).attempts == 4
    assert "going in circles" in contents(server.requests[4])[-1]


async def test_code_that_fails_in_the_same_way_again_and_again_is_a_circle(session: Session):
    # it ran on, for each traceback told of another block
    fails = py("def job():\n    open('no such file')\nprint(object())\njob()")
    message = await answer(agent_of(replay(fails, fails, fails, fails, "I cannot."), session))
    assert (message.content, Ending.from_metadata(message.metadata)) == ("I cannot.", Ending.STUCK)


async def test_the_same_code_with_another_result_is_no_circle(fresh_session: Session):
    more = py("n = globals().get('n', 0) + 1\nprint(n)")
    message = await answer(agent_of(replay(*[more] * 6, "It is 6."), fresh_session))
    assert (message.content, Ending.from_metadata(message.metadata)) == ("It is 6.", Ending.ANSWERED)


async def test_code_that_is_denied_again_and_again_is_a_circle(session: Session):
    same = counting(1)
    message = await answer(agent_of(replay(same, same, same, same, "I may not."), session, approval_func=no))
    assert (message.content, Ending.from_metadata(message.metadata)) == ("I may not.", Ending.STUCK)
    assert record_of(message).outcome is Outcome.DENIED


@pytest.mark.parametrize("decisions", [[Json(GIVE_UP)], [Truncated('{"retry'), Text("")]])
async def test_no_retry_leads_to_the_last_answer(session: Session, decisions: list[Any]):
    # a retry decision that is not clean JSON ended the team with a traceback
    async with ScriptedServer([Text(FAILS), *decisions, Text("It cannot be done.")]) as server:
        message = await answer(agent_of(server, session, max_retries_on_error=3))
    assert Ending.from_metadata(message.metadata) is Ending.GIVEN_UP
    [noted] = record_of(message).retry_decisions
    assert f"No further attempt: {noted.reason}" in contents(server.requests[-1])[-2]


async def test_errors_in_a_row_are_counted_and_success_starts_anew(session: Session):
    replies = [
        Text(FAILS),
        Json(RETRY),
        Text(counting(1)),
        Text(py("2 / 0")),
        Json(RETRY),
        Text(py("3 / 0")),
        Text("It failed."),
    ]
    async with ScriptedServer(replies) as server:
        message = await answer(agent_of(server, session, max_retries_on_error=1))
    assert (message.content, Ending.from_metadata(message.metadata)) == ("It failed.", Ending.GIVEN_UP)
    assert len(record_of(message).retry_decisions) == 2


async def test_nor_on_an_error_at_the_end_of_a_budget(session: Session):
    client = replay(FAILS, "It failed.")
    message = await answer(agent_of(client, session, max_retries_on_error=1, max_steps=1))
    assert Ending.from_metadata(message.metadata) is Ending.MAX_STEPS


async def test_without_decisions_an_error_costs_no_call(session: Session):
    client = replay(FAILS, counting(1), "One.")
    await turn(agent_of(client, session))
    assert len(client.create_calls) == 3


async def test_no_timer_is_left():
    with Budget(Limits(max_steps=5, max_seconds=0.01), CancellationToken()) as spent:
        pass
    await asyncio.sleep(0.05)
    await spent.check_time()
    assert not spent.time_is_over
