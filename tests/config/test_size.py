"""Documents that are large, or have many mistakes: what is too large is refused, and what is not takes linear time."""

from __future__ import annotations

from typing import Any

import pytest
from autogen_core import ComponentModel
from support.cost import LINEAR, growth

from codeact_team.config.document import ConfigSource, Document, Problem, Resolved
from codeact_team.config.loading import read_config, validate_config
from codeact_team.errors import ConfigError

LIMIT = "more than 10000 keys and values"


def executor(count: int) -> str:
    """A config with so many values of the wrong kind in one list."""
    packages = ", ".join("1" for _ in range(count))
    return f"provider: codeact_team.ConfinedCommandLineCodeExecutor\nconfig:\n  packages: [{packages}]\n"


def refusal(source: ConfigSource) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        validate_config(source, environ={"A": "a value"})
    return caught.value


@pytest.mark.long
def test_many_mistakes_are_told_in_linear_time() -> None:
    assert growth(executor, refusal, 2500, rounds=2) < LINEAR


def test_mistakes_in_many_places_are_told_in_linear_time() -> None:
    def with_references(count: int) -> Document:
        resolved = Resolved("a value", "${A}", {"A": "a value"})
        return Document("x", {}, references={("config", number): resolved for number in range(count)})

    def told(document: Document) -> ConfigError:
        return document.error([Problem(path, f"mistake {path[-1]}") for path in document.references])

    assert growth(with_references, told, 1500, rounds=2) < LINEAR


def test_of_many_mistakes_in_one_component_the_first_hundred_are_told() -> None:
    refused = refusal(executor(150))
    assert len(refused.problems) == 101
    assert [problem.path for problem in refused.problems if "more problems" in problem.message] == ["config"]
    assert "50 more problems are in it" in str(refused)
    assert "config.packages.99: expected text, got 1" in str(refused)
    assert "config.packages.100:" not in str(refused)


def holding_itself() -> dict[str, Any]:
    config: dict[str, Any] = {}
    config["inner"] = config
    return {"provider": "x", "config": config}


def doubled() -> dict[str, Any]:
    inner: list[Any] = []
    for _ in range(60):
        inner = [inner, inner]
    return {"provider": "x", "config": {"a": inner}}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"provider": "x", "config": {"a": [0] * 10_000}}, LIMIT),
        (doubled(), LIMIT),
        (holding_itself(), "nested more than 100 deep"),
    ],
    ids=["long", "doubled", "in itself"],
)
def test_a_mapping_is_no_larger_than_a_text_may_be(config: dict[str, Any], message: str) -> None:
    assert message in str(refusal(config))


def test_a_component_is_no_larger_than_a_text_may_be() -> None:
    assert LIMIT in str(refusal(ComponentModel(provider="x", config={"a": [0] * 10_000})))


def test_what_a_field_says_counts_as_what_is_written() -> None:
    fields: dict[str, Any] = {"wanted": ["numpy"] * 10_000}
    with pytest.raises(ConfigError, match=f"-s config.packages: {LIMIT}"):
        read_config(executor(1), overrides=["config.packages={wanted}"], fields=fields)
