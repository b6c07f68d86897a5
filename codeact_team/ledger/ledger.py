"""What the work of a team has spent: a handler that stands outermost in the door, counts, and refuses what is too much."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from codeact_team.agents.block_calls import Block
from codeact_team.agents.host_tool_calls import ToolCall
from codeact_team.aio import Timer
from codeact_team.approval.asked_question import AskedQuestion
from codeact_team.autogen_parts.part_effects import MemoryCall, PartBlock, PartCall, PersonInput
from codeact_team.clients import ModelCall
from codeact_team.effects import Door, Effect, Perform
from codeact_team.errors import BudgetError, SettingError
from codeact_team.events import BudgetSpent
from codeact_team.execution import ExecutionResult
from codeact_team.ledger.budget_config import BudgetTerminationConfig, Item
from codeact_team.ledger.spending import Reading, Spent

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
