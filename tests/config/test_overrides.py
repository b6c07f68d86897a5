from __future__ import annotations

import copy
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeact_team.config.document import Document, Problem
from codeact_team.config.overrides import apply_overrides
from codeact_team.errors import ConfigError

DATA: dict[str, Any] = {
    "provider": "team",
    "config": {
        "participants": [
            {"provider": "a", "config": {"name": "coder", "stop": ["x", "y"]}},
            {"provider": "b", "config": {"name": "executor", "max_retries_on_error": 1}},
            {"provider": "c", "config": {"name": "twin"}},
            {"provider": "c", "config": {"name": "twin"}},
            "text",
        ],
        "max_turns": None,
        "flag": True,
        "12": "a key of digits",
    },
}


def overridden(*overrides: str) -> dict[str, Any]:
    before = copy.deepcopy(DATA)
    result = apply_overrides(Document("t.yaml", DATA), overrides)
    assert before == DATA
    return result.data


def test_a_list_item_is_named_by_index_or_by_its_components_name() -> None:
    for step in ("executor", "1"):
        data = overridden(f"config.participants.{step}.config.max_retries_on_error=3")
        assert data["config"]["participants"][1]["config"] == {"name": "executor", "max_retries_on_error": 3}
    assert overridden("config.participants.coder.config.stop.1=z")["config"]["participants"][0]["config"][
        "stop"
    ] == ["x", "z"]
    assert overridden("config.12=x")["config"]["12"] == "x"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("3", 3),
        ("-0.5", -0.5),
        ("true", True),
        ("yes", "yes"),
        ("", None),
        ("null", None),
        ("'3'", "3"),
        ("[1, x]", [1, "x"]),
        ("{a: {b: 1}}", {"a": {"b": 1}}),
        ("Note: be brief", "Note: be brief"),
        ("a=b", "a=b"),
        ("${KEY}", "${KEY}"),
    ],
)
def test_values_are_yaml(value: str, expected: object) -> None:
    assert overridden(f"config.max_turns={value}")["config"]["max_turns"] == expected


def test_a_mapping_takes_new_keys() -> None:
    assert overridden("config.emit_team_events=true", "component_version=1") == {
        **DATA,
        "config": {**DATA["config"], "emit_team_events": True},
        "component_version": 1,
    }


def test_later_overrides_see_earlier_ones() -> None:
    data = overridden("config.max_turns={a: 1}", "config.max_turns.b=2", "config.max_turns.a=3")
    assert data["config"]["max_turns"] == {"a": 3, "b": 2}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("config.max_turns", "path.to.field=value"),
        ("=3", "path.to.field=value"),
        ("config..x=3", "path.to.field=value"),
        ("config.max_turns=[1", "-s config.max_turns: the value cannot be read as YAML"),
        ("config.max_turns=@x", "text may need quotes"),
        ("confg.max_turns=3", "the document has no key 'confg'; did you mean 'config'?"),
        ("zzz.max_turns=3", "the document has no key 'zzz' (it has provider, config)"),
        ("config.partcipants.0.x=3", "config has no key 'partcipants'; did you mean 'participants'?"),
        (
            "config.participants.exector.config.x=3",
            "config.participants has no item named 'exector'; did you mean 'executor'?",
        ),
        ("config.participants.zzz.x=3", "(it has coder, executor, twin, twin)"),
        ("config.participants.twin.config.x=3", "several items named 'twin'; use the index"),
        ("config.participants.5={}", "has 5 items, counted from 0; there is no 5"),
        ("config.participants.99999999999999999999=1", "there is no 99999999999999999999"),
        ("config.participants.-1=1", "no item named '-1'"),
        ("config.participants.coder.config.stop.zzz=1", "use an index from 0 to 1"),
        ("config.participants.4.x=1", "config.participants.4 is text, which has no 'x'"),
        ("config.max_turns.x.y=1", "config.max_turns is nothing, which has no 'x'"),
        ("config.flag.x=1", "config.flag is true or false, which has no 'x'"),
        ("provider.x=1", "provider is text, which has no 'x'"),
    ],
)
def test_what_has_no_place_is_an_error_that_names_the_override(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        overridden(override)
    assert str(caught.value).startswith(f"-s {override.partition('=')[0]}: ")
    assert message in str(caught.value)


def test_an_error_in_an_overridden_value_names_the_override_without_its_value() -> None:
    document = Document("t.yaml", DATA, lines={("config", "max_turns"): 7, ("config", "max_turns", "a"): 8})
    document = apply_overrides(document, ["config.max_turns={a: s3cret}"])
    for path in (("config", "max_turns"), ("config", "max_turns", "a")):
        text = str(document.error([Problem(path, "bad")]))
        assert text.startswith("-s config.max_turns: ")
        assert "s3cret" not in text


def test_an_error_names_the_override_that_set_the_value_last() -> None:
    def origin(*overrides: str) -> str:
        document = apply_overrides(Document("t.yaml", DATA), overrides)
        return str(document.error([Problem(("config", "max_turns", "a"), "bad")]))

    assert origin("config.max_turns={a: 1}", "config.max_turns.a=2") == "-s config.max_turns.a: bad"
    # what is above it sets it anew
    assert origin("config.max_turns={a: 1}", "config.max_turns.a=2", "config.max_turns={a: 3}") == (
        "-s config.max_turns: a: bad"
    )
    assert origin("config.max_turns={a: 1}", "config.max_turns.b=2") == "-s config.max_turns: a: bad"


@given(
    st.lists(st.sampled_from(["config", "participants", "coder", "0", "stop", "x"]), max_size=5),
    st.text() | st.text("=[]{}:,'\" \n-a1"),
)
def test_any_override_is_applied_or_a_config_error(steps: list[str], value: str) -> None:
    with suppress(ConfigError):
        assert set(overridden(f"{'.'.join(steps)}={value}")) >= set(DATA)


@given(st.text())
def test_any_text_is_an_override_or_a_config_error(text: str) -> None:
    with suppress(ConfigError):
        assert set(overridden(text)) >= set(DATA)
