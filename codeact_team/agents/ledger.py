"""The ledger of a team: what its work spends, and limits to that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self, TypedDict, Unpack

from autogen_agentchat.base import ChatAgent, Team, TerminatedException, TerminationCondition
from autogen_agentchat.messages import BaseAgentEvent, BaseChatMessage, StopMessage
from autogen_core import Component
from autogen_core.models import CreateResult, RequestUsage
from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError, model_validator

from codeact_team.agents.block_calls import Block
from codeact_team.agents.tool_calls import ToolCall
from codeact_team.core.aio import Timer
from codeact_team.core.autogen_internals import components_in, conditions_of
from codeact_team.core.effects import Door, Effect, Perform, current_door
from codeact_team.core.events import BudgetSpent, ClockReadingBegan, ClockReadingEnded
from codeact_team.core.execution import ExecutionResult
from codeact_team.errors import BudgetError, SettingError
from codeact_team.models.clients import ModelCall, usage_of
from codeact_team.tools.approvals import AskedQuestion
from codeact_team.tools.autogen_parts import MemoryCall, PartBlock, PartCall, PersonInput

_MILLION = 1_000_000


class Item(StrEnum):
    """What is spent. The limit to it is the setting ``max_`` and its name."""

    MODEL_CALLS = "model_calls"
    TOKENS = "tokens"
    COST = "cost"
    SECONDS = "seconds"
    TOOL_CALLS = "tool_calls"
    PROCESSOR_SECONDS = "processor_seconds"


class Price(BaseModel):
    """What a model costs, in money for a million tokens."""

    model_config = ConfigDict(extra="forbid")

    prompt: float = Field(ge=0, allow_inf_nan=False)
    """Of what it reads. AutoGen does not tell which of these tokens a server has cached, so all cost the same here."""
    completion: float = Field(ge=0, allow_inf_nan=False)
    """Of what it writes, thoughts included."""

    def of(self, usage: RequestUsage) -> float:
        """What a call has cost that used so many tokens."""
        return (usage.prompt_tokens * self.prompt + usage.completion_tokens * self.completion) / _MILLION


class BudgetTerminationConfig(BaseModel):
    """Settings of :class:`~codeact_team.BudgetTermination`: what one run of a team may spend. What is not set is unlimited."""

    model_config = ConfigDict(extra="forbid")

    max_model_calls: int | None = Field(None, ge=1)
    """How often models may be asked."""
    max_tokens: int | None = Field(None, ge=1)
    """Tokens of all calls of models, those of prompts included."""
    max_cost: float | None = Field(None, gt=0, allow_inf_nan=False)
    """Money for all calls of models, in the `currency` of the `prices`. A model that has no price is then not asked."""
    max_seconds: float | None = Field(None, gt=0, allow_inf_nan=False)
    """Wall-clock time in seconds, without that for which a person is asked; what is under way then is stopped."""
    max_tool_calls: int | None = Field(None, ge=0)
    """How often tools may be called, by agents and by code."""
    max_processor_seconds: float | None = Field(None, gt=0, allow_inf_nan=False)
    """Processor time that code may use in its sandboxes, in seconds. A block ends by its own `timeout`, and the next one
    is refused. Where a sandbox does not tell, the wall-clock time of its blocks counts."""
    prices: dict[str, Price] = Field(default_factory=dict)
    """By the name of a model, as its client has it: what a million tokens cost. With prices, a run shows what it has
    cost, and which models have no price."""
    currency: str = "USD"
    """What the prices are in; shown, and never converted."""

    @model_validator(mode="after")
    def _has_prices_to_count_with(self) -> BudgetTerminationConfig:
        if self.max_cost is not None and not self.prices:
            raise ValueError("max_cost has to know what models cost: give `prices`")
        return self

    @property
    def limits(self) -> Mapping[Item, float]:
        """Those that are set."""
        limits = {item: getattr(self, f"max_{item}") for item in Item}
        return {item: limit for item, limit in limits.items() if limit is not None}


class BudgetTerminationOptions(TypedDict, total=False):
    """Keyword arguments; see the fields of the same names in :class:`BudgetTerminationConfig`."""

    max_model_calls: int | None
    max_tokens: int | None
    max_cost: float | None
    max_seconds: float | None
    max_tool_calls: int | None
    max_processor_seconds: float | None
    prices: Mapping[str, Price | Mapping[str, Any]]
    currency: str


@dataclass
class Spent:
    """What was spent so far.

    Attributes:
        amounts: How much of what; money only where there are prices, and time only where it is limited.
        unpriced: Models that were asked and have no price.
        uncounted: How many calls of models may have cost something of which nobody told.
    """

    amounts: dict[Item, int | float]
    unpriced: list[str] = field(default_factory=list[str])
    uncounted: int = 0

    @classmethod
    def nothing(cls, config: BudgetTerminationConfig) -> Spent:
        """What is counted with such a config."""
        amounts: dict[Item, int | float] = {Item.MODEL_CALLS: 0, Item.TOKENS: 0, Item.TOOL_CALLS: 0}
        amounts[Item.PROCESSOR_SECONDS] = 0.0
        if config.prices:
            amounts[Item.COST] = 0.0
        if config.max_seconds is not None:
            amounts[Item.SECONDS] = 0.0
        return cls(amounts)

    def copy(self) -> Spent:
        """The same, which stays as it is."""
        return Spent({**self.amounts}, [*self.unpriced], self.uncounted)

    def take_over(self, recorded: Spent) -> None:
        """Go on from what was recorded: it has what is not done again within the effects that a journal answers."""
        for item, amount in recorded.amounts.items():
            if item in self.amounts:
                self.amounts[item] = amount if item is Item.SECONDS else max(amount, self.amounts[item])
        self.unpriced = list(dict.fromkeys([*recorded.unpriced, *self.unpriced]))
        self.uncounted = max(recorded.uncounted, self.uncounted)

    def enter(
        self, config: BudgetTerminationConfig, call: ModelCall, outcome: object, failure: BaseException | None
    ) -> None:
        """Enter what a call of a model has cost."""
        usage = outcome.usage if isinstance(outcome, CreateResult) else usage_of(failure)
        if isinstance(outcome, CreateResult) and outcome.cached:
            # no model was asked
            self.amounts[Item.MODEL_CALLS] -= 1
            return
        if usage is None or not (usage.prompt_tokens or usage.completion_tokens):
            # what a server refuses costs nothing; what was cut off, or is told without numbers, may
            self.uncounted += not isinstance(failure, Exception)
            return
        self.amounts[Item.TOKENS] += usage.prompt_tokens + usage.completion_tokens
        if (price := config.prices.get(call.model)) is not None:
            self.amounts[Item.COST] += price.of(usage)
        elif config.prices and call.model not in self.unpriced:
            self.unpriced.append(call.model)


class Reading(Effect[Spent]):
    """It is read what was spent so far, time included.

    Args:
        source: The agent that is about to spend something.
        part: Whose ledger is read.
        max_seconds: The limit of time, if there is one.
    """

    kind = "time_reading"
    form = TypeAdapter(Spent)

    def __init__(self, source: str, part: object, max_seconds: float | None) -> None:
        self.source = source
        self.part = part
        self._max_seconds = max_seconds

    def request(self) -> JsonValue:
        return {"budget": "spent"}

    def began(self, span: int) -> ClockReadingBegan:
        return ClockReadingBegan(span=span, agent=self.source)

    def ended(self, span: int, outcome: Spent | None, error: BaseException | None) -> ClockReadingEnded:
        event = ClockReadingEnded(span=span, agent=self.source)
        if outcome is not None:
            event.seconds = seconds = outcome.amounts.get(Item.SECONDS)
            event.over = (
                seconds is not None and self._max_seconds is not None and seconds >= self._max_seconds
            )
        return event


_QUESTIONS = (AskedQuestion, PersonInput)
_OF_MODELS = (Item.MODEL_CALLS, Item.TOKENS, Item.COST, Item.SECONDS)
_SPENDING: Sequence[tuple[type[Effect[Any]] | tuple[type[Effect[Any]], ...], Sequence[Item]]] = (
    (ModelCall, _OF_MODELS),
    (MemoryCall, (Item.SECONDS,)),
    ((Block, PartBlock), (Item.PROCESSOR_SECONDS, Item.SECONDS)),
    ((ToolCall, PartCall), (Item.TOOL_CALLS, Item.SECONDS)),
)
"""By the kind of an effect: what there has to be something left of."""
_CALLS = {Item.MODEL_CALLS, Item.TOOL_CALLS}


class Ledger:
    """What was spent since it was opened, of what; a handler, once it is in a door.

    Args:
        config: The limits, and the prices.
        door: Where the effects pass that it counts.
        part: The component whose ledger it is.

    Attributes:
        used_up: Why nothing is spent any more, in words.
    """

    def __init__(self, config: BudgetTerminationConfig, door: Door, part: object) -> None:
        self._config = config
        self._door = door
        self._part = part
        self._limits = config.limits
        self._timer: Timer | None = None
        self._under_way: set[asyncio.Timeout] = set()
        self._spent = Spent.nothing(config)
        self.used_up: str | None = None

    def open(self) -> None:
        """Stand in the door from now on. Needs a running event loop."""
        if (seconds := self._limits.get(Item.SECONDS)) is not None:
            self._timer = Timer(asyncio.get_running_loop().time() + seconds, self._end_time)
        self._door.put_outside(self)

    def close(self) -> None:
        """Leave the door."""
        self._door.take_out(self)
        if self._timer is not None:
            self._timer.close()

    async def __call__(self, effect: Effect[Any], do: Perform) -> Any:
        """Let an effect pass if there is something left for it, and enter what it has spent.

        Raises:
            BudgetError: If there is nothing left.
            SettingError: If money is limited, and there is no price for a model.
        """
        if isinstance(effect, _QUESTIONS):
            with self._paused():
                return await do()
        items = next((items for kinds, items in _SPENDING if isinstance(effect, kinds)), None)
        if items is None:
            return await do()
        await self.look(effect.source)
        self._require_price(effect)
        self._require_left(items)
        for item in _CALLS.intersection(items):
            # before, so that those side by side cannot be too many
            self._spent.amounts[item] += 1
        outcome, failure = None, None
        began = asyncio.get_running_loop().time()
        try:
            outcome = await self._in_time(effect, do)
            return outcome
        except BaseException as error:
            failure = error
            raise
        finally:
            # on resume, it is what was recorded by the next reading
            self._enter(effect, outcome, failure, asyncio.get_running_loop().time() - began)

    async def look(self, source: str = "") -> None:
        """Read what was spent so far, through the door: where a journal answers, that counts, and goes on from there.

        Args:
            source: The agent that is about to spend something.
        """
        is_live = False

        async def read() -> Spent:
            nonlocal is_live
            is_live = True
            if self._timer is not None:
                self._spent.amounts[Item.SECONDS] = self._seconds(self._timer)
            return self._spent.copy()

        max_seconds = self._config.max_seconds
        recorded = await self._door.perform(Reading(source, self._part, max_seconds), read)
        if not is_live:
            self._spent.take_over(recorded)
            if self._timer is not None and max_seconds is not None:
                self._timer.left = max_seconds - self._spent.amounts[Item.SECONDS]

    def is_used_up(self) -> bool:
        """Whether models may not be asked any more; tells of it."""
        return self._use_up(_OF_MODELS)

    def _seconds(self, timer: Timer) -> float:
        limit = self._limits[Item.SECONDS]
        # one that has fired may have done so a moment early
        return max(limit, limit - timer.left) if timer.closed else limit - timer.left

    def _paused(self) -> AbstractContextManager[None]:
        return nullcontext() if self._timer is None else self._timer.paused()

    def _end_time(self) -> None:
        for timeout in self._under_way:
            timeout.reschedule(asyncio.get_running_loop().time())

    async def _in_time(self, effect: Effect[Any], do: Perform) -> Any:
        """Perform an effect, and stop it when the time is over."""
        if self._timer is None:
            return await do()
        timeout = asyncio.timeout(None)
        try:
            async with timeout:
                self._under_way.add(timeout)
                try:
                    return await do()
                finally:
                    self._under_way.remove(timeout)
        except TimeoutError:
            if not timeout.expired():
                raise
            await self.look(effect.source)
            self._require_left([Item.SECONDS])
            raise

    def _require_price(self, effect: Effect[Any]) -> None:
        if (
            Item.COST in self._limits
            and isinstance(effect, ModelCall)
            and effect.model not in self._config.prices
        ):
            raise SettingError(
                f"max_cost of BudgetTermination cannot be kept: there is no price for the model {effect.model!r}, so it was "
                "not asked; add it to `prices`, or leave out `max_cost`"
            )

    def _require_left(self, items: Sequence[Item]) -> None:
        if self._use_up(items):
            raise BudgetError(self.used_up)

    def _use_up(self, items: Sequence[Item]) -> bool:
        """Whether nothing more is to be spent: nothing is left of one of these, or something was refused before."""
        if self.used_up is None:
            spent, limits = self._spent.amounts, self._limits
            gone = next((item for item in items if item in limits and spent[item] >= limits[item]), None)
            if gone is not None:
                self.used_up = self._in_words(gone)
                self._tell()
        return self.used_up is not None

    def _enter(
        self, effect: Effect[Any], outcome: object, failure: BaseException | None, seconds: float
    ) -> None:
        if isinstance(effect, ModelCall):
            self._spent.enter(self._config, effect, outcome, failure)
        elif isinstance(effect, Block | PartBlock):
            told = outcome.processor_seconds if isinstance(outcome, ExecutionResult) else None
            self._spent.amounts[Item.PROCESSOR_SECONDS] += seconds if told is None else told
        self._tell()

    def _tell(self) -> None:
        spent = self._spent.amounts
        if self._timer is not None:
            # as it is now; what decides is what was read last
            spent = spent | {Item.SECONDS: self._seconds(self._timer)}
        left = {item: max(0, limit - spent[item]) for item, limit in self._limits.items()}
        self._door.tell(
            BudgetSpent(
                spent={item.value: round(amount, 9) for item, amount in spent.items()},
                left={item.value: round(amount, 9) for item, amount in left.items()},
                currency=self._config.currency if self._config.prices else None,
                unpriced=[*self._spent.unpriced],
                uncounted=self._spent.uncounted,
                used_up=self.used_up,
            )
        )

    def _in_words(self, item: Item) -> str:
        what = self._config.currency if item is Item.COST else item.replace("_", " ")
        digits = 6 if item is Item.COST else 2
        spent, limit = (_number(number, digits) for number in (self._spent.amounts[item], self._limits[item]))
        return f"the budget is used up: {spent} of {limit} {what}; a higher max_{item} of BudgetTermination would let it go on"


def _number(value: float, digits: int) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.{digits}f}".rstrip("0").rstrip(".")


class BudgetTermination(TerminationCondition, Component[BudgetTerminationConfig]):
    """Ends a team when it has spent what it may: model calls, tokens, money, time, calls of tools, processor time.

    Whatever passes the :class:`~codeact_team.Door` counts, from the team's task to the end of its run: also what nested
    teams do, and agents inside tools. The next task has the budget anew.

    Between two turns, a team that may not ask models any more ends as by any other termination. Within a turn, what there
    is nothing left for is refused by a :class:`~codeact_team.BudgetError` before it is spent, and nothing else is done
    after that; as a nested team's budget does not know whose turn it is, that ends the teams around it, too. What is under
    way side by side may together spend a little more than there is.

    A ``MagenticOneGroupChat`` asks its conditions only after its first turn: without the command, what it plans before that
    does not count.

    The parts of a config pass a door by themselves; those of a team that is built in Python do inside ``with Door():``,
    those of AutoGen's own agents wrapped by :func:`codeact_team.wrap`.

    Args:
        **options: The fields of :class:`BudgetTerminationConfig`.

    Raises:
        ValueError: If the settings cannot work.
    """

    component_config_schema = BudgetTerminationConfig
    component_provider_override = "codeact_team.BudgetTermination"

    def __init__(self, **options: Unpack[BudgetTerminationOptions]) -> None:
        try:
            self._config = BudgetTerminationConfig.model_validate(options)
        except ValidationError as error:
            raise SettingError(str(error)) from error
        self._door = current_door()
        self._ledger: Ledger | None = None
        self._terminated = False

    @property
    def terminated(self) -> bool:
        return self._terminated

    async def __call__(self, messages: Sequence[BaseAgentEvent | BaseChatMessage]) -> StopMessage | None:
        if self._terminated:
            raise TerminatedException("Termination condition has already been reached")
        ledger = self.begin()
        await ledger.look()
        if not ledger.is_used_up():
            return None
        self._terminated = True
        return StopMessage(content=ledger.used_up or "", source="BudgetTermination")

    def begin(self) -> Ledger:
        """Count from now on, unless it does already; returns where.

        Raises:
            SettingError: If there is no door.
        """
        if self._ledger is None:
            self._ledger = self._open()
        return self._ledger

    async def reset(self) -> None:
        """Begin anew with the next task."""
        self._terminated = False
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None

    def _open(self) -> Ledger:
        if (door := current_door() or self._door) is None:
            raise SettingError(
                "BudgetTermination counts what passes a door, and there is none: run the team inside `with Door():`, or load "
                "it from a config"
            )
        ledger = Ledger(self._config, door, self)
        ledger.open()
        return ledger

    def _to_config(self) -> BudgetTerminationConfig:
        return self._config

    @classmethod
    def _from_config(cls, config: BudgetTerminationConfig) -> Self:
        return cls(**dict(config))


@asynccontextmanager
async def within_budgets(runner: Team | ChatAgent) -> AsyncGenerator[None]:
    """Within it, a run: what the team ends by counts from its beginning, and no budget in it beyond its end.

    AutoGen's teams see to that but for a few: one asks its condition only after the first turn, and one that breaks off
    inside a tool does not reset its own.
    """
    for condition in conditions_of(runner):
        if isinstance(condition, BudgetTermination):
            condition.begin()
    try:
        yield
    finally:
        for part in components_in(runner):
            if isinstance(part, BudgetTermination):
                await part.reset()
