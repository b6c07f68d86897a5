"""The limits of a team: how AutoGen's conditions and ours say that one has ended it."""

from __future__ import annotations

import re

from codeact_team.agents.ledger import Item

_NUMBER = r"[\d,.e+]+"
CONDITIONS = (
    (
        rf"Maximum number of messages (?P<limit>{_NUMBER}) reached, current message count: \d+",
        "MaxMessageTermination",
        "max_messages",
    ),
    (rf"Maximum number of turns (?P<limit>{_NUMBER}) reached\.", "", "max_turns"),
    (
        r"Token usage limit reached, total token count: (?P<spent>\d+), prompt token count: \d+, completion token count: \d+\.",
        "TokenUsageTermination",
        "max_total_token",
    ),
    (
        r"Token usage limit reached,.* prompt token count: (?P<spent>\d+), completion token count: \d+\.",
        "TokenUsageTermination",
        "max_prompt_token",
    ),
    (
        r"Token usage limit reached,.* completion token count: (?P<spent>\d+)\.",
        "TokenUsageTermination",
        "max_completion_token",
    ),
    (rf"Timeout of (?P<limit>{_NUMBER}) seconds reached", "TimeoutTermination", "timeout_seconds"),
    (
        rf"the team's time limit of (?P<limit>{_NUMBER}) seconds is reached",
        "TimeoutTermination",
        "timeout_seconds",
    ),
    *(
        (
            rf"the budget is used up: (?:about )?(?P<spent>{_NUMBER}) of (?P<limit>{_NUMBER}) .*; a higher {setting} of BudgetTermination would let it go on",
            "BudgetTermination",
            setting,
        )
        for setting in (f"max_{item}" for item in Item)
    ),
)
"""The words, the class of the condition, and the setting that limits it."""


def is_no_limit(reason: str) -> bool:
    """Whether a reason to stop says more than that limits were reached: the team has come to an end of its own then."""
    for pattern, _, _ in CONDITIONS:
        reason = re.sub(pattern, "", reason)
    return bool(reason.strip(" ,"))
