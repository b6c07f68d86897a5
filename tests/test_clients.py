"""Model clients, and servers, that do not answer as they promise."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from autogen_core.models import CreateResult, RequestUsage, UserMessage
from autogen_ext.models.replay import ReplayChatCompletionClient
from support.openai_server import Garbage, ScriptedServer, Text

from codeact_team.errors import ModelError
from codeact_team.journal.result import is_transient
from codeact_team.models.clients import WrappedClient, wrap_client
from codeact_team.models.verdicts import decide_retry

ASKED = [UserMessage(content="Hi.", source="user")]
NUMBER: Any = CreateResult.model_construct(
    content=5, finish_reason="stop", usage=RequestUsage(1, 1), cached=False, thought=None
)


class Broken(ReplayChatCompletionClient):
    """Returns whatever it is given."""

    def __init__(self, result: Any) -> None:
        super().__init__([])
        self._result = result

    async def create(self, *_arguments: Any, **_options: Any) -> Any:
        return self._result

    async def create_stream(self, *_arguments: Any, **_options: Any) -> AsyncGenerator[Any, None]:
        yield "a piece"
        if self._result != "a piece":
            yield self._result


async def finish(client: Any, *, stream: bool) -> None:
    async def emit(_: str) -> None: ...

    await wrap_client(client).ask(ASKED, emit=emit if stream else None)


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (None, "the model client Broken returned NoneType instead of a CreateResult"),
        (NUMBER, "the model client Broken returned CreateResult with content of type int instead"),
        ("a piece", "the model client Broken returned str instead of a CreateResult"),
    ],
)
async def test_a_client_that_returns_something_else_is_named_in_one_sentence(result: Any, said: str) -> None:
    for stream in (False, True):
        with pytest.raises(ModelError, match=said):
            await finish(Broken(result), stream=stream)
    with pytest.raises(ModelError, match=said):
        await decide_retry(Broken(result), ASKED)


MESSAGE = (
    b'{"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": %s}}]}'
)


# AutoGen's client warns of what it then stumbles over
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "reply",
    [
        Garbage(),
        Garbage(MESSAGE % b"5", "application/json"),
        Garbage(MESSAGE % b'{"a": 1}', "application/json"),
        Garbage(b'{"choices": []}', "application/json"),
        Garbage(b"null", "application/json"),
    ],
)
async def test_a_server_that_answers_something_else_is_told_in_one_sentence(reply: Garbage) -> None:
    async with ScriptedServer([reply, reply]) as server:
        with pytest.raises(ModelError, match="is not a chat completion: check `base_url`"):
            await finish(server.client(), stream=False)
        with pytest.raises(ModelError, match="is not a chat completion: check `base_url`"):
            await decide_retry(server.client(), ASKED)


def stream(*deltas: object, reason: str | None = None, ends: str = "data: [DONE]\n\n") -> Garbage:
    """A stream of these pieces of an answer, as a server sends it."""
    head = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "scripted-model"}
    reasons = [None] * (len(deltas) - 1) + [reason]
    choices = [
        {"index": 0, "delta": {"content": delta}, "finish_reason": each}
        for delta, each in zip(deltas, reasons, strict=False)
    ]
    chunks = [f"data: {json.dumps({**head, 'choices': [choice]})}\n\n" for choice in choices]
    return Garbage("".join([*chunks, ends]).encode(), "text/event-stream")


async def answer(client: WrappedClient) -> CreateResult:
    async def emit(_: str) -> None: ...

    return await client.ask(ASKED, emit=emit)


async def test_an_answer_that_ends_without_a_reason_is_cut_off() -> None:
    async with ScriptedServer([Text("Hi."), stream("The answer is 4, becau")]) as server:
        client = wrap_client(server.client())
        await answer(client)
        with pytest.raises(ModelError, match=r"has cut its answer off: .*--concurrency 1") as caught:
            await answer(client)
        assert is_transient(caught.value)


async def test_the_first_answer_without_a_reason_is_asked_for_again() -> None:
    async with ScriptedServer([stream("The answer is 4, becau"), Text("The answer is 4.")]) as server:
        assert (await answer(wrap_client(server.client()))).content == "The answer is 4."


async def test_a_server_that_never_gives_a_reason_is_believed() -> None:
    async with ScriptedServer([stream("One."), stream("One."), stream("Two.")]) as server:
        client = wrap_client(server.client())
        assert [(await answer(client)).content for _ in range(2)] == ["One.", "Two."]


async def test_a_stream_of_nothing_is_no_matter_of_the_address() -> None:
    # as pings alone, by which llama-cpp-python answers what is longer than its context
    async with ScriptedServer([stream(ends=": ping\n\n: ping\n\n")]) as server:
        with pytest.raises(ModelError, match="has sent an empty answer") as caught:
            await answer(wrap_client(server.client()))
    assert is_transient(caught.value)


PARTS: list[object] = [
    {"type": "thinking", "thinking": [{"type": "text", "text": "Six sevens."}]},
    {"type": "text", "text": "It is 42."},
]


@pytest.mark.parametrize("streamed", [True, False])
async def test_words_in_parts_are_words(streamed: bool) -> None:
    whole = {
        "id": "1",
        "object": "chat.completion",
        "created": 1,
        "model": "scripted-model",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": PARTS}, "finish_reason": "stop"}
        ],
    }
    reply = (
        stream(PARTS, reason="stop") if streamed else Garbage(json.dumps(whole).encode(), "application/json")
    )
    async with ScriptedServer([reply]) as server:
        client = wrap_client(server.client())
        result = await answer(client) if streamed else await client.ask(ASKED)
    assert (result.content, result.thought) == ("It is 42.", "Six sevens.")
