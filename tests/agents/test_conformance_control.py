"""What every agent that has a model write code does with cancellation, approval, tools, events and state."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from autogen_agentchat.agents import ApprovalRequest, ApprovalResponse
from autogen_agentchat.base import Response
from autogen_agentchat.messages import (
    CodeExecutionEvent,
    CodeGenerationEvent,
    ModelClientStreamingChunkEvent,
    MultiModalMessage,
    ThoughtEvent,
)
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import CancellationToken
from autogen_ext.tools.mcp import McpWorkbench, StdioServerParams
from support.agents import (
    RETRY,
    TASK,
    Item,
    answer,
    calls_of,
    contents,
    no,
    picture,
    record_of,
    replay,
    turn,
    user,
    yes,
)
from support.codeact import outputs, own_session, py
from support.executing import KINDS
from support.openai_server import (
    AnyReply,
    Json,
    ScriptedServer,
    Slow,
    Text,
)
from support.waiting import first_tick, ticking, until

from codeact_team.agents.code_executor import CodeExecutorAgent
from codeact_team.agents.codeact.agent import CodeActAgent
from codeact_team.core import events
from codeact_team.core.effects import Dispatcher, Effect, Event, Perform
from codeact_team.core.execution import Outcome
from codeact_team.executors.confined import ConfinedSessionCodeExecutor

Session = ConfinedSessionCodeExecutor
Make = Callable[..., CodeExecutorAgent | CodeActAgent]

SHOWS = py("print(6 * 7)")
FAILS = py("1 / 0")
REPAIRED: list[AnyReply] = [Text(FAILS), Json(RETRY), Text(SHOWS), Text("It is 42.")]
DENIED = "Code execution was not approved. Reason: too risky"
CANCELLED = "Code execution was cancelled."
TICKS = py(
    "import pathlib, time\nprint('started')\nfor number in range(10_000):\n"
    "    pathlib.Path('tick').write_text(str(number))\n    time.sleep(0.02)"
)


def final(items: list[Item]) -> Response:
    assert isinstance(items[-1], Response)
    return items[-1]


async def said_in(agent: CodeExecutorAgent | CodeActAgent) -> list[str]:
    return [str(message.content) for message in await agent.model_context.get_messages()]


def through_json(state: Any) -> Any:
    return json.loads(json.dumps(state))


# cancellation


@pytest.mark.parametrize("number", range(4), ids=["first", "decision", "second", "last"])
async def test_every_call_to_the_model_can_be_cancelled(agent_of: Make, session: Session, number: int):
    # the retry decision and the reflection could not
    replies = [*REPAIRED[:number], Slow(60, Text("too late"))]
    token = CancellationToken()
    async with ScriptedServer(replies) as server:
        agent = agent_of(server, session, max_retries_on_error=1)
        running = asyncio.ensure_future(turn(agent, token=token))
        await server.wait_until(lambda server: len(server.requests) == number + 1, seconds=30)
        token.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await server.wait_until(lambda server: server.disconnects == 1)


async def test_a_cancelled_execution_is_the_end_of_the_turn_and_the_conversation_goes_on(
    agent_of: Make, tmp_path: Path
):
    # a cancelled execution counted as a code error: the model was asked, and code ran again
    token, client = CancellationToken(), replay(py("x = 42"), "Bound.", TICKS, py("print(x)"), "Still 42.")
    async with own_session(work_dir=tmp_path) as executor:
        agent = agent_of(client, executor, max_retries_on_error=3, stream_output=True)
        await turn(agent)
        items: list[Any] = []
        async for item in agent.on_messages_stream([user("Go on.")], token):
            items.append(item)
            if isinstance(item, ModelClientStreamingChunkEvent) and "started" in item.content:
                token.cancel()
        assert not await ticking(tmp_path)
        message = items[-1].chat_message
        assert message.content.startswith("started"), "what the code wrote before is not lost"
        assert record_of(message).outcome is Outcome.CANCELLED
        assert len(outputs(items)) == 1
        assert calls_of(client) == 3
        assert "started" in (await said_in(agent))[-1], "the code is answered"
        assert outputs(await turn(agent, user("And x?"))) == ["42\n"]


async def test_waiting_for_approval_can_be_cancelled(agent_of: Make, session: Session):
    asked = asyncio.Event()

    async def undecided(request: ApprovalRequest) -> ApprovalResponse:
        asked.set()
        await asyncio.sleep(60)
        return yes(request)

    token, client = CancellationToken(), replay(SHOWS, "never said")
    agent = agent_of(client, session, approval_func=undecided)
    running = asyncio.ensure_future(answer(agent, token=token))
    await asked.wait()
    token.cancel()
    message = await running
    assert (message.content, calls_of(client)) == (CANCELLED, 1)
    assert CANCELLED in (await said_in(agent))[-1]


async def test_code_is_not_run_if_the_answer_was_yes_but_came_with_a_cancellation(
    agent_of: Make, session: Session
):
    token = CancellationToken()

    def approve(request: ApprovalRequest) -> ApprovalResponse:
        token.cancel()
        return yes(request)

    code = py("open('cancelled', 'w')")
    message = await answer(agent_of(replay(code), session, approval_func=approve), token=token)
    assert message.content == CANCELLED
    assert "cancelled" not in await session.workspace.list()


@pytest.mark.parametrize("and_the_token", [False, True])
async def test_a_cancelled_task_stops_the_code_and_stays_cancelled(
    agent_of: Make, tmp_path: Path, and_the_token: bool
):
    token = CancellationToken()
    async with own_session(work_dir=tmp_path) as executor:
        agent = agent_of(replay(TICKS), executor)
        running = asyncio.ensure_future(turn(agent, token=token))
        await first_tick(tmp_path)
        if and_the_token:
            token.cancel()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not await ticking(tmp_path)
        # the model of a later task knows that there is no result
        assert (await said_in(agent))[-1] == CANCELLED


async def test_leaving_the_stream_stops_the_code(agent_of: Make, tmp_path: Path):
    async with own_session(work_dir=tmp_path) as executor:
        agent = agent_of(replay(TICKS), executor, stream_output=True)
        items = agent.on_messages_stream([user(TASK)], CancellationToken())
        async for item in items:
            if isinstance(item, ModelClientStreamingChunkEvent):
                break
        await items.aclose()
        assert not await ticking(tmp_path)
        assert (await said_in(agent))[-1] == CANCELLED


async def test_a_cancelled_team_asks_no_model_and_runs_no_code_any_more(agent_of: Make, tmp_path: Path):
    token = CancellationToken()
    async with ScriptedServer([Text(TICKS)]) as server, own_session(work_dir=tmp_path) as executor:
        agent = agent_of(server, executor, max_retries_on_error=3, stream_output=True)
        running = asyncio.ensure_future(
            RoundRobinGroupChat([agent], max_turns=3).run(task=TASK, cancellation_token=token)
        )
        await first_tick(tmp_path)
        token.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not await ticking(tmp_path)
        assert len(server.requests) == 1


def is_there(process: str) -> bool:
    return Path("/proc", process.strip()).exists()


async def test_a_cancellation_ends_the_wait_for_a_tool_server_that_does_not_answer(
    agent_of: Make, session: Session, tmp_path: Path
):
    started = tmp_path / "started"
    # it never answers, and keeps its output open
    hangs = f"read line; echo $$ > {started}; exec cat 3>&1 > /dev/null"
    workbench = McpWorkbench(StdioServerParams(command="sh", args=["-c", hangs]))
    token = CancellationToken()
    waiting = asyncio.ensure_future(turn(agent_of(replay("No."), session, workbench=workbench), token=token))
    await until(lambda: started.exists() and started.read_text())
    token.cancel()
    async with asyncio.timeout(10):
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert not is_there(started.read_text())


# approval and tools


class Reviewer:
    """An object that is called, and whose call is to be awaited: not a coroutine function by its looks."""

    def __init__(self, approved: bool = True) -> None:
        self.requests: list[ApprovalRequest] = []
        self._approved = approved

    async def __call__(self, request: ApprovalRequest) -> ApprovalResponse:
        self.requests.append(request)
        return ApprovalResponse(approved=self._approved, reason="too risky")


@pytest.mark.parametrize("approval", [yes, Reviewer()], ids=["a function", "an object"])
async def test_approved_code_runs(agent_of: Make, session: Session, approval: Any):
    agent = agent_of(replay(SHOWS, "It is 42."), session, approval_func=approval)
    assert outputs(await turn(agent)) == ["42\n"]


@pytest.mark.parametrize("approval", [no, Reviewer(approved=False)], ids=["a function", "an object"])
async def test_denied_code_does_not_run_and_is_no_error_to_retry(
    agent_of: Make, session: Session, approval: Any
):
    # a denied execution counted as a code error: the model was asked, and code ran
    code = py("open('denied', 'w')")
    async with ScriptedServer([Text(code), Text("They said no.")]) as server:
        agent = agent_of(server, session, approval_func=approval, max_retries_on_error=5)
        items = await turn(agent)
        assert not server.unused
    assert outputs(items) == [DENIED]
    message = final(items).chat_message
    assert (message.to_text(), record_of(message).outcome) == ("They said no.", Outcome.DENIED)
    assert DENIED in contents(server.requests[1])[-1]
    assert "denied" not in await session.workspace.list()


async def _broken(request: ApprovalRequest) -> ApprovalResponse:
    raise KeyError("no reviewer on duty")


@pytest.mark.parametrize("approval", [_broken, lambda request: None], ids=["it raises", "no answer"])  # type: ignore[misc]
async def test_an_approval_that_fails_is_a_denial_that_says_why(
    agent_of: Make, session: Session, approval: Any, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.WARNING):
        [said] = outputs(await turn(agent_of(replay(SHOWS, "No."), session, approval_func=approval)))
    assert "the approval function failed: " in said
    assert "Traceback" not in said
    assert any(record.exc_info for record in caplog.records), "the traceback is in the log"


async def test_every_attempt_is_approved_with_the_conversation_that_led_to_it(
    agent_of: Make, session: Session
):
    review = Reviewer()
    client = replay(FAILS, json.dumps(RETRY), SHOWS, "Done.")
    await turn(agent_of(client, session, max_retries_on_error=1, approval_func=review))
    assert [request.code for request in review.requests] == [
        "```python\n1 / 0\n\n```",
        "```python\nprint(6 * 7)\n\n```",
    ]
    first, second = ([str(said.content) for said in request.context] for request in review.requests)
    assert first == [TASK, FAILS]
    assert (len(second), second[-1]) == (5, SHOWS)


async def test_the_code_calls_tools_that_the_model_is_told_of(agent_of: Make, fresh_session: Session):
    async def get_order(number: int) -> dict[str, Any]:
        """Look up an order."""
        return {"number": number, "late": number in (2, 3)}

    code = py("late = [n for n in range(1, 5) if tools.get_order(n)['late']]\nprint(late)")
    async with ScriptedServer([Text(code), Text("2 and 3.")]) as server:
        items = await turn(agent_of(server, fresh_session, tools=[get_order]))
    assert outputs(items) == ["[2, 3]\n"]
    calls = record_of(final(items).chat_message).tool_calls
    assert [(call.name, json.loads(call.arguments)["number"]) for call in calls] == [
        ("get_order", number) for number in range(1, 5)
    ]
    for request in server.requests:
        system = contents(request)[0]
        assert "get_order(number: int)" in system
        assert "Look up an order." in system
        assert "$tools" not in system


async def test_code_that_fails_leaves_variables_as_they_were_where_asked_for(
    agent_of: Make, fresh_session: Session
):
    first, second = py("n = 1"), py("n += 1\nboom")
    client = replay(first, "One.", second, json.dumps(RETRY), py("print(n)"), "One.")
    agent = agent_of(client, fresh_session, max_retries_on_error=1, rollback_on_error=True)
    await turn(agent)
    failed, looked = outputs(await turn(agent, user("Two?")))
    assert "Variables and files of the workspace are again as they were before this code." in failed
    assert looked == "1\n"


# events through the dispatcher


async def test_an_event_and_the_message_that_says_the_same_have_the_same_id(agent_of: Make, session: Session):
    heard: list[Event] = []
    with (dispatcher := Dispatcher()):
        dispatcher.listen(heard.append)
        items = await turn(
            agent_of(replay(FAILS, json.dumps(RETRY), SHOWS, "It is 42."), session, max_retries_on_error=1)
        )
    dumped = [events.dump(event) for event in heard]
    assert [events.dump(events.load(one)) for one in dumped] == dumped
    sent = {event.message.id: event.message for event in heard if isinstance(event, events.MessageSent)}
    by_id = {getattr(event, "message_id", None): event for event in heard}
    for item in items:
        if isinstance(item, CodeGenerationEvent | ThoughtEvent):
            assert sent[item.id] == item
        if isinstance(item, CodeExecutionEvent):
            assert isinstance(by_id[item.id], events.BlockEnded)
    began = [event for event in heard if isinstance(event, events.BlockBegan)]
    assert [block.code for event in began for block in event.blocks] == ["1 / 0\n", "print(6 * 7)\n"]
    assert {event.parent for event in began} == {
        event.span for event in heard if isinstance(event, events.TurnBegan)
    }


async def test_a_block_that_an_interceptor_refuses_ends_the_turn_with_its_error(
    agent_of: Make, session: Session
):
    async def refuse(effect: Effect[Any], do: Perform) -> Any:
        if "blocks" in str(effect.request()):
            raise PermissionError("not today")
        return await do()

    with Dispatcher(refuse), pytest.raises(PermissionError, match="not today"):
        await turn(agent_of(replay(py("open('refused', 'w')")), session))
    assert "refused" not in await session.workspace.list()


# state


async def test_reset_forgets_the_conversation_and_the_variables(agent_of: Make, fresh_session: Session):
    # on_reset kept the context
    replies = [Text(py("x = 42")), Text("Done."), Text(py("print(x)")), Text("Oh.")]
    async with ScriptedServer(replies) as server:
        agent = agent_of(server, fresh_session)
        await turn(agent)
        await agent.on_reset(CancellationToken())
        items = await turn(agent, user("What is x?"))
    assert "NameError" in outputs(items)[0]
    assert contents(server.requests[2])[1:] == ["What is x?"]


async def test_another_agent_goes_on_where_the_first_one_was_saved(agent_of: Make, fresh_session: Session):
    # save_state saved nothing, so a resumed agent had forgotten everything
    code = py("x = 42\nprint(x)")
    async with (
        ScriptedServer([Text(code), Text("It is 42."), Text("Hm."), Text("Because.")]) as server,
        own_session() as executor,
    ):
        first = agent_of(server, fresh_session)
        await turn(first, MultiModalMessage(content=["What is this?", picture()], source="user"))
        state = await first.save_state()
        before = json.dumps(state)
        second = agent_of(server, executor)
        await turn(second, user("What was there is replaced."))
        await second.load_state(through_json(state))
        await turn(second, user("Why?"))
        assert json.dumps(state) == before, "a saved state does not change with the conversation"
    first_request, last_request = server.requests[0]["messages"], server.requests[3]["messages"]
    assert last_request[1] == first_request[1], "images survive"
    assert "image_url" in str(last_request[1])
    seen = contents(server.requests[3])
    assert seen[2] == code
    assert seen[3].startswith("<output>\n42\n")
    assert seen[4] == "It is 42."
    assert seen[-1] == "Why?"
    assert [str(seen).count(text) for text in ("What is this?", "Why?")] == [1, 1]


async def test_a_loaded_agent_works_and_closing_it_stops_the_executor_that_it_made(agent_of: Make):
    # in AutoGen Studio, which loads and closes, containers piled up
    kind = KINDS["confined-session"]
    before = kind.held()
    mine = Session()
    given = agent_of(replay(SHOWS, "It is 42.", py("x = 1"), "One."), mine)
    dumped = given.dump_component()
    loaded: Any = type(given).load_component(dumped)
    assert loaded.dump_component() == dumped
    assert dumped.provider == f"codeact_team.{type(given).__name__}"
    assert (await answer(loaded)).content == "It is 42."
    assert len(kind.held() - before) == 1
    for _ in range(2):
        await loaded.close()
        assert kind.held() == before
    await turn(given)
    await given.close()
    assert len(kind.held() - before) == 1, "what was given is the giver's"
    await mine.stop()


def test_a_part_that_cannot_be_dumped_is_named(agent_of: Make):
    agent = agent_of(replay(), Session(), approval_func=yes)
    with pytest.raises(ValueError, match=r"approval_func.* function.*module:function"):
        agent.dump_component()
