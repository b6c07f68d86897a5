"""Code in every kind of executor imports the packages that its config names, without a network."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from packages.conftest import with_index
from support.wheels import make_wheel

from codeact_team.core.effects import Dispatcher, Event
from codeact_team.core.events import SandboxPreparing
from codeact_team.errors import SandboxError
from codeact_team.executors.base import SandboxedCodeExecutor
from codeact_team.executors.confined import ConfinedCommandLineCodeExecutor, ConfinedSessionCodeExecutor
from codeact_team.executors.docker import DockerCommandLineCodeExecutor, DockerSessionCodeExecutor
from codeact_team.executors.packages.layers import Layers

KINDS: list[Any] = [
    pytest.param(DockerCommandLineCodeExecutor, marks=pytest.mark.docker, id="docker"),
    pytest.param(
        DockerSessionCodeExecutor, marks=[pytest.mark.docker, pytest.mark.long], id="docker-session"
    ),
    pytest.param(ConfinedCommandLineCodeExecutor, marks=pytest.mark.long, id="confined"),
    pytest.param(ConfinedSessionCodeExecutor, id="confined-session"),
]

ASKED = ["shapes", "impostor"]


def make_impostor(index: Path) -> None:
    # a module of this name before the standard library's would be found by everything that runs
    make_wheel(
        index, "impostor", files={"impostor.py": "", "json.py": "raise SystemExit('not the real one')\n"}
    )


@pytest.fixture(scope="module", params=KINDS)
def executor(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Generator[SandboxedCodeExecutor]:
    """One for the tests that leave it, and its packages, as they are."""
    place = tmp_path_factory.mktemp("packages")
    with pytest.MonkeyPatch.context() as monkeypatch:
        make_impostor(with_index(place, monkeypatch))
        monkeypatch.setenv("XDG_CACHE_HOME", str(place / "cache"))
        executor = request.param(packages=ASKED)
        # with a block, before which the check of the packages ends that begins in this event loop
        asyncio.run(output(executor, "print()"))
    yield executor
    asyncio.run(executor.stop())


@pytest.fixture
def its_layers(executor: SandboxedCodeExecutor) -> Layers:
    path = executor.life.environment.packages.path
    assert path is not None
    return Layers(path.parent.parent)


async def output(executor: SandboxedCodeExecutor, code: str, language: str = "python") -> str:
    result = await executor.execute_code_blocks(
        [CodeBlock(code=code, language=language)], CancellationToken()
    )
    return result.output


async def test_code_imports_them_in_whatever_way_it_starts_a_python(executor: SandboxedCodeExecutor) -> None:
    assert (
        await output(executor, "import shapes, json; print(shapes.version, len(json.dumps(1)))") == "2.0 1\n"
    )
    inner = "import subprocess, sys; print(subprocess.check_output([sys.executable, '-c', 'import shapes, json; print(shapes.version)']))"
    assert await output(executor, inner) == "b'2.0\\n'\n"
    assert await output(executor, "python3 -c 'import shapes; print(shapes.version)'", "sh") == "2.0\n"


async def test_code_cannot_change_them_for_others(
    executor: SandboxedCodeExecutor, its_layers: Layers
) -> None:
    code = """
import shapes, os
try:
    os.chmod(shapes.__file__, 0o777)
except OSError as error:
    print(type(error).__name__)
try:
    open(shapes.__file__, 'w')
except OSError as error:
    print(type(error).__name__)
try:
    open(os.path.join(os.path.dirname(shapes.__file__), 'more.py'), 'w')
except OSError as error:
    print(type(error).__name__)
"""
    assert len((await output(executor, code)).splitlines()) == 3
    assert [its_layers.changes(layer, thorough=True) for layer in its_layers.all()] == [[]]


async def test_they_are_made_before_the_first_block_and_progress_is_told(
    index: Path, layers: Layers, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "codeact_team")
    events: list[Event] = []
    with Dispatcher() as dispatcher:
        dispatcher.listen(events.append)
        executor = ConfinedSessionCodeExecutor(packages=["shapes"])
        await executor.prepare()
    assert any(
        isinstance(event, SandboxPreparing) and "getting shapes for" in event.doing for event in events
    )
    assert "getting shapes for" in caplog.text
    [layer] = layers.all()
    assert not layers.remove(layer)
    await executor.stop()
    assert layers.remove(layer)


async def test_a_package_that_cannot_be_had_is_told_when_the_executor_is_prepared(layers: Layers) -> None:
    executor = ConfinedSessionCodeExecutor(packages=["nowhere"])
    with pytest.raises(SandboxError, match="nowhere"):
        await executor.prepare()


@pytest.mark.long
@pytest.mark.parametrize("make", KINDS)
async def test_packages_that_were_changed_are_made_anew_before_code_runs(
    make: Any, index: Path, layers: Layers
) -> None:
    make_impostor(index)
    executor = make(packages=ASKED)
    await executor.prepare()
    await executor.stop()
    [layer] = layers.all()
    module = layer.path / "site-packages" / "shapes.py"
    module.chmod(0o644)
    module.write_text("version = 'forged'\n")
    await executor.start()
    assert await output(executor, "import shapes; print(shapes.version)") == "2.0\n"
    await executor.stop()


@pytest.mark.long
@pytest.mark.usefixtures("made_before")
async def test_packages_that_cannot_be_read_are_made_anew(layers: Layers) -> None:
    executor = ConfinedSessionCodeExecutor(packages=["shapes"])
    await executor.prepare()
    await executor.stop()
    [layer] = layers.all()
    module = layer.path / "site-packages" / "shapes.py"
    module.unlink()
    module.symlink_to(module)
    try:
        assert await output(executor, "import shapes; print(shapes.version)") == "2.0\n"
    finally:
        await executor.stop()


@pytest.mark.usefixtures("made_before")
async def test_an_executor_that_is_stopped_at_once_lets_go_of_its_packages(layers: Layers) -> None:
    executor = ConfinedSessionCodeExecutor(packages=["shapes"])
    await executor.start()
    await executor.stop()
    [layer] = layers.all()
    assert layers.remove(layer)


@pytest.mark.long
@pytest.mark.usefixtures("layers")
async def test_a_package_that_the_sandbox_has_too_is_found_and_told_in_the_version_asked_for(
    index: Path,
) -> None:
    make_wheel(index, "pydantic", "9.9")
    async with ConfinedSessionCodeExecutor(packages=["pydantic"]) as executor:
        assert (await executor.describe()).packages["pydantic"] == "9.9"
        assert await output(executor, "import pydantic; print(pydantic.version)") == "9.9\n"


@pytest.mark.long
@pytest.mark.usefixtures("made_before")
async def test_a_restart_and_a_second_executor_have_them_too(layers: Layers) -> None:
    first, second = (ConfinedSessionCodeExecutor(packages=["shapes"]) for _ in range(2))
    try:
        for executor in (first, second, first):
            assert await output(executor, "import shapes; print(shapes.version)") == "2.0\n"
            await executor.restart()
            assert await output(executor, "import shapes; print(shapes.version)") == "2.0\n"
        await first.stop()
        assert await output(first, "import shapes; print(shapes.version)") == "2.0\n"
        assert len(layers.all()) == 1
    finally:
        await first.stop()
        await second.stop()


async def test_a_workspace_from_which_code_could_change_them_is_refused(
    layers: Layers, tmp_path: Path
) -> None:
    for work_dir in (tmp_path, layers.root / "work"):
        executor = ConfinedCommandLineCodeExecutor(packages=["shapes"], work_dir=work_dir)
        with pytest.raises(SandboxError, match=r"code could change the packages .* kept in .*packages"):
            await executor.start()


PARQUET = """
class ParquetFile:
    def __init__(self, file):
        self.schema_arrow = []
        self.metadata = type("Metadata", (), {"num_rows": len(file.read())})
    def iter_batches(self, batch_size):
        return iter(())
"""


@pytest.mark.parametrize("given", ["a.parquet", pytest.param(".", marks=pytest.mark.long)])
async def test_the_reader_of_data_is_added_to_the_packages(
    index: Path, layers: Layers, tmp_path: Path, caplog: pytest.LogCaptureFixture, given: str
) -> None:
    caplog.set_level("INFO")
    make_wheel(index, "pyarrow", files={"pyarrow/__init__.py": "", "pyarrow/parquet.py": PARQUET})
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.parquet").write_text("12345")
    executor = ConfinedSessionCodeExecutor(packages=["shapes"], data=[data / given])
    [file] = (await executor.describe()).files
    assert file.head == ["a table, 5 rows; columns: "]
    assert await output(executor, "import shapes, pyarrow; print(shapes.version)") == "2.0\n"
    await executor.stop()
    await executor.prepare()
    notes = [record.getMessage() for record in caplog.records if record.getMessage().startswith("added")]
    assert notes == [f"added to the packages of the code, to read the data: pyarrow (for {file.path})"]


@pytest.mark.long
@pytest.mark.parametrize(
    "names", [["a.parquet"], pytest.param(["a.parquet", "a.xlsx"], marks=pytest.mark.long)]
)
async def test_a_reader_that_is_there_or_asked_for_is_not_added(
    index: Path, layers: Layers, tmp_path: Path, names: list[str]
) -> None:
    make_wheel(index, "PyArrow")
    for name in names:
        (tmp_path / name).write_text("")
    (tmp_path / "all.txt").write_text("PyArrow == 1.0\n")
    asked: list[dict[str, Any]] = [{"packages": ["pyarrow>=1"]}, {"packages_file": tmp_path / "all.txt"}]
    for settings in asked:
        executor = ConfinedSessionCodeExecutor(data=[tmp_path / name for name in names], **settings)
        await executor.prepare()
        [layer] = layers.all()
        assert {*layer.packages} == {"PyArrow"}, "this Python has openpyxl"
        assert executor.life.environment.readers == ()
        await executor.stop()
        layers.remove(layer)


@pytest.mark.usefixtures("made_before")
async def test_without_the_reader_the_code_runs_and_the_user_reads_what_to_do(
    layers: Layers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.parquet").write_text("12345")
    executor = ConfinedSessionCodeExecutor(packages=["shapes"], data=[tmp_path / "a.parquet"])
    assert [file.head for file in (await executor.describe()).files] == [()]
    assert await output(executor, "import shapes; print(shapes.version)") == "2.0\n"
    [warning] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith("the code has no pyarrow to read the data with: give the data as CSV, ")
    await executor.stop()
