"""Python functions given to the code."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from autogen_core.code_executor import (
    Alias,
    FunctionWithRequirements,
    FunctionWithRequirementsStr,
    ImportFromModule,
    with_requirements,
)
from support.agents import answer, contents, replay, turn
from support.codeact import agent_of, outputs, own_session, py
from support.openai_server import ScriptedServer, Text

from codeact_team.agents.codeact.agent import CodeActAgent
from codeact_team.agents.codeact.config import describe_functions, read_functions
from codeact_team.core.providers import Policy, using
from codeact_team.errors import SettingError
from codeact_team.executors.confined import ConfinedSessionCodeExecutor

RATE = 1.5


def add(a: int, b: int = 2) -> int:
    """Add two numbers.

    Args:
        a: One.
        b: The other.
    """
    # a comment
    return a + b


def multiply(a: Any, b: Any) -> Any:
    return a * b


def square(a: int) -> int:
    """A function that needs another one."""
    return multiply(a, a)


async def wait_for(seconds: float) -> str:
    """Waits."""
    import asyncio

    await asyncio.sleep(seconds)
    return "waited"


def root(a: Path) -> float:
    """Uses what its own module has imported."""
    return math.sqrt(float(a.name))


def priced(a: float, rate: float = RATE) -> float:
    return a * rate


class Tools:
    def method(self) -> None: ...


def outer(factor: int) -> Callable[[int], int]:
    def inner(a: int) -> int:
        return a * factor

    return inner


@with_requirements(global_imports=["math", Alias("json", "js"), ImportFromModule("os", ("path",))])
def needs_imports(a: float) -> str:
    """Uses imports that go along."""
    return js.dumps([math.floor(a), path.sep])  # type: ignore[name-defined] # noqa: F821 # pyright: ignore[reportUndefinedVariable]


TEXT = FunctionWithRequirementsStr(
    'def greet(name: str = "you") -> str:\n    """Greets."""\n    return "Hello " + name\n'
)


async def test_the_code_calls_functions_that_were_given_as_source():
    # the notebook's task: add, then multiply
    async with (
        own_session() as executor,
        ScriptedServer([Text(py("multiply(add(1, 3), 5)")), Text("20")]) as server,
    ):
        items = await turn(agent_of(server, executor, functions=[add, multiply]))
    assert outputs(items) == ["20\n"]
    system = contents(server.requests[0])[0]
    assert (
        'def add(a: int, b: int=2) -> int:\n    """Add two numbers.\n\n    Args:\n        a: One.' in system
    )
    assert "def multiply(a: Any, b: Any) -> Any:\n    ..." in system
    assert "$functions" not in system


async def test_all_kinds_of_functions_work_and_are_there_again_in_a_fresh_interpreter():
    given = [square, multiply, wait_for, needs_imports, TEXT, "textwrap:dedent"]
    calls = "print(square(3), await wait_for(0), needs_imports(2.5), greet(), dedent('  x'))"
    replies = [py(calls), py("import os; os._exit(3)"), py(calls), "Done."]
    async with own_session() as executor:
        items = await turn(agent_of(replay(*replies), executor, functions=given))
    first, lost, again = outputs(items)
    assert first == again.partition("\n")[0] + "\n" == '9 waited [2, "/"] Hello you x\n'
    assert lost.count("Variables, imports, functions") == 1, "said once"


async def test_a_function_that_the_image_lacks_is_an_error_that_names_it():
    async with own_session() as executor:
        agent = agent_of(replay(py("1")), executor, functions=["no_such_module:tool"])
        with pytest.raises(SettingError, match="no_such_module"):
            await turn(agent)


def test_a_stub_shows_what_the_source_says():
    [given] = read_functions([wait_for])
    assert given.stub == 'async def wait_for(seconds: float) -> str:\n    """Waits."""'


def test_an_import_path_is_described_by_what_this_machine_has_of_it():
    with using(Policy(namespaces=frozenset({"textwrap"}))):
        [given] = read_functions(["textwrap:dedent"])
    assert given.stub.startswith('def dedent(text):\n    """Remove any common leading whitespace')
    assert given.setup == "from textwrap import dedent"


@pytest.mark.parametrize("path", ["os:system", "no.such_module:tool", "os.path:join"])
def test_what_may_not_be_imported_here_or_is_not_here_is_described_by_its_name(path: str):
    [given] = read_functions([path])
    module, _, name = path.partition(":")
    assert given.stub == f"def {name}(*args, **kwargs):\n    ...  # of {module}: help({name}) tells more"


def test_the_decorator_stays_here_and_the_comments_go_along():
    [given] = read_functions([needs_imports])
    assert "@with_requirements" not in given.setup
    assert "import json as js\n" in given.setup
    [given] = read_functions([add])
    assert "# a comment" in given.setup


def typed(code: str) -> Any:
    """The function that ``code`` defines, as if it came from nowhere."""
    namespace: dict[str, Any] = {}
    exec(compile(code, "<typed>", "exec"), namespace)
    return namespace["f"]


REFUSED: dict[str, tuple[Any, str]] = {
    "a lambda": (lambda: 1, "is a lambda"),
    "a builtin": (len, "len is a builtin_function_or_method"),
    "a closure": (outer(2), "uses factor of the function around it"),
    "a bound method": (Tools().method, "is a method"),
    "a method": (Tools.method, "is a method"),
    "a class": (Tools, "is a type"),
    "a partial": (functools.partial(add, 1), "is a partial"),
    "packages": (
        FunctionWithRequirements(add, python_packages=["numpy"]),
        "'add' asks for the packages numpy.*use an image",
    ),
    "imports of its module": (root, "'root' uses math of its module"),
    "constants of its module": (priced, "'priced' uses RATE of its module"),
    "another function": (square, "'square' uses multiply of its module"),
    "a cached one": (functools.cache(add), "is a _lru_cache_wrapper"),
    "typed at a prompt": (typed("def f(): pass"), "cannot be found"),
    "no path": ("add", "'add' is not an import path"),
    "code in a path": ("os:system('x')", "is not an import path"),
    "a statement in a path": ("os\nimport sys:path", "is not an import path"),
    "a keyword in a path": ("os:import", "is not an import path"),
}


@pytest.mark.parametrize(("function", "reason"), REFUSED.values(), ids=list(REFUSED))
def test_what_cannot_be_shipped_is_refused_with_the_reason(function: Any, reason: str):
    with pytest.raises(SettingError, match=f"^functions: .*{reason}"):
        read_functions([function])


@pytest.mark.parametrize("functions", [[add, add], [add, "tools:add"], ["tools:final_answer"]])
def test_two_functions_of_one_name_are_refused(functions: list[Any]):
    with pytest.raises(SettingError, match=r"two functions '(add|final_answer)'"):
        read_functions(functions)


def test_what_the_interpreter_has_from_its_setup_may_be_used():
    text = FunctionWithRequirementsStr("def f(a):\n    return np.array(a)\n")
    assert read_functions([text])[0].needs == frozenset()


def test_a_name_is_no_need_where_the_function_binds_it_or_python_has_it():
    def local(a: Any) -> Any:
        math = a.math
        return [len(add) for add in math]

    assert read_functions([local])[0].needs == frozenset()


def test_a_prompt_without_a_place_for_the_functions_is_refused():
    with pytest.raises(SettingError, match=r"write \$functions into system_message"):
        CodeActAgent("coder", replay(), _never_started(), functions=[add], system_message="Act by code.")


async def test_a_prompt_may_hold_braces_and_dollars():
    text = "Costs $5, {not} a placeholder, $unknown.\n$functions\nThat is all."
    async with ScriptedServer([Text("1")]) as server:
        await answer(agent_of(server, _never_started(), functions=[add], system_message=text))
    start, _, rest = contents(server.requests[0])[0].partition("\n")
    assert start == "Costs $5, {not} a placeholder, $unknown."
    assert rest.startswith("These functions are defined")
    assert "```\nThat is all.\n\nThe sandbox" in rest


def test_functions_are_described_in_their_order():
    described = describe_functions(read_functions([multiply, add]))
    assert described.index("def multiply") < described.index("def add")


def _never_started() -> Any:
    return ConfinedSessionCodeExecutor()
