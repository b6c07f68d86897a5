"""A listener that keeps what it is told, and a short way to run the shipped team against a scripted server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from autogen_agentchat.messages import BaseAgentEvent, BaseChatMessage

from codeact_team.core.effects import Event
from codeact_team.core.events import MessageSent
from codeact_team.journal.result import RunResult
from codeact_team.runs.chat import TeamChat

CONFINED = (
    "config.participants.executor.config.code_executor="
    "{provider: codeact_team.ConfinedCommandLineCodeExecutor, config: {confinement: best_effort, pids: 300}}"
)
NO_HTTP_RETRIES = "config.participants.coder.config.model_client.config.max_retries=0"


class Recording:
    """A listener.

    Args:
        hear: Is called with each message.
    """

    def __init__(self, hear: Callable[[Any], None] | None = None) -> None:
        self.events: list[Event] = []
        self.messages: list[BaseAgentEvent | BaseChatMessage] = []
        self._hear = hear

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, MessageSent):
            self.messages.append(event.message)
            if self._hear is not None:
                self._hear(event.message)

    @property
    def results(self) -> list[RunResult]:
        return [event for event in self.events if isinstance(event, RunResult)]


def runner(config: str | Path, recording: Recording, **options: Any) -> TeamChat:
    """Runs a config, and tells ``recording`` of it, which must not fail."""
    made = TeamChat(config, **options)
    made.dispatcher.listen(recording, essential=True)
    return made


def use_model_at(base_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_MODEL", "scripted-model")
    monkeypatch.setenv("LOCAL_BASE_URL", base_url)


async def run_local(recording: Recording, *overrides: str, seconds: float | None = None) -> RunResult:
    """Run the shipped team for local models; its code runs confined."""
    every = [CONFINED, NO_HTTP_RETRIES, *overrides]
    return await runner("local-model", recording, overrides=every).run_once("A task", seconds=seconds)
