"""Write, run, observe, answer: over real HTTP, with code that really runs."""

from __future__ import annotations

import pytest
from autogen_agentchat.base import Response
from autogen_agentchat.messages import (
    CodeExecutionEvent,
    CodeGenerationEvent,
)
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.model_context import BufferedChatCompletionContext
from support.agents import (
    TASK,
    answer,
    contents,
    record_of,
    replay,
    summary,
    turn,
    user,
)
from support.codeact import agent_of, outputs, py
from support.openai_server import ScriptedServer, Text

from codeact_team.agents.observations import Ending
from codeact_team.core.execution import SessionResult
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


async def test_an_answer_without_any_code_has_no_record(session: Session):
    message = await answer(agent_of(replay("Hello."), session))
    assert message.metadata == Ending.ANSWERED.to_metadata()


async def test_artifacts_are_in_the_event_and_named_to_the_model(session: Session):
    code = py("class Square:\n    def _repr_png_(self): return b'\\x89PNG' + bytes(2996)\nSquare()")
    async with ScriptedServer([Text(code), Text("A square.")]) as server:
        items = await turn(agent_of(server, session))
    [event] = [item for item in items if isinstance(item, CodeExecutionEvent)]
    assert isinstance(event.result, SessionResult)
    assert [artifact.mime_type for artifact in event.result.artifacts] == ["image/png"]
    assert "Made: image/png, 3.0 kB" in contents(server.requests[1])[-1]


async def test_a_run_without_a_new_message_goes_on_with_the_task(session: Session):
    context = BufferedChatCompletionContext(1)
    async with ScriptedServer([Text("One."), Text("Two.")]) as server:
        agent = agent_of(server, session, model_context=context)
        await RoundRobinGroupChat([agent], max_turns=2).run(task=TASK)
    assert sorted(contents(server.requests[1])[1:]) == sorted(["One.", TASK])
