"""The tools that an agent's code may call on the host: who approves, what they may cost, and what became of each call."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from autogen_core.tools import BaseTool, Workbench
from pydantic import JsonValue

from codeact_team import scope
from codeact_team.agents.tool_settings import ToolLimits, ToolUserConfig
from codeact_team.aio import until_cancelled
from codeact_team.approval import ApprovalRecord, ApprovalRule, Approvals, Handler
from codeact_team.errors import SettingError
from codeact_team.execution import CallAnswer, CallOutcome, HostTools
from codeact_team.observations import ToolCallRecord, shorten
from codeact_team.providers import resolve_function
from codeact_team.tools import Offer, OfferedTool, Tool, Toolbox, ToolFailed

Pause = Callable[[], AbstractContextManager[None]]

MAX_RECORDS = 1000
"""How many calls of a turn are recorded one by one."""
_MAX_ARGUMENTS = 300
_MAX_ERROR = 1000


class AgentTools:
    """The tools of an agent, and who approves what its code does.

    Args:
        source: The agent's name.
        tools: Single tools.
        workbench: More of them.
        limits: What their calls may cost.
        approval: Who decides, the first rule that fits.
        handler: Asked where a rule says so; a function, or its import path. Default: whoever the context names.

    Raises:
        SettingError: If something is no tool, two have the same name, or nobody would ever be asked.
    """

    def __init__(
        self,
        source: str,
        *,
        tools: Sequence[Tool],
        workbench: Workbench | Sequence[Workbench] | None,
        limits: ToolLimits | None,
        approval: Sequence[ApprovalRule],
        handler: Handler | str | None,
    ) -> None:
        if handler is not None and not any(rule.decision == "ask" for rule in approval):
            raise SettingError("approval_handler has no effect: no rule in approval says `decision: ask`")
        workbenches = [workbench] if isinstance(workbench, Workbench) else list(workbench or ())
        self._toolbox = Toolbox(tools, workbenches) if tools or workbenches else None
        self._limits = limits or ToolLimits()
        self._rules = list(approval)
        self._handler = handler
        ask = resolve_function(handler) if isinstance(handler, str) else handler
        self._approvals = Approvals(self._rules, ask, source)
        if self._toolbox is not None:
            # a server that does not start is told of before a model is paid
            scope.register(self._toolbox)

    def __bool__(self) -> bool:
        """Whether there are any."""
        return self._toolbox is not None

    async def begin_turn(self, cancellation_token: CancellationToken) -> TurnTools:
        """The tools as they are now, for one turn of the agent; they are started if need be.

        Raises:
            WorkbenchError: If they cannot be had.
        """
        offer: Offer | None = None
        if self._toolbox is not None:
            # made outside a scope and used inside it, they belong to it all the same
            scope.register(self._toolbox)
            offer = await until_cancelled(self._toolbox.offer(), cancellation_token)
        return TurnTools(offer, self._limits, self._approvals, cancellation_token)

    def reset(self) -> None:
        """Forget what was granted."""
        self._approvals.reset()

    async def stop(self) -> None:
        """Stop what was started for this agent."""
        if self._toolbox is not None:
            await self._toolbox.stop()

    def to_config(self) -> Mapping[str, Any]:
        """The fields of a :class:`ToolUserConfig`.

        Raises:
            SettingError: If something has no form there.
        """
        if self._handler is not None and not isinstance(self._handler, str):
            raise SettingError(
                "approval_handler: a function cannot be dumped: name it by its import path, `module:function`"
            )
        box = self._toolbox
        return {
            "tools": [] if box is None else box.dump_tools(),
            "workbench": [] if box is None else box.dump_workbenches(),
            "tool_limits": self._limits,
            "approval": self._rules,
            "approval_handler": self._handler,
        }


def tools_from(config: ToolUserConfig) -> dict[str, Any]:
    """The arguments of an agent that its config has for tools."""
    return {
        "tools": [tool if isinstance(tool, str) else BaseTool.load_component(tool) for tool in config.tools],
        "workbench": [Workbench.load_component(workbench) for workbench in config.workbench],
        "tool_limits": config.tool_limits,
        "approval": config.approval,
        "approval_handler": config.approval_handler,
    }


class TurnTools(HostTools):
    """The tools in one turn of an agent, and who approves.

    Args:
        offer: What there is; ``None`` for no tools.
        limits: What the calls may cost.
        approvals: Asked before code runs, and before each call.
        cancellation_token: Cancels the tools that run.

    Attributes:
        pause: Entered while a person is asked, whose time is not the turn's.
        records: The calls, as they ended.
        omitted_records: How many more there were.
        used_up: Whether a call was refused because there had been too many.
        denials: How many calls were not approved.
    """

    def __init__(
        self,
        offer: Offer | None,
        limits: ToolLimits,
        approvals: Approvals,
        cancellation_token: CancellationToken,
    ) -> None:
        self._offer = offer
        self._limits = limits
        self._approvals = approvals
        self._cancellation_token = cancellation_token
        self._calls = 0
        self.pause: Pause = nullcontext
        self.records: list[ToolCallRecord] = []
        self.omitted_records = 0
        self.used_up = False
        self.denials = 0

    def __bool__(self) -> bool:
        """Whether there are any."""
        return self._offer is not None

    @property
    def declarations(self) -> Sequence[Mapping[str, JsonValue]]:
        return () if self._offer is None else self._offer.declarations

    @property
    def max_parallel(self) -> int:
        return self._limits.max_parallel

    def describe(self) -> str:
        """The tools as a prompt shows them; nothing if there are none."""
        return "" if self._offer is None else self._offer.describe()

    def take_approvals(self) -> tuple[list[ApprovalRecord], int]:
        """The decisions since this was last called, and how many more there were than are recorded."""
        omitted = self._approvals.left_out
        return self._approvals.take_records(), omitted

    async def denial_of(self, blocks: Sequence[CodeBlock]) -> str | None:
        """Why these blocks may not run, or ``None`` if they may."""
        for block in blocks:
            record = await self._approvals.code(block.code, language=block.language, pause=self.pause)
            if not record.allowed:
                return record.reason
        return None

    async def call(
        self,
        name: str,
        arguments: dict[str, JsonValue],
        *,
        pause: Pause,
    ) -> CallAnswer:
        began = time.monotonic()
        answer = CallAnswer(CallOutcome.CANCELLED)
        try:
            answer = await self._answer(name, arguments, pause)
        finally:
            self._note(name, arguments, answer, time.monotonic() - began)
        return answer

    async def _answer(
        self,
        name: str,
        arguments: dict[str, JsonValue],
        pause: Pause,
    ) -> CallAnswer:
        tool = None if self._offer is None else self._offer.find(name)
        if tool is None:
            near = "" if self._offer is None else self._offer.nearest(name)
            return _refused(f"there is no tool {name[:100]!r}{near}")
        if self._calls >= self._limits.max_calls:
            self.used_up = True
            most = self._limits.max_calls
            return _refused(
                f"this run may make {most} calls of tools (tool_limits.max_calls), and has made them"
            )
        self._calls += 1
        try:
            tool.check(arguments)
        except ValueError as error:
            return _refused(str(error))
        complete = tool.with_defaults(arguments)
        record = await self._approvals.call(name, complete, pause=partial(_both, self.pause, pause))
        if not record.allowed:
            self.denials += 1
            return CallAnswer(CallOutcome.DENIED, error=f"not approved: {record.reason}")
        return await self._run(tool, name, arguments)

    async def _run(self, tool: OfferedTool, name: str, arguments: dict[str, JsonValue]) -> CallAnswer:
        seconds = self._limits.timeout_of(name)
        timer = asyncio.timeout(seconds)
        try:
            async with timer:
                return CallAnswer(content=await tool.call(arguments, self._cancellation_token))
        except ToolFailed as error:
            return CallAnswer(CallOutcome.FAILED, error=str(error))
        except TimeoutError:
            if not timer.expired():
                raise
            text = f"{name} was stopped after {seconds:g} s, its limit (tool_limits)"
            return CallAnswer(CallOutcome.TIMED_OUT, error=text)

    def _note(self, name: str, arguments: dict[str, JsonValue], answer: CallAnswer, seconds: float) -> None:
        if len(self.records) == MAX_RECORDS:
            self.omitted_records += 1
            return
        self.records.append(
            ToolCallRecord(
                name=name[:100],
                arguments=shorten(json.dumps(arguments, ensure_ascii=False), _MAX_ARGUMENTS),
                outcome=answer.outcome,
                error=shorten(answer.error, _MAX_ERROR),
                seconds=seconds,
            )
        )


@contextmanager
def _both(first: Pause, second: Pause) -> Generator[None]:
    with first(), second():
        yield


def _refused(reason: str) -> CallAnswer:
    return CallAnswer(CallOutcome.REFUSED, error=reason)
