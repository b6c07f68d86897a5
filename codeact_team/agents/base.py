"""What the agents here have in common: a stream that is the whole turn, and a conversation they remember."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any

from autogen_agentchat.agents import BaseChatAgent
from autogen_agentchat.base import Response
from autogen_agentchat.messages import BaseChatMessage, TextMessage
from autogen_core import CancellationToken
from autogen_core.model_context import ChatCompletionContext, UnboundedChatCompletionContext


class RememberingAgent(BaseChatAgent):
    """An agent that remembers its conversation in a model context. Subclasses define ``on_messages_stream``.

    Args:
        name: Name of the agent.
        description: What it does.
        model_context: What the model remembers. Default: everything.
    """

    def __init__(self, name: str, description: str, model_context: ChatCompletionContext | None) -> None:
        super().__init__(name=name, description=description)
        self._model_context = model_context or UnboundedChatCompletionContext()

    @property
    def produced_message_types(self) -> Sequence[type[BaseChatMessage]]:
        return (TextMessage,)

    @property
    def model_context(self) -> ChatCompletionContext:
        """What the model remembers."""
        return self._model_context

    async def on_messages(
        self, messages: Sequence[BaseChatMessage], cancellation_token: CancellationToken
    ) -> Response:
        async with aclosing(self.on_messages_stream(messages, cancellation_token)) as items:
            async for item in items:
                if isinstance(item, Response):
                    return item
        raise AssertionError("the stream ends with a response")

    async def on_reset(self, cancellation_token: CancellationToken) -> None:
        """Forget the conversation."""
        await self._model_context.clear()

    async def save_state(self) -> Mapping[str, Any]:
        """The conversation."""
        return {
            "type": f"{type(self).__name__}State",
            "model_context": await self._model_context.save_state(),
        }

    async def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on with a saved conversation."""
        if "model_context" in state:
            await self._model_context.load_state(state["model_context"])
