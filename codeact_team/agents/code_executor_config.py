"""Settings of the agent that runs code, and which of them cannot go together."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Annotated

from autogen_core import ComponentModel
from autogen_core.models import ChatCompletionClient
from pydantic import AfterValidator, Field

from codeact_team.agents.agent_config import ExecutingConfig, ExecutingOptions, ExecutingSettings
from codeact_team.errors import SettingError
from codeact_team.parsing.labels import Languages

SYSTEM_MESSAGE = (
    "You are a Code Execution Agent. Your role is to generate and execute Python code and shell scripts based on user "
    "instructions, ensuring correctness, efficiency, and minimal errors. Handle edge cases gracefully. Python code "
    "should be provided in ```python code blocks, and sh shell scripts should be provided in ```sh code blocks for "
    "execution."
)
"""What the model is told by default: AutoGen's words."""


def _or_empty(text: str | None) -> str:
    # a dump leaves out what is None, and an absent message is the default one
    return text or ""


class CodeExecutorAgentSettings(ExecutingSettings):
    """The plain settings of :class:`~codeact_team.CodeExecutorAgent`."""

    max_retries_on_error: int = Field(0, ge=0)
    """How often code that failed may be written anew."""
    description: str | None = None
    """What the agent does, for whoever selects the next speaker. Default: one of AutoGen's two texts."""
    system_message: Annotated[str | None, AfterValidator(_or_empty)] = SYSTEM_MESSAGE
    """The model's instructions, to which a description of the sandbox is added; empty or null for none."""
    sources: list[str] | None = None
    """Whose code to run; default: everybody's."""
    supported_languages: list[str] | None = None
    """Labels of the code that is run. Default: what the executor runs, or python and sh if it does not say."""
    code_from_messages: bool = False
    """Whether the first attempt runs the code in the messages, so that the model is asked only if that fails."""
    reflect: bool = True
    """Whether the model sums up the result; if not, the result itself is the response."""
    default_language: str | None = None
    """What a code block without a label holds. Default: such blocks are left alone."""

    def check(self, *, has_model: bool, has_memory: bool, languages: Sequence[str]) -> None:
        """Refuse what cannot work together, and warn of what has no effect.

        Raises:
            SettingError: If there is something.
        """
        if self.max_retries_on_error > 0 and not has_model:
            raise SettingError("max_retries_on_error > 0 needs a model_client, to write the code anew")
        if has_memory and not has_model:
            raise SettingError("memory needs a model_client, whose context it adds to")
        if self.code_from_messages and not has_model:
            raise SettingError(
                "code_from_messages needs a model_client: without one, code always is from messages"
            )
        if self.sources is not None and has_model and not self.code_from_messages:
            # AutoGen's class takes them without a word
            text = (
                f"sources of {self.name} has no effect with a model_client, unless code_from_messages is true"
            )
            warnings.warn(text, UserWarning, stacklevel=3)
        if not languages:
            raise SettingError("supported_languages is empty: no code would ever run")
        if self.default_language is not None and Languages(languages).resolve(self.default_language) is None:
            raise SettingError(
                f"default_language is {self.default_language!r}, which is not among the languages that are run: "
                + ", ".join(languages)
            )


class CodeExecutorAgentConfig(CodeExecutorAgentSettings, ExecutingConfig):
    """Settings of :class:`~codeact_team.CodeExecutorAgent`."""

    code_executor: ComponentModel
    """Where and how code runs."""
    model_client: ComponentModel | None = None
    """The model that writes code; without one, the agent runs the code in the messages."""


class CodeExecutorAgentOptions(ExecutingOptions, total=False):
    """Keyword arguments; see the fields of the same names in :class:`CodeExecutorAgentConfig`."""

    model_client: ChatCompletionClient | None
    max_retries_on_error: int
    description: str | None
    system_message: str | None
    sources: Sequence[str] | None
    supported_languages: Sequence[str] | None
    code_from_messages: bool
    reflect: bool
    default_language: str | None
