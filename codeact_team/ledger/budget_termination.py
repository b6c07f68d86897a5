"""The termination that keeps a team within its budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self, Unpack

from autogen_agentchat.base import TerminatedException, TerminationCondition
from autogen_agentchat.messages import BaseAgentEvent, BaseChatMessage, StopMessage
from autogen_core import Component
from pydantic import ValidationError

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
        if self._ledger is None:
            self._ledger = self._open()
        await self._ledger.look()
        if not self._ledger.is_used_up():
            return None
        self._terminated = True
        return StopMessage(content=self._ledger.used_up or "", source="BudgetTermination")

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
