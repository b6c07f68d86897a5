"""What runs inside a sandbox runs on Python 3.10 and newer: tried with each that this machine has."""

from __future__ import annotations

import json
from collections.abc import Generator

import pytest
from support.notebooks import ON_EACH_PYTHON, difference, read
from support.pythons import python_of
from support.supervisor import SharedSupervisor, Supervised

from codeact_team.session.protocol import Kind

# the other tests are such of the Python that they run on
pytestmark = pytest.mark.long


PYTHONS = {version: python_of(version) for version in ("3.10", "3.11", "3.12", "3.13", "3.14")}


@pytest.fixture(scope="module", params=[version for version, python in PYTHONS.items() if python])
def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Generator[SharedSupervisor]:
    """A supervisor of each version."""
    shared = SharedSupervisor(tmp_path_factory.mktemp("shared"), python=str(PYTHONS[request.param]))
    assert shared.get().run("import sys; print('%d.%d' % sys.version_info[:2])").text == f"{request.param}\n"
    yield shared
    shared.close()


@pytest.fixture
def one(shared: SharedSupervisor) -> Supervised:
    return shared.get()


def test_blocks_run_fail_and_await(one: Supervised) -> None:
    result = one.run("import asyncio\nx = await asyncio.sleep(0, [1])\nx")
    assert result.text == "[1]\n"
    assert result.report is not None
    assert "x" in [name["name"] for name in result.report["names"]]
    failed = one.run("def f():\n    return {}['a']\nf()")
    assert [line.strip() for line in failed.text.splitlines() if "File" in line] == [
        f'File "<block {one.numbers}>", line 3, in <module>',
        f'File "<block {one.numbers}>", line 2, in f',
    ]
    assert failed.text.endswith("KeyError: 'a'\n")
    assert "SyntaxError" in one.run("x = = 1").text
    assert one.sh("echo $((x + 2))").text == "2\n"


def test_tools_are_called_one_by_one_and_side_by_side(one: Supervised) -> None:
    x = {"name": "x", "key": "x", "annotation": "int", "required": True, "keyword_only": False}
    one.tell_tools({"name": "double", "doc": "", "parameters": [x], "returns": "int", "takes_others": False})
    one.start(
        "import asyncio\nprint(tools.double(x=1), await asyncio.gather(*[tools.double.aio(x=n) for n in (2, 3)]))"
    )
    for _ in range(3):
        call = json.loads(one.expect(Kind.CALL))
        one.answer(call["id"], 2 * call["arguments"]["x"])
    assert one.result().text == "2 [4, 6]\n"


@pytest.mark.parametrize("wait", ["import time; time.sleep(60)", "import asyncio; await asyncio.sleep(60)"])
def test_an_interrupt_leaves_the_variables(one: Supervised, wait: str) -> None:
    one.run("kept = 1")
    one.start(f"print('begun', flush=True); {wait}")
    one.output_until(b"begun")
    one.interrupt()
    assert "KeyboardInterrupt" in one.result().text
    assert one.run("kept").text == "1\n"


def test_one_that_ends_is_replaced(one: Supervised) -> None:
    assert one.run("import os; os._exit(3)").loss
    assert one.run("'next'").text == "'next'\n"
    one.restart()
    assert one.run("'again'").text == "'again'\n"


def test_a_child_may_be_forked(one: Supervised) -> None:
    code = "import multiprocessing\nwith multiprocessing.get_context('fork').Pool(2) as pool: print(pool.map(abs, [-1, -2]))"
    assert one.run(code).text.endswith("[1, 2]\n")


@pytest.mark.parametrize("name", ON_EACH_PYTHON)
def test_cells_show_what_they_show_in_a_notebook(one: Supervised, name: str) -> None:
    notebook = read(name)
    for code, shown in zip(notebook.cells, notebook.shown(), strict=True):
        result = one.run(code)
        assert result.report is not None
        types = [head["mime_type"] for head, _ in result.artifacts]
        assert difference(shown, result.text, result.report["exit_code"], types) is None, code


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_that_are_no_forks_find_what_blocks_define(one: Supervised, method: str) -> None:
    one.run("import dataclasses, enum, multiprocessing\nfrom concurrent.futures import ProcessPoolExecutor")
    one.run(
        "class Colour(enum.Enum):\n    RED = 1\n@dataclasses.dataclass\nclass Point:\n    x: int\nfactor = 3"
    )
    one.run(
        "def scaled(n):\n    return Point(n * factor), Colour.RED\ndef work():\n    print(scaled(1), flush=True)"
    )
    code = f"""
context = multiprocessing.get_context({method!r})
with context.Pool(1) as pool:
    print(pool.map(scaled, [2]) == [(Point(6), Colour.RED)])
with ProcessPoolExecutor(1, mp_context=context) as executor:
    print(executor.submit(lambda n: scaled(n), 3).result() == (Point(9), Colour.RED))
process = context.Process(target=work)
process.start()
process.join()
"""
    assert one.run(code).text == "True\nTrue\n(Point(x=3), <Colour.RED: 1>)\n"
