"""What a type checker, and so an editor, knows of what a program writes: settings, teams and events."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from support.docstrings import with_arguments, with_fields
from support.language_server import LanguageServer

import codeact_team
from codeact_team import (
    AnyEvent,
    BudgetTermination,
    CodeActAgent,
    CodeExecutorAgent,
    ConfigError,
    ConfinedCommandLineCodeExecutor,
    ConfinedSessionCodeExecutor,
    ConfinedSessionCodeExecutorConfig,
    DockerCommandLineCodeExecutor,
    DockerSessionCodeExecutor,
    DockerSessionCodeExecutorConfig,
    Event,
    ReflectionAgent,
    ReflectionTermination,
    open_team,
)
from codeact_team.batch import results as batch_results
from codeact_team.core.settings import field_docs
from codeact_team.journal.result import RunResult
from codeact_team.standalone import settings as standalone_settings

PROGRAM = """
from codeact_team import AnyEvent, CodeActAgent, ConfinedSessionCodeExecutor, Dispatcher, ProcessResult
from codeact_team import SessionCodeExecutor, open_sandbox, open_team

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
        if isinstance(executor, ConfinedSessionCodeExecutor):
            result: ProcessResult = await executor.processes.run(["true"])
            print(result.returncod)  # wrong


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


SHOWN = """
from autogen_core.models import ChatCompletionClient
from codeact_team import CodeActAgent, ConfinedSessionCodeExecutor, open_sandbox

open_sandbox("docker", tmpfs_mib=64)


def make(client: ChatCompletionClient) -> CodeActAgent:
    return CodeActAgent("agent", client, ConfinedSessionCodeExecutor(timeout=3))
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("place", "word", "told"),
    [
        (
            "return",
            "CodeActAgent",
            ["An agent that solves a task", "max_steps: The most replies of the model"],
        ),
        (
            "client,",
            "ConfinedSessionCodeExecutor",
            ["Runs Python blocks", "timeout: Seconds that one code block"],
        ),
        ("docker", "tmpfs_mib", ["Size of the private temporary directory and /tmp together"]),
    ],
)
def test_over_a_word_an_editor_shows_what_it_means(
    place: str, word: str, told: list[str], tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(SHOWN)
    with LanguageServer(tmp_path) as server:
        server.open(program)
        shown = server.hover(program, word, after=place)
    for text in told:
        assert text in shown.replace("\\", "").replace("`", ""), shown


def written(module: str, make: Callable[[str], str], config: pytest.Config) -> tuple[str, str]:
    """The source of a module, and as ``make`` would have it; with the option `--write-docstrings` as it then is."""
    path = Path(sys.modules[module].__file__ or "")
    made = make(path.read_text())
    if config.getoption("--write-docstrings"):
        path.write_text(made)
    return path.read_text(), made


COMPONENTS = [
    BudgetTermination,
    CodeActAgent,
    CodeExecutorAgent,
    ConfinedCommandLineCodeExecutor,
    ConfinedSessionCodeExecutor,
    DockerCommandLineCodeExecutor,
    DockerSessionCodeExecutor,
    ReflectionAgent,
    ReflectionTermination,
]


@pytest.mark.parametrize("component", COMPONENTS)
def test_the_constructor_of_a_component_explains_each_setting(
    component: type, pytestconfig: pytest.Config
) -> None:
    (settings,) = [
        hint for hint in get_type_hints(inspect.unwrap(component.__init__)).values() if hint is not type(None)
    ]
    docs = field_docs(settings)
    ordered = {name: docs[name] for name in inspect.signature(component).parameters}
    source, made = written(
        component.__module__, lambda text: with_arguments(text, component.__name__, ordered), pytestconfig
    )
    assert source == made


def test_the_settings_of_a_sandbox_are_those_of_its_executor(pytestconfig: pytest.Config) -> None:
    confined, docker = (
        {name: (field.annotation, docs[name]) for name, field in config.model_fields.items()}
        for config in (ConfinedSessionCodeExecutorConfig, DockerSessionCodeExecutorConfig)
        for docs in [field_docs(config)]
    )
    common = {
        name: (kind, _of_both(text, docker[name][1]))
        for name, (kind, text) in confined.items()
        if name in docker
    }

    def make(source: str) -> str:
        for name, fields in (("Common", common), ("Confined", confined), ("Docker", docker)):
            own = {each: fields[each] for each in fields if fields is common or each not in common}
            source = with_fields(source, f"{name}Settings", own)
        return source

    source, made = written(standalone_settings.__name__, make, pytestconfig)
    assert source == made


def _of_both(confined: str, docker: str) -> str:
    return confined if confined == docker else f"{confined} In a container: {docker[:1].lower()}{docker[1:]}"


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
