"""Settings that the agents have in common."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, TypedDict, TypeVar, cast, get_type_hints

from autogen_agentchat.agents import ApprovalFuncType
from autogen_core import ComponentBase, ComponentModel
from autogen_core.code_executor import CodeExecutor
from autogen_core.memory import Memory
from autogen_core.model_context import ChatCompletionContext
from autogen_core.models import ChatCompletionClient
from autogen_core.tools import BaseTool, Workbench
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from codeact_team.core.autogen_internals import load_context
from codeact_team.core.providers import FunctionPath
from codeact_team.errors import SettingError
from codeact_team.tools.approval_rules import ApprovalRule
from codeact_team.tools.approvals import Handler
from codeact_team.tools.sources import Tool

WhenNobodyIsThere = Literal["deny", "park"]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class ToolLimits(BaseModel):
    """What the calls of tools may cost."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    timeout: Seconds = 60.0
    """Seconds that one call may take, without the time a person takes to approve it."""
    timeouts: dict[str, Seconds] = Field(default_factory=dict)
    """Seconds for tools of certain names, such as `reports.*: 300`; the first pattern that fits counts."""
    max_parallel: int = Field(default=20, ge=1)
    """How many calls run at the same time."""
    max_calls: int = Field(default=1000, ge=1)
    """How many calls one run of the agent may make."""

    repeatable: list[str] = Field(default_factory=list[str])
    """Tools, by patterns of their names, whose calls may be made twice: where a run was interrupted during such a call, it is
    made again when the run goes on. Of any other, the code is told that its outcome is unknown."""

    def is_repeatable(self, name: str) -> bool:
        """Whether a call of the tool ``name`` may be made twice."""
        return any(fnmatchcase(name, pattern) for pattern in self.repeatable)

    def timeout_of(self, name: str) -> float:
        """Seconds that a call of the tool ``name`` may take."""
        fitting = (seconds for pattern, seconds in self.timeouts.items() if fnmatchcase(name, pattern))
        return next(fitting, self.timeout)


class ToolSettings(BaseModel):
    """The plain settings of every agent whose code may call tools."""

    model_config = ConfigDict(extra="forbid")

    tool_limits: ToolLimits = Field(default_factory=ToolLimits)
    """What the calls of tools may cost."""
    approval: list[ApprovalRule] = Field(default_factory=list[ApprovalRule])
    """Rules that allow or deny code blocks and calls of tools, or have a person asked; the first that fits decides."""
    approval_timeout: WhenNobodyIsThere = "deny"
    """What comes of a question that nobody is there to answer: `deny`, or `park`. A run that is parked waits until nothing else
    is under way, and ends. After `codeact-team answer`, `codeact-team resume` goes on with it, on whatever day. The code that has
    asked then runs again, with what its calls were answered before. Where it could reach more than its workspace, such as a
    network, it does not: what has become of it is told as unknown, its variables are lost, and it has to ask anew. What is
    not recorded cannot be parked, and is denied."""


class ToolUserConfig(ToolSettings):
    """Settings of every agent whose code may call tools."""

    tools: list[ComponentModel | FunctionPath] = Field(default_factory=list[ComponentModel | FunctionPath])
    """Tools that the code may call, and that run on this machine: components, or import paths of functions,
    `module:function`."""
    workbench: list[ComponentModel] = Field(default_factory=list[ComponentModel])
    """Workbenches whose tools the code may call, such as MCP servers."""
    approval_handler: FunctionPath | None = None
    """Import path, `module:function`, of the function that is asked. Default: the person at the terminal."""


class ToolOptions(TypedDict, total=False):
    """Keyword arguments of such an agent; see the fields of the same names in :class:`ToolUserConfig`."""

    tools: Sequence[Tool]
    workbench: Workbench | Sequence[Workbench] | None
    tool_limits: ToolLimits | None
    approval: Sequence[ApprovalRule]
    approval_timeout: WhenNobodyIsThere
    approval_handler: Handler | str | None


Settings = TypeVar("Settings", bound="AgentSettings")
_Init = TypeVar("_Init", bound=Callable[..., None])


class AgentSettings(BaseModel):
    """The plain settings of every agent."""

    model_config = ConfigDict(extra="forbid")

    name: str
    """Name of the agent: unique in its team, and a Python identifier."""
    max_pictures: int = Field(4, ge=0)
    """How many pictures that code has drawn, the latest, a model that sees gets to see at a time."""


class AgentConfig(AgentSettings):
    """Settings of every agent."""

    model_context: ComponentModel | None = None
    """What the model remembers. Default: everything."""
    memory: list[ComponentModel] | None = None
    """Stores that add what they know to the model's context at the start of each turn."""


class AgentOptions(TypedDict, total=False):
    """Keyword arguments of every agent; see the fields of the same names in :class:`AgentConfig`."""

    model_context: ChatCompletionContext | None
    memory: Sequence[Memory] | None
    max_pictures: int


class ExecutingSettings(AgentSettings, ToolSettings):
    """The plain settings of every agent that runs code."""

    model_client_stream: bool = False
    """Whether the model's words are streamed."""
    stream_output: bool = False
    """Whether the code's output is streamed while it runs."""
    rollback_on_error: bool = False
    """Whether code that fails leaves the variables, and the files of the workspace, as they were before it, so that a
    further attempt does not begin with half of what was to be changed. Needs a session executor. What code does by tools, and
    outside the workspace, is not undone. Code is not set back where variables cannot be copied: while it holds files open
    for writing, sockets, threads or processes; that is told."""


class ExecutingConfig(ExecutingSettings, AgentConfig, ToolUserConfig):
    """Settings of every agent that runs code."""

    approval_func: FunctionPath | None = None
    """Import path, `module:function`, of a function that approves or denies each execution."""


class ExecutingOptions(AgentOptions, ToolOptions, total=False):
    """Keyword arguments of every agent that runs code; see the fields of the same names in :class:`ExecutingConfig`."""

    model_client_stream: bool
    stream_output: bool
    rollback_on_error: bool
    approval_func: ApprovalFuncType | str | None


_KINDS: Mapping[str, Any] = {
    "code_executor": CodeExecutor,
    "model_client": ChatCompletionClient,
    "memory": Memory,
    "tools": BaseTool,
    "workbench": Workbench,
}
"""What is loaded where a field holds a component."""


def show_options(options: type, config: type[BaseModel]) -> Callable[[_Init], _Init]:
    """Let ``inspect.signature`` show each of a constructor's ``options``, with the default that ``config`` has."""

    def show(init: _Init) -> _Init:
        signature = inspect.signature(init)
        *named, _ = signature.parameters.values()
        for name, kind in get_type_hints(options).items():
            default = config.model_fields[name].get_default(call_default_factory=True)
            named.append(
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
            )
        cast("Any", init).__signature__ = signature.replace(parameters=named)
        return init

    return show


def settings_of(model: type[Settings], config: type[BaseModel], given: Mapping[str, Any]) -> Settings:
    """The plain settings among the arguments of an agent; limits of tools that are ``None`` are the default ones.

    Raises:
        TypeError: If there is no such argument.
        SettingError: If one has a value that it cannot have.
    """
    if unknown := given.keys() - config.model_fields.keys():
        raise TypeError(f"unexpected keyword arguments: {', '.join(sorted(unknown))}")
    plain = {name: value for name, value in given.items() if name in model.model_fields}
    if plain.get("tool_limits", plain) is None:
        del plain["tool_limits"]
    try:
        return model(**plain)
    except ValidationError as error:
        problems = [_problem(details) for details in error.errors(include_url=False)]
        raise SettingError("; ".join(problems)) from error


def _problem(details: Any) -> str:
    field, value = ".".join(map(str, details["loc"])), details["input"]
    match details["type"]:
        case "greater_than_equal":
            return f"{field} is {value}: it must be {details['ctx']['ge']} or more"
        case "greater_than" | "finite_number":
            return f"{field} is {value}: it must be a finite number above 0"
        case _:
            return f"{field}: {details['msg']}"


def dumped(field: str, part: object) -> Any:
    """A live part of an agent as its config has it, or several in a list.

    Raises:
        SettingError: If it has no form there; AutoGen's own error does not say whose part it is.
    """
    if isinstance(part, ComponentBase):
        component = cast("ComponentBase[BaseModel]", part)
        try:
            return component.dump_component()
        except (NotImplementedError, TypeError) as error:
            raise SettingError(f"{field}: {type(component).__name__} cannot be dumped: {error}") from error
    if isinstance(part, list):
        return [dumped(field, one) for one in cast("list[object]", part)]
    if callable(part):
        raise SettingError(
            f"{field}: a function cannot be dumped: name it by its import path, `module:function`"
        )
    return part


def loaded(field: str, value: object) -> Any:
    """What an agent is given for a field of its config: a live part for each component."""
    if isinstance(value, ComponentModel):
        return load_context(value) if field == "model_context" else _KINDS[field].load_component(value)
    if isinstance(value, list):
        return [loaded(field, one) for one in cast("list[object]", value)]
    return value
