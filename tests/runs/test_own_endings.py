"""Teams that nobody reviews: an end that the config has set is a success, and a limit is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from recording import Recording, runner

from codeact_team.journal.result import RunEnding, RunResult

PARTS = "autogen_agentchat"
LIMIT = {"provider": f"{PARTS}.conditions.MaxMessageTermination", "config": {"max_messages": 2}}
MENTION = {"provider": f"{PARTS}.conditions.TextMentionTermination", "config": {"text": "TERMINATE"}}


def agent(*answers: str, **options: Any) -> dict[str, Any]:
    client = "autogen_ext.models.replay.ReplayChatCompletionClient"
    settings = {
        "name": "ann",
        "model_client": {"provider": client, "config": {"chat_completions": answers}},
        "system_message": "Talk.",
        "description": "Talks.",
        "reflect_on_tool_use": False,
        "tool_call_summary_format": "{result}",
    }
    return {"provider": f"{PARTS}.agents.AssistantAgent", "config": {**settings, **options}}


def team(*answers: str, **settings: Any) -> dict[str, Any]:
    provider = f"{PARTS}.teams.RoundRobinGroupChat"
    return {"provider": provider, "config": {"participants": [agent(*answers)], **settings}}


def either(*conditions: dict[str, Any]) -> dict[str, Any]:
    return {"provider": f"{PARTS}.base.OrTerminationCondition", "config": {"conditions": conditions}}


async def ended(folder: Path, config: dict[str, Any]) -> RunResult:
    file = folder / "config.json"
    file.write_text(json.dumps(config))
    return await runner(file, Recording()).run_once("A task")


@pytest.mark.parametrize(
    ("config", "answer"),
    [
        (agent("It is 42."), "It is 42."),
        (team("Let me see.", "It is 42.\n\nTERMINATE", termination_condition=MENTION), "It is 42."),
        (team("It is 42.", "TERMINATE", termination_condition=MENTION), "It is 42."),
        (team("It is 42. TERMINATE", termination_condition=either(MENTION, LIMIT)), "It is 42."),
    ],
    ids=["an agent alone", "a mention at the end", "a mention alone", "a mention with the last message"],
)
async def test_an_answer_or_an_end_of_its_own_is_a_success_without_a_review(
    tmp_path: Path, config: dict[str, Any], answer: str
) -> None:
    result = await ended(tmp_path, config)
    assert (result.ending, result.exit_code, result.answer) == (RunEnding.ANSWERED, 0, answer)
    assert (result.reviewed, result.objection) == (False, None)


@pytest.mark.parametrize(
    "limit",
    [
        {"termination_condition": LIMIT},
        {"max_turns": 1},
        {
            "termination_condition": {
                "provider": f"{PARTS}.conditions.TokenUsageTermination",
                "config": {"max_total_token": 1},
            }
        },
    ],
    ids=["messages", "turns", "tokens"],
)
async def test_a_limit_is_no_end_of_its_own(tmp_path: Path, limit: dict[str, Any]) -> None:
    result = await ended(tmp_path, team("It is", "42.", **limit))
    assert (result.ending, result.exit_code) == (RunEnding.NOT_ACCEPTED, 1)
    assert result.objection is not None


async def test_words_that_were_cut_off_are_no_answer(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 1}
    cut = {"finish_reason": "length", "content": "It is", "usage": usage, "cached": False}
    config = agent()
    config["config"]["model_client"]["config"]["chat_completions"] = [cut]
    result = await ended(tmp_path, config)
    assert (result.ending, result.answer) == (RunEnding.NOT_ACCEPTED, "It is")
