"""Settings of the termination that keeps a team within its budget."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypedDict

from autogen_core.models import RequestUsage
from pydantic import BaseModel, ConfigDict, Field, model_validator

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
