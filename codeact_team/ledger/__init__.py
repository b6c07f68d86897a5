"""The ledger of a team: what its work spends, and limits to that."""

from codeact_team.ledger.budget_termination import BudgetTermination, within_budgets

__all__ = ["BudgetTermination", "within_budgets"]
