"""Calls to a chat model, and what they cost."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from autogen_agentchat.messages import ModelClientStreamingChunkEvent
from autogen_agentchat.utils import remove_images
from autogen_core import CancellationToken
from autogen_core.models import ChatCompletionClient, CreateResult, LLMMessage, RequestUsage


class UsageTotal:
    """Adds up the tokens of several calls."""

    def __init__(self) -> None:
        self._prompt = self._completion = 0

    def add(self, usage: RequestUsage) -> None:
        """Count one call."""
        self._prompt += usage.prompt_tokens
        self._completion += usage.completion_tokens

    @property
    def total(self) -> RequestUsage:
        """All calls counted so far."""
        return RequestUsage(prompt_tokens=self._prompt, completion_tokens=self._completion)


async def complete(
    client: ChatCompletionClient,
    messages: Sequence[LLMMessage],
    *,
    source: str,
    stream: bool,
    cancellation_token: CancellationToken,
) -> AsyncGenerator[ModelClientStreamingChunkEvent | CreateResult, None]:
    """Let the model go on with a conversation.

    Args:
        client: The model.
        messages: The conversation; images are left out where the model cannot see.
        source: In whose name chunks are yielded.
        stream: Whether to yield chunks.
        cancellation_token: Stops the call.

    Yields:
        Chunks, if asked for, then the model's result.
    """
    seen = list(messages) if client.model_info["vision"] else remove_images(list(messages))
    if not stream:
        yield await client.create(seen, cancellation_token=cancellation_token)
        return
    async for item in client.create_stream(seen, cancellation_token=cancellation_token):
        if isinstance(item, str):
            yield ModelClientStreamingChunkEvent(content=item, source=source)
        else:
            yield item


def text_of_result(result: CreateResult) -> str:
    """The text of what a model answered; it was offered no tools, so a call of one is text as well."""
    if isinstance(result.content, str):
        return result.content
    return "\n".join(f"{call.name}({call.arguments})" for call in result.content)
