"""The team: a coder, an executor and a reviewer who take turns until the work is accepted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from autogen_agentchat.agents import ApprovalFuncType, AssistantAgent
from autogen_agentchat.base import TerminatedException, TerminationCondition
from autogen_agentchat.conditions import MaxMessageTermination, TokenUsageTermination
from autogen_agentchat.messages import BaseAgentEvent, BaseChatMessage, StopMessage
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import Component
from autogen_core.code_executor import CodeExecutor
from autogen_core.models import ChatCompletionClient
from pydantic import BaseModel, ConfigDict, Field
from ruamel.yaml import YAML

from codeact_team.agents.code_executor import CodeExecutorAgent
from codeact_team.agents.reflection_agent import ReflectionAgent
from codeact_team.core.settings import suggests, takes_settings
from codeact_team.core.shipped import shipped_configs
from codeact_team.errors import SettingError
from codeact_team.models.verdicts import Verdict

_MOST_UNREADABLE = 2


class ReflectionTerminationConfig(BaseModel):  # noqa: D101 - editors show that of the class with these settings
    model_config = ConfigDict(extra="forbid")

    source: str | None = Field(default=None, kw_only=False)
    """The reviewer whose verdict counts. Default: any."""


class ReflectionTermination(TerminationCondition, Component[ReflectionTerminationConfig]):
    """Ends a team when a reflection accepts the work. Reads verdicts, not words: no output can end the team.

    It also ends a team whose reviewer's verdict could not be read twice in a row: no agent can learn from these.
    """

    component_config_schema = ReflectionTerminationConfig
    component_provider_override = "codeact_team.ReflectionTermination"

    @takes_settings(ReflectionTerminationConfig)
    def __init__(self, config: ReflectionTerminationConfig) -> None:  # noqa: D417 - the settings are its parameters
        """Ends a team when a reflection accepts the work. Reads verdicts, not words: no output can end the team.

        Args:
            source: The reviewer whose verdict counts. Default: any.
        """
        self._config = config
        self._terminated = False
        self._unreadable = 0
        """The number of verdicts in a row that could not be read."""

    @property
    def terminated(self) -> bool:
        return self._terminated

    async def __call__(self, messages: Sequence[BaseAgentEvent | BaseChatMessage]) -> StopMessage | None:
        if self._terminated:
            raise TerminatedException("Termination condition has already been reached")
        source = self._config.source
        for message in messages:
            if not isinstance(message, BaseChatMessage) or source not in (None, message.source):
                continue
            verdict = Verdict.from_metadata(message.metadata)
            if verdict is None:
                continue
            self._unreadable = self._unreadable + 1 if verdict.unreadable is not None else 0
            if verdict.accepted:
                return self._stop(f"{message.source} accepted the work")
            if self._unreadable >= _MOST_UNREADABLE:
                return self._stop(
                    f"{_MOST_UNREADABLE} verdicts of {message.source} in a row could not be read"
                )
        return None

    def _stop(self, reason: str) -> StopMessage:
        self._terminated = True
        return StopMessage(content=reason, source="ReflectionTermination")

    async def reset(self) -> None:
        self._terminated = False
        self._unreadable = 0

    def _to_config(self) -> ReflectionTerminationConfig:
        return self._config

    @classmethod
    def _from_config(cls, config: ReflectionTerminationConfig) -> Self:
        return cls(**dict(config))


@suggests
def round_robin_team(
    model_client: ChatCompletionClient,
    code_executor: CodeExecutor,
    *,
    max_retries_on_error: int = 3,
    max_messages: int = 25,
    max_tokens: int | None = None,
    approval_func: ApprovalFuncType | str | None = None,
) -> RoundRobinGroupChat:
    """A coder, an executor and a reviewer, who take turns until the reviewer accepts or a limit is reached.

    Args:
        model_client: The model of all three.
        code_executor: Where and how code runs.
        max_retries_on_error: How often the executor may repair code that failed, in each of its turns.
        max_messages: Ends the team after so many messages, the task included.
        max_tokens: Ends the team after so many tokens, where given.
        approval_func: Asked before each execution.

    Returns:
        An AutoGen team. Its last message is the answer if the reviewer accepts. The executor starts on first use, and
        stops at the end of the scope it belongs to, or by its ``stop``.

    Raises:
        ValueError: If a limit leaves no room for any work.
    """
    if max_messages < 2:
        raise SettingError(
            f"max_messages is {max_messages}: the task is the first message, so it must be 2 or more"
        )
    if max_tokens is not None and max_tokens < 1:
        raise SettingError(f"max_tokens is {max_tokens}: it must be 1 or more")
    team: Any = YAML(typ="safe", pure=True).load(shipped_configs()["team"])  # pyright: ignore[reportUnknownMemberType]
    executor = CodeExecutorAgent(
        "executor",
        code_executor,
        model_client=model_client,
        max_retries_on_error=max_retries_on_error,
        sources=["coder"],
        approval_func=approval_func,
        code_from_messages=True,
        reflect=False,
        stream_output=True,
    )
    coder = AssistantAgent(
        "coder",
        model_client,
        description="A programmer who writes complete programs.",
        # of the shipped config, where people read and change it
        system_message=team["config"]["participants"][0]["config"]["system_message"],
    )
    reviewer = ReflectionAgent("reflection", model_client)
    ending = ReflectionTermination("reflection") | MaxMessageTermination(max_messages)
    if max_tokens is not None:
        ending = ending | TokenUsageTermination(max_total_token=max_tokens)
    return RoundRobinGroupChat([coder, executor, reviewer], termination_condition=ending)
