"""Names that a config gives for other participants."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from codeact_team.config.loading import validate_config
from codeact_team.errors import ConfigError

Write = Callable[..., Path]

CLIENT: dict[str, object] = {"provider": "OpenAIChatCompletionClient", "config": {"model": "gpt-4o"}}
EXECUTOR: dict[str, object] = {"provider": "codeact_team.ConfinedCommandLineCodeExecutor", "config": {}}


def agent(provider: str, **config: object) -> dict[str, object]:
    return {"provider": provider, "config": config}


def reviewer(name: str = "reviewer") -> dict[str, object]:
    return agent("codeact_team.ReflectionAgent", name=name, model_client=CLIENT)


def coder(**config: object) -> dict[str, object]:
    session: dict[str, object] = {"provider": "codeact_team.ConfinedSessionCodeExecutor", "config": {}}
    return agent(
        "codeact_team.CodeActAgent", name="coder", model_client=CLIENT, code_executor=session, **config
    )


def executor(*sources: str) -> dict[str, object]:
    return agent("codeact_team.CodeExecutorAgent", name="executor", code_executor=EXECUTOR, sources=sources)


def team(
    *participants: object, condition: object = None, kind: str = "RoundRobinGroupChat"
) -> dict[str, object]:
    config = {"participants": participants, "termination_condition": condition}
    return agent(f"autogen_agentchat.teams.{kind}", **config)


def swarm(*participants: object) -> dict[str, object]:
    condition = agent("autogen_agentchat.conditions.HandoffTermination", target="a_person")
    return team(*participants, condition=condition, kind="Swarm")


def ends_by(condition: str, **config: object) -> dict[str, object]:
    most = agent("autogen_agentchat.conditions.MaxMessageTermination", max_messages=9)
    either = "autogen_agentchat.base.OrTerminationCondition"
    return agent(either, conditions=[agent(condition, **config), most])


@pytest.mark.parametrize(
    ("document", "place"),
    [
        (
            team(coder(), condition=ends_by("codeact_team.ReflectionTermination", source="codr")),
            "config.termination_condition.config.conditions.0.config.source",
        ),
        (
            team(
                coder(),
                condition=ends_by("autogen_agentchat.conditions.SourceMatchTermination", sources=["codr"]),
            ),
            "config.termination_condition.config.conditions.0.config.sources.0",
        ),
        (team(coder(), executor("user", "codr")), "config.participants.1.config.sources.1"),
        (
            team(coder(), team(executor("codr"))),
            "config.participants.1.config.participants.0.config.sources.0",
        ),
        (swarm(coder(handoffs=["codr"])), "config.participants.0.config.handoffs.0"),
        (
            swarm(coder(handoffs=["a_person", {"target": "codr"}])),
            "config.participants.0.config.handoffs.1.target",
        ),
    ],
)
def test_a_name_that_is_nobody_s_is_told_with_its_place_and_the_nearest_name(
    write: Write, document: object, place: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        validate_config(write(json.dumps(document)), environ={})
    assert f"{place}: no agent of the team is called 'codr'; did you mean 'coder'?" in str(caught.value)


@pytest.mark.parametrize(
    "document",
    [
        swarm(coder(handoffs=["reviewer", "user", "a_person"]), reviewer(), executor("coder", "user")),
        team(
            coder(),
            team(executor("coder"), reviewer()),
            condition=ends_by("codeact_team.ReflectionTermination"),
        ),
        executor("coder"),
    ],
)
def test_names_of_others_in_the_team_of_the_user_and_of_a_team_to_come_are_valid(
    write: Write, document: object
) -> None:
    validate_config(write(json.dumps(document)), environ={})
