"""Calls of the host's tools by code: approved, limited, counted and recorded."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from autogen_core.tools import Workbench
from pydantic import BaseModel, ConfigDict, JsonValue, TypeAdapter

from codeact_team.agents.agent_config import ToolLimits
from codeact_team.agents.observations import ToolCallRecord, shorten
from codeact_team.core import scope
from codeact_team.core.aio import until_cancelled
from codeact_team.core.component_effects import ToolListing
from codeact_team.core.effects import Door, Effect, current_door, perform
from codeact_team.core.events import ToolCallBegan, ToolCallEnded
from codeact_team.core.execution import Artifact, CallAnswer, CallOutcome, HostTools
from codeact_team.core.providers import resolve_function
from codeact_team.errors import BudgetError, SettingError, WorkbenchError
from codeact_team.tools.approval_rules import ApprovalRule
from codeact_team.tools.approvals import ApprovalRecord, Approvals, Handler
from codeact_team.tools.sources import Listing, Tool, ToolFailed
from codeact_team.tools.toolbox import Offer, OfferedTool, Toolbox

Pause = Callable[[], AbstractContextManager[None]]

MAX_RECORDS = 1000
"""How many calls of a turn are recorded one by one."""
_MAX_ARGUMENTS = 300
_MAX_ERROR = 1000
_NOT_YET = (
    "{} is not called now: several attempts at the task are made side by side, and until one of them is chosen only tools are "
    "called that may be called twice (tool_limits.repeatable). Go on without it, or say in the answer that it is left to do"
)
_NOT_ANSWERED = CallAnswer(CallOutcome.CANCELLED)


class _Piece(BaseModel):
    """One piece of what a tool returned."""

    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    value: JsonValue = None
    artifact: Artifact | None = None


class _Answer(BaseModel):
    """A :class:`CallAnswer` in JSON."""

    outcome: CallOutcome
    content: list[_Piece]
    error: str


class ToolCall(Effect[CallAnswer]):
    """Code calls a tool of the host.

    Args:
        source: The agent whose code it is.
        name: The tool.
        arguments: As the code gives them.
        is_repeatable: Whether it may be made twice.
    """

    kind = "tool_call"

    def __init__(
        self, source: str, name: str, arguments: Mapping[str, JsonValue], *, is_repeatable: bool = False
    ) -> None:
        self._is_repeatable = is_repeatable
        self.source = source
        self._name = name
        self._arguments = arguments
        self._began = time.monotonic()

    def request(self) -> JsonValue:
        return {"tool": self._name, "arguments": dict(self._arguments)}

    def dump(self, outcome: CallAnswer) -> JsonValue:
        pieces = [
            _Piece(artifact=piece) if isinstance(piece, Artifact) else _Piece(value=piece)
            for piece in outcome.content
        ]
        return _Answer(outcome=outcome.outcome, content=pieces, error=outcome.error).model_dump(mode="json")

    def load(self, data: JsonValue) -> CallAnswer:
        kept = _Answer.model_validate(data)
        return CallAnswer(kept.outcome, [piece.artifact or piece.value for piece in kept.content], kept.error)

    def unknown(self) -> CallAnswer | None:
        if self._is_repeatable:
            return None
        return CallAnswer(
            CallOutcome.FAILED,
            error=f"it is unknown what became of this call of {self._name}: the run was interrupted while it was under way. "
            "It was not made again; find out before you do",
        )

    def record(self, answer: CallAnswer) -> ToolCallRecord:
        """What is kept of the call."""
        return ToolCallRecord(
            name=self._name[:100],
            arguments=_shown(self._arguments),
            outcome=answer.outcome,
            error=shorten(answer.error, _MAX_ERROR),
            seconds=time.monotonic() - self._began,
        )

    def began(self, span: int) -> ToolCallBegan:
        return ToolCallBegan(
            span=span, agent=self.source, name=self._name[:100], arguments=_shown(self._arguments)
        )

    def ended(self, span: int, outcome: CallAnswer | None, error: BaseException | None) -> ToolCallEnded:
        if outcome is None:
            outcome = _refused(str(error)) if isinstance(error, BudgetError) else _NOT_ANSWERED
        record = self.record(outcome)
        return ToolCallEnded(
            span=span,
            agent=self.source,
            name=record.name,
            outcome=record.outcome,
            error=record.error,
            seconds=record.seconds,
        )


class TurnTools(HostTools):
    """The tools in one turn of an agent, and who approves.

    Args:
        source: The agent.
        offer: What there is; ``None`` for no tools.
        limits: What the calls may cost.
        approvals: Asked before code runs, and before each call.
        cancellation_token: Cancels the tools that run.
        door: The door that the agent remembers.
        user: Whose turn it is, for executors that several agents share.
        rights: See :attr:`codeact_team.core.execution.HostTools.rights`.
        start: Starts what tools need to be called, if anything.

    Attributes:
        pause: Entered while a person is asked, whose time is not the turn's.
        records: The calls, as they ended.
        omitted_records: How many more there were.
        used_up: Whether a call was refused because there had been too many.
        denials: How many calls were not approved.
    """

    def __init__(
        self,
        source: str,
        offer: Offer | None,
        limits: ToolLimits,
        approvals: Approvals,
        cancellation_token: CancellationToken,
        *,
        door: Door | None = None,
        user: object = None,
        rights: object = None,
        start: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.source = source
        self.user = user
        self._door = door
        self._rights = rights
        self._start = start
        self._offer = offer
        self._limits = limits
        self._approvals = approvals
        self._cancellation_token = cancellation_token
        self._calls = 0
        self._is_attempt = False
        self.pause: Pause = nullcontext
        self.records: list[ToolCallRecord] = []
        self.omitted_records = 0
        self.used_up = False
        self.denials = 0

    def unrecorded(self) -> TurnTools:
        """The same tools, whose calls count for nobody."""
        copy = TurnTools(
            self.source,
            self._offer,
            self._limits,
            self._approvals,
            self._cancellation_token,
            door=self._door,
            user=self.user,
            rights=self._rights,
            start=self._start,
        )
        copy.pause, copy._is_attempt = self.pause, self._is_attempt
        return copy

    def in_attempt(self) -> TurnTools:
        """The same tools for one of several attempts at the turn's task: only what is repeatable is called."""
        copy = self.unrecorded()
        copy._is_attempt = True
        return copy

    def __bool__(self) -> bool:
        """Whether there are any."""
        return self._offer is not None

    @property
    def declarations(self) -> Sequence[Mapping[str, JsonValue]]:
        return () if self._offer is None else self._offer.declarations

    @property
    def max_parallel(self) -> int:
        return self._limits.max_parallel

    @property
    def rights(self) -> object:
        return self._rights

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
        # in an attempt, any other is not made at all
        is_repeatable = self._is_attempt or self._limits.is_repeatable(name)
        call, answer = ToolCall(self.source, name, arguments, is_repeatable=is_repeatable), _NOT_ANSWERED
        is_new = False

        async def work() -> CallAnswer:
            nonlocal is_new
            is_new = True
            return await self._answer(name, arguments, pause)

        try:
            answer = await perform(call, work, self._door)
            if not is_new:
                self._count(name, arguments, answer)
        except BudgetError as error:
            answer = _refused(str(error))
        finally:
            if len(self.records) < MAX_RECORDS:
                self.records.append(call.record(answer))
            else:
                self.omitted_records += 1
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
        if not self._may_call(name):
            self.denials += 1
            return CallAnswer(CallOutcome.DENIED, error=_NOT_YET.format(name))
        try:
            tool.check(arguments)
            # it costs time, and only rules look at it
            understood = tool.understood(arguments) if self._approvals else arguments
        except (ValueError, ToolFailed) as error:
            return _refused(str(error))
        record = await self._approvals.call(name, understood, pause=partial(_both, self.pause, pause))
        if not record.allowed:
            self.denials += 1
            return CallAnswer(CallOutcome.DENIED, error=f"not approved: {record.reason}")
        return await self._run(tool, name, arguments)

    def _may_call(self, name: str) -> bool:
        return not self._is_attempt or self._limits.is_repeatable(name)

    def _count(self, name: str, arguments: dict[str, JsonValue], answer: CallAnswer) -> None:
        """Count a call that was made before the run was interrupted: what it has used up stays used up."""
        tool = None if self._offer is None else self._offer.find(name)
        if tool is None or answer.outcome is CallOutcome.REFUSED:
            return
        self._calls += 1
        if self._approvals and self._may_call(name):
            with suppress(ValueError, ToolFailed):
                self._approvals.count_call(name, tool.understood(arguments))

    async def _run(self, tool: OfferedTool, name: str, arguments: dict[str, JsonValue]) -> CallAnswer:
        seconds = self._limits.timeout_of(name)
        timer = asyncio.timeout(seconds)
        try:
            async with timer:
                # what it offers may be known from before
                if self._start is not None:
                    await self._start()
                return CallAnswer(content=await tool.call(arguments, self._cancellation_token))
        except (ToolFailed, WorkbenchError) as error:
            return CallAnswer(CallOutcome.FAILED, error=str(error))
        except TimeoutError:
            if not timer.expired():
                raise
            text = f"{name} was stopped after {seconds:g} s, its limit (tool_limits)"
            return CallAnswer(CallOutcome.TIMED_OUT, error=text)


@contextmanager
def _both(first: Pause, second: Pause) -> Generator[None]:
    with first(), second():
        yield


def _refused(reason: str) -> CallAnswer:
    return CallAnswer(CallOutcome.REFUSED, error=reason)


def _shown(arguments: Mapping[str, JsonValue]) -> str:
    return shorten(json.dumps(arguments, ensure_ascii=False), _MAX_ARGUMENTS)


_LISTINGS = TypeAdapter(Sequence[Listing])


class AgentTools:
    """The tools of an agent, which is the ``source`` of their calls, and who approves what its code does.

    Raises:
        SettingError: If something is no tool, two have the same name, or nobody would ever be asked.
    """

    def __init__(
        self,
        source: str,
        *,
        tools: Sequence[Tool],
        workbench: Workbench | Sequence[Workbench] | None,
        limits: ToolLimits,
        approval: Sequence[ApprovalRule],
        handler: Handler | str | None,
        parks: bool = False,
    ) -> None:
        if parks and not any(rule.decision == "ask" for rule in approval):
            raise SettingError("approval_timeout has no effect: no rule in approval says `decision: ask`")
        if handler is not None and not any(rule.decision == "ask" for rule in approval):
            raise SettingError("approval_handler has no effect: no rule in approval says `decision: ask`")
        workbenches = [workbench] if isinstance(workbench, Workbench) else list(workbench or ())
        self._toolbox = Toolbox(tools, workbenches) if tools or workbenches else None
        self._source = source
        self._door = current_door()
        self._limits = limits
        ask = resolve_function(handler) if isinstance(handler, str) else handler
        self._approvals = Approvals(approval, ask, source, parks=parks)
        self._rights = (list(tools), workbenches, limits, list(approval), handler)
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
            offer = await until_cancelled(self._toolbox.offer(self._ask), cancellation_token)
        return TurnTools(
            self._source,
            offer,
            self._limits,
            self._approvals,
            cancellation_token,
            door=self._door,
            user=self,
            rights=self._rights,
            start=None if self._toolbox is None else self._toolbox.be_started,
        )

    async def _ask(
        self, asked: list[str], listed: Callable[[], Awaitable[Sequence[Listing]]]
    ) -> Sequence[Listing]:
        return await perform(ToolListing(None, _LISTINGS, asked, self._source), listed, self._door)

    def reset(self) -> None:
        """Forget what was granted."""
        self._approvals.reset()

    async def stop(self) -> None:
        """Stop what was started for this agent."""
        if self._toolbox is not None:
            await self._toolbox.stop()

    def dump(self) -> Mapping[str, Any]:
        """The tools and workbenches for a config.

        Raises:
            SettingError: If one of them has no form there.
        """
        box = self._toolbox
        return {
            "tools": [] if box is None else box.dump_tools(),
            "workbench": [] if box is None else box.dump_workbenches(),
        }
