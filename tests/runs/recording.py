"""A sink that keeps what it is told, and a short way to run the shipped team against a scripted server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from autogen_agentchat.messages import BaseAgentEvent, BaseChatMessage

from codeact_team.runs import RunResult, run_team

CONFINED = (
    "config.participants.executor.config.code_executor="
    "{provider: codeact_team.ConfinedCommandLineCodeExecutor, config: {confinement: best_effort}}"
)
NO_HTTP_RETRIES = "config.participants.coder.config.model_client.config.max_retries=0"


class Recording:
    """An event sink.

    Args:
        hear: Is called with each message.
    """

    def __init__(self, hear: Callable[[Any], None] | None = None) -> None:
        self.told: list[str] = []
        self.messages: list[BaseAgentEvent | BaseChatMessage] = []
        self.loosenings: list[str] = []
        self.results: list[RunResult] = []
        self._hear = hear

    def opened(self, loosenings: Sequence[str]) -> None:
        self.told.append("opened")
        self.loosenings += loosenings

    def message(self, message: BaseAgentEvent | BaseChatMessage) -> None:
        self.told.append("message")
        self.messages.append(message)
        if self._hear is not None:
            self._hear(message)

    def ended(self, result: RunResult) -> None:
        self.told.append("ended")
        self.results.append(result)


def use_model_at(base_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_MODEL", "scripted-model")
    monkeypatch.setenv("LOCAL_BASE_URL", base_url)


async def run_local(sink: Recording, *overrides: str) -> RunResult:
    """Run the shipped team for local models; its code runs confined."""
    return await run_team("local-model", "A task", sink, overrides=[CONFINED, NO_HTTP_RETRIES, *overrides])
