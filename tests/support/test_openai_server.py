from __future__ import annotations

import asyncio
import json

import pytest
from autogen_core import CancellationToken
from autogen_core.models import CreateResult, LLMMessage, RequestUsage, UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient
from openai import APIConnectionError, AuthenticationError, InternalServerError, RateLimitError
from support.openai_server import (
    AnyReply,
    Cut,
    Filtered,
    Garbage,
    HttpError,
    Json,
    Refusal,
    ScriptedServer,
    Slow,
    Text,
    ToolCalls,
    Truncated,
)

QUESTION: list[LLMMessage] = [UserMessage(content="Hello?", source="user")]


async def stream(client: OpenAIChatCompletionClient) -> tuple[list[str], CreateResult]:
    pieces: list[str] = []
    async for item in client.create_stream(QUESTION, include_usage=True):
        if isinstance(item, CreateResult):
            return pieces, item
        pieces.append(item)
    raise AssertionError("a stream ends with its result")


async def test_replies_come_in_order_and_requests_are_kept():
    async with ScriptedServer(
        [Text("one"), Json({"two": 2}, prompt_tokens=7, completion_tokens=3)]
    ) as server:
        client = server.client()
        first = await client.create(QUESTION)
        second = await client.create(QUESTION, json_output=True)
        assert (first.content, first.usage) == ("one", RequestUsage(100, 10))
        assert isinstance(second.content, str)
        assert (json.loads(second.content), second.usage) == ({"two": 2}, RequestUsage(7, 3))
    assert [request["messages"][0]["content"] for request in server.requests] == ["Hello?", "Hello?"]
    assert server.requests[1]["response_format"] == {"type": "json_object"}
    assert not server.unused


async def test_a_streamed_text_comes_in_pieces_with_its_reasoning_and_usage():
    async with ScriptedServer([Text("Hello world", reasoning="Hm.", prompt_tokens=4)]) as server:
        pieces, result = await stream(server.client())
    assert pieces == ["<think>Hm.", "</think>", "Hello", " worl", "d"]
    assert (result.content, result.thought, result.usage) == ("Hello world", "Hm.", RequestUsage(4, 10))


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("reply", "finish_reason", "content"),
    [(Truncated("Hel"), "length", "Hel"), (Filtered("H"), "content_filter", "H"), (Text(""), "stop", "")],
)
async def test_finish_reasons_arrive(reply: AnyReply, finish_reason: str, content: str, streamed: bool):
    async with ScriptedServer([reply]) as server:
        client = server.client()
        if not streamed:
            result = await client.create(QUESTION)
        elif content:
            _, result = await stream(client)
        else:
            with pytest.warns(UserWarning, match="empty result"):
                _, result = await stream(client)
    assert (result.finish_reason, result.content) == (finish_reason, content)


@pytest.mark.parametrize("streamed", [False, True])
async def test_tool_calls_arrive(streamed: bool):
    async with ScriptedServer([ToolCalls([("add", {"a": 1}), ("stop", {})])]) as server:
        client = server.client()
        result = (await stream(client))[1] if streamed else await client.create(QUESTION)
    assert not isinstance(result.content, str)
    assert [(call.name, call.arguments) for call in result.content] == [("add", '{"a": 1}'), ("stop", "{}")]


async def test_a_refusal_has_no_content():
    async with ScriptedServer([Refusal()]) as server:
        result = await server.client().create(QUESTION)
    assert result.content == ""


async def test_http_errors_arrive_as_the_clients_own():
    replies = [HttpError(401, "who are you?"), HttpError(429, headers={"retry-after": "7"}), HttpError(500)]
    async with ScriptedServer(replies) as server:
        client = server.client()
        with pytest.raises(AuthenticationError, match=r"who are you\?"):
            await client.create(QUESTION)
        with pytest.raises(RateLimitError) as limited:
            await client.create(QUESTION)
        with pytest.raises(InternalServerError):
            await client.create(QUESTION)
    assert limited.value.response.headers["retry-after"] == "7"


async def test_a_client_that_may_retry_gets_the_next_reply():
    async with ScriptedServer([HttpError(429, headers={"retry-after-ms": "1"}), Text("at last")]) as server:
        result = await server.client(max_retries=1).create(QUESTION)
    assert (result.content, len(server.requests)) == ("at last", 2)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("reply", [Cut(), Cut("the start of")])
async def test_a_cut_connection_is_a_connection_error(reply: Cut, streamed: bool):
    async with ScriptedServer([reply]) as server:
        client = server.client()
        with pytest.raises(APIConnectionError):
            await (stream(client) if streamed else client.create(QUESTION))


async def test_a_stream_cut_midway_delivers_its_start():
    async with ScriptedServer([Cut("the start of")]) as server:
        pieces = server.client().create_stream(QUESTION)
        sent = [await anext(pieces) for _ in ("the s", "tart ", "of")]
        with pytest.raises(APIConnectionError):
            await anext(pieces)
    assert sent == ["the s", "tart ", "of"]


async def test_garbage_is_no_completion():
    async with ScriptedServer([Garbage(b"{nope", "application/json")]) as server:
        with pytest.raises(json.JSONDecodeError):
            await server.client().create(QUESTION)


async def test_a_slow_reply_waits_and_is_cancelled_with_its_client():
    async with ScriptedServer([Slow(0.05, Text("late")), Slow(60, Text("never"))]) as server:
        client = server.client()
        assert (await client.create(QUESTION)).content == "late"
        token = CancellationToken()
        call = asyncio.create_task(client.create(QUESTION, cancellation_token=token))
        await server.wait_until(lambda server: len(server.requests) == 2)
        token.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await server.wait_until(lambda server: server.disconnects == 1)


async def test_a_request_beyond_the_script_fails_the_test():
    async def use() -> None:
        async with ScriptedServer([]) as server:
            with pytest.raises(InternalServerError, match="no reply is scripted for request 1"):
                await server.client().create(QUESTION)

    with pytest.raises(AssertionError, match="1 requests more than scripted"):
        await use()


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
