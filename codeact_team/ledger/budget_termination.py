"""The termination that keeps a team within its budget."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Self, Unpack

from autogen_agentchat.base import ChatAgent, Team, TerminatedException, TerminationCondition
from autogen_agentchat.messages import BaseAgentEvent, BaseChatMessage, StopMessage
from autogen_core import Component
from pydantic import ValidationError

from codeact_team.autogen_internals import components_in, conditions_of
from codeact_team.effects import current_door
from codeact_team.errors import SettingError
from codeact_team.ledger.budget_config import BudgetTerminationConfig, BudgetTerminationOptions
from codeact_team.ledger.ledger import Ledger


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
