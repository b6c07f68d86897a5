"""Calls of the host's tools by code: limited, approved, recorded."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from copy import copy
from functools import cached_property
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
from codeact_team.core.effects import Dispatcher, Effect, current_dispatcher, perform
from codeact_team.core.events import ToolCallBegan, ToolCallEnded
from codeact_team.core.execution import Artifact, CallAnswer, CallOutcome, HostTools
from codeact_team.core.providers import resolve_function
from codeact_team.errors import BudgetError, SettingError, WorkbenchError
from codeact_team.tools.approval_rules import ApprovalRule
from codeact_team.tools.approvals import ApprovalRecord, Approvals, Handler
from codeact_team.tools.sources import Arguments, Catalog, Tool, ToolFailed
from codeact_team.tools.toolbox import Offer, OfferedTool, Toolbox

Pause = Callable[[], AbstractContextManager[None]]

MAX_RECORDS = 1000
"""Calls of a turn that are recorded one by one."""
_MAX_NAME = 100
_MAX_ARGUMENTS = 300
_MAX_ERROR = 1000
_NOT_YET = (
    "{} is not called now: several attempts at the task are made side by side, and until one of them is chosen only tools are "
    "called that may be called twice (tool_limits.repeatable). Go on without it, or say in the answer that it is left to do"
)
_NOT_ANSWERED = CallAnswer(CallOutcome.CANCELLED)


class _Piece(BaseModel):
    """One piece of a tool's result."""

    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    value: JsonValue = None
    artifact: Artifact | None = None


class _Answer(BaseModel):
    """A :class:`CallAnswer` in JSON."""

    outcome: CallOutcome
    content: list[_Piece]
    error: str


class ToolCall(Effect[CallAnswer]):
    """Code of an agent calls a tool of the host, which may be repeatable."""

    kind = "tool_call"

    def __init__(
        self, source: str, name: str, arguments: Mapping[str, JsonValue], *, is_repeatable: bool = False
    ) -> None:
        self._is_repeatable = is_repeatable
        self.source = source
        self._name = name
        self._arguments = arguments
        self._began = time.monotonic()

    @cached_property
    def _shown(self) -> str:
        return shorten(json.dumps(self._arguments, ensure_ascii=False), _MAX_ARGUMENTS)

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
        """Make the record of the call in the agent's message."""
        return ToolCallRecord(
            name=self._name[:_MAX_NAME],
            arguments=self._shown,
            outcome=answer.outcome,
            error=shorten(answer.error, _MAX_ERROR),
            seconds=time.monotonic() - self._began,
        )

    def began(self) -> ToolCallBegan:
        return ToolCallBegan(name=self._name[:_MAX_NAME], arguments=self._shown)

    def ended(self, outcome: CallAnswer | None, error: BaseException | None) -> ToolCallEnded:
        if outcome is None:
            outcome = _refused(str(error)) if isinstance(error, BudgetError) else _NOT_ANSWERED
        record = self.record(outcome)
        return ToolCallEnded(
            name=record.name,
            outcome=record.outcome,
            error=record.error,
            seconds=record.seconds,
        )


class TurnTools(HostTools):
    """The tools in one turn of an agent, with its limits and approvals.

    Args:
        source: The agent.
        offer: The tools; ``None`` for none.
        limits: Limits of the calls.
        approvals: Decides before code runs, and before each call.
        cancellation_token: Cancels the tools that run.
        dispatcher: The dispatcher that the agent remembers.
        user: The agent whose turn it is, for executors that several agents share.
        rights: See :attr:`codeact_team.core.execution.HostTools.rights`.
        start: Starts the sources of the tools before a call, if that was not necessary to know the tools.

    Attributes:
        pause: Entered while a person is asked, whose time is not the turn's.
        records: The calls in the order in which they ended.
        used_up: Whether a call was refused because there had been too many.
    """

    def __init__(
        self,
        source: str,
        offer: Offer | None,
        limits: ToolLimits,
        approvals: Approvals,
        cancellation_token: CancellationToken,
        *,
        dispatcher: Dispatcher | None = None,
        user: object = None,
        rights: object = None,
        start: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.source = source
        self.user = user
        self._dispatcher = dispatcher
        self._rights = rights
        self._start = start
        self._offer = offer or Offer([])
        self._has_tools = offer is not None
        self._limits = limits
        self._approvals = approvals
        self._cancellation_token = cancellation_token
        self._only_repeatable = False
        self.pause: Pause = nullcontext
        self._begin_records()

    def _begin_records(self) -> None:
        self._calls = 0
        self.records: list[ToolCallRecord] = []
        self.omitted_records = 0
        self.used_up = False
        self.denials = 0

    def unrecorded(self) -> TurnTools:
        """Return the same tools with records and counts of their own."""
        tools = copy(self)
        tools._begin_records()
        return tools

    def in_attempt(self) -> TurnTools:
        """Return the same tools for one of several attempts at the turn's task: only repeatable ones are called."""
        tools = self.unrecorded()
        tools._only_repeatable = True
        return tools

    def __bool__(self) -> bool:
        """Whether there are any."""
        return self._has_tools

    @property
    def declarations(self) -> Sequence[Mapping[str, JsonValue]]:
        return self._offer.declarations

    @property
    def max_parallel(self) -> int:
        return self._limits.max_parallel

    @property
    def rights(self) -> object:
        return self._rights

    def describe(self) -> str:
        """Describe the tools for a prompt; empty if there are none."""
        return self._offer.describe()

    def take_approvals(self) -> tuple[list[ApprovalRecord], int]:
        """Return the decisions since the last call of this, and how many more there were than are recorded."""
        omitted = self._approvals.left_out
        return self._approvals.take_records(), omitted

    async def denial_of(self, blocks: Sequence[CodeBlock]) -> str | None:
        """Return why these blocks may not run, or ``None`` if they may."""
        for block in blocks:
            decision = await self._approvals.code(block.code, language=block.language, pause=self.pause)
            if not decision.allowed:
                return decision.reason
        return None

    async def call(self, name: str, arguments: dict[str, JsonValue], *, pause: Pause) -> CallAnswer:
        # in an attempt, no other call is made at all
        is_repeatable = self._only_repeatable or self._limits.is_repeatable(name)
        call, answer = ToolCall(self.source, name, arguments, is_repeatable=is_repeatable), _NOT_ANSWERED
        is_new = False

        async def work() -> CallAnswer:
            nonlocal is_new
            is_new = True
            return await self._answer(name, arguments, pause)

        try:
            answer = await perform(call, work, self._dispatcher)
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

    async def _answer(self, name: str, arguments: dict[str, JsonValue], pause: Pause) -> CallAnswer:
        """Make a call, unless something forbids it."""
        if (tool := self._offer.find(name)) is None:
            return _refused(f"there is no tool {name[:_MAX_NAME]!r}{self._offer.nearest(name)}")
        if self._calls >= self._limits.max_calls:
            self.used_up = True
            most = self._limits.max_calls
            return _refused(
                f"this run may make {most} calls of tools (tool_limits.max_calls), and has made them"
            )
        self._calls += 1
        if self._only_repeatable and not self._limits.is_repeatable(name):
            return self._denied(_NOT_YET.format(name))
        try:
            read = tool.read(arguments)
        except ToolFailed as error:
            return _refused(str(error))
        # what only rules look at costs nothing where there are none
        if self._approvals:

            @contextmanager
            def both() -> Generator[None]:
                with self.pause(), pause():
                    yield

            decision = await self._approvals.call(name, tool.received(read), pause=both)
            if not decision.allowed:
                return self._denied(f"not approved: {decision.reason}")
        return await self._run(tool, read)

    def _denied(self, reason: str) -> CallAnswer:
        self.denials += 1
        return CallAnswer(CallOutcome.DENIED, error=reason)

    def _count(self, name: str, arguments: dict[str, JsonValue], answer: CallAnswer) -> None:
        """Count a call that was made before the run was interrupted: it stays counted in the limits."""
        tool = self._offer.find(name)
        if tool is None or answer.outcome is CallOutcome.REFUSED:
            return
        self._calls += 1
        if self._approvals and not (self._only_repeatable and not self._limits.is_repeatable(name)):
            with suppress(ToolFailed):
                self._approvals.count_call(name, tool.received(tool.read(arguments)))

    async def _run(self, tool: OfferedTool, arguments: Arguments) -> CallAnswer:
        seconds = self._limits.timeout_of(tool.name)
        timer = asyncio.timeout(seconds)
        try:
            async with timer:
                # after a resumed run, the tools may be known from its record
                if self._start is not None:
                    await self._start()
                return CallAnswer(content=await tool.call(arguments, self._cancellation_token))
        except (ToolFailed, WorkbenchError) as error:
            return CallAnswer(CallOutcome.FAILED, error=str(error))
        except TimeoutError:
            if not timer.expired():
                raise
            text = f"{tool.name} was stopped after {seconds:g} s, its limit (tool_limits)"
            return CallAnswer(CallOutcome.TIMED_OUT, error=text)


def _refused(reason: str) -> CallAnswer:
    return CallAnswer(CallOutcome.REFUSED, error=reason)


_CATALOGS = TypeAdapter(Sequence[Catalog])


class AgentTools:
    """The tools of an agent, and the approval of its code and of their calls.

    Args:
        source: The agent.
        tools: As of :class:`~codeact_team.tools.toolbox.Toolbox`.
        workbench: Further tools.
        limits: Limits of the calls.
        approval: The rules of approval.
        handler: Answers where a rule asks: a function, or its import path.
        parks: Whether a recorded run suspends where nobody answers.

    Raises:
        SettingError: If something is no tool, two have the same name, or no rule would ever ask the handler.
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
        can_ask = any(rule.decision == "ask" for rule in approval)
        for setting, is_given in {"approval_timeout": parks, "approval_handler": handler is not None}.items():
            if is_given and not can_ask:
                raise SettingError(f"{setting} has no effect: no rule in approval says `decision: ask`")
        workbenches = [workbench] if isinstance(workbench, Workbench) else list(workbench or ())
        self._toolbox = Toolbox(tools, workbenches) if tools or workbenches else None
        self._source = source
        self._dispatcher = current_dispatcher()
        self._limits = limits
        ask = resolve_function(handler) if isinstance(handler, str) else handler
        self._approvals = Approvals(approval, ask, source, parks=parks)
        self._rights = (list(tools), workbenches, limits, list(approval), handler)
        if self._toolbox is not None:
            # so that a server that does not start is reported before a model is paid
            scope.register(self._toolbox)

    def __bool__(self) -> bool:
        """Whether there are any."""
        return self._toolbox is not None

    async def begin_turn(self, cancellation_token: CancellationToken) -> TurnTools:
        """Start the tools if necessary, and return those for one turn; a :class:`WorkbenchError` if they cannot be had."""
        offer, toolbox = None, self._toolbox
        if toolbox is not None:
            # one that was made outside a scope and is used inside it belongs to it all the same
            scope.register(toolbox)

            def ask(
                asked: list[str], list_tools: Callable[[], Awaitable[Sequence[Catalog]]]
            ) -> Awaitable[Sequence[Catalog]]:
                listing = ToolListing(None, _CATALOGS, asked, self._source)
                return perform(listing, list_tools, self._dispatcher)

            offer = await until_cancelled(toolbox.offer(ask), cancellation_token)
        return TurnTools(
            self._source,
            offer,
            self._limits,
            self._approvals,
            cancellation_token,
            dispatcher=self._dispatcher,
            user=self,
            rights=self._rights,
            start=None if toolbox is None else toolbox.ensure_started,
        )

    def reset(self) -> None:
        """Forget what was granted."""
        self._approvals.reset()

    async def stop(self) -> None:
        """Stop the tools that were started for this agent."""
        if self._toolbox is not None:
            await self._toolbox.stop()

    def dump(self) -> Mapping[str, Any]:
        """The tools and workbenches for a config; a :class:`SettingError` if one has no form there."""
        box = self._toolbox
        return {
            "tools": [] if box is None else box.dump_tools(),
            "workbench": [] if box is None else box.dump_workbenches(),
        }
