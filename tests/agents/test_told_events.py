"""What an agent tells while it works, and that its effects go through the dispatcher."""

from __future__ import annotations

import asyncio
import json
from contextvars import Context
from typing import Any

import pytest
from support.agents import PRINTS_42, TASK, Foreign, Item, replay, turn, user, yes
from support.codeact import agent_of, py

from codeact_team.agents.agent_config import ToolLimits
from codeact_team.agents.code_executor import CodeExecutorAgent
from codeact_team.agents.codeact.agent import CodeActAgent
from codeact_team.agents.reflection_agent import ReflectionAgent
from codeact_team.core import events
from codeact_team.core.effects import Dispatcher, Effect, Event, Perform
from codeact_team.core.execution import CallOutcome, Outcome
from codeact_team.executors.confined import ConfinedSessionCodeExecutor


@pytest.fixture
def session(fresh_session: ConfinedSessionCodeExecutor) -> ConfinedSessionCodeExecutor:
    """Agents with different tools do not share an interpreter."""
    return fresh_session


async def told(make: Any, *messages: Any, handlers: Any = ()) -> tuple[list[Event], list[Item]]:
    """What the agent that ``make`` makes tells, and what it yields."""
    heard: list[Event] = []
    dispatcher = Dispatcher(*handlers)
    dispatcher.listen(heard.append)
    with dispatcher:
        items = await turn(make(), *messages)
    dumped = [events.dump(event) for event in heard]
    assert [events.dump(events.load(one)) for one in dumped] == dumped
    return heard, items


def kinds(heard: list[Event]) -> list[str]:
    """The types of the events, without messages, pieces of output and the life of sandboxes."""
    types = [str(getattr(event, "type", "")) for event in heard]
    return [kind for kind in types if kind not in ("message", "output") and not kind.startswith("sandbox_")]


def only(heard: list[Event], kind: type[Any]) -> Any:
    (event,) = (event for event in heard if isinstance(event, kind))
    return event


async def test_an_executor_agent_without_a_model_tells_of_its_block():
    make = lambda: CodeExecutorAgent("executor", Foreign(), approval_func=yes)  # noqa: E731
    heard, (response,) = await told(make, user(PRINTS_42))
    assert kinds(heard) == [
        "turn_began",
        "question_asked",
        "question_answered",
        "block_began",
        "block_ended",
        "turn_ended",
    ]
    began, ended = only(heard, events.BlockBegan), only(heard, events.BlockEnded)
    assert [block.code for block in began.blocks] == ["print(42)\n"]
    assert (ended.span, ended.agent, ended.exit_code, ended.output) == (began.span, "executor", 0, "42\n")
    assert began.parent == only(heard, events.TurnBegan).span
    assert ended.message_id == response.chat_message.id  # type: ignore[union-attr]


async def test_calls_of_tools_are_told_when_they_begin_and_end_as_parts_of_their_block(
    session: ConfinedSessionCodeExecutor,
):
    seen: list[str] = []

    def look(at: str) -> str:
        """Look."""
        seen.append(str(kinds(heard)[-1]))
        return at.upper()

    heard: list[Event] = []
    dispatcher = Dispatcher()
    dispatcher.listen(heard.append)
    # the session's stream is registered before there is any dispatcher
    await session.start()
    with dispatcher:
        code = "print(tools.look(at='a'), flush=True)\nfinal_answer(tools.look(at='b'))"
        await turn(agent_of(replay(py(code)), session, tools=[look], stream_output=True))
    assert seen == ["tool_call_began", "tool_call_began"]
    block, ended = only(heard, events.BlockBegan), only(heard, events.BlockEnded)
    calls = [event for event in heard if isinstance(event, events.ToolCallBegan)]
    assert [json.loads(call.arguments) for call in calls] == [{"at": "a"}, {"at": "b"}]
    assert {call.parent for call in calls} == {block.span}
    assert {call.agent for call in calls} == {"coder"}
    ends = [event for event in heard if isinstance(event, events.ToolCallEnded)]
    assert [(end.span, end.outcome) for end in ends] == [(call.span, CallOutcome.OK) for call in calls]
    written = "".join(event.text for event in heard if isinstance(event, events.Output))
    assert (ended.answer, written) == ("B", "A\n")


async def test_an_agent_remembers_the_dispatcher_it_was_made_with(session: ConfinedSessionCodeExecutor):
    def look(at: str) -> str:
        """Look."""
        return at

    heard: list[Event] = []
    with (dispatcher := Dispatcher()):
        dispatcher.listen(heard.append)
        agent = agent_of(replay(py("final_answer(tools.look(at='a'))")), session, tools=[look])
        # as in a runtime that was started before
        await asyncio.create_task(turn(agent), context=Context())
    expected = ["turn", "description", "model_call", "block", "tool_call"]
    assert kinds(heard)[0] == "turn_began"
    assert {kind.removesuffix("_began") for kind in kinds(heard) if kind.endswith("_began")} == set(expected)
    block = only(heard, events.BlockBegan)
    assert (block.parent, only(heard, events.ToolCallBegan).parent) == (
        only(heard, events.TurnBegan).span,
        block.span,
    )


async def test_a_tool_call_that_is_refused_is_told_as_well(session: ConfinedSessionCodeExecutor):
    def look(at: str) -> str:
        """Look."""
        return at

    limits = ToolLimits(max_calls=1)
    replies = py("tools.look(at='a')\ntools.look(at='b')"), "No."
    heard, _ = await told(lambda: agent_of(replay(*replies), session, tools=[look], tool_limits=limits))
    ends = [event for event in heard if isinstance(event, events.ToolCallEnded)]
    assert [end.outcome for end in ends] == [CallOutcome.OK, CallOutcome.REFUSED]
    assert "max_calls" in ends[1].error


async def test_what_was_recorded_answers_instead_of_the_world(session: ConfinedSessionCodeExecutor):
    recorded: list[tuple[str, Any]] = []

    async def record(effect: Effect[Any], do: Perform) -> Any:
        outcome = await do()
        recorded.append((json.dumps(effect.request(), sort_keys=True), effect.dump(outcome)))
        return outcome

    async def answer(effect: Effect[Any], do: Perform) -> Any:
        request, outcome = recorded.pop(0)
        assert json.dumps(effect.request(), sort_keys=True) == request
        return effect.load(outcome)

    def make(*replies: str, executor: Any = session) -> CodeActAgent:
        return agent_of(replay(*replies), executor, max_seconds=60, max_reflections=1)

    verdict = json.dumps({"problems": [], "accepted": True, "next_step": ""})
    show = "import base64\nclass Picture:\n    def _repr_png_(self):\n        return bytes(range(256))\nx = 6\nprint('x' * 20_000)\nPicture()"
    first, items = await told(lambda: make(py(show), "It is 42.", verdict), handlers=[record])
    never = ConfinedSessionCodeExecutor(confinement="best_effort")
    again, repeated = await told(lambda: make(executor=never), handlers=[answer])
    await never.stop()
    assert recorded == []
    assert [type(item) for item in repeated] == [type(item) for item in items]
    assert kinds(again) == kinds(first)
    one, other = (only(heard, events.BlockEnded) for heard in (first, again))
    assert other.names == one.names
    assert other.artifacts == one.artifacts
    assert [artifact.size for artifact in one.artifacts] == [256]


async def test_a_team_of_autogens_is_explained_by_the_error_itself():
    dispatcher = Dispatcher()
    error = ConnectionError("gone")
    with dispatcher:
        agent = CodeExecutorAgent("executor", Foreign(), model_client=replay(), approval_func=yes)
        with pytest.raises(Exception, match="No more mock responses") as caught:
            await turn(agent)
        assert (
            dispatcher.original_of(RuntimeError(f"{type(caught.value).__name__}: {caught.value}"))
            is caught.value
        )
    assert dispatcher.original_of(error) is error


async def test_a_verdict_is_told_with_the_id_of_its_message():
    verdict = {"problems": ["There is no proof."], "accepted": False, "next_step": "Prove it."}
    heard, (response,) = await told(lambda: ReflectionAgent("reviewer", replay(json.dumps(verdict))))
    judged = only(heard, events.Judged)
    assert (judged.accepted, judged.problems, judged.next_step) == (
        False,
        ["There is no proof."],
        "Prove it.",
    )
    assert judged.message_id == response.chat_message.id  # type: ignore[union-attr]


async def test_a_denied_block_is_told_as_denied():
    def no(request: Any) -> Any:
        return yes(request).model_copy(update={"approved": False})

    make = lambda: CodeExecutorAgent("executor", Foreign(), approval_func=no)  # noqa: E731
    heard, _ = await told(make, user(f"{TASK}\n{PRINTS_42}"))
    assert only(heard, events.BlockEnded).outcome is Outcome.DENIED
