"""What a program sees of the package: names, signatures, explanations, and errors for a wrong argument."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, cast

import autogen_agentchat
import autogen_core
import autogen_ext
import pytest
from autogen_agentchat.agents import ApprovalRequest, ApprovalResponse
from autogen_ext.models.replay import ReplayChatCompletionClient
from pydantic import BaseModel

import codeact_team
from codeact_team import (
    BatchLimits,
    CodeActAgent,
    CodeExecutorAgent,
    ConfinedSessionCodeExecutor,
    Policy,
    ReflectionAgent,
    SandboxPool,
    SettingError,
    load_config,
    round_robin_team,
    run_batch,
)
from codeact_team.batch.settings import BatchSettings

ROOT = Path(__file__).parents[1]
GUIDES = (ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md")))

COUNTERPARTS = {
    "CodeExecutorAgent": "takes the place of AutoGen's, with its parameters",
    "DockerCommandLineCodeExecutor": "takes the place of AutoGen's, with its parameters",
}


def public(kind: type = object) -> list[Any]:
    return [found for name in codeact_team.__all__ if isinstance(found := getattr(codeact_team, name), kind)]


def configured() -> list[Any]:
    """Our components that take their settings from a config."""
    schemas = ((each, getattr(each, "component_config_schema", None)) for each in public(type))
    return [
        component for component, schema in schemas if schema is not None and not inspect.isabstract(component)
    ]


def documented(thing: Any) -> Iterator[str]:
    yield inspect.getdoc(thing) or ""
    if isinstance(thing, type):
        for name, member in vars(thing).items():
            if not name.startswith("_"):
                yield getattr(member, "__doc__", None) or ""


def test_every_name_in_the_docs_of_a_public_name_can_be_imported() -> None:
    unknown = set[str]()
    for thing in public():
        if not getattr(thing, "__module__", "").startswith("codeact_team"):
            continue
        for text in documented(thing):
            roles = re.findall(r":(?:class|func|exc|attr|data):`~?([\w.]+)`", text)
            raised = re.findall(r"^ +([A-Z]\w+Error): ", text, re.MULTILINE)
            for name in [*roles, *raised]:
                first = name.split(".")[0]
                known = (
                    first in codeact_team.__all__
                    or hasattr(thing, first)
                    or hasattr(__import__("builtins"), first)
                )
                if not known and first != "codeact_team":
                    unknown.add(f"{thing.__name__}: {name}")
    assert not unknown


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.name)
def test_the_guides_name_what_the_top_has_without_the_module_it_lies_in(guide: Path) -> None:
    for module, name in re.findall(r"from (codeact_team\.[\w.]+) import (\w+)", guide.read_text()):
        assert name not in codeact_team.__all__, f"{module} for {name}"


def test_every_error_of_ours_is_at_the_top() -> None:
    errors = importlib.import_module("codeact_team.errors")
    ours = {
        name
        for name, found in vars(errors).items()
        if isinstance(found, type) and found.__module__ == errors.__name__
    }
    assert {name for name in ours if issubclass(getattr(errors, name), Exception)} <= set(
        codeact_team.__all__
    )


def autogen_classes() -> dict[str, set[type]]:
    found = dict[str, set[type]]()
    for package in (autogen_agentchat, autogen_core, autogen_ext):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if "._" in module.name:
                continue
            with suppress(Exception):  # of an extra that is not installed
                here = importlib.import_module(module.name)
                for name in cast("list[str]", getattr(here, "__all__", ())):
                    if isinstance(value := getattr(here, name, None), type):
                        found.setdefault(name, set()).add(value)
    return found


@pytest.mark.filterwarnings("ignore")
def test_no_class_of_ours_has_the_name_of_another_class_of_autogen() -> None:
    theirs = autogen_classes()
    same = {each.__name__ for each in public(type) if each not in theirs.get(each.__name__, {each})}
    assert same == set(COUNTERPARTS)
    assert {ApprovalRequest, ApprovalResponse} <= set(public(type))


@pytest.mark.parametrize("component", configured(), ids=lambda component: component.__name__)
def test_a_component_takes_each_setting_with_its_default(component: Any) -> None:
    config: type[BaseModel] = component.component_config_schema
    parameters = inspect.signature(component).parameters
    for name, field in config.model_fields.items():
        default = (
            inspect.Parameter.empty if field.is_required() else field.get_default(call_default_factory=True)
        )
        assert parameters[name].default == default


def test_run_batch_takes_each_setting_of_a_batch_and_explains_it() -> None:
    parameters = inspect.signature(run_batch).parameters
    explained = re.findall(r"^    (\w+): \S", inspect.getdoc(run_batch) or "", re.MULTILINE)
    assert set(parameters) - {"config", "tasks", "out", "listeners"} == {
        field.name for field in fields(BatchSettings)
    }
    assert explained[: len(parameters)] == list(parameters)
    for field in fields(BatchSettings):
        default = None if field.default is MISSING else field.default
        assert parameters[field.name].default == default


def agent(**settings: Any) -> CodeActAgent:
    arguments: dict[str, Any] = {
        "name": "coder",
        "model_client": ReplayChatCompletionClient(["4"]),
        "code_executor": ConfinedSessionCodeExecutor(confinement="best_effort"),
    }
    return CodeActAgent(**(arguments | settings))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"model_client": "gpt-5"}, "model_client: a ChatCompletionClient is expected, not str"),
        ({"code_executor": "docker"}, "code_executor: a CodeExecutor is expected, not str"),
        ({"model_context": "long"}, "model_context: a ChatCompletionContext is expected, not str"),
        ({"tools": print}, "tools: a list is expected, not builtin_function_or_method"),
        ({"tools": "json:dumps"}, "tools: a list is expected, not str"),
        ({"functions": len}, "functions: a list is expected, not builtin_function_or_method"),
        ({"handoffs": "bob"}, "handoffs: a list is expected, not str"),
        ({"approval_func": 5}, "approval_func: a function or a text is expected, not int"),
        ({"tool_limits": {"timout": 5}}, "tool_limits.timout: no such setting"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_by_the_name_of_its_setting(
    settings: dict[str, Any], problem: str
) -> None:
    with pytest.raises(SettingError, match=f"^{re.escape(problem)}$"):
        agent(**settings)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: agent(max_step=3), "CodeActAgent.__init__() got an unexpected keyword argument 'max_step'; did you mean 'max_steps'?"),
        (lambda: cast("Any", ConfinedSessionCodeExecutor)(memory=9), "did you mean 'memory_mib'?"),
        (lambda: cast("Any", SandboxPool)(sise=9), "SandboxPool.__init__() got an unexpected keyword argument 'sise'; did you mean 'size'?"),
        (lambda: cast("Any", run_batch)("team", [], out="o", worker=2), "run_batch() got an unexpected keyword argument 'worker'; did you mean 'workers'?"),
    ],
)  # fmt: skip
def test_an_unknown_argument_is_refused_with_the_most_similar_one(
    make: Callable[[], object], problem: str
) -> None:
    with pytest.raises(TypeError, match=re.escape(problem)):
        make()


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: ReflectionAgent("reviewer", cast("Any", "gpt-5")), "model_client: "),
        (lambda: CodeExecutorAgent("executor", cast("Any", 5)), "code_executor: "),
        (lambda: round_robin_team(cast("Any", "gpt-5"), ConfinedSessionCodeExecutor()), "model_client: "),
        (lambda: SandboxPool(cast("Any", 5)), "examples: an executor is expected, not 5"),
        (lambda: SandboxPool(size=cast("Any", "two")), "size: a number is expected, not 'two'"),
        (lambda: BatchLimits(max_tokens=cast("Any", "many")), "max_tokens: a number is expected, not 'many'"),
        (lambda: load_config("team", policy=cast("Any", True)), "policy: a Policy is expected"),
        (lambda: load_config("team", overrides="a.b=1"), "overrides: a list is expected, such as ['a.b=1']"),
    ],
)
def test_other_wrong_values_are_refused_by_name(make: Callable[[], object], problem: str) -> None:
    with pytest.raises(SettingError, match=f"^{re.escape(problem)}"):
        make()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"workers": "two"}, "workers: "),
        ({"limits": {"max_token": 5}}, "limits.max_token: no such setting"),
        ({"limits": {"max_tokens": "many"}}, "limits.max_tokens: "),
        ({"limits": {"max_tokens": 0}}, "limits: max_tokens: 0 is not above 0"),
        ({"policy": True}, "policy: "),
        ({"seconds": "long"}, "seconds: "),
        ({"epochs": 0}, "epochs: 0 is less than 1"),
    ],
)
async def test_a_wrong_setting_of_a_batch_is_refused_by_name(
    settings: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingError, match=f"^{problem}"):
        await run_batch("team", [{"text": "1 + 1"}], out=tmp_path / "out", **settings)
    assert not (tmp_path / "out").exists()


def test_the_policy_that_an_error_names_is_at_the_top() -> None:
    assert Policy(allow_unsafe=True).allow_unsafe
