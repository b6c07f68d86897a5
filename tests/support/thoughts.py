"""A message as agents send it, for tests that need any."""

from __future__ import annotations

from autogen_agentchat.messages import ThoughtEvent

from codeact_team.core.events import MessageSent


def thought(text: str) -> MessageSent:
    return MessageSent(message=ThoughtEvent(content=text, source="coder"))
