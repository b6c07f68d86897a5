"""What our executor for smolagents does beyond the tests of its Docker executor.

It runs in the environment of that suite; see ``test_smolagents.py``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import PIL.Image
import PIL.ImageOps
import pytest
from smolagents import FinalAnswerTool, Tool, tool  # pyright: ignore[reportUnknownVariableType]
from smolagents.utils import AgentExecutionError

from codeact_team import open_sandbox
from codeact_team.adapters.smolagents import CodeactPythonExecutor
from codeact_team.standalone.synchronous import SyncSandbox

WHERE = "docker" if os.environ["WHERE"] == "docker" else "confined"
SECRET = "a key of the host"


@tool
def look_up(number: int, detailed: bool = False) -> dict[str, Any]:
    """Look up an order.

    Args:
        number: Its number.
        detailed: Whether to say more.
    """
    if number == 0:
        raise ValueError(f"there is no order {number}")
    return {"number": number, "key": SECRET, "detailed": detailed}


@tool
def invert(picture: object) -> object:
    """Swap black and white.

    Args:
        picture: A picture.
    """
    assert isinstance(picture, PIL.Image.Image)
    return PIL.ImageOps.invert(picture)


@tool
def connection() -> object:
    """A value that stays on the host."""
    return object()


@pytest.fixture(scope="module")
def sandbox() -> Iterator[SyncSandbox]:
    with open_sandbox(WHERE, timeout=5, packages=["pillow", "numpy"]) as sandbox:
        yield sandbox


@pytest.fixture
def executor(sandbox: SyncSandbox) -> CodeactPythonExecutor:
    executor = CodeactPythonExecutor(sandbox)
    tools: list[Tool] = [look_up, invert, connection, FinalAnswerTool()]
    executor.send_tools({each.name: each for each in tools})
    return executor


def test_a_tool_runs_on_the_host(executor: CodeactPythonExecutor) -> None:
    output = executor("import os\nprint(look_up(7, detailed=True), os.getpid())")
    assert f"{{'number': 7, 'key': '{SECRET}', 'detailed': True}}" in output.logs
    assert not output.logs.rstrip().endswith(str(os.getpid()))
    assert not output.is_final_answer


def test_the_code_can_handle_the_error_of_a_tool(executor: CodeactPythonExecutor) -> None:
    code = "try:\n    look_up(0)\nexcept Exception as error:\n    print('caught:', error)"
    assert "caught: ValueError: there is no order 0" in executor(code).logs


def test_the_error_of_a_tool_is_an_error_of_the_code(executor: CodeactPythonExecutor) -> None:
    with pytest.raises(AgentExecutionError, match=r"(?s)before.*line 2.*there is no order 0"):
        executor("print('before')\nlook_up(0)")


def test_a_value_that_cannot_pass_is_an_error_of_the_code(executor: CodeactPythonExecutor) -> None:
    with pytest.raises(AgentExecutionError, match=r"a builtins\.object cannot pass"):
        executor("connection()")
    with pytest.raises(AgentExecutionError, match=r"a builtins\.object cannot pass"):
        executor("look_up(object())")


def test_code_cannot_call_what_is_no_tool(executor: CodeactPythonExecutor) -> None:
    with pytest.raises(AgentExecutionError, match="KeyError"):
        executor("import tools\ntools.call('exec', '[[], {}]')")
    with pytest.raises(AgentExecutionError, match="KeyError"):
        executor('import tools\ntools.call(\'look_up\', \'{":type": "exec", "value": "1"}\')')


def test_pictures_and_arrays_pass_both_ways(executor: CodeactPythonExecutor) -> None:
    code = (
        "import numpy\nfrom PIL import Image\nwhite = invert(Image.new('L', (4, 3), 0))\n"
        "final_answer({'sum': numpy.asarray(white).sum(), 'array': numpy.asarray(white)})"
    )
    output = executor(code)
    assert output.is_final_answer
    assert output.output["sum"] == 4 * 3 * 255


def test_the_final_answer_ends_the_code(executor: CodeactPythonExecutor) -> None:
    code = "print('a')\ntry:\n    final_answer((1, {2}))\nexcept Exception:\n    print('b')\nprint('c')"
    output = executor(code)
    assert (output.output, output.logs, output.is_final_answer) == ((1, {2}), "a\n", True)


def test_variables_come_with_the_task(executor: CodeactPythonExecutor) -> None:
    executor.send_variables({"sizes": (1, 2), "name": "bolt"})
    assert executor("sizes += (3,)\nprint(sizes, name)").logs == "(1, 2, 3) bolt\n"
    # they are the code's from then on
    assert executor("print(sizes)").logs == "(1, 2, 3)\n"
    with pytest.raises(TypeError, match=r"a builtins\.object cannot pass"):
        executor.send_variables({"it": object()})


def test_code_in_an_endless_loop_ends(executor: CodeactPythonExecutor) -> None:
    executor("kept = 1")
    with pytest.raises(AgentExecutionError, match="5 s"):
        executor("while True: pass")
    assert executor("print(kept)").logs == "1\n"


def test_a_fresh_interpreter_has_the_tools_and_variables(executor: CodeactPythonExecutor) -> None:
    executor.send_variables({"name": "bolt"})
    with pytest.raises(AgentExecutionError, match="interpreter"):
        executor("kept = 1\nimport os\nos._exit(1)")
    assert "'number': 3" in executor("print(name, look_up(3), 'kept' in globals())").logs
    with pytest.raises(AgentExecutionError, match="NameError"):
        executor("kept")
