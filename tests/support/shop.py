"""Functions of the host that tests name by their import path."""

from __future__ import annotations

from codeact_team.tools.approval_rules import Question
from codeact_team.tools.approvals import Answer


async def price(article: str) -> float:
    """What an article costs."""
    return {"bolt": 0.5, "gear": 12.0}[article]


async def agree(question: Question) -> Answer:
    """Says yes to everything."""
    return Answer(True, f"{question.name} is fine")
