"""Write, run, observe, answer: over real HTTP, with code that really runs."""

from __future__ import annotations

from typing import Any

import pytest
from autogen_agentchat.base import Response
from autogen_agentchat.messages import (
    CodeExecutionEvent,
    CodeGenerationEvent,
    ModelClientStreamingChunkEvent,
    MultiModalMessage,
    TextMessage,
    ThoughtEvent,
)
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.model_context import BufferedChatCompletionContext
from autogen_core.models import RequestUsage
from openai import AuthenticationError
from support.agents import (
    TASK,
    answer,
    contents,
    model_info,
    picture,
    record_of,
    replay,
    response,
    summary,
    turn,
    user,
)
from support.codeact import agent_of, outputs, py
from support.openai_server import HttpError, ScriptedServer, Text

from codeact_team.agents.codeact.agent import CodeActAgent
from codeact_team.agents.observations import Ending
from codeact_team.core.execution import Outcome, SessionResult
from codeact_team.executors.confined import ConfinedSessionCodeExecutor

Session = ConfinedSessionCodeExecutor

ADD = py("total = sum(range(1, 11))")
SHOW = py("total")


async def test_the_model_acts_by_code_until_it_answers(session: Session):
    async with ScriptedServer([Text(ADD), Text(SHOW), Text("It is 55.")]) as server:
        items = await turn(agent_of(server, session))
    assert summary(items) == [
        ("CodeGenerationEvent", ADD),
        ("CodeExecutionEvent", "(no output)"),
        ("CodeGenerationEvent", SHOW),
        ("CodeExecutionEvent", "55\n"),
        ("Response:TextMessage", "It is 55."),
    ]
    assert isinstance(items[-1], Response)
    assert Ending.from_metadata(items[-1].chat_message.metadata) is Ending.ANSWERED


async def test_each_event_tells_its_step_and_its_code(session: Session):
    items = await turn(agent_of(replay(ADD, SHOW, "It is 55."), session))
    generated = [item for item in items if isinstance(item, CodeGenerationEvent)]
    executed = [item for item in items if isinstance(item, CodeExecutionEvent)]
    assert [(item.retry_attempt, item.code_blocks[0].code) for item in generated] == [
        (0, "total = sum(range(1, 11))\n"),
        (1, "total\n"),
    ]
    assert [(item.retry_attempt, item.result.exit_code) for item in executed] == [(0, 0), (1, 0)]


async def test_the_model_reads_the_output_as_data_with_the_names_that_were_bound(fresh_session: Session):
    async with ScriptedServer([Text(py("x = 42\nprint('done')")), Text("Done.")]) as server:
        items = await turn(agent_of(server, fresh_session))
    assert contents(server.requests[1])[-1] == "<output>\ndone\nBound: x int = 42\n</output>"
    assert outputs(items) == ["done\n"], "people read what the program wrote"


async def test_code_beside_an_answer_is_run_first(session: Session):
    both = f"The answer is 1. Let me check:\n{py('print(6 * 7)')}\nSo it is 1."
    async with ScriptedServer([Text(both), Text("It is 42.")]) as server:
        message = await answer(agent_of(server, session))
    assert message.content == "It is 42."


@pytest.mark.parametrize(
    "reply",
    [
        "<execute>\nprint(42)\n</execute>",
        "```py\nprint(42)\n```",
        "```sh\necho 42\n```",
        "```bash\necho 42\n```",
    ],
)
async def test_code_may_be_written_in_every_way_that_the_executor_runs(session: Session, reply: str):
    assert outputs(await turn(agent_of(replay(reply, "It is 42."), session))) == ["42\n"]


async def test_several_blocks_of_a_reply_run_in_order(session: Session):
    reply = f"{py('x = 6')}\nand\n{py('x * 7')}"
    assert outputs(await turn(agent_of(replay(reply, "It is 42."), session))) == ["42\n"]


async def test_an_error_is_a_result_that_the_model_reads(session: Session):
    replies = [Text(py("print('so far')\n1 / 0")), Text(py("print(1)")), Text("It is 1.")]
    async with ScriptedServer(replies) as server:
        message = await answer(agent_of(server, session))
    seen = contents(server.requests[1])[-1]
    assert seen.index("so far") < seen.index("ZeroDivisionError")
    assert record_of(message).exit_code == 0, "that of the last execution"


async def test_final_answer_called_in_the_code_ends_the_run(session: Session):
    async with ScriptedServer([Text(ADD), Text(py("final_answer(total)"))]) as server:
        message = await answer(agent_of(server, session))
    assert message.content == "55"
    assert Ending.from_metadata(message.metadata) is Ending.ANSWERED


async def test_the_first_call_of_final_answer_wins_and_nothing_after_it_counts(session: Session):
    reply = f"{py('final_answer(1)')}\n{py('final_answer(2); 1 / 0')}"
    client = replay(reply, "never said")
    message = await answer(agent_of(client, session))
    assert (message.content, len(client.create_calls)) == ("1", 1)
    assert record_of(message).exit_code != 0


@pytest.mark.parametrize(
    ("value", "text"), [("''", "(The answer is empty.)"), ("'It is 42.'", "It is 42."), ("[1, 2]", "[1, 2]")]
)
async def test_any_value_can_be_the_answer(session: Session, value: str, text: str):
    assert (await answer(agent_of(replay(py(f"final_answer({value})")), session))).content == text


async def test_a_huge_answer_is_cut_for_other_agents_only(session: Session):
    message = await answer(agent_of(replay(py("final_answer('x' * 100_000)")), session))
    assert len(message.content) < 17_000
    assert "characters omitted" in message.content
    assert record_of(message).answer == "x" * 100_000


async def test_the_answer_is_part_of_the_conversation(session: Session):
    async with ScriptedServer([Text(ADD), Text(py("final_answer(total)")), Text("Because.")]) as server:
        agent = agent_of(server, session)
        await turn(agent)
        await turn(agent, user("Why?"))
    roles = [message["role"] for message in server.requests[-1]["messages"]]
    assert roles == ["system", "user", "assistant", "user", "assistant", "user", "assistant", "user"]
    assert contents(server.requests[-1])[-2:] == ["55", "Why?"]


async def test_what_was_defined_in_one_run_is_there_in_the_next(session: Session):
    define = py("def fib(n):\n    a, b = 0, 1\n    for _ in range(n): a, b = b, a + b\n    return a")
    replies = [define, py("sum(fib(n) for n in range(10))"), "It is 88.", py("fib(20)"), "It is 6765."]
    agent = agent_of(replay(*replies), session)
    assert outputs(await turn(agent, user("The sum of the first ten?")))[-1] == "88\n"
    assert outputs(await turn(agent, user("The twentieth?"))) == ["6765\n"]
    assert len(await agent.model_context.get_messages()) == 10


async def test_a_shell_block_works_beside_python_in_the_same_directory(session: Session):
    replies = ["```sh\necho 42 > number\n```", py("int(open('number').read())"), "It is 42."]
    assert outputs(await turn(agent_of(replay(*replies), session)))[-1] == "42\n"


async def test_every_call_sees_the_task_and_the_instructions_exactly_once(session: Session):
    # each retry added the task to the model context again
    async with ScriptedServer([Text(ADD), Text(py("1 / 0")), Text(SHOW), Text("55")]) as server:
        await turn(agent_of(server, session))
    assert [str(contents(request)).count(TASK) for request in server.requests] == [1] * 4
    for request in server.requests:
        assert [message["role"] for message in request["messages"]].count("system") == 1


async def test_the_usage_on_the_response_is_that_of_all_calls(session: Session):
    # token usage of all but the last call was lost
    replies = [
        Text(ADD, prompt_tokens=1, completion_tokens=2),
        Text(SHOW, prompt_tokens=10, completion_tokens=20),
        Text("55", prompt_tokens=100, completion_tokens=200),
    ]
    async with ScriptedServer(replies) as server:
        final = await response(agent_of(server, session))
    assert final.chat_message.models_usage == RequestUsage(prompt_tokens=111, completion_tokens=222)
    assert [message.models_usage for message in final.inner_messages or []] == [None] * 4


async def test_the_inner_messages_are_what_was_yielded_before_the_response_except_chunks(session: Session):
    # inner_messages was empty
    replies = [Text(ADD, reasoning="Hm."), Text("It is 55.")]
    async with ScriptedServer(replies) as server:
        *yielded, final = await turn(agent_of(server, session, model_client_stream=True))
    assert isinstance(final, Response)
    kept = [item for item in yielded if not isinstance(item, ModelClientStreamingChunkEvent)]
    assert len(kept) < len(yielded)
    assert final.inner_messages == kept
    assert [type(item) for item in kept] == [ThoughtEvent, CodeGenerationEvent, CodeExecutionEvent]


async def test_the_response_carries_code_and_result_for_programs(session: Session):
    # the next agent in a team saw neither the code, nor the output, nor the exit code
    message = await answer(agent_of(replay(ADD, SHOW, "It is 55."), session))
    record = record_of(message)
    assert [block.code for block in record.blocks] == ["total\n"]
    assert [block.code for block in record.superseded] == ["total = sum(range(1, 11))\n"]
    assert (record.output, record.exit_code, record.outcome) == ("55\n", 0, Outcome.COMPLETED)
    assert record.attempts == 2


async def test_an_answer_without_any_code_has_no_record(session: Session):
    message = await answer(agent_of(replay("Hello."), session))
    assert message.metadata == Ending.ANSWERED.to_metadata()


async def test_words_and_output_are_streamed_in_order(session: Session):
    reply = py("print('first'); print('second')")
    async with ScriptedServer([Text(reply, piece=7), Text("Done.", piece=2)]) as server:
        agent = agent_of(server, session, model_client_stream=True, stream_output=True)
        items = await turn(agent)
    kinds = [type(item) for item in items]
    assert kinds.index(CodeGenerationEvent) < kinds.index(CodeExecutionEvent)
    said = "".join(item.content for item in items if isinstance(item, ModelClientStreamingChunkEvent))
    assert said == f"{reply}first\nsecond\nDone."
    between = items[kinds.index(CodeGenerationEvent) + 1 : kinds.index(CodeExecutionEvent)]
    assert "".join(item.to_text() for item in between if not isinstance(item, Response)) == "first\nsecond\n"


async def test_nothing_is_streamed_unless_asked_for(session: Session):
    items = await turn(agent_of(replay(SHOW.replace("total", "1"), "One."), session))
    assert not [item for item in items if isinstance(item, ModelClientStreamingChunkEvent)]


async def test_the_executor_starts_while_the_model_is_writing(
    session: Session, monkeypatch: pytest.MonkeyPatch
):
    starts: list[str] = []
    start = session.start

    async def noted() -> None:
        starts.append("start")
        await start()

    monkeypatch.setattr(session, "start", noted)
    async with ScriptedServer([Text(ADD), Text("55")]) as server:
        async for item in agent_of(server, session).run_stream(task=TASK):
            if isinstance(item, CodeGenerationEvent):
                assert starts == ["start"], "the code is not executed yet"


async def test_artifacts_are_in_the_event_and_named_to_the_model(session: Session):
    code = py("class Square:\n    def _repr_png_(self): return b'\\x89PNG' + bytes(2996)\nSquare()")
    async with ScriptedServer([Text(code), Text("A square.")]) as server:
        items = await turn(agent_of(server, session))
    [event] = [item for item in items if isinstance(item, CodeExecutionEvent)]
    assert isinstance(event.result, SessionResult)
    assert [artifact.mime_type for artifact in event.result.artifacts] == ["image/png"]
    assert "Made: image/png, 3.0 kB" in contents(server.requests[1])[-1]


async def test_what_a_model_cannot_see_is_left_out(session: Session):
    task = MultiModalMessage(content=["What is this?", picture()], source="user")
    async with ScriptedServer([Text(ADD), Text("A square."), Text("A square.")]) as server:
        blind = CodeActAgent("coder", server.client(model_info=model_info(vision=False)), session)
        await turn(blind, task)
        await turn(agent_of(server, session), task)
    assert [str(request).count("image_url'") > 0 for request in server.requests] == [False, False, True]


async def test_an_environment_that_fails_is_an_error_and_no_answer(session: Session):
    async with ScriptedServer([HttpError(401, "wrong key")]) as server:
        with pytest.raises(AuthenticationError, match="wrong key"):
            await turn(agent_of(server, session))


async def test_it_works_in_a_team(session: Session):
    agent = agent_of(replay(ADD, SHOW, "It is 55.", "Still 55."), session)
    team = RoundRobinGroupChat([agent], max_turns=2)
    result = await team.run(task=TASK)
    said: list[Any] = [message for message in result.messages if isinstance(message, TextMessage)]
    assert [message.content for message in said] == [TASK, "It is 55.", "Still 55."]


async def test_a_run_without_a_new_message_goes_on_with_the_task(session: Session):
    context = BufferedChatCompletionContext(1)
    async with ScriptedServer([Text("One."), Text("Two.")]) as server:
        agent = agent_of(server, session, model_context=context)
        await RoundRobinGroupChat([agent], max_turns=2).run(task=TASK)
    assert sorted(contents(server.requests[1])[1:]) == sorted(["One.", TASK])
