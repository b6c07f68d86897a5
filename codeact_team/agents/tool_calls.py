"""Calls of the host's tools by code: limited, approved, recorded."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from autogen_core.tools import Workbench
from pydantic import BaseModel, ConfigDict, JsonValue, TypeAdapter

from codeact_team.agents.agent_config import ToolLimits
from codeact_team.agents.observations import ToolCallRecord, shorten
from codeact_team.core import scope
from codeact_team.core.aio import until_cancelled
from codeact_team.core.component_effects import ToolListing
from codeact_team.core.effects import NO_FACTS, Begin, Dispatcher, Effect, End, current_dispatcher, perform
from codeact_team.core.events import ToolCallBegan, ToolCallEnded
from codeact_team.core.execution import Artifact, CallAnswer, CallOutcome, HostTools
from codeact_team.core.providers import resolve_function
from codeact_team.errors import BudgetError, SettingError, WorkbenchError
from codeact_team.tools.approval_rules import ApprovalRule
from codeact_team.tools.approvals import Approvals, Handler, Pause
from codeact_team.tools.sources import Arguments, Catalog, Tool, ToolFailed
from codeact_team.tools.toolbox import Listing, Offer, OfferedTool, Toolbox

_MAX_RECORDS = 1000
"""Calls of a turn that are recorded one by one."""
_MAX_NAME = 100
_MAX_ARGUMENTS = 300
_MAX_ERROR = 1000
_NOT_YET = (
    "{} is not called now: several attempts at the task are made side by side, and until one of them is chosen only tools are "
    "called that may be called twice (tool_limits.repeatable). Go on without it, or say in the answer that it is left to do"
)
NO_TOOLS = Offer([])
"""The offer to the code of an agent without tools."""


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
    spends = ("tool_calls", "seconds")

    def __init__(self, source: str, call: HostCall, *, is_repeatable: bool) -> None:
        self._is_repeatable = is_repeatable
        self.source = source
        self._call = call
        self._began = time.monotonic()

    def request(self) -> JsonValue:
        return {"tool": self._call.name, "arguments": self._call.given}

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
            error=f"it is unknown what became of this call of {self._call.name}: the run was interrupted while it was under way. "
            "It was not made again; find out before you do",
        )

    def facts(self) -> Mapping[str, JsonValue]:
        return {"is_repeatable": True} if self._is_repeatable else NO_FACTS

    def facts_at_end(
        self, outcome: CallAnswer | None, error: BaseException | None
    ) -> Mapping[str, JsonValue]:
        return {"seconds": time.monotonic() - self._began}

    def record(self, answer: CallAnswer) -> ToolCallRecord:
        """Make the record of the call in the agent's message."""
        return ToolCallRecord(
            name=self._call.name[:_MAX_NAME],
            arguments=_shown(self._call.given),
            outcome=answer.outcome,
            error=shorten(answer.error, _MAX_ERROR),
            seconds=time.monotonic() - self._began,
        )

    @classmethod
    def began(cls, begin: Begin) -> ToolCallBegan:
        name = begin.request["tool"][:_MAX_NAME]
        return ToolCallBegan(
            name=name,
            arguments=_shown(begin.request["arguments"]),
            is_repeatable=begin.facts.get("is_repeatable", False),
        )

    @classmethod
    def ended(cls, end: End) -> ToolCallEnded:
        name, seconds = end.request["tool"][:_MAX_NAME], end.facts["seconds"]
        if end.outcome is not None:
            how, error = CallOutcome(end.outcome["outcome"]), end.outcome["error"]
        elif end.failure is not None and end.failure.type.endswith(f".{BudgetError.__name__}"):
            how, error = CallOutcome.REFUSED, end.failure.text
        else:
            how, error = CallOutcome.CANCELLED, ""
        return ToolCallEnded(name=name, outcome=how, error=shorten(error, _MAX_ERROR), seconds=seconds)


@dataclass(frozen=True)
class HostCall:
    """A call of a tool by code.

    Attributes:
        offer: The tools that there are.
        name: The name that the code has used.
        given: The arguments, unchecked.
        pause: Entered while a person is asked.
        was_made: Whether it was made before the run was interrupted. Then it is only counted, and the answer is of no use.
    """

    offer: Offer
    name: str
    given: dict[str, JsonValue]
    pause: Pause
    was_made: bool = False

    @cached_property
    def tool(self) -> OfferedTool:
        """The tool; :class:`ToolFailed` if there is none."""
        if (tool := self.offer.find(self.name)) is None:
            raise ToolFailed(f"there is no tool {self.name[:_MAX_NAME]!r}{self.offer.nearest(self.name)}")
        return tool

    @cached_property
    def arguments(self) -> Arguments:
        """The arguments as the tool takes them; :class:`ToolFailed` says what does not fit."""
        return self.tool.read(self.given)


class HostCalls(Protocol):
    """Answers calls of tools."""

    async def answer(self, call: HostCall) -> CallAnswer:
        """Make a call, or say why it is not made, also by a :class:`ToolFailed`."""
        ...


@dataclass
class _CallsOfTools(HostCalls):
    """Calls the tools, each within its time.

    Args:
        limits: Have the time of each.
        cancellation_token: Cancels them.
        start: Starts their sources before a call, if that was not necessary to know them.
    """

    limits: ToolLimits
    cancellation_token: CancellationToken
    start: Callable[[], Awaitable[None]] | None

    async def answer(self, call: HostCall) -> CallAnswer:
        if call.was_made:
            return CallAnswer()
        arguments = call.arguments
        timer = asyncio.timeout(seconds := self.limits.timeout_of(call.name))
        try:
            async with timer:
                # after a resumed run, the tools may be known from its record
                if self.start is not None:
                    await self.start()
                return CallAnswer(content=await call.tool.call(arguments, self.cancellation_token))
        except (ToolFailed, WorkbenchError) as error:
            return CallAnswer(CallOutcome.FAILED, error=str(error))
        except TimeoutError:
            if not timer.expired():
                raise
            text = f"{call.name} was stopped after {seconds:g} s, its limit (tool_limits)"
            return CallAnswer(CallOutcome.TIMED_OUT, error=text)


@dataclass
class WrappedCalls(HostCalls):
    """Has calls answered by ``inner``, as far as a subclass lets it."""

    inner: HostCalls


@dataclass
class _ApprovedCalls(WrappedCalls):
    """Has the calls made that the rules of approval allow."""

    approvals: Approvals

    async def answer(self, call: HostCall) -> CallAnswer:
        # what only rules look at costs nothing where there are none
        if self.approvals:
            received = call.tool.received(call.arguments)
            if call.was_made:
                self.approvals.count_call(call.name, received)
            elif not (decision := await self.approvals.call(call.name, received, pause=call.pause)).allowed:
                return CallAnswer(CallOutcome.DENIED, error=f"not approved: {decision.reason}")
        return await self.inner.answer(call)


@dataclass
class _RepeatableCalls(WrappedCalls):
    """Has the calls made of tools that may be called twice."""

    limits: ToolLimits

    async def answer(self, call: HostCall) -> CallAnswer:
        if not self.limits.is_repeatable(call.name):
            return CallAnswer(CallOutcome.DENIED, error=_NOT_YET.format(call.name))
        return await self.inner.answer(call)


@dataclass
class LimitedCalls(WrappedCalls):
    """Has so many calls of tools made as their ``limits`` say.

    Attributes:
        used_up: Whether a call was refused because there had been too many.
    """

    limits: ToolLimits
    count: int = 0
    used_up: bool = False

    async def answer(self, call: HostCall) -> CallAnswer:
        most = self.limits.max_calls
        # one of a tool that there is not costs nothing
        if call.tool and self.count >= most and not call.was_made:
            self.used_up = True
            text = f"this run may make {most} calls of tools (tool_limits.max_calls), and has made them"
            raise ToolFailed(text)
        self.count += 1
        return await self.inner.answer(call)


@dataclass
class RecordedCalls(WrappedCalls):
    """Has each call performed as an effect, and recorded for the agent's message.

    Attributes:
        source: The agent.
        dispatcher: The dispatcher that the agent remembers.
        limits: Say which calls are repeatable.
        records: The calls in the order in which they ended.
        omitted: How many calls there were beyond those.
        denials: How many calls were denied.
    """

    source: str
    dispatcher: Dispatcher | None
    limits: ToolLimits
    records: list[ToolCallRecord] = field(default_factory=list[ToolCallRecord])
    omitted: int = 0
    denials: int = 0

    async def answer(self, call: HostCall) -> CallAnswer:
        effect = ToolCall(self.source, call, is_repeatable=self.limits.is_repeatable(call.name))
        answer, is_new = CallAnswer(CallOutcome.CANCELLED), False

        async def work() -> CallAnswer:
            nonlocal is_new
            is_new = True
            return await self._answer(call)

        try:
            answer = await perform(effect, work, self.dispatcher)
            self.denials += answer.outcome is CallOutcome.DENIED
            if not is_new and answer.outcome is not CallOutcome.REFUSED:
                await self._answer(replace(call, was_made=True))
        except BudgetError as error:
            answer = CallAnswer(CallOutcome.REFUSED, error=str(error))
        finally:
            if len(self.records) < _MAX_RECORDS:
                self.records.append(effect.record(answer))
            else:
                self.omitted += 1
        return answer

    async def _answer(self, call: HostCall) -> CallAnswer:
        try:
            return await self.inner.answer(call)
        except ToolFailed as error:
            return CallAnswer(CallOutcome.REFUSED, error=str(error))


@dataclass(eq=False)
class TurnTools(HostTools):
    """The tools in one turn of an agent, with its limits and approvals.

    Attributes:
        source: The agent.
        offer: The tools; :data:`NO_TOOLS` for none.
        limits: Limits of the calls.
        approvals: Decides before code runs, and before each call.
        cancellation_token: Cancels the tools that run.
        dispatcher: The dispatcher that the agent remembers.
        user: The agent whose turn it is, for executors that several agents share.
        shared: See :attr:`codeact_team.core.execution.HostTools.rights`.
        start: Starts the sources of the tools before a call, if that was not necessary to know the tools.
        pause: Entered while a person is asked, whose time is not the turn's.
        calls: Answers the calls within the limits; by default the tools, where they are approved.
        recorded: Records the calls.
        limited: Limits their number.
    """

    source: str
    offer: Offer
    limits: ToolLimits
    approvals: Approvals
    cancellation_token: CancellationToken
    dispatcher: Dispatcher | None = None
    user: object = None
    shared: object = None
    start: Callable[[], Awaitable[None]] | None = None
    pause: Pause = nullcontext
    calls: HostCalls | None = None

    def __post_init__(self) -> None:
        tools = _CallsOfTools(self.limits, self.cancellation_token, self.start)
        self.limited: LimitedCalls = LimitedCalls(
            self.calls or _ApprovedCalls(tools, self.approvals), self.limits
        )
        self.recorded: RecordedCalls = RecordedCalls(self.limited, self.source, self.dispatcher, self.limits)

    def unrecorded(self) -> TurnTools:
        """Return the same tools with records and counts of their own."""
        return replace(self)

    def in_attempt(self) -> TurnTools:
        """Return the same tools for one of several attempts at the turn's task: only repeatable ones are called."""
        # no other call is made at all
        limits = self.limits.model_copy(update={"repeatable": ["*"]})
        return replace(self, limits=limits, calls=_RepeatableCalls(self.limited.inner, self.limits))

    def __bool__(self) -> bool:
        """Whether there are any."""
        return self.offer is not NO_TOOLS

    @property
    def declarations(self) -> Sequence[Mapping[str, JsonValue]]:
        return self.offer.declarations

    @property
    def max_parallel(self) -> int:
        return self.limits.max_parallel

    @property
    def rights(self) -> object:
        return self.shared

    def describe(self) -> str:
        """Describe the tools for a prompt; empty if there are none."""
        return self.offer.describe()

    async def denial_of(self, blocks: Sequence[CodeBlock]) -> str | None:
        """Return why these blocks may not run, or ``None`` if they may."""
        for block in blocks:
            decision = await self.approvals.code(block.code, language=block.language, pause=self.pause)
            if not decision.allowed:
                return decision.reason
        return None

    async def call(self, name: str, arguments: dict[str, JsonValue], *, pause: Pause) -> CallAnswer:
        @contextmanager
        def both() -> Generator[None]:
            with self.pause(), pause():
                yield

        return await self.recorded.answer(HostCall(self.offer, name, arguments, both))


def _shown(arguments: Mapping[str, JsonValue]) -> str:
    return shorten(json.dumps(arguments, ensure_ascii=False), _MAX_ARGUMENTS)


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
        asks_about_hosts: Whether rules of the executor ask a person, too.

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
        asks_about_hosts: bool = False,
    ) -> None:
        can_ask = asks_about_hosts or any(rule.decision == "ask" for rule in approval)
        for setting, is_given in {"approval_timeout": parks, "approval_handler": handler is not None}.items():
            if is_given and not can_ask:
                raise SettingError(
                    f"{setting} has no effect: no rule in approval says `decision: ask`, nor one in the executor's egress"
                )
        workbenches = [workbench] if isinstance(workbench, Workbench) else list(workbench or ())
        self._toolbox = Toolbox(tools, workbenches)
        ask = resolve_function(handler) if isinstance(handler, str) else handler
        self._turn = TurnTools(
            source,
            NO_TOOLS,
            limits,
            Approvals(approval, ask, source, parks=parks),
            CancellationToken(),
            dispatcher=current_dispatcher(),
            user=self,
            shared=(list(tools), workbenches, limits, list(approval), handler),
            start=self._toolbox.ensure_started,
        )
        """What all turns have."""
        if self._toolbox:
            # so that a server that does not start is reported before a model is paid
            scope.register(self._toolbox)

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._toolbox)

    async def begin_turn(self, cancellation_token: CancellationToken) -> TurnTools:
        """Start the tools if necessary, and return those for one turn; a :class:`WorkbenchError` if they cannot be had."""
        offer, turn = NO_TOOLS, self._turn
        if self._toolbox:
            # one that was made outside a scope and is used inside it belongs to it all the same
            scope.register(self._toolbox)

            def ask(asked: list[str], list_tools: Listing) -> Awaitable[Sequence[Catalog]]:
                return perform(ToolListing(None, _CATALOGS, asked, turn.source), list_tools, turn.dispatcher)

            offer = await until_cancelled(self._toolbox.offer(ask), cancellation_token)
        return replace(turn, offer=offer, cancellation_token=cancellation_token)

    def reset(self) -> None:
        """Forget what was granted."""
        self._turn.approvals.reset()

    async def stop(self) -> None:
        """Stop the tools that were started for this agent."""
        await self._toolbox.stop()

    def dump(self) -> Mapping[str, Any]:
        """The tools and workbenches for a config; a :class:`SettingError` if one has no form there."""
        return {"tools": self._toolbox.dump_tools(), "workbench": self._toolbox.dump_workbenches()}
