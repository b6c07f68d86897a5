"""Accounts of model calls: tokens, and money by the prices of models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autogen_core.models import RequestUsage
from pydantic import BaseModel, ConfigDict, Field

_MILLION = 1_000_000


def tokens_in_words(tokens: int, *, is_estimated: bool) -> str:
    """A number of tokens for a person."""
    return f"{'about ' if is_estimated else ''}{tokens:,} tokens"


class Price(BaseModel):
    """The price of a model, in money for a million tokens."""

    model_config = ConfigDict(extra="forbid")

    prompt: float = Field(ge=0, allow_inf_nan=False)
    """Of what it reads. AutoGen does not tell which of these tokens a server has cached, so all cost the same here."""
    completion: float = Field(ge=0, allow_inf_nan=False)
    """Of what it writes, thoughts included."""

    def of(self, usage: RequestUsage) -> float:
        """The cost of a call that used so many tokens."""
        return (usage.prompt_tokens * self.prompt + usage.completion_tokens * self.completion) / _MILLION


@dataclass
class ModelUsage:
    """The usage of some model calls.

    Attributes:
        cost: Money, for the calls of models that have a price.
        unpriced: The models without a price, where others have one.
        uncounted: How many calls have used an unknown number of tokens.
        is_estimated: Whether tokens are estimated of some calls, whose servers have not told them.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    unpriced: list[str] = field(default_factory=list[str])
    uncounted: int = 0
    is_estimated: bool = False

    @property
    def tokens(self) -> int:
        """All tokens."""
        return self.prompt_tokens + self.completion_tokens

    def add(self, model: str, usage: RequestUsage, prices: Mapping[str, Price]) -> None:
        """Add a call of the model with this name, as its client has it."""
        self.prompt_tokens += usage.prompt_tokens
        self.completion_tokens += usage.completion_tokens
        if (price := prices.get(model)) is not None:
            self.cost += price.of(usage)
        elif prices and model not in self.unpriced:
            self.unpriced.append(model)

    def raise_to(self, other: ModelUsage) -> None:
        """Raise each number to the number of ``other``, if that is higher."""
        self.prompt_tokens = max(self.prompt_tokens, other.prompt_tokens)
        self.completion_tokens = max(self.completion_tokens, other.completion_tokens)
        self.cost = max(self.cost, other.cost)
        self.uncounted = max(self.uncounted, other.uncounted)
        self.is_estimated |= other.is_estimated
        self.unpriced = list(dict.fromkeys([*other.unpriced, *self.unpriced]))
