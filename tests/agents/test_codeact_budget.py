from __future__ import annotations

import asyncio

import pytest
from autogen_core import CancellationToken
from autogen_core.models import RequestUsage

from codeact_team.agents.codeact.config import Budget, Limits
from codeact_team.agents.observations import Ending


@pytest.mark.parametrize(
    ("usage", "ending"),
    [(None, None), (RequestUsage(50, 49), None), (RequestUsage(50, 50), Ending.MAX_TOKENS)],
)
def test_prompts_and_completions_count(usage: RequestUsage | None, ending: Ending | None):
    assert Budget(Limits(max_steps=5, max_tokens=100), CancellationToken()).spent(usage) is ending


def test_steps_count():
    budget = Budget(Limits(max_steps=2), CancellationToken())
    budget.steps = 1
    assert budget.spent(None) is None
    budget.steps = 2
    assert budget.spent(None) is Ending.MAX_STEPS


async def test_when_the_time_is_over_what_waits_is_stopped_and_the_caller_not_cancelled():
    token = CancellationToken()
    with Budget(Limits(max_steps=5, max_seconds=0.01), token) as budget:
        waiting = asyncio.ensure_future(asyncio.sleep(30))
        budget.token.link_future(waiting)
        with pytest.raises(asyncio.CancelledError):
            await waiting
    await budget.look()
    assert (budget.time_is_over, budget.spent(None)) == (True, Ending.MAX_SECONDS)
    assert not token.is_cancelled()


async def test_the_caller_stops_what_waits_as_well():
    token = CancellationToken()
    with Budget(Limits(max_steps=5, max_seconds=60), token) as budget:
        token.cancel()
        assert budget.token.is_cancelled()
    await budget.look()
    assert not budget.time_is_over


async def test_no_timer_is_left():
    with Budget(Limits(max_steps=5, max_seconds=0.01), CancellationToken()) as budget:
        pass
    await asyncio.sleep(0.05)
    await budget.look()
    assert not budget.time_is_over
