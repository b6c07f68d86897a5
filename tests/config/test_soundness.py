"""Configs whose schema is met, and that cannot work all the same."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from codeact_team.config.loading import validate_config
from codeact_team.core.providers import Policy
from codeact_team.errors import ConfigError

UNSAFE = Policy(allow_unsafe=True)


def mistakes(config: object) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        validate_config(config, policy=UNSAFE)  # pyright: ignore[reportArgumentType]
    return [f"{error.path}: {error.message}" for error in caught.value.problems]


def client(**config: Any) -> dict[str, Any]:
    return {"provider": "OpenAIChatCompletionClient", "config": {"model": "gpt-4.1", **config}}


def function(source: str, *imports: object) -> dict[str, Any]:
    config = {
        "name": "f",
        "description": "d",
        "source_code": source,
        "global_imports": list(imports),
        "has_cancellation_support": False,
    }
    return {"provider": "autogen_core.tools.FunctionTool", "config": config}


def test_an_empty_key_is_no_key() -> None:
    assert mistakes(client(api_key="")) == [
        "config.api_key: an empty key: leave `api_key` out, and the client reads OPENAI_API_KEY"
    ]
    validate_config(client(api_key="none"))


WHOLE = "def f(x: int) -> int:\n    return x\n"


@pytest.mark.parametrize(
    ("tool", "said"),
    [
        (
            function("def f(x):\n    return (x\n"),
            "config.source_code: does not compile: '(' was never closed (its line 2)",
        ),
        (function("x = 1"), "config.source_code: defines no function"),
        (function("def f():\n    '\0'"), "config.source_code: does not compile: "),
        (function("(" * 5_000 + ")" * 5_000), "config.source_code: does not compile: "),
        (
            function(f"import nowhere.at_all\n{WHOLE}"),
            "config.source_code: needs the module 'nowhere', which",
        ),
        (
            function(f"from nowhere import x\n{WHOLE}"),
            "config.source_code: needs the module 'nowhere', which",
        ),
        (function(WHOLE, "nowhere"), "config.global_imports.0: needs the module 'nowhere', which is not"),
        (
            function(WHOLE, "json", {"module": "nowhere.x", "imports": ["y"]}),
            "config.global_imports.1: needs the",
        ),
        (
            function(WHOLE, {"name": "nowhere", "alias": "n"}),
            "config.global_imports.0: needs the module 'nowhere'",
        ),
    ],
)
def test_a_function_that_cannot_be_made_is_told(tool: dict[str, Any], said: str) -> None:
    [mistake] = mistakes(tool)
    assert mistake.startswith(said)


def test_nothing_of_a_function_runs_while_it_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evil_package").mkdir()
    (tmp_path / "evil_package" / "__init__.py").write_text("raise SystemExit('imported')")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    validate_config(
        function(f"import evil_package.part\nraise_it = lambda: 1 / 0\n{WHOLE}", "evil_package"),
        policy=UNSAFE,
    )


def test_a_version_before_the_present_one_says_what_it_takes() -> None:
    config: dict[str, Any] = {
        "provider": "autogen_agentchat.agents.AssistantAgent",
        "component_version": 1,
        "config": {},
    }
    assert any("write 2; most such configs need no other change" in mistake for mistake in mistakes(config))


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"component": client(), "id": 1, "user_id": "a"}, "has wrapped this component in `component`: use"),
        (
            {"name": "g", "components": {"agents": [], "teams": []}},
            "a gallery of AutoGen Studio: use one of its",
        ),
        ({"config": {"components": {"teams": []}}, "id": 1}, "(components.teams)"),
    ],
)
def test_what_autogen_studio_keeps_around_components_is_one_sentence(document: Any, said: str) -> None:
    [mistake] = mistakes(json.loads(json.dumps(document)))
    assert said in mistake
