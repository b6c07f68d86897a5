"""The budget of a team: counts what its work spends, and limits it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Self, cast

from autogen_agentchat.base import ChatAgent, Team, TerminatedException, TerminationCondition
from autogen_agentchat.messages import BaseAgentEvent, BaseChatMessage, StopMessage
from autogen_core import Component
from autogen_core.models import CreateResult
from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, model_validator

from codeact_team.agents.block_calls import AgentBlock
from codeact_team.core.accounting import ModelUsage, Price
from codeact_team.core.aio import Timer
from codeact_team.core.autogen_internals import components_in, conditions_of
from codeact_team.core.effects import (
    NO_FACTS,
    Begin,
    Dispatcher,
    Effect,
    End,
    Perform,
    current_dispatcher,
)
from codeact_team.core.events import BudgetSpent, ClockReadingBegan, ClockReadingEnded
from codeact_team.core.execution import ExecutionResult
from codeact_team.core.settings import read_as, takes_settings
from codeact_team.errors import BudgetError, SettingError
from codeact_team.models.clients import ModelCall
from codeact_team.models.usage import is_reported, usage_of_failure
from codeact_team.tools.autogen_parts import PartBlock


class Item(StrEnum):
    """A kind of expense. Its limit is the setting with the prefix ``max_``."""

    MODEL_CALLS = "model_calls"
    TOKENS = "tokens"
    COST = "cost"
    SECONDS = "seconds"
    TOOL_CALLS = "tool_calls"
    REQUESTS = "requests"
    BYTES = "bytes"
    PROCESSOR_SECONDS = "processor_seconds"


class BudgetTerminationConfig(BaseModel):  # noqa: D101 - editors show that of the class with these settings
    model_config = ConfigDict(extra="forbid")

    max_model_calls: int | None = Field(default=None, ge=1)
    """The most model calls."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Tokens of all model calls, prompts included."""
    max_cost: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Money for all model calls, in the `currency` of the `prices`. A model without a price is then not called."""
    max_seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Wall-clock time in seconds, without the time in which a person is asked. What still runs then is stopped."""
    max_tool_calls: int | None = Field(default=None, ge=0)
    """The most tool calls, of agents and of code."""
    max_requests: int | None = Field(default=None, ge=0)
    """The most requests of code to the network, as its `egress` allows them. A connection that is passed through is one."""
    max_bytes: int | None = Field(default=None, ge=0)
    """The most bytes of these, sent and received together. What is under way goes on to its end, and the next is refused."""
    max_processor_seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Processor time that code may use in its sandboxes, in seconds. A running block ends by its own `timeout`, and the next
    one is refused. Where a sandbox cannot measure it, the wall-clock time of its blocks counts."""
    prices: Annotated[Mapping[str, Price | Mapping[str, Any]], read_as(dict[str, Price])] = Field(
        default_factory=dict[str, Price | Mapping[str, Any]]
    )
    """Prices of a million tokens by the name of the model, as its client has it. With prices, a run shows its cost, and
    the models without a price."""
    currency: str = "USD"
    """The currency of the prices; shown, and never converted."""

    @model_validator(mode="after")
    def _has_prices_to_count_with(self) -> BudgetTerminationConfig:
        if self.max_cost is not None and not self.prices:
            raise ValueError("max_cost needs to know what models cost: give `prices`")
        return self

    @property
    def price_list(self) -> Mapping[str, Price]:
        """The prices, read."""
        return cast("Mapping[str, Price]", self.prices)

    @property
    def limits(self) -> Mapping[Item, float]:
        """The limits that are set."""
        limits = {item: getattr(self, f"max_{item}") for item in Item}
        return {item: limit for item, limit in limits.items() if limit is not None}


@dataclass
class Spent:
    """Amounts that a team has spent so far; the wall-clock time only if it is limited."""

    models: ModelUsage = field(default_factory=ModelUsage)
    model_calls: int = 0
    tool_calls: int = 0
    requests: int = 0
    bytes: int = 0
    processor_seconds: float = 0.0
    seconds: float = 0.0

    def of(self, item: Item) -> int | float:
        """The amount spent of an item."""
        return getattr(self.models if item in (Item.TOKENS, Item.COST) else self, item)

    def raise_to(self, recorded: Spent) -> None:
        """Raise every counter to its recorded value, which includes effects that a resumed run does not perform again."""
        self.models.raise_to(recorded.models)
        for item in Item:
            if item in vars(self):
                setattr(self, item, max(self.of(item), recorded.of(item)))
        self.seconds = recorded.seconds

    def enter(
        self, prices: Mapping[str, Price], call: ModelCall, outcome: object, failure: BaseException | None
    ) -> None:
        """Enter the usage of a model call by its outcome or failure."""
        if isinstance(outcome, CreateResult) and outcome.cached:
            # no model was called
            self.model_calls -= 1
            return
        if isinstance(outcome, CreateResult):
            usage = call.usage(outcome)
            self.models.is_estimated |= not is_reported(outcome)
        else:
            usage = usage_of_failure(failure)
        if usage is not None and (usage.prompt_tokens or usage.completion_tokens):
            self.models.add(call.model, usage, prices)
        else:
            # a call that a server refuses costs nothing; one that was cancelled, or has no numbers, may
            self.models.uncounted += not isinstance(failure, Exception)


class Reading(Effect[Spent]):
    """Reads what a team has spent so far, its time included; ``part`` is the budget."""

    kind = "time_reading"
    form = TypeAdapter(Spent)

    def __init__(self, source: str, part: object, max_seconds: float | None) -> None:
        self.source = source
        self.part = part
        self._max_seconds = max_seconds

    def request(self) -> JsonValue:
        return {"budget": "spent"}

    @classmethod
    def began(cls, begin: Begin) -> ClockReadingBegan:
        return ClockReadingBegan()

    @classmethod
    def ended(cls, end: End) -> ClockReadingEnded:
        return ClockReadingEnded(**ClockReadingEnded.fields_in(end.facts))

    def facts_at_end(self, outcome: Spent | None, error: BaseException | None) -> Mapping[str, JsonValue]:
        if outcome is None or self._max_seconds is None:
            return NO_FACTS
        return {"seconds": outcome.seconds, "over": outcome.seconds >= self._max_seconds}


class Ledger:
    """Counts what goes through a dispatcher since it was opened, and refuses what is too much; an interceptor.

    ``part`` is the component whose ledger it is; ``used_up`` says in words why nothing more may be spent.
    """

    def __init__(self, config: BudgetTerminationConfig, dispatcher: Dispatcher, part: object) -> None:
        self._config = config
        self._dispatcher = dispatcher
        self._part = part
        self._limits = config.limits
        self._timer: Timer | None = None
        self._under_way: set[asyncio.Timeout] = set()
        self._spent = Spent()
        self._items = [
            item
            for item in Item
            if (item is not Item.COST or config.prices)
            and (item is not Item.SECONDS or config.max_seconds is not None)
        ]
        """Those that events have: money needs prices, and time is measured only where it is limited."""
        self.used_up: str | None = None

    def open(self) -> None:
        """Start counting. Needs a running event loop."""
        if (seconds := self._limits.get(Item.SECONDS)) is not None:
            self._timer = Timer(asyncio.get_running_loop().time() + seconds, self._end_time)
        self._dispatcher.add_outermost(self)

    def close(self) -> None:
        """Stop counting."""
        self._dispatcher.remove(self)
        if self._timer is not None:
            self._timer.close()

    async def __call__(self, effect: Effect[Any], do: Perform) -> Any:
        """Perform an effect if the budget allows it, and enter what it spends.

        Raises:
            BudgetError: If nothing is left.
            SettingError: If money is limited, and a model has no price.
        """
        if effect.asks_person:
            with nullcontext() if self._timer is None else self._timer.paused():
                return await do()
        if not (items := [*map(Item, effect.spends)]):
            return await do()
        await self.read_spent(effect.source)
        self._require_price(effect)
        self._require_left(items)
        # counted before, so that calls side by side cannot be too many
        for item in items:
            if item is not Item.BYTES and isinstance(vars(self._spent).get(item), int):
                setattr(self._spent, item, self._spent.of(item) + 1)
        outcome, failure = None, None
        began = asyncio.get_running_loop().time()
        try:
            outcome = await self._in_time(effect, do)
            return outcome
        except BaseException as error:
            failure = error
            raise
        finally:
            # on resume, the next reading replaces it by what was recorded
            self._enter(effect, outcome, failure, asyncio.get_running_loop().time() - began)

    async def read_spent(self, source: str = "") -> None:
        """Read what was spent so far as an effect of the agent; the amounts in a journal count from there on."""
        is_live = False

        async def read() -> Spent:
            nonlocal is_live
            is_live = True
            if self._timer is not None:
                self._spent.seconds = self._seconds(self._timer)
            return deepcopy(self._spent)

        max_seconds = self._config.max_seconds
        recorded = await self._dispatcher.perform(Reading(source, self._part, max_seconds), read)
        if not is_live:
            self._spent.raise_to(recorded)
            if self._timer is not None and max_seconds is not None:
                self._timer.left = max_seconds - self._spent.seconds

    def is_used_up(self) -> bool:
        """Whether models may not be called any more; emits an event if that is new."""
        return self._use_up([*map(Item, ModelCall.spends)])

    def _seconds(self, timer: Timer) -> float:
        limit = self._limits[Item.SECONDS]
        # a timer that has fired may have done so a moment early
        return max(limit, limit - timer.left) if timer.closed else limit - timer.left

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
            # what it has used until then, nobody tells
            self._spent.models.uncounted += isinstance(effect, ModelCall)
            await self.read_spent(effect.source)
            self._require_left([Item.SECONDS])
            raise

    def _require_price(self, effect: Effect[Any]) -> None:
        if not isinstance(effect, ModelCall):
            return
        if Item.COST in self._limits and effect.model not in self._config.prices:
            raise SettingError(
                f"max_cost of BudgetTermination cannot be enforced: there is no price for the model {effect.model!r}, so it was "
                "not asked; add it to `prices`, or leave out `max_cost`"
            )

    def _require_left(self, items: Sequence[Item]) -> None:
        if self._use_up(items):
            raise BudgetError(self.used_up)

    def _use_up(self, items: Sequence[Item]) -> bool:
        """Whether nothing more may be spent, as one of these items is used up, or something was refused before."""
        if self.used_up is None:
            limits = self._limits
            gone = [item for item in items if item in limits and self._spent.of(item) >= limits[item]]
            if gone:
                self.used_up = self._refusal(gone[0])
                self._tell()
        return self.used_up is not None

    def _enter(
        self, effect: Effect[Any], outcome: object, failure: BaseException | None, seconds: float
    ) -> None:
        if isinstance(effect, ModelCall):
            self._spent.enter(self._config.price_list, effect, outcome, failure)
        elif isinstance(effect, AgentBlock | PartBlock):
            measured = outcome.processor_seconds if isinstance(outcome, ExecutionResult) else None
            self._spent.processor_seconds += seconds if measured is None else measured
        elif outcome is not None:
            for item, amount in effect.amounts(outcome).items():
                setattr(self._spent, item, self._spent.of(Item(item)) + amount)
        self._tell()

    def _tell(self) -> None:
        spent = {item: self._spent.of(item) for item in self._items}
        if self._timer is not None:
            # the time now, while decisions go by the time of the last reading
            spent[Item.SECONDS] = self._seconds(self._timer)
        left = {item: max(0, limit - spent[item]) for item, limit in self._limits.items()}
        self._dispatcher.emit(
            BudgetSpent(
                spent={item.value: round(amount, 9) for item, amount in spent.items()},
                left={item.value: round(amount, 9) for item, amount in left.items()},
                currency=self._config.currency if self._config.prices else None,
                unpriced=[*self._spent.models.unpriced],
                uncounted=self._spent.models.uncounted,
                is_estimated=self._spent.models.is_estimated,
                used_up=self.used_up,
            )
        )

    def _refusal(self, item: Item) -> str:
        unit = self._config.currency if item is Item.COST else item.replace("_", " ")
        digits = 6 if item is Item.COST else 2
        spent, limit = (_number(number, digits) for number in (self._spent.of(item), self._limits[item]))
        about = "about " if item in (Item.TOKENS, Item.COST) and self._spent.models.is_estimated else ""
        return f"the budget is used up: {about}{spent} of {limit} {unit}; a higher max_{item} of BudgetTermination would let it go on"


def _number(value: float, digits: int) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.{digits}f}".rstrip("0").rstrip(".")


class BudgetTermination(TerminationCondition, Component[BudgetTerminationConfig]):
    """Ends a team when its budget is used up: model calls, tokens, money, time, tool calls, requests, bytes, processor time.

    By default nothing is limited. All effects that pass the :class:`~codeact_team.Dispatcher` count, from the team's task to
    the end of its run, also the effects of nested teams and of agents inside tools. The next task has a new budget.

    Between two turns, a team that may not call models any more ends as by any other termination. Within a turn, an effect
    for which nothing is left raises a :class:`~codeact_team.BudgetError` before it spends anything, and nothing else is done
    after it. As the budget of a nested team does not know whose turn it is, that also ends the teams around it. Effects
    side by side may together spend a little more than the budget.

    A ``MagenticOneGroupChat`` checks its conditions only after its first turn. Outside of the command, its planning before
    that does not count.

    The effects of a team that a config loads pass the dispatcher by themselves. Build a team in Python inside
    ``with Dispatcher():``, and wrap the parts of AutoGen's own agents by :func:`codeact_team.wrap`.

    Raises:
        SettingError: If a setting cannot work.
    """

    component_config_schema = BudgetTerminationConfig
    component_provider_override = "codeact_team.BudgetTermination"

    @takes_settings(BudgetTerminationConfig)
    def __init__(self, config: BudgetTerminationConfig) -> None:  # noqa: D417 - the settings are its parameters
        """Ends a team when its budget is used up: model calls, tokens, money, time, tool calls, requests, bytes, processor time.

        Args:
            max_model_calls: The most model calls.
            max_tokens: Tokens of all model calls, prompts included.
            max_cost: Money for all model calls, in the `currency` of the `prices`. A model without a price is
                then not called.
            max_seconds: Wall-clock time in seconds, without the time in which a person is asked. What still
                runs then is stopped.
            max_tool_calls: The most tool calls, of agents and of code.
            max_requests: The most requests of code to the network, as its `egress` allows them. A connection
                that is passed through is one.
            max_bytes: The most bytes of these, sent and received together. What is under way goes on to its
                end, and the next is refused.
            max_processor_seconds: Processor time that code may use in its sandboxes, in seconds. A running
                block ends by its own `timeout`, and the next one is refused. Where a sandbox cannot measure
                it, the wall-clock time of its blocks counts.
            prices: Prices of a million tokens by the name of the model, as its client has it. With prices, a
                run shows its cost, and the models without a price.
            currency: The currency of the prices; shown, and never converted.
        """
        self._config = config
        self._dispatcher = current_dispatcher()
        self._ledger: Ledger | None = None
        self._terminated = False

    @property
    def terminated(self) -> bool:
        return self._terminated

    async def __call__(self, messages: Sequence[BaseAgentEvent | BaseChatMessage]) -> StopMessage | None:
        if self._terminated:
            raise TerminatedException("Termination condition has already been reached")
        ledger = self.begin()
        await ledger.read_spent()
        if not ledger.is_used_up():
            return None
        self._terminated = True
        return StopMessage(content=ledger.used_up or "", source="BudgetTermination")

    def begin(self) -> Ledger:
        """Start counting unless it has started, and return the ledger; a :class:`SettingError` without a dispatcher."""
        if self._ledger is None:
            if (dispatcher := current_dispatcher() or self._dispatcher) is None:
                raise SettingError(
                    "BudgetTermination counts the effects of a dispatcher, but there is none: run the team inside "
                    "`with Dispatcher():`, or load it from a config"
                )
            self._ledger = Ledger(self._config, dispatcher, self)
            self._ledger.open()
        return self._ledger

    async def reset(self) -> None:
        """Start a new budget with the next task."""
        self._terminated = False
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None

    def _to_config(self) -> BudgetTerminationConfig:
        return self._config

    @classmethod
    def _from_config(cls, config: BudgetTerminationConfig) -> Self:
        return cls(**dict(config))


@asynccontextmanager
async def within_budgets(runner: Team | ChatAgent) -> AsyncGenerator[None]:
    """Within it, the budgets of a team count, from the beginning of its run to the end.

    Most of AutoGen's teams do so themselves. But one checks its condition only after the first turn, and one that is
    interrupted inside a tool does not reset its conditions.
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
