"""What a run costs, and its limits, as the command tells of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.command_line import ACCEPT, CODE, REJECT, codeact_team, lines, run_team
from support.openai_server import Json, ScriptedServer, Text

IN_PLACE_OF_MAX_MESSAGES = "config.termination_condition.config.conditions.1"
PRICES = {"scripted-model": {"prompt": 2, "completion": 8}}


def budget(**settings: Any) -> list[str]:
    component = {"provider": "codeact_team.BudgetTermination", "config": settings}
    return ["-s", f"{IN_PLACE_OF_MAX_MESSAGES}={json.dumps(component)}"]


def test_a_run_shows_what_it_has_cost(tmp_path: Path) -> None:
    with ScriptedServer.in_thread([Text(CODE), Json(ACCEPT)]) as server:
        result = run_team(server.base_url, "A task", *budget(prices=PRICES, currency="EUR"), cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert " · 220 tokens (200 in, 20 out) · 0.0006 EUR · " in result.stdout


@pytest.mark.long
def test_a_model_without_a_price_is_named(tmp_path: Path) -> None:
    with ScriptedServer.in_thread([Text(CODE), Json(ACCEPT)]) as server:
        prices = {"another-model": {"prompt": 2, "completion": 8}}
        result = run_team(server.base_url, "A task", *budget(prices=prices), cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert " · at least 0.0000 USD (no price for scripted-model) · " in result.stdout


def test_a_limit_says_what_raises_it_and_the_best_answer_is_given(tmp_path: Path) -> None:
    with ScriptedServer.in_thread([Text(CODE), Json(REJECT)]) as server:
        settings = budget(max_cost=0.0005, prices=PRICES)
        result = run_team(server.base_url, "A task", *settings, "--json", cwd=tmp_path)
    assert result.returncode == 1, result.stderr
    *events, last = lines(result.stdout)
    spent = [event for event in events if event["type"] == "budget_spent" and "cost" in event["left"]]
    assert [event["left"]["cost"] for event in spent] == [0.00022, 0.00022, 0, 0]
    assert (last["ending"], last["answer"]) == ("not accepted", "the answer is 42")
    assert last["cost"] == {
        "amount": 0.00056,
        "currency": "USD",
        "unpriced": [],
        "uncounted": 0,
        "is_estimated": False,
    }
    assert (
        last["stop_reason"]
        == spent[-1]["used_up"]
        == (
            "the budget is used up: 0.00056 of 0.0005 USD; a higher max_cost of BudgetTermination would let it go on"
        )
    )


def test_a_mistake_in_a_budget_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "budget.yaml").write_text(
        "provider: codeact_team.BudgetTermination\nconfig:\n  max_tokens: 5\n  prices:\n    m: {prompt: cheap, completion: 1}\n"
    )
    result = codeact_team("validate", "budget.yaml", cwd=tmp_path)
    assert result.returncode == 2
    assert (
        'budget.yaml:5: config.prices.m.prompt: expected a number, got "cheap"'
        in result.stderr + result.stdout
    )
