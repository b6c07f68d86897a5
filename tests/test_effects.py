"""What intercepts effects for effects, and what is told there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.models import RequestUsage, UserMessage
from autogen_ext.models.replay import ReplayChatCompletionClient

from codeact_team.core.effects import Dispatcher, Effect, Event, ListenerFailed, speaking
from codeact_team.core.events import ModelCallBegan, ModelCallEnded, RunBegan, RunEnded, Words
from codeact_team.models.clients import wrap_client

ASKED = [UserMessage(content="Hi.", source="user")]


class Refused(Exception):
    pass


def replay(*answers: str) -> ReplayChatCompletionClient:
    return ReplayChatCompletionClient(list(answers))


async def answer_of(client: Any, **options: Any) -> object:
    return (await wrap_client(client).create(ASKED, **options)).content


async def test_without_a_dispatcher_an_effect_is_just_performed() -> None:
    assert await answer_of(replay("Hello.")) == "Hello."


async def test_a_handler_may_watch_answer_instead_or_refuse() -> None:
    seen: list[Any] = []

    async def watch(effect: Effect[Any], do: Callable[[], Awaitable[Any]]) -> Any:
        seen.append(effect.request())
        seen.append(effect.dump(outcome := await do()))
        return outcome

    async def answer(effect: Effect[Any], do: Callable[[], Awaitable[Any]]) -> Any:
        return effect.load(seen[1])

    async def refuse(effect: Effect[Any], do: Callable[[], Awaitable[Any]]) -> Any:
        raise Refused

    with Dispatcher(watch):
        assert await answer_of(replay("Hello."), json_output=True) == "Hello."
    assert seen[0]["messages"][0]["content"] == "Hi."
    assert seen[0]["json_output"] is True
    with Dispatcher(answer):
        assert await answer_of(replay()) == "Hello."
    with Dispatcher(watch, refuse), pytest.raises(Refused):
        await answer_of(replay("Hello."))


async def test_begin_end_and_words_are_told_as_they_come_with_their_parents() -> None:
    told: list[Event] = []
    with Dispatcher() as dispatcher, speaking("ann"):
        dispatcher.listen(told.append)
        run = dispatcher.span(lambda span: RunBegan(span=span, task="t"), lambda span: RunEnded(span=span))
        with run as number:
            pieces: list[str] = []

            async def take(piece: str) -> None:
                pieces.append(piece)
                assert isinstance(told[-1], Words)

            answer = await wrap_client(replay("Hello there.")).ask(ASKED, emit=take, message_id="1")
    assert "".join(pieces) == "Hello there."
    began, *words, ended = told[1:-1]
    assert isinstance(began, ModelCallBegan)
    assert isinstance(ended, ModelCallEnded)
    assert (began.parent, began.agent, ended.span) == (number, "ann", began.span)
    assert ended.parent == began.parent
    assert ended.usage == answer.usage
    assert {word.parent for word in words} == {began.span}
    assert "".join(word.text for word in words if isinstance(word, Words)) == "Hello there."


async def test_a_component_passes_the_dispatcher_that_it_was_made_within() -> None:
    told: list[Event] = []
    with Dispatcher() as dispatcher:
        dispatcher.listen(told.append)
        client = wrap_client(replay("Hello."))
        # a task that was started before any dispatcher has a context without one
        await asyncio.get_running_loop().create_task(client.create(ASKED), context=_EMPTY)
    assert [type(event) for event in told] == [ModelCallBegan, ModelCallEnded]


async def test_agents_of_autogen_are_known_by_name_and_what_they_raise_as_it_was() -> None:
    told: list[Event] = []

    class Failing(ReplayChatCompletionClient):
        async def create(self, *_arguments: Any, **_options: Any) -> Any:
            raise Refused("by the server")

    clients = [wrap_client(replay("Hello.")), wrap_client(Failing([]))]
    agents = [AssistantAgent(name, client) for name, client in zip(["ann", "bob"], clients, strict=True)]
    team = RoundRobinGroupChat([*agents], termination_condition=MaxMessageTermination(9))
    with Dispatcher() as dispatcher:
        dispatcher.listen(told.append)
        with pytest.raises(RuntimeError) as caught:
            await team.run(task="Talk.")
        assert isinstance(dispatcher.original_of(caught.value), Refused)
        assert dispatcher.original_of(RuntimeError("another")).args == ("another",)
    ends = [event for event in told if isinstance(event, ModelCallEnded)]
    assert [event.agent for event in ends] == ["ann", "bob"]
    assert ends[0].usage != RequestUsage(0, 0)
    assert ends[1].error == "Refused: by the server"


async def test_a_listener_that_fails_is_dropped_and_told_of(caplog: pytest.LogCaptureFixture) -> None:
    told: list[Event] = []

    def fail(event: Event) -> None:
        raise ValueError("no room")

    with Dispatcher() as dispatcher:
        dispatcher.listen(fail)
        dispatcher.listen(told.append)
        assert await answer_of(replay("Hello.")) == "Hello."
    assert [type(event) for event in told] == [ListenerFailed, ModelCallBegan, ModelCallEnded]
    assert "no room" in caplog.text


async def test_an_essential_listener_that_fails_stops_the_run_before_the_next_effect() -> None:
    def fail(event: Event) -> None:
        if isinstance(event, ModelCallEnded):
            raise BrokenPipeError("nobody reads")

    client = replay("First.", "Second.")
    with Dispatcher() as dispatcher:
        dispatcher.listen(fail, essential=True)
        assert await answer_of(client) == "First."
        with pytest.raises(BrokenPipeError):
            await answer_of(client)
    assert len(client.create_calls) == 1


async def _context_without_a_dispatcher() -> Any:
    import contextvars

    return contextvars.copy_context()


_EMPTY = asyncio.run(_context_without_a_dispatcher())
