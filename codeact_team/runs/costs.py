"""What a run has cost."""

from __future__ import annotations

from autogen_agentchat.messages import ModelClientStreamingChunkEvent
from autogen_core.models import RequestUsage

from codeact_team.effects import Event
from codeact_team.events import (
    BlockBegan,
    BudgetSpent,
    MessageSent,
    ModelCallEnded,
    RunBegan,
    ToolCallBegan,
    ToolCallEnded,
)
from codeact_team.runs.result import Cost, ToolUse


class Costs:
    """A listener that counts what a run has cost.

    Args:
        in_all: Whether what the tasks of a team have cost is counted together.
    """

    def __init__(self, *, in_all: bool = False) -> None:
        self._in_all = in_all
        self._begin()

    def _begin(self) -> None:
        self._prompt_tokens = self._completion_tokens = 0
        self._blocks: set[int] = set()
        self._calls_of_code: set[int] = set()
        self._tools: dict[str, ToolUse] = {}
        self.messages = 0
        """How many there were, the task included and chunks not."""
        self.cost: Cost | None = None
        """In money, where a budget has prices."""

    @property
    def usage(self) -> RequestUsage:
        """The tokens of all calls of models; answers from a cache cost none."""
        return RequestUsage(self._prompt_tokens, self._completion_tokens)

    @property
    def steps(self) -> int:
        """How often code ran."""
        return len(self._blocks)

    @property
    def tools(self) -> list[ToolUse]:
        """The tools that code has called, in the order of the first calls."""
        return list(self._tools.values())

    def __call__(self, event: Event) -> None:
        match event:
            case RunBegan() if not self._in_all:
                self._begin()
            case MessageSent():
                self.messages += not isinstance(event.message, ModelClientStreamingChunkEvent)
            case ModelCallEnded(usage=RequestUsage() as usage, cached=False):
                self._prompt_tokens += usage.prompt_tokens
                self._completion_tokens += usage.completion_tokens
            case BudgetSpent(currency=str() as currency):
                cost = Cost(event.spent["cost"], currency, event.unpriced, event.uncounted)
                # that of a team inside of another one is a part of it
                if self.cost is None or _extent(cost) >= _extent(self.cost):
                    self.cost = cost
            case BlockBegan():
                self._blocks.add(event.span)
            case ToolCallBegan(parent=int() as block, span=span) if block in self._blocks:
                self._calls_of_code.add(span)
            case ToolCallEnded() if event.span in self._calls_of_code:
                tool = self._tools.setdefault(event.name, ToolUse(event.name))
                tool.outcomes[event.outcome] = tool.outcomes.get(event.outcome, 0) + 1
                tool.seconds += event.seconds
            case _:
                pass


def _extent(cost: Cost) -> tuple[float, int, int]:
    return cost.amount, len(cost.unpriced), cost.uncounted
