"""Cells of notebooks show in a session what they show in Jupyter; ``tests/notebooks/record.py`` records that."""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest
from support.executing import KINDS, Kind, living_interpreters, run
from support.notebooks import NOTEBOOKS, ON_EACH_PYTHON, Notebook, difference, names, read
from support.pythons import python_of
from support.variations import mostly_long

from codeact_team.core.execution import SessionResult
from codeact_team.executors.session import InterpreterCodeExecutor

BY_NUMBERS = {"earlier"}
"""Notebooks whose cells name others by their numbers."""
_DIFFERENCES = tomllib.loads((NOTEBOOKS / "differences.toml").read_text())
OTHERS = [name for name in names() if name not in ON_EACH_PYTHON and not read(name).packages]
WITH_PACKAGES = [name for name in names() if read(name).packages]
# only root makes an image, of Debian's files; the image of all tests has 3.11
IMAGES_OF = [
    version
    for version in ("3.14", "3.13", "3.12")
    if python_of(version) and os.geteuid() == 0 and shutil.which("debootstrap")
]


@pytest.fixture(scope="module", params=IMAGES_OF[:1])
def image(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """An image with the newest Python of this machine."""
    name = f"codeact-team-test-notebooks:{request.param}"
    files = tmp_path_factory.mktemp("image") / "image.tar"
    make = Path(__file__).parents[1] / "platforms/python"
    subprocess.run([make, "image", request.param, files], check=True)
    subprocess.run(["docker", "import", files, name], check=True)
    files.unlink()
    yield name
    subprocess.run(["docker", "image", "rm", name], check=True)


@pytest.fixture
async def with_packages(kind: Kind, notebook: str) -> AsyncGenerator[InterpreterCodeExecutor]:
    """One that has what the notebook imports."""
    executor = kind.make(packages=[*read(notebook).packages], timeout=60)
    assert isinstance(executor, InterpreterCodeExecutor)
    async with executor:
        yield executor


@pytest.mark.long
async def test_blocks_that_await_may_run_loops_where_code_nests_them() -> None:
    code = "import asyncio, nest_asyncio\nnest_asyncio.apply()\nasync def work(): return await asyncio.sleep(0, 5)"
    executor = KINDS["confined-session"].make(packages=["nest_asyncio"], timeout=30)
    async with executor:
        for block, shown in {
            code: "",
            "asyncio.run(work())": "5\n",
            "async def outer(): return asyncio.run(work()) + await work()\nawait outer()": "10\n",
            "asyncio.get_event_loop().run_until_complete(outer())": "10\n",
        }.items():
            assert (await run(executor, block)).output == shown


def test_there_are_300_cells_and_few_differ() -> None:
    assert sum(len(read(name).cells) for name in names()) == 300
    assert sum(len(read(name).cells) for name in ON_EACH_PYTHON) == 40
    assert sum(len(cells) for cells in _DIFFERENCES.values()) <= 5


@living_interpreters
@pytest.mark.parametrize("notebook", mostly_long(ON_EACH_PYTHON))
async def test_cells_on_each_python_show_what_jupyter_shows(
    session: InterpreterCodeExecutor, notebook: str
) -> None:
    await session.restart()
    await _shows_the_same(session, read(notebook))


@pytest.mark.docker
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("notebook", ON_EACH_PYTHON)
async def test_so_they_do_in_containers_with_another_python(image: str, notebook: str) -> None:
    executor = KINDS["docker-session"].make(image=image, timeout=30)
    assert isinstance(executor, InterpreterCodeExecutor)
    async with executor:
        await _shows_the_same(executor, read(notebook))


@living_interpreters
@pytest.mark.parametrize("notebook", mostly_long(OTHERS, usual=0))
async def test_cells_show_what_jupyter_shows(
    kind: Kind, session: InterpreterCodeExecutor, notebook: str
) -> None:
    if notebook in BY_NUMBERS:
        # blocks are numbered on after a restart
        executor = kind.make(timeout=30)
        assert isinstance(executor, InterpreterCodeExecutor)
        async with executor:
            await _shows_the_same(executor, read(notebook))
        return
    await session.restart()
    await _shows_the_same(session, read(notebook))


@living_interpreters
@pytest.mark.parametrize("notebook", mostly_long(WITH_PACKAGES, usual=0))
async def test_cells_with_packages_show_what_jupyter_shows(
    with_packages: InterpreterCodeExecutor, notebook: str
) -> None:
    await _shows_the_same(with_packages, read(notebook))


async def _shows_the_same(session: InterpreterCodeExecutor, notebook: Notebook) -> None:
    differences: dict[str, str] = {}
    for number, (code, shown) in enumerate(zip(notebook.cells, notebook.shown(), strict=True), start=1):
        result = await run(session, code)
        assert isinstance(result, SessionResult)
        types = [artifact.mime_type for artifact in result.artifacts]
        if (found := difference(shown, result.output, result.exit_code, types)) is not None:
            differences[str(number)] = f"{code}\n{found}"
    assert differences.keys() == _DIFFERENCES.get(notebook.name, {}).keys(), "\n\n".join(
        f"{number}: {found}" for number, found in differences.items()
    )
