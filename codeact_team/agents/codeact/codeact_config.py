"""Settings of the agent that acts by code, and which of them cannot go together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autogen_agentchat.base import Handoff
from autogen_core import ComponentModel
from autogen_core.code_executor import CodeExecutor
from pydantic import BaseModel, Field

from codeact_team.agents.agent_config import ExecutingConfig, ExecutingOptions, ExecutingSettings
from codeact_team.agents.codeact.budget import Limits
from codeact_team.agents.codeact.given_functions import Function, ImportPath
from codeact_team.agents.codeact.handoffs import HandoffConfig
from codeact_team.agents.codeact.instructions import CODEACT_SYSTEM_MESSAGE
from codeact_team.errors import SettingError
from codeact_team.executor_interface import SessionCodeExecutor


class CodeActAgentSettings(Limits, ExecutingSettings):
    """The plain settings of :class:`~codeact_team.CodeActAgent`."""

    description: str = "An agent that solves tasks by writing Python code and running it, step by step."
    """What the agent does, for whoever selects the next speaker."""
    system_message: str = CODEACT_SYSTEM_MESSAGE
    """The model's instructions, with `$functions` and `$tools` where these are to be described; empty for none. The
    sandbox is described at `$sandbox`, or at the end."""
    max_retries_on_error: int | None = Field(None, ge=0)
    """How many errors in a row the model may mend, deciding each time whether that is worth it. Default: an error is a
    result like others."""
    max_reflections: int = Field(0, ge=0)
    """How often a reflection on the answer may send the agent back to work. Default: there is no reflection."""

    attempts: int = Field(1, ge=1, le=32)
    """How many attempts at a task are made side by side, each in a branch of the session: with the variables and files as they
    are, a conversation and the limits of its own. The model then chooses the best answer, and the agent goes on with the
    variables, files and conversation of that attempt; the others are dropped, and cost what they cost. Until then only tools
    are called that `tool_limits.repeatable` names. One attempt is made where variables cannot be copied: while code holds
    files open for writing, sockets, threads or processes; that is told. A model at temperature 0 makes the same attempt so
    many times."""
    output_schema: dict[str, Any] | None = None
    """A JSON Schema that the answer has to fit: what the code calls `final_answer` with, or a reply that is nothing but
    JSON. The message of the answer then is that JSON. What does not fit is told to the model, which goes on within its
    limits; at the end of these nothing counts as an answer. Default: an answer is any text."""

    def check(self) -> None:
        """Refuse what cannot work together.

        Raises:
            SettingError: If there is something.
        """
        if self.max_reflections and self.max_steps == 1:
            raise SettingError(
                "max_reflections has no effect with max_steps 1: there is no step to go back to"
            )


class CodeActAgentConfig(CodeActAgentSettings, ExecutingConfig):
    """Settings of :class:`~codeact_team.CodeActAgent`."""

    model_client: ComponentModel
    """The model that writes code."""
    code_executor: ComponentModel
    """Where the code runs: a session executor, whose interpreter lives on."""
    functions: list[ImportPath] = Field(default_factory=list)
    """Functions given to the code: import paths, `module:function`, of what the image has."""
    handoffs: list[HandoffConfig] | None = None
    """Agents that the work can be handed to, in a Swarm: their names, or more about each."""
    model_context: ComponentModel | None = None
    """What the model remembers. Default: everything. The task, the functions and the latest result stay in view."""


class CodeActAgentOptions(ExecutingOptions, total=False):
    """Keyword arguments; see the fields of the same names in :class:`CodeActAgentConfig`."""

    functions: Sequence[Function]
    handoffs: Sequence[Handoff | str] | None
    description: str
    system_message: str
    max_steps: int
    max_seconds: float | None
    max_tokens: int | None
    max_retries_on_error: int | None
    max_reflections: int
    attempts: int
    output_schema: Mapping[str, Any] | type[BaseModel] | None


def check_executor(executor: CodeExecutor, *, attempts: int = 1) -> SessionCodeExecutor:
    """The executor, if its interpreter lives on, and can be copied where several attempts are made.

    Raises:
        SettingError: If it does not, or cannot.
    """
    if isinstance(executor, SessionCodeExecutor):
        if attempts > 1 and type(executor).fork is SessionCodeExecutor.fork:
            raise SettingError(
                f"attempts: {type(executor).__name__} has no branches, in which they could be made side by side; that needs "
                "DockerSessionCodeExecutor or ConfinedSessionCodeExecutor"
            )
        return executor
    raise SettingError(
        f"code_executor: {type(executor).__name__} forgets the variables of each block; CodeActAgent needs a session: "
        "DockerSessionCodeExecutor or ConfinedSessionCodeExecutor"
    )
