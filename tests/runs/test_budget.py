"""A budget in whole runs: the real client over real HTTP, code that really runs, and what the result tells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from recording import CONFINED, NO_HTTP_RETRIES, Recording, run_local, runner, use_model_at
from support.openai_server import AnyReply, Json, ScriptedServer, Slow, Text

from codeact_team.core.events import BudgetSpent, ClockReadingEnded
from codeact_team.journal.recorded_run import RecordedRun
from codeact_team.journal.result import Cost, RunEnding, RunResult
from codeact_team.journal.run_directory import find_run

CODE = Text("```python\nprint('the answer is', 6 * 7)\n```")
FAILS = Text("```python\nprint('so far')\n1 / 0\n```")
RETRY = Json({"reason": "Mend it.", "retry": True})
REJECT = Json({"problems": ["Too short."], "accepted": False, "next_step": "Again."})
MODEL: dict[str, Any] = {
    "provider": "autogen_ext.models.openai.OpenAIChatCompletionClient",
    "config": {"model": "gpt-4.1-2025-04-14"},
}
PRICES = {"scripted-model": {"prompt": 1000, "completion": 5000}}


def with_budget(**settings: Any) -> str:
    conditions: list[Any] = [
        {"provider": "codeact_team.ReflectionTermination", "config": {}},
        {"provider": "codeact_team.BudgetTermination", "config": settings},
    ]
    either: dict[str, Any] = {
        "provider": "autogen_agentchat.base.OrTerminationCondition",
        "component_type": "termination",
        "config": {"conditions": conditions},
    }
    return f"config.termination_condition={json.dumps(either)}"


def talker(client: dict[str, Any]) -> dict[str, Any]:
    return {
        "provider": "autogen_agentchat.agents.AssistantAgent",
        "config": {
            "name": "ann",
            "description": "Talks.",
            "reflect_on_tool_use": False,
            "tool_call_summary_format": "{result}",
            "model_client": client,
        },
    }


def team_file(folder: Path, agent: dict[str, Any], **settings: Any) -> Path:
    """A team of one that goes on until its budget is used up."""
    budget = {"provider": "codeact_team.BudgetTermination", "config": settings}
    team = {
        "provider": "autogen_agentchat.teams.RoundRobinGroupChat",
        "component_type": "team",
        "config": {"participants": [agent], "termination_condition": budget},
    }
    file = folder / "team.json"
    file.write_text(json.dumps(team))
    return file


async def run(
    replies: list[AnyReply], monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> tuple[RunResult, Recording, ScriptedServer]:
    async with ScriptedServer(replies) as server:
        use_model_at(server.base_url, monkeypatch)
        result = await run_local(recording := Recording(), with_budget(**settings))
    return result, recording, server


async def test_a_team_that_has_spent_all_gives_its_best_answer_and_is_not_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result, recording, server = await run([CODE], monkeypatch, max_tokens=110, prices=PRICES)
    assert (result.ending, result.exit_code, result.error) == (RunEnding.NOT_ACCEPTED, 1, None)
    assert result.stop_reason is not None
    assert result.stop_reason.startswith("the budget is used up: 110 of 110 tokens; a higher max_tokens ")
    assert result.cost is not None
    assert (result.cost.amount, result.cost.currency, result.cost.unpriced) == (0.15, "USD", [])
    assert len(server.requests) == 1
    last = [event for event in recording.events if isinstance(event, BudgetSpent)][-1]
    assert (last.spent["tokens"], last.left, last.used_up) == (110, {"tokens": 0}, result.stop_reason)


@pytest.mark.long
async def test_work_that_is_broken_off_within_a_turn_ends_in_the_same_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result, _, server = await run([FAILS, RETRY], monkeypatch, max_model_calls=2)
    assert (result.ending, result.exit_code, result.error) == (RunEnding.NOT_ACCEPTED, 1, None)
    assert result.stop_reason is not None
    assert result.stop_reason.startswith("the budget is used up: 2 of 2 model calls")
    assert result.objection == "nobody has reviewed the work"
    assert len(server.requests) == 2


async def test_what_is_refused_is_not_in_the_journal_and_what_was_spent_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with ScriptedServer([FAILS, RETRY]) as server:
        use_model_at(server.base_url, monkeypatch)
        overrides = [CONFINED, NO_HTTP_RETRIES, with_budget(max_model_calls=2)]
        recorded = runner("local-model", Recording(), overrides=overrides, record=tmp_path)
        result = await recorded.run_once("A task")
    assert result.stop_reason is not None
    assert "2 of 2 model calls" in result.stop_reason
    run = RecordedRun(find_run("last", tmp_path))
    effects = [(effect.kind, effect.outcome) for effect in run.effects()]
    assert [kind for kind, _ in effects].count("model_call") == 2
    *_, spent = [outcome for kind, outcome in effects if kind == "time_reading"]
    assert isinstance(spent, dict)
    assert spent["model_calls"] == 2
    used: dict[str, Any] = {
        "prompt_tokens": 200,
        "completion_tokens": 20,
        "cost": 0.0,
        "unpriced": [],
        "uncounted": 0,
        "is_estimated": False,
    }
    assert spent["models"] == used
    assert spent["tool_calls"] == 0


@pytest.mark.long
async def test_an_agent_that_has_come_to_its_answer_with_the_last_call_has_answered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a-key")
    executor = {
        "provider": "codeact_team.ConfinedSessionCodeExecutor",
        "config": {"confinement": "best_effort"},
    }
    agent = {
        "provider": "codeact_team.CodeActAgent",
        "config": {"name": "coder", "model_client": MODEL, "code_executor": executor},
    }
    file = team_file(tmp_path, agent, max_model_calls=1)
    async with ScriptedServer([Text("It is 42.")]) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        result = await runner(file, Recording()).run_once("A task")
    assert (result.ending, result.exit_code, result.answer) == (RunEnding.ANSWERED, 0, "It is 42.")


async def test_time_stops_a_call_that_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    result, recording, server = await run([Slow(3600, CODE)], monkeypatch, max_seconds=0.5)
    assert (result.ending, result.exit_code) == (RunEnding.NOT_ACCEPTED, 1)
    assert result.stop_reason is not None
    assert "of 0.5 seconds; a higher max_seconds" in result.stop_reason
    readings = [event.over for event in recording.events if isinstance(event, ClockReadingEnded)]
    assert readings[-1] is True
    assert len(server.requests) <= 1


async def test_processor_time_of_code_is_counted_and_the_next_block_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spins = Text("```python\nimport time\nwhile time.process_time() < 0.2: pass\nprint('spun')\n```")
    result, _, server = await run([spins, REJECT, CODE], monkeypatch, max_processor_seconds=0.1)
    assert (result.ending, result.answer) == (RunEnding.NOT_ACCEPTED, "spun")
    assert result.stop_reason is not None
    assert "of 0.1 processor seconds; a higher max_processor_seconds" in result.stop_reason
    assert len(server.requests) == 3


async def test_a_cached_answer_costs_nothing_and_a_cache_goes_by_the_name_of_its_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a-key")
    store: dict[str, Any] = {"provider": "autogen_core.InMemoryStore", "config": {}}
    cache: dict[str, Any] = {
        "provider": "autogen_ext.models.cache.ChatCompletionCache",
        "config": {"client": MODEL, "store": store},
    }
    prices = {MODEL["config"]["model"]: {"prompt": 1000, "completion": 0}}
    file = team_file(tmp_path, talker(cache), max_cost=0.3, prices=prices)
    async with ScriptedServer([Text("Well.")] * 6) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        opened = runner(file, Recording())
        async with opened.open():
            first = await opened.run("A task")
            await opened.respond("/reset")
            again = await opened.run("A task")
    assert first.cost == again.cost == Cost(0.3, "USD", [], 0)
    # three for each, as the first three of the second task were asked before
    assert len(server.requests) == 6
