"""What a type checker, and so an editor, knows of what a program writes: settings, teams and events."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from pydantic import BaseModel

import codeact_team
from codeact_team import (
    AnyEvent,
    CodeActAgent,
    ConfigError,
    ConfinedSessionCodeExecutorConfig,
    DockerSessionCodeExecutorConfig,
    Event,
    open_team,
)
from codeact_team.batch import results as batch_results
from codeact_team.journal.result import RunResult
from codeact_team.standalone.settings import CommonSettings, ConfinedSettings, DockerSettings

PROGRAM = """
from codeact_team import AnyEvent, CodeActAgent, Dispatcher, SessionCodeExecutor, open_sandbox, open_team

open_sandbox("confined", timeout=3, data=["sales.csv"], readable=["/opt"])
open_sandbox("docker", image="python:3-slim", network="bridge")
open_sandbox("confined", timeot=3)  # wrong
open_sandbox("confined", timeout="3")  # wrong
open_sandbox("docker", readable=["/opt"])  # wrong


async def work() -> None:
    async with open_team("codeact") as team:
        await team.run(task="Hello.")
        team.code_executor  # wrong
    async with open_team("codeact", kind=CodeActAgent) as agent:
        executor: SessionCodeExecutor = agent.code_executor
        await executor.start()


def listen(event: AnyEvent) -> None:
    if event.type == "block_ended":
        print(event.exit_code, event.seconds)
    elif event.type == "message":
        print(event.message.source)
        event.exit_code  # wrong
    if event.type == "block_endet":  # wrong
        print()


with Dispatcher() as dispatcher:
    dispatcher.listen(listen)
"""


@pytest.mark.long
def test_a_type_checker_finds_what_is_wrong_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "pyrightconfig.json").write_text(
        json.dumps({"typeCheckingMode": "strict", "reportUnusedExpression": False})
    )
    # it asks the first Python of the path for its packages
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    command = [sys.executable, "-m", "pyright", "--outputjson", "program.py"]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, check=False)
    found = {each["range"]["start"]["line"] for each in json.loads(ran.stdout)["generalDiagnostics"]}
    wrong = {number for number, line in enumerate(PROGRAM.splitlines()) if line.endswith("# wrong")}
    assert found == wrong, ran.stdout.decode()


@pytest.mark.parametrize(
    ("settings", "config"),
    [
        (ConfinedSettings, ConfinedSessionCodeExecutorConfig),
        (DockerSettings, DockerSessionCodeExecutorConfig),
    ],
)
def test_the_settings_of_a_sandbox_are_those_of_its_executor(settings: type, config: type[BaseModel]) -> None:
    assert get_type_hints(settings) == {name: field.annotation for name, field in config.model_fields.items()}


def test_the_settings_of_every_sandbox_are_those_that_both_kinds_have() -> None:
    both = get_type_hints(ConfinedSettings).keys() & get_type_hints(DockerSettings).keys()
    assert get_type_hints(CommonSettings).keys() == both


def kinds_of_events() -> Mapping[str, type[Event]]:
    """The classes of this package's events, by their types, without those that others only derive from."""
    return {
        name: kind
        for name, kind in Event.kinds.items()
        if kind.__module__.startswith("codeact_team.") and not kind.__subclasses__()
    }


def test_each_class_of_an_event_tells_its_type_and_is_in_the_package() -> None:
    for name, kind in kinds_of_events().items():
        literal: Any = get_type_hints(kind)["type"]
        assert get_args(get_args(literal)[0]) == (name,), kind
        assert getattr(codeact_team, kind.__name__) is kind


def test_the_union_has_all_events_of_a_run() -> None:
    of_others = {RunResult.__module__, batch_results.__name__}
    of_runs = {kind for kind in kinds_of_events().values() if kind.__module__ not in of_others}
    assert {*get_args(AnyEvent)} == of_runs


async def test_a_team_of_another_kind_than_the_program_wants_is_refused() -> None:
    with pytest.raises(ConfigError, match="RoundRobinGroupChat, and a CodeActAgent is expected"):
        async with open_team("quickstart", kind=CodeActAgent):
            pass
    async with open_team("quickstart-codeact", kind=CodeActAgent) as agent:
        assert agent.code_executor.restarts == 0
