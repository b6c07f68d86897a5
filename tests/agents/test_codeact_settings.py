"""Settings: what is refused, and what survives dump, YAML and load."""

from __future__ import annotations

from typing import Any

import pytest
from autogen_agentchat.base import Handoff
from pydantic import ValidationError
from support.agents import Foreign, replay, yes

from codeact_team.agents.codeact.agent import CodeActAgent
from codeact_team.agents.codeact.config import CODEACT_SYSTEM_MESSAGE
from codeact_team.errors import SettingError
from codeact_team.executors.confined import ConfinedCommandLineCodeExecutor, ConfinedSessionCodeExecutor


def made(**settings: Any) -> CodeActAgent:
    usual: dict[str, Any] = {
        "name": "coder",
        "model_client": replay("Hello."),
        "code_executor": ConfinedSessionCodeExecutor(work_dir="coding"),
    }
    return CodeActAgent(**usual | settings)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"max_steps": 0}, "max_steps is 0: it must be 1 or more"),
        ({"max_seconds": 0}, "max_seconds is 0"),
        ({"max_seconds": -1.5}, "max_seconds is -1.5"),
        ({"max_seconds": float("nan")}, "max_seconds is nan"),
        ({"max_seconds": float("inf")}, "max_seconds is inf"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"max_retries_on_error": -1}, "max_retries_on_error is -1: it must be 0 or more"),
        ({"max_reflections": -1}, "max_reflections is -1"),
        ({"attempts": 0}, "attempts is 0: it must be 1 or more"),
        ({"attempts": 33}, "attempts: Input should be less than or equal to 32"),
        ({"max_reflections": 1, "max_steps": 1}, "max_reflections has no effect with max_steps 1"),
        ({"output_schema": {"type": "number!"}}, "output_schema: schema.*type.*number!"),
        ({"output_schema": {"$ref": "#/$defs/none"}}, "output_schema: it refers to '#/\\$defs/none'"),
        ({"output_schema": [1]}, "output_schema: a JSON Schema is expected"),
        ({"output_schema": int}, "output_schema: a JSON Schema is expected"),
        ({"functions": ["os:getcwd"], "system_message": "Act."}, r"\$functions"),
        ({"handoffs": ["b", "b"]}, "handoffs: names must differ"),
        ({"handoffs": ["b"], "model_client": replay(function_calling=False)}, "cannot call tools"),
        ({"code_executor": ConfinedCommandLineCodeExecutor()}, "ConfinedCommandLineCodeExecutor forgets"),
        ({"code_executor": Foreign()}, "needs a session: DockerSessionCodeExecutor or Confined"),
        ({"name": "not a name"}, "identifier"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], text: str):
    # a negative, zero-time-out or contradictory setting was accepted
    with pytest.raises(ValueError, match=text) as caught:
        made(**settings)
    assert "name" in settings or isinstance(caught.value, SettingError)


@pytest.mark.parametrize(
    "config",
    [
        {"max_steps": 0},
        {"max_seconds": -1},
        {"max_tokens": "many"},
        {"max_retries_on_error": -1},
        {"max_reflections": -1},
        {"output_schema": "number"},
        {"output_schema": {"type": "number!"}},
        {"functions": ["os.getcwd"]},
        {"functions": ["os:import"]},
        {"handoffs": [{"name": "b"}]},
        {"max_retries": 3},
    ],
)
def test_a_config_with_a_wrong_or_unknown_key_is_refused(config: dict[str, Any]):
    dumped = made().dump_component()
    dumped.config |= config
    with pytest.raises((ValidationError, SettingError), match=next(iter(config))):
        CodeActAgent.load_component(dumped)


def add(a: int, b: int) -> int:
    return a + b


class Forwarding(Handoff):
    pass


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"functions": ["os:getcwd", add]}, "functions: 'add' is a live function.*module:function"),
        ({"approval_func": yes}, "approval_func: a function cannot be dumped.*module:function"),
        ({"handoffs": [Forwarding(target="b")]}, "handoffs: Forwarding to 'b' cannot be dumped"),
    ],
)
def test_what_cannot_be_dumped_is_named(settings: dict[str, Any], text: str):
    # approval functions stopped the whole team from being dumped, without saying what to do
    with pytest.raises(SettingError, match=f"^{text}"):
        made(**settings).dump_component()


def test_the_default_instructions_say_what_the_model_must_know():
    for words in (
        "```python",
        "live on",
        "last expression",
        "print",
        "final_answer(value)",
        "$sandbox",
        "data",
    ):
        assert words in CODEACT_SYSTEM_MESSAGE


def test_a_model_that_cannot_call_tools_is_fine_without_handoffs():
    made(model_client=replay(function_calling=False))
