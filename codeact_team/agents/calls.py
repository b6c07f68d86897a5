"""Calls to a chat model, and what they cost."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from autogen_agentchat.messages import ModelClientStreamingChunkEvent
from autogen_agentchat.utils import remove_images
from autogen_core import CancellationToken
from autogen_core.models import ChatCompletionClient, CreateResult, LLMMessage, RequestUsage
from autogen_core.tools import Tool

from codeact_team.observations import encodable

NO_ANSWER = "(The model gave no answer, or declined to.)"
"""In a chat, and in a context, some models take no empty message."""


class UsageTotal:
    """Adds up the tokens of several calls."""

    def __init__(self) -> None:
        self._calls: list[RequestUsage] = []

    def add(self, usage: RequestUsage) -> None:
        """Count one call."""
        self._calls.append(usage)

    @property
    def total(self) -> RequestUsage | None:
        """All calls counted so far; ``None`` where there was none."""
        if not self._calls:
            return None
        return RequestUsage(
            prompt_tokens=sum(usage.prompt_tokens for usage in self._calls),
            completion_tokens=sum(usage.completion_tokens for usage in self._calls),
        )


def visible_to(client: ChatCompletionClient, messages: Sequence[LLMMessage]) -> list[LLMMessage]:
    """The messages, without images where the model cannot see."""
    return list(messages) if client.model_info["vision"] else remove_images(list(messages))


async def complete(
    client: ChatCompletionClient,
    messages: Sequence[LLMMessage],
    *,
    source: str,
    stream: bool,
    cancellation_token: CancellationToken,
    tools: Sequence[Tool] = (),
) -> AsyncGenerator[ModelClientStreamingChunkEvent | CreateResult, None]:
    """Let the model go on with a conversation.

    Args:
        client: The model.
        messages: The conversation, as the model can read it.
        source: In whose name chunks are yielded.
        stream: Whether to yield chunks.
        cancellation_token: Stops the call.
        tools: What the model may call instead of answering.

    Yields:
        Chunks, if asked for, then the model's result.
    """
    if not stream:
        yield await client.create(messages, tools=tools, cancellation_token=cancellation_token)
        return
    item: str | CreateResult = ""
    # AutoGen's OpenAI clients report no tokens of a stream unless asked to, and others cannot be asked
    asks = "include_usage" in inspect.signature(client.create_stream).parameters
    options: dict[str, Any] = {"include_usage": True} if asks else {}
    answer = client.create_stream(messages, tools=tools, cancellation_token=cancellation_token, **options)
    async with aclosing(answer) as items:
        async for item in items:
            if isinstance(item, str):
                yield ModelClientStreamingChunkEvent(content=item, source=source)
            else:
                yield item
    assert isinstance(item, CreateResult), "a model's stream ends with its result"


def text_of_result(result: CreateResult) -> str:
    """The text of what a model answered; a call of a tool that it was not offered is text as well."""
    if isinstance(result.content, str):
        return encodable(result.content) if result.content.strip() else NO_ANSWER
    return "\n".join(f"{call.name}({call.arguments})" for call in result.content)
