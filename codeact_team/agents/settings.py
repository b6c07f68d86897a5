"""Settings of the agent that runs code, and which of them cannot go together."""

from __future__ import annotations

from collections.abc import Sequence

from autogen_core import ComponentBase, ComponentModel
from pydantic import BaseModel, Field

from codeact_team.agents.tool_settings import ToolUserConfig
from codeact_team.errors import SettingError
from codeact_team.parsing.labels import Languages
from codeact_team.providers import FunctionPath

SYSTEM_MESSAGE = (
    "You are a Code Execution Agent. Your role is to generate and execute Python code and shell scripts based on user "
    "instructions, ensuring correctness, efficiency, and minimal errors. Handle edge cases gracefully. Python code "
    "should be provided in ```python code blocks, and sh shell scripts should be provided in ```sh code blocks for "
    "execution."
)
"""What the model is told by default: AutoGen's words."""


class CodeExecutorAgentConfig(ToolUserConfig):
    """Settings of :class:`CodeExecutorAgent`."""

    name: str
    """Name of the agent: unique in its team, and a Python identifier."""
    code_executor: ComponentModel
    """Where and how code runs."""
    model_client: ComponentModel | None = None
    """The model that writes code; without one, the agent runs the code in the messages."""
    model_context: ComponentModel | None = None
    """What the model remembers. Default: everything."""
    model_client_stream: bool = False
    """Whether the model's words are streamed."""
    max_retries_on_error: int = Field(0, ge=0)
    """How often code that failed may be written anew."""
    description: str | None = None
    """What the agent does, for whoever selects the next speaker."""
    system_message: str = SYSTEM_MESSAGE
    """The model's instructions; empty for none."""
    sources: list[str] | None = None
    """Whose code to run; default: everybody's."""
    supported_languages: list[str] | None = None
    """Labels of the code that is run. Default: what the executor runs, or python and sh if it does not say."""
    approval_func: FunctionPath | None = None
    """Import path, `module:function`, of a function that approves or denies each execution."""
    code_from_messages: bool = False
    """Whether the first attempt runs the code in the messages, so that the model is asked only if that fails."""
    reflect: bool = True
    """Whether the model sums up the result; if not, the result itself is the response."""
    default_language: str | None = None
    """What a code block without a label holds. Default: such blocks are left alone."""
    stream_output: bool = False
    """Whether the code's output is streamed while it runs."""


def dumped(field: str, part: ComponentBase[BaseModel]) -> ComponentModel:
    """The config of a part of an agent.

    Raises:
        SettingError: If it has none; AutoGen's own error does not say whose.
    """
    try:
        return part.dump_component()
    except (NotImplementedError, TypeError) as error:
        raise SettingError(f"{field}: {type(part).__name__} cannot be dumped: {error}") from error


def check_settings(
    *,
    has_model: bool,
    max_retries_on_error: int,
    code_from_messages: bool,
    sources: Sequence[str] | None,
    languages: Sequence[str],
    default_language: str | None,
) -> None:
    """Refuse what cannot work, or would silently have no effect.

    Raises:
        SettingError: If there is something.
    """
    if max_retries_on_error < 0:
        raise SettingError(f"max_retries_on_error is {max_retries_on_error}: it must be 0 or more")
    if max_retries_on_error > 0 and not has_model:
        raise SettingError("max_retries_on_error > 0 needs a model_client, to write the code anew")
    if code_from_messages and not has_model:
        raise SettingError(
            "code_from_messages needs a model_client: without one, code always is from messages"
        )
    if sources is not None and has_model and not code_from_messages:
        raise SettingError("sources has no effect with a model_client, unless code_from_messages is true")
    if not languages:
        raise SettingError("supported_languages is empty: no code would ever run")
    if default_language is not None and Languages(languages).resolve(default_language) is None:
        raise SettingError(
            f"default_language is {default_language!r}, which is not among the languages that are run: "
            + ", ".join(languages)
        )
