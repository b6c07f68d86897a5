from __future__ import annotations

import asyncio

import pytest
from autogen_core.models import CreateResult, LLMMessage, UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient
from openai import InternalServerError
from support.openai_server import (
    Asked,
    ScriptedServer,
    Text,
)

QUESTION: list[LLMMessage] = [UserMessage(content="Hello?", source="user")]


async def stream(client: OpenAIChatCompletionClient) -> tuple[list[str], CreateResult]:
    pieces: list[str] = []
    async for item in client.create_stream(QUESTION, include_usage=True):
        if isinstance(item, CreateResult):
            return pieces, item
        pieces.append(item)
    raise AssertionError("a stream ends with its result")


async def test_a_request_beyond_the_script_fails_the_test():
    async def use() -> None:
        async with ScriptedServer([]) as server:
            with pytest.raises(InternalServerError, match="no reply is scripted for request 1"):
                await server.client().create(QUESTION)

    with pytest.raises(AssertionError, match="1 requests more than scripted"):
        await use()


async def test_a_reply_waits_for_the_request_that_has_its_words():
    async with ScriptedServer([Asked("Good-bye", Text("So long.")), Text("Hello.")]) as server:
        client = server.client()
        assert (await client.create(QUESTION)).content == "Hello."
        assert (await client.create([UserMessage(content="Good-bye!", source="user")])).content == "So long."


async def test_it_serves_from_a_thread():
    with ScriptedServer.in_thread([Text("from afar"), Text("unused")]) as server:
        client = server.client()
        assert (await client.create(QUESTION)).content == "from afar"
        await client.close()
        assert server.unused == (Text("unused"),)


def test_a_thread_also_fails_the_test_for_a_request_beyond_the_script():
    async def ask(server: ScriptedServer) -> None:
        client = server.client()
        with pytest.raises(InternalServerError):
            await client.create(QUESTION)
        await client.close()

    with (
        pytest.raises(AssertionError, match="1 requests more than scripted"),
        ScriptedServer.in_thread([]) as server,
    ):
        asyncio.run(ask(server))
