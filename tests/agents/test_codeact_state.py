"""What the agent remembers, forgets, keeps in view, and takes along into another process."""

from __future__ import annotations

import json
from typing import Any

import pytest
from autogen_core.model_context import (
    BufferedChatCompletionContext,
    ChatCompletionContext,
    HeadAndTailChatCompletionContext,
    TokenLimitedChatCompletionContext,
)
from autogen_core.models import AssistantMessage, LLMMessage
from support.agents import TASK, answer, contents, record_of, replay, turn, user
from support.codeact import agent_of, outputs, own_session, py
from support.openai_server import Json, ScriptedServer, Text

from codeact_team.executors.confined import ConfinedSessionCodeExecutor

Session = ConfinedSessionCodeExecutor

GONE = "its variables, functions and imports are gone"


def through_json(state: Any) -> Any:
    return json.loads(json.dumps(state))


async def test_another_agent_goes_on_where_the_first_one_was_saved(fresh_session: Session):
    # save_state saved nothing, so a resumed team had forgotten everything
    replies = [
        Text(py("x = 42\nprint(x)")),
        Text("It is 42."),
        Text(py("print(x)")),
        Text("Gone."),
        Text("Yes."),
    ]
    async with ScriptedServer(replies) as server, own_session() as executor:
        first = agent_of(server, fresh_session)
        await turn(first)
        second = agent_of(server, executor)
        await second.load_state(through_json(await first.save_state()))
        items = await turn(second, user("And now?"))
        await turn(second, user("Sure?"))
    assert "NameError" in outputs(items)[0]
    seen = contents(server.requests[2])
    assert seen[1:5] == [
        TASK,
        py("x = 42\nprint(x)"),
        "<output>\n42\nBound: x int = 42\n</output>",
        "It is 42.",
    ]
    assert GONE in seen[5]
    assert seen[6] == "And now?"
    assert str(contents(server.requests[4])).count(GONE) == 1, "told once"


async def test_loading_restarts_the_interpreter_of_the_agent_itself(fresh_session: Session):
    agent = agent_of(replay(py("x = 42"), "Done.", py("print(x)"), "Gone."), fresh_session)
    await turn(agent)
    await agent.load_state(through_json(await agent.save_state()))
    assert "NameError" in outputs(await turn(agent))[0]


async def test_an_empty_conversation_has_no_variables_to_miss(session: Session):
    async with ScriptedServer([Text("Hello.")]) as server:
        agent = agent_of(server, session)
        await agent.load_state(await agent.save_state())
        await turn(agent)
    assert contents(server.requests[0])[1:] == [TASK]


async def test_the_model_is_told_once_when_the_interpreter_is_lost(fresh_session: Session):
    replies = [Text(py("x = 42")), Text(py("import os; os._exit(3)")), Text(py("print(x)")), Text("Gone.")]
    async with ScriptedServer(replies) as server:
        items = await turn(agent_of(server, fresh_session))
    assert "NameError" in outputs(items)[-1]
    seen = contents(server.requests[2])[-1]
    assert seen.count("are gone") == 1
    assert "are gone" not in contents(server.requests[3])[-1]


STEPS = [py("print('one')"), py("print('two')"), py("print('three')")]


def tokens(limit: int) -> TokenLimitedChatCompletionContext:
    return TokenLimitedChatCompletionContext(replay("-"), token_limit=limit)


CONTEXTS: list[Any] = [
    *(pytest.param(BufferedChatCompletionContext(size), id=f"buffered-{size}") for size in (1, 3)),
    pytest.param(HeadAndTailChatCompletionContext(1, 1), id="head-and-tail-1-1"),
    pytest.param(tokens(5), id="tokens-5"),
    *(
        pytest.param(context, id=name, marks=pytest.mark.long)
        for name, context in {
            "buffered-2": BufferedChatCompletionContext(2),
            "buffered-4": BufferedChatCompletionContext(4),
            "head-and-tail-2-2": HeadAndTailChatCompletionContext(2, 2),
            "tokens-1": tokens(1),
            "tokens-20": tokens(20),
        }.items()
    ),
]


@pytest.mark.parametrize("context", CONTEXTS)
async def test_the_task_the_instructions_and_the_latest_result_stay_in_view(
    session: Session, context: ChatCompletionContext
):
    await context.clear()
    replies = [*map(Text, STEPS), Text("Three.")]
    async with ScriptedServer([Text("Hello."), *replies]) as server:
        agent = agent_of(server, session, model_context=context)
        await turn(agent, user("Hello?"))
        await turn(agent)
    for step, request in enumerate(server.requests[1:]):
        seen = contents(request)
        assert seen[0].startswith("You solve tasks")
        assert seen.count(TASK) == 1
        if step:
            word = ("one", "two", "three")[step - 1]
            assert seen[-2:] == [STEPS[step - 1], f"<output>\n{word}\n\n</output>"]
            assert seen.index(TASK) < len(seen) - 2
        for text in seen:
            assert seen.count(text) == 1, "nothing is there twice"


async def test_so_do_all_messages_of_a_run_in_their_order(session: Session):
    context = BufferedChatCompletionContext(1)
    async with ScriptedServer([Text(STEPS[0]), Text("One.")]) as server:
        agent = agent_of(server, session, model_context=context)
        await turn(agent, user("First."), user("Second."))
    assert contents(server.requests[0])[1:] == ["First.", "Second."]
    assert contents(server.requests[1])[1:3] == ["First.", "Second."]


async def test_a_reflection_sees_the_result_and_the_answer_whatever_is_dropped(session: Session):
    context = BufferedChatCompletionContext(1)
    verdict = Json({"problems": [], "accepted": True, "next_step": ""})
    async with ScriptedServer([Text(STEPS[0]), Text("One."), verdict]) as server:
        await turn(agent_of(server, session, model_context=context, max_reflections=1))
    assert contents(server.requests[2])[1:-1] == [TASK, STEPS[0], "<output>\none\n\n</output>", "One."]


class WithoutThoughts(BufferedChatCompletionContext):
    """Gives copies, as contexts that rewrite messages do."""

    async def get_messages(self) -> list[LLMMessage]:
        return [
            message.model_copy(update={"thought": None})
            if isinstance(message, AssistantMessage)
            else message.model_copy(deep=True)
            for message in await super().get_messages()
        ]


async def test_a_context_that_gives_copies_doubles_nothing(session: Session):
    replies = [Text(STEPS[0], reasoning="Hm."), Text(STEPS[1], reasoning="Hm."), Text("Two.")]
    async with ScriptedServer(replies) as server:
        await turn(agent_of(server, session, model_context=WithoutThoughts(50)))
    seen = contents(server.requests[2])
    assert [seen.count(text) for text in (TASK, *STEPS[:2])] == [1, 1, 1]
    assert len(seen) == 6


async def test_what_was_said_is_not_changed_by_what_the_model_is_shown(session: Session):
    agent = agent_of(replay(*STEPS, "Three."), session, model_context=BufferedChatCompletionContext(2))
    assert record_of(await answer(agent)).output == "three\n"
    state = await agent.save_state()
    assert len(state["model_context"]["messages"]) == 8
