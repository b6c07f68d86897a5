"""What was spent so far, and the effect by which that is read."""

from __future__ import annotations

from dataclasses import dataclass, field

from autogen_core.models import CreateResult
from pydantic import JsonValue, TypeAdapter

from codeact_team.clients import ModelCall, usage_of
from codeact_team.effects import Effect
from codeact_team.events import ClockRead
from codeact_team.ledger.budget_config import BudgetTerminationConfig, Item


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

    def began(self, span: int) -> ClockRead:
        return ClockRead(span=span, agent=self.source)

    def ended(self, span: int, outcome: Spent | None, error: BaseException | None) -> ClockRead:
        event = ClockRead(span=span, agent=self.source)
        if outcome is not None:
            event.seconds = seconds = outcome.amounts.get(Item.SECONDS)
            event.over = (
                seconds is not None and self._max_seconds is not None and seconds >= self._max_seconds
            )
        return event
