"""Settings of the tools that an agent's code may call on the host, and of who approves."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Literal, TypedDict

from autogen_core import ComponentModel
from autogen_core.tools import Workbench
from pydantic import BaseModel, ConfigDict, Field

from codeact_team.approval import ApprovalRule, Handler
from codeact_team.providers import FunctionPath
from codeact_team.tools import Tool

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
