"""An agent of AutoGen's kind that is neither AutoGen's nor ours."""

from __future__ import annotations

from collections.abc import Sequence

from autogen_agentchat.agents import BaseChatAgent
from autogen_agentchat.base import Response
from autogen_agentchat.messages import BaseChatMessage, TextMessage
from autogen_core import CancellationToken


class TextAgent(BaseChatAgent):
    """Says text. A subclass has its turn, if it gets one."""

    @property
    def produced_message_types(self) -> Sequence[type[BaseChatMessage]]:
        return (TextMessage,)

    async def on_messages(
        self, messages: Sequence[BaseChatMessage], cancellation_token: CancellationToken
    ) -> Response:
        raise NotImplementedError

    async def on_reset(self, cancellation_token: CancellationToken) -> None:
        pass
