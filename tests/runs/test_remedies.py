"""What a person is told to do about a run that was not accepted: options that the config really has."""

from __future__ import annotations

import functools
import re
import shlex
from typing import Any

import pytest
from autogen_core.models import RequestUsage

from codeact_team.agents.observations import Ending
from codeact_team.config.document import Document, read_document
from codeact_team.config.overrides import apply_overrides
from codeact_team.core.shipped import shipped_configs
from codeact_team.journal.result import AgentEnding, RunEnding, RunResult
from codeact_team.runs.remedies import advice, higher_limit


def ended(reason: str | None = None, cause: AgentEnding | None = None, tokens: int = 0) -> RunResult:
    return RunResult(
        ending=RunEnding.NOT_ACCEPTED,
        usage=RequestUsage(tokens, 0),
        messages=2,
        seconds=1.0,
        stop_reason=reason,
        cause=cause,
    )


def component(provider: str, **settings: Any) -> dict[str, Any]:
    return {"provider": provider, "config": settings}


def coder(**settings: Any) -> dict[str, Any]:
    client = component("autogen_ext.models.openai.OpenAIChatCompletionClient", model="m")
    return component("codeact_team.CodeActAgent", name="coder", model_client=client, **settings)


CODER = Document("coder.yaml", coder())
NESTED = Document(
    "nested.yaml",
    component(
        "autogen_agentchat.teams.RoundRobinGroupChat",
        participants=[
            component(
                "autogen_agentchat.agents.SocietyOfMindAgent",
                name="society",
                team=component(
                    "autogen_agentchat.teams.RoundRobinGroupChat", participants=[coder()], max_turns=3
                ),
            )
        ],
        max_turns=2,
        termination_condition=component(
            "autogen_agentchat.base.OrTerminationCondition",
            conditions=[
                component("autogen_agentchat.conditions.MaxMessageTermination", max_messages=25),
                component("autogen_agentchat.conditions.TokenUsageTermination", max_total_token=100),
                component("autogen_agentchat.conditions.TimeoutTermination", timeout_seconds=1.5),
                component("codeact_team.BudgetTermination", max_tokens=1000, max_cost=0.5),
            ],
        ),
    ),
)
CONDITIONS = "config.termination_condition.config.conditions"
INNER = "config.participants.0.config.team.config"


@pytest.mark.parametrize(
    ("reason", "option"),
    [
        (
            "Maximum number of messages 25 reached, current message count: 26",
            f"{CONDITIONS}.0.config.max_messages=50",
        ),
        ("Maximum number of turns 2 reached.", "config.max_turns=4"),
        ("Maximum number of turns 3 reached.", f"{INNER}.max_turns=6"),
        (
            "Token usage limit reached, total token count: 130, prompt token count: 100, completion token count: 30.",
            f"{CONDITIONS}.1.config.max_total_token=260",
        ),
        ("Timeout of 1.5 seconds reached", f"{CONDITIONS}.2.config.timeout_seconds=3"),
        ("the team's time limit of 1.5 seconds is reached", f"{CONDITIONS}.2.config.timeout_seconds=3"),
        (
            "the budget is used up: 1,200 of 1,000 tokens; a higher max_tokens of BudgetTermination would let it go on",
            f"{CONDITIONS}.3.config.max_tokens=2400",
        ),
        (
            "the budget is used up: 0.5 of 0.5 USD; a higher max_cost of BudgetTermination would let it go on",
            f"{CONDITIONS}.3.config.max_cost=1",
        ),
    ],
)
def test_a_limit_of_a_team_is_raised_where_it_is_set(reason: str, option: str):
    told = higher_limit(NESTED, ended(reason))
    assert told == ["-s", option]
    apply_overrides(NESTED, told[1:])


def test_all_limits_that_a_team_has_reached_are_raised():
    reasons = (
        "Maximum number of messages 25 reached, current message count: 25, Timeout of 1.5 seconds reached"
    )
    told = higher_limit(NESTED, ended(reasons))
    assert told == [
        *("-s", f"{CONDITIONS}.0.config.max_messages=50"),
        *("-s", f"{CONDITIONS}.2.config.timeout_seconds=3"),
    ]


def test_the_time_of_a_command_is_raised_by_its_own_option():
    assert higher_limit(CODER, ended("the time limit of 6 seconds is reached")) == ("--timeout", "12")


@pytest.mark.parametrize(
    ("settings", "ending", "option"),
    [
        ({}, Ending.MAX_STEPS, "max_steps=40"),
        ({"max_steps": 3}, Ending.MAX_STEPS, "max_steps=6"),
        ({"max_seconds": 90}, Ending.MAX_SECONDS, "max_seconds=180"),
        ({"max_tokens": 1000}, Ending.MAX_TOKENS, "max_tokens=2400"),
        ({}, Ending.MAX_CALLS, "tool_limits={max_calls: 2000}"),
        ({"tool_limits": {"max_calls": 5}}, Ending.MAX_CALLS, "tool_limits.max_calls=10"),
    ],
)
def test_a_limit_of_an_agent_is_raised_wherever_the_agent_is(
    settings: dict[str, Any], ending: Ending, option: str
):
    alone = Document("coder.yaml", coder(**settings))
    society = component(
        "autogen_agentchat.agents.SocietyOfMindAgent",
        team=component("autogen_agentchat.teams.RoundRobinGroupChat", participants=[coder(**settings)]),
    )
    for document, place in (
        (alone, "config"),
        (Document("s.yaml", society), "config.team.config.participants.0.config"),
    ):
        told = higher_limit(document, ended(cause=AgentEnding("coder", ending), tokens=1200))
        assert told == ["-s", f"{place}.{option}"]
        apply_overrides(document, told[1:])


@pytest.mark.parametrize(
    "ending", [Ending.REFUSED, Ending.NO_ANSWER, Ending.STUCK, Ending.CANCELLED, Ending.GIVEN_UP]
)
def test_no_limit_is_raised_where_none_was_reached(ending: Ending):
    assert higher_limit(CODER, ended(cause=AgentEnding("coder", ending))) == []
    assert higher_limit(CODER, ended("reflection accepted the work")) == []
    assert higher_limit(CODER, ended(cause=AgentEnding("a stranger", Ending.MAX_STEPS))) == []


@functools.cache
def shipped(name: str) -> tuple[Document, set[str]]:
    """A config, which nobody changes, and its agents."""
    path = shipped_configs()[name]
    agents = set(re.findall(r"^\s+name: (\w+)$", path.read_text(), re.MULTILINE))
    return read_document(str(path)), agents


@pytest.mark.parametrize("name", shipped_configs())
@pytest.mark.parametrize("ending", [*Ending])
def test_every_path_in_a_piece_of_advice_is_one_of_the_config(
    name: str, ending: Ending, monkeypatch: pytest.MonkeyPatch
):
    document, agents = shipped(name)
    for agent in agents:
        result = ended(cause=AgentEnding(agent, ending))
        apply_overrides(document, higher_limit(document, result)[1:])
        apply_overrides(document, re.findall(r"-s (\S+=\w+)", advice(document, result) or ""))


def test_a_reply_that_was_cut_off_may_be_longer():
    cut_off = ended(cause=AgentEnding("coder", Ending.CUT_OFF))
    assert "run it again with -s config.model_client.config.max_tokens=8192;" in (
        advice(CODER, cut_off) or ""
    )
    client = component("autogen_ext.models.openai.OpenAIChatCompletionClient", model="m", max_tokens=500)
    limited = Document(
        "coder.yaml", component("codeact_team.CodeActAgent", name="coder", model_client=client)
    )
    assert "-s config.model_client.config.max_tokens=1000;" in (advice(limited, cut_off) or "")


def test_a_config_of_somebody_else_puts_nothing_of_its_own_into_a_command():
    client = component("autogen_ext.models.openai.OpenAIChatCompletionClient", max_tokens="; reboot")
    hostile = component("codeact_team.CodeActAgent", name="coder", max_steps=10**5000, tool_limits=[1])
    document = Document(
        "x.yaml",
        {"config": {"a; reboot; ": {**hostile, "config": {**hostile["config"], "model_client": client}}}},
    )
    for ending in Ending:
        result = ended("Maximum number of messages .,. reached", AgentEnding("coder", ending))
        for text in (shlex.join(higher_limit(document, result)), advice(document, result) or ""):
            assert "reboot" not in re.sub(r"'[^']*'", "", text)
