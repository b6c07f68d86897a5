"""A scripted OpenAI-compatible server on a real socket, for the real client.

    async with ScriptedServer([Text("Hello."), HttpError(429)]) as server:
        client = server.client()

It answers ``POST /v1/chat/completions`` with the replies in their order, or with what a function says to the request, and
keeps every request it received. A request beyond the last reply gets HTTP 500, and fails the test when the server is left.
With a ``Dialect`` it answers as another server does.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from aiohttp import web
from autogen_core.models import ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient
from pydantic import BaseModel

Body = dict[str, Any]


@dataclass(frozen=True)
class Reply:
    """What every answer of the model has: the tokens it says it used; ``None`` of a server that says nothing of them."""

    prompt_tokens: int | None = field(default=100, kw_only=True)
    completion_tokens: int = field(default=10, kw_only=True)


@dataclass(frozen=True)
class Text(Reply):
    """A text answer; in pieces of ``piece`` characters where the request asks for a stream."""

    text: str
    reasoning: str = ""
    finish_reason: str = "stop"
    piece: int = 5


@dataclass(frozen=True)
class Json(Reply):
    """A text answer that is the JSON of ``value``."""

    value: BaseModel | Mapping[str, Any]


@dataclass(frozen=True)
class Refusal(Reply):
    """The model declines, in the field that OpenAI has for it; there is no content."""

    refusal: str = "I cannot help with that."


@dataclass(frozen=True)
class Truncated(Reply):
    """A text answer that hit the token limit."""

    text: str


@dataclass(frozen=True)
class Filtered(Reply):
    """An answer that the provider's content filter stopped."""

    text: str = ""


@dataclass(frozen=True)
class ToolCalls(Reply):
    """Calls of tools: pairs of a name and its arguments."""

    calls: Sequence[tuple[str, Mapping[str, Any]]]


@dataclass(frozen=True)
class HttpError:
    """An HTTP status that is no success, with an error body like OpenAI's unless ``body`` is given."""

    status: int
    message: str = "scripted error"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes | None = None


@dataclass(frozen=True)
class Cut:
    """The connection breaks: before the first byte, or after ``text`` was sent as the start of the answer."""

    text: str = ""


@dataclass(frozen=True)
class Garbage:
    """HTTP 200 with a body that is no chat completion."""

    body: bytes = b"<html>Welcome to the proxy</html>"
    content_type: str = "text/html"


@dataclass(frozen=True)
class Slow:
    """Another reply after ``seconds``; cancelled when the client goes away, which ``disconnects`` counts."""

    seconds: float
    then: AnyReply


@dataclass(frozen=True)
class Asked:
    """Another reply, to the next request that has ``words`` in a message; requests without them get those that follow."""

    words: str
    then: AnyReply


AnyReply = Text | Json | Refusal | Truncated | Filtered | ToolCalls | HttpError | Cut | Garbage | Slow | Asked


class Dialect:
    """How a server speaks OpenAI's protocol: as OpenAI's does, but for what a subclass changes."""

    def refusal(self, body: Body) -> HttpError | None:
        """Its answer to a request that it does not take."""
        return None

    def completion(self, body: Body, whole: Body) -> Body:
        """Its answer to a request for a whole one."""
        return whole

    def chunks(self, body: Body, chunks: Iterator[Body]) -> Iterable[Body]:
        """Its answer to a request for a stream."""
        return chunks


class ScriptedServer:
    """Serves ``replies`` in order on 127.0.0.1, from ``async with``.

    Attributes:
        requests: The JSON bodies received, in order.
        disconnects: How many clients went away while a reply was under way.
        unscripted: How many requests came after the last reply.
        base_url: What to give a client.
    """

    def __init__(
        self, replies: Sequence[AnyReply] | Callable[[Body], AnyReply], dialect: Dialect | None = None
    ) -> None:
        self.requests: list[Body] = []
        self.disconnects = 0
        self.unscripted = 0
        self.base_url = ""
        self._reply = replies if callable(replies) else None
        self._replies = [] if callable(replies) else list(replies)
        self._dialect = dialect or Dialect()
        self._clients: list[OpenAIChatCompletionClient] = []
        self._runner: web.AppRunner | None = None

    @property
    def unused(self) -> Sequence[AnyReply]:
        """The replies that no request has asked for yet."""
        return tuple(self._replies)

    def client(self, **overrides: Any) -> OpenAIChatCompletionClient:
        """A real client of this server whose model can do everything and which does not retry.

        It is closed with the server; where the server runs in a thread, the caller closes it.
        """
        info = ModelInfo(
            vision=True,
            function_calling=True,
            json_output=True,
            family="unknown",
            structured_output=True,
            multiple_system_messages=True,
        )
        settings: dict[str, Any] = {
            "model": "scripted-model",
            "api_key": "scripted-key",
            "base_url": self.base_url,
            "model_info": info,
            "max_retries": 0,
        }
        client = OpenAIChatCompletionClient(**settings | overrides)
        self._clients.append(client)
        return client

    async def wait_until(self, reached: Callable[[Self], bool], *, seconds: float = 30.0) -> None:
        """Wait for a state, such as ``lambda server: server.disconnects == 1``.

        Raises:
            TimeoutError: If it is not reached in time.
        """
        async with asyncio.timeout(seconds):
            while not reached(self):  # noqa: ASYNC110 - any state, from any thread
                await asyncio.sleep(0.005)

    async def __aenter__(self) -> Self:
        self._runner = await self._listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self._clients:
            await client.close()
        assert self._runner is not None
        await self._runner.cleanup()
        if error is None:
            self._fail_if_unscripted()

    async def _listen(self) -> web.AppRunner:
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_post("/v1/chat/completions", self._complete)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.base_url = f"{site.name}/v1"
        return runner

    @classmethod
    @contextmanager
    def in_thread(cls, replies: Sequence[AnyReply] | Callable[[Body], AnyReply]) -> Generator[Self]:
        """Serve from a thread of its own, for clients in other processes."""
        server = cls(replies)
        listening = threading.Event()
        loop = asyncio.new_event_loop()
        left = asyncio.Event()

        async def serve() -> None:
            runner = await server._listen()
            listening.set()
            await left.wait()
            await runner.cleanup()

        def run() -> None:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(serve())

        thread = threading.Thread(target=run, name="scripted-server")
        thread.start()
        assert listening.wait(10), "the scripted server did not start"
        try:
            yield server
        finally:
            loop.call_soon_threadsafe(left.set)
            thread.join()
        server._fail_if_unscripted()

    def _fail_if_unscripted(self) -> None:
        assert not self.unscripted, (
            f"{self.unscripted} requests more than scripted; last: {self.requests[-1]}"
        )

    def _place_of_reply(self, body: Body) -> int | None:
        said = "\n".join(str(message.get("content")) for message in body["messages"])
        for place, reply in enumerate(self._replies):
            if not isinstance(reply, Asked) or reply.words in said:
                return place
        return None

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body: Body = await request.json()
        self.requests.append(body)
        if (refusal := self._dialect.refusal(body)) is not None:
            reply = refusal
        elif self._reply is not None:
            reply = self._reply(body)
        elif (place := self._place_of_reply(body)) is not None:
            reply = self._replies.pop(place)
        else:
            self.unscripted += 1
            reply = HttpError(500, f"no reply is scripted for request {len(self.requests)}")
        try:
            while isinstance(reply, Slow | Asked):
                if isinstance(reply, Slow):
                    await asyncio.sleep(reply.seconds)
                reply = reply.then
            return await _respond(request, body, reply, self._dialect)
        except asyncio.CancelledError:
            self.disconnects += 1
            raise


async def _respond(request: web.Request, body: Body, reply: AnyReply, dialect: Dialect) -> web.StreamResponse:
    match reply:
        case HttpError():
            error = {"error": {"message": reply.message, "type": "scripted", "param": None, "code": None}}
            data = json.dumps(error).encode() if reply.body is None else reply.body
            return web.Response(
                status=reply.status, body=data, headers=reply.headers, content_type="application/json"
            )
        case Garbage():
            return web.Response(body=reply.body, content_type=reply.content_type)
        case Cut():
            return await _cut(request, body, reply)
        case Slow() | Asked():
            raise AssertionError("what it wraps is taken out before")
        case _:
            if body.get("stream"):
                return await _stream(request, dialect.chunks(body, _chunks(body, reply)))
            return web.json_response(dialect.completion(body, _completion(body, reply)))


def _message(reply: Reply) -> tuple[Body, str]:
    """The assistant's message, and the finish reason."""
    match reply:
        case Text():
            thought = {"reasoning_content": reply.reasoning} if reply.reasoning else {}
            return {"content": reply.text, **thought}, reply.finish_reason
        case Json(value=BaseModel() as value):
            return {"content": value.model_dump_json()}, "stop"
        case Json():
            return {"content": json.dumps(reply.value)}, "stop"
        case Refusal():
            return {"content": None, "refusal": reply.refusal}, "stop"
        case Truncated():
            return {"content": reply.text}, "length"
        case Filtered():
            return {"content": reply.text}, "content_filter"
        case ToolCalls():
            calls = [
                {
                    "id": f"call_{number}",
                    "type": "function",
                    "function": {"name": name, "arguments": json.dumps(arguments)},
                }
                for number, (name, arguments) in enumerate(reply.calls)
            ]
            return {"content": None, "tool_calls": calls}, "tool_calls"
        case _:
            raise AssertionError(f"not an answer of a model: {reply!r}")


def _usage(reply: Reply) -> Body | None:
    if reply.prompt_tokens is None:
        return None
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
    }


def _completion(body: Body, reply: Reply) -> Body:
    message, finish_reason = _message(reply)
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason}
    head = {"id": "scripted", "object": "chat.completion", "created": 0, "model": body["model"]}
    return {**head, "choices": [choice], "usage": _usage(reply)}


def _deltas(reply: Reply) -> Iterator[tuple[Body, str | None]]:
    """The pieces of the message, each with the finish reason that comes with it."""
    message, finish_reason = _message(reply)
    piece = reply.piece if isinstance(reply, Text) else 5
    yield {"role": "assistant", "content": ""}, None
    for part in ("reasoning_content", "content", "refusal"):
        text = message.get(part) or ""
        for start in range(0, len(text), piece):
            yield {part: text[start : start + piece]}, None
    for index, call in enumerate(message.get("tool_calls", ())):
        yield {"tool_calls": [{"index": index, **call}]}, None
    yield {}, finish_reason


def _chunks(body: Body, reply: Reply) -> Iterator[Body]:
    head = {"id": "scripted", "object": "chat.completion.chunk", "created": 0, "model": body["model"]}
    for delta, finish_reason in _deltas(reply):
        yield {
            **head,
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}],
            "usage": None,
        }
    if body.get("stream_options", {}).get("include_usage") and reply.prompt_tokens is not None:
        yield {**head, "choices": [], "usage": _usage(reply)}


def _events(chunks: Iterable[Body]) -> Iterator[bytes]:
    for chunk in chunks:
        yield b"data: " + json.dumps(chunk).encode() + b"\n\n"
    yield b"data: [DONE]\n\n"


async def _stream(request: web.Request, chunks: Iterable[Body]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for event in _events(chunks):
        await response.write(event)
    await response.write_eof()
    return response


async def _cut(request: web.Request, body: Body, reply: Cut) -> web.StreamResponse:
    """Send the start of an answer, if any, then break the connection without ending the response."""
    response = web.StreamResponse()
    if reply.text:
        await response.prepare(request)
        if body.get("stream"):
            *start, _finish, _done = _events(_chunks(body, Text(reply.text)))
            data = b"".join(start)
        else:
            data = json.dumps(_completion(body, Text(reply.text))).encode()[:-1]
        await response.write(data)
    assert request.transport is not None
    request.transport.abort()
    return response
