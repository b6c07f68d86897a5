"""Settings of the agents. A config holds them as data, and a constructor is given its parts as live objects."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, TypeVar, cast

from autogen_agentchat.agents import ApprovalFuncType
from autogen_core import ComponentBase, ComponentModel
from autogen_core.memory import Memory
from autogen_core.model_context import ChatCompletionContext
from autogen_core.tools import Workbench
from pydantic import BaseModel, ConfigDict, Field

from codeact_team.core.autogen_internals import repaired
from codeact_team.core.providers import KINDS_BY_FIELD, FunctionPath
from codeact_team.core.settings import in_config, read_as
from codeact_team.errors import SettingError
from codeact_team.tools.approval_rules import ApprovalRule
from codeact_team.tools.approvals import Handler
from codeact_team.tools.sources import Tool

WhenNobodyIsThere = Literal["deny", "park"]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class ToolLimits(BaseModel):
    """Limits of tool calls."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    timeout: Seconds = 60.0
    """Seconds that one call may take, without the time a person takes to approve it."""
    timeouts: dict[str, Seconds] = Field(default_factory=dict)
    """Seconds for tools of certain names, such as `reports.*: 300`; the first pattern that fits counts."""
    max_parallel: int = Field(default=20, ge=1)
    """The most calls that run at the same time."""
    max_calls: int = Field(default=1000, ge=1)
    """The most calls in one run of the agent."""

    repeatable: list[str] = Field(default_factory=list[str])
    """Patterns of the names of tools whose calls may be made twice. A call that an interruption of the run cut off is made
    again when the run is resumed. Of any other call, the code is told that its outcome is unknown."""

    def is_repeatable(self, name: str) -> bool:
        """Whether a call of the tool ``name`` may be made twice."""
        return any(fnmatchcase(name, pattern) for pattern in self.repeatable)

    def timeout_of(self, name: str) -> float:
        """Seconds that a call of the tool ``name`` may take."""
        fitting = (seconds for pattern, seconds in self.timeouts.items() if fnmatchcase(name, pattern))
        return next(fitting, self.timeout)


class AgentConfig(BaseModel):
    """Settings of every agent."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(kw_only=False)
    """Name of the agent: unique in its team, and a Python identifier."""
    max_pictures: int = Field(default=4, ge=0)
    """The most pictures drawn by code, the latest ones, that are sent to a model with vision at a time."""
    model_context: Annotated[ChatCompletionContext | None, in_config(ComponentModel | None)] = None
    """The part of the conversation that the model reads. Default: all of it. A CodeAct agent's model always reads the task,
    the functions and the latest result."""
    memory: Annotated[Sequence[Memory] | None, in_config(list[ComponentModel] | None)] = None
    """Stores that add what they know to the model's context at the start of each turn."""


class ExecutingConfig(AgentConfig):
    """Settings of every agent that runs code, which may call tools."""

    tools: Annotated[Sequence[Tool], in_config(list[ComponentModel | FunctionPath])] = Field(
        default_factory=list[Tool]
    )
    """Tools that the code may call, and that run on this machine: components, or import paths of functions,
    `module:function`."""
    workbench: Annotated[Workbench | Sequence[Workbench] | None, in_config(list[ComponentModel])] = Field(
        default_factory=list[Workbench]
    )
    """Workbenches whose tools the code may call, such as MCP servers."""
    tool_limits: ToolLimits = Field(default_factory=ToolLimits)
    """Limits of tool calls."""
    approval: Annotated[Sequence[ApprovalRule], read_as(list[ApprovalRule])] = Field(
        default_factory=list[ApprovalRule]
    )
    """Rules that allow or deny code blocks and calls of tools, or have a person asked; the first that fits decides."""
    approval_timeout: WhenNobodyIsThere = "deny"
    """The fate of a question that nobody is there to answer: `deny`, or `park`. A run that is parked waits until
    nothing else is under way, and ends. After `codeact-team answer`, `codeact-team resume` continues it, on whatever day.
    The code that asked then runs again, and its earlier calls get the same answers. If it could reach more than its
    workspace, such as a network, it does not run again. Its outcome is reported as unknown, its variables are lost, and it
    has to ask again. In a run that is not recorded, the question is denied."""
    approval_handler: Annotated[Handler | str | None, in_config(FunctionPath | None)] = None
    """Import path, `module:function`, of the function that is asked. Default: the person at the terminal."""
    approval_func: Annotated[ApprovalFuncType | str | None, in_config(FunctionPath | None)] = None
    """Import path, `module:function`, of a function that approves or denies each execution."""
    model_client_stream: bool = False
    """Whether the model's words are streamed."""
    stream_output: bool = False
    """Whether the code's output is streamed while it runs."""
    rollback_on_error: bool = False
    """Whether the variables, and the files of the workspace, are rolled back after code that fails, so that the next attempt
    does not begin with half of the changes. Needs a session executor. Calls of tools, and effects outside the workspace, are
    not undone. Nothing is rolled back if variables cannot be copied: while code holds files open for writing, sockets,
    threads or processes; that is reported."""


Settings = TypeVar("Settings", bound=AgentConfig)


def dumped(field: str, part: object) -> Any:
    """Dump a live part, or several, for a field of a config; a :class:`SettingError` names the field if it has no form there."""
    if isinstance(part, ComponentBase):
        component = cast("ComponentBase[BaseModel]", part)
        try:
            return component.dump_component()
        except (NotImplementedError, TypeError) as error:
            raise SettingError(f"{field}: {type(component).__name__} cannot be dumped: {error}") from error
    if isinstance(part, list | tuple):
        return [dumped(field, one) for one in cast("Sequence[object]", part)]
    if callable(part):
        raise SettingError(
            f"{field}: a function cannot be dumped: name it by its import path, `module:function`"
        )
    return part


def loaded(field: str, value: object) -> Any:
    """Load each component in a field of a config; other values stay as they are."""
    if isinstance(value, ComponentModel):
        kind: Any = KINDS_BY_FIELD[field][0]
        return repaired(kind.load_component(value))
    if isinstance(value, list):
        return [loaded(field, one) for one in cast("list[object]", value)]
    return value
