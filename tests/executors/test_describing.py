"""What executors say of their sandboxes is what code finds there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from support.deep_tree import make_deep_tree
from support.executing import usually
from support.small_disk import small_disk

from codeact_team.errors import SettingError
from codeact_team.executors.base import SandboxedCodeExecutor
from codeact_team.executors.confined import ConfinedCommandLineCodeExecutor
from codeact_team.executors.docker import DockerCommandLineCodeExecutor
from codeact_team.files import trees

ASKED = """
import platform
from importlib.metadata import distributions
print(platform.python_version(), *sorted({one.metadata['Name'].lower() for one in distributions()}))
"""


@usually("docker", "confined")
async def test_the_python_and_the_packages_are_those_that_code_finds(executor: SandboxedCodeExecutor):
    code = CodeBlock(code=ASKED, language="python")
    result = await executor.execute_code_blocks([code], CancellationToken())
    version, *names = result.output.split()
    description = await executor.describe()
    assert description.python == f"Python {version}"
    assert set(description.packages) == {name.replace("_", "-").replace(".", "-") for name in names} - {
        "pip",
        "setuptools",
        "wheel",
    }
    assert description.has_network is False
    assert (description.block_seconds, description.memory_mib) == (30, 1024)


@usually("confined", "confined-session")
async def test_it_says_whether_variables_live_on(executor: SandboxedCodeExecutor):
    for code in ("x = 1", "print(x)"):
        block = CodeBlock(code=code, language="python")
        result = await executor.execute_code_blocks([block], CancellationToken())
    assert (await executor.describe()).lives_on == (result.exit_code == 0)


async def test_files_of_the_start_are_told_and_what_is_no_file_is_not(tmp_path: Path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "more.csv").write_text("1")
    (tmp_path / "sales.csv").write_text("12345")
    (tmp_path / ".hidden").write_text("")
    (tmp_path / f"tmp_code_{'0' * 64}.python").write_text("")
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "loop").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    executor = ConfinedCommandLineCodeExecutor(work_dir=tmp_path)
    description = await executor.describe()
    assert [(file.path, file.size) for file in description.files] == [("sales.csv", 5), ("data/more.csv", 1)]
    assert description.omitted_files == 0
    (tmp_path / "made.txt").write_text("by code")
    assert await executor.describe() == description
    await executor.stop()
    assert (await executor.describe()).files[0].path == "made.txt"


async def test_a_directory_that_is_yet_to_be_made_has_no_files(tmp_path: Path):
    assert (await ConfinedCommandLineCodeExecutor(work_dir=tmp_path / "new").describe()).files == []


async def test_of_very_many_files_the_first_are_told(tmp_path: Path):
    for number in range(1002):
        (tmp_path / f"{number:04}").touch()
    description = await ConfinedCommandLineCodeExecutor(work_dir=tmp_path).describe()
    assert (len(description.files), description.omitted_files) == (1000, None)


async def test_a_tree_without_end_that_code_has_left_ends_nothing(tmp_path: Path):
    make_deep_tree(tmp_path)
    (tmp_path / "sales.csv").touch()
    described = await ConfinedCommandLineCodeExecutor(work_dir=tmp_path).describe()
    assert [file.path for file in described.files] == ["sales.csv"]
    trees.remove(str(tmp_path / "deep"))


async def test_a_network_is_told_and_nothing_is_promised_that_may_not_hold():
    best_effort = ConfinedCommandLineCodeExecutor(confinement="best_effort")
    assert (await best_effort.describe()).has_network is None


@pytest.mark.docker
async def test_a_network_of_the_engine_is_told():
    executor = DockerCommandLineCodeExecutor(network="bridge")
    assert (await executor.describe()).has_network is True


async def test_what_the_settings_say_is_known_without_an_engine(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    description = await DockerCommandLineCodeExecutor(memory_mib=99).describe()
    assert (description.has_network, description.memory_mib, description.python) == (False, 99, None)


async def test_it_can_be_described_before_it_starts_and_after_it_has_stopped():
    executor = ConfinedCommandLineCodeExecutor()
    before = await executor.describe()
    await executor.start()
    assert await executor.describe() == before
    await executor.stop()
    assert await executor.describe() == before


async def test_files_that_a_person_has_given_come_first_and_with_their_first_lines(tmp_path: Path):
    work_dir, sales = tmp_path / "work", tmp_path / "sales.csv"
    work_dir.mkdir()
    (work_dir / "a.txt").write_text("here before")
    sales.write_text("region,amount\nEast,12\n")
    executor = ConfinedCommandLineCodeExecutor(work_dir=work_dir, data=[sales])
    given, before = (await executor.describe()).files
    assert (given.path, given.size, given.head) == ("sales.csv", 22, ["region,amount", "East,12"])
    assert before.path == "a.txt"


async def test_data_that_is_not_there_is_an_error_before_a_model_is_paid(tmp_path: Path):
    with pytest.raises(SettingError, match=r"there is no .*/sales\.csv"):
        await ConfinedCommandLineCodeExecutor(data=[tmp_path / "sales.csv"]).describe()


async def test_data_for_which_the_disk_has_no_room_is_refused_before_a_model_is_asked(tmp_path: Path):
    data = tmp_path / "sales.csv"
    data.write_bytes(b"1" * 700_000)
    work_dir = tmp_path / "disk" / "work"
    with small_disk(tmp_path / "disk", "1m"):
        executor = ConfinedCommandLineCodeExecutor(work_dir=work_dir, data=[data])
        await executor.start()
        await executor.stop()
        assert [file.size for file in (await executor.describe()).files] == [700_000], "its copy is there"
        data.write_bytes(b"1" * 3_000_000)
        executor = ConfinedCommandLineCodeExecutor(work_dir=work_dir, data=[data])
        with pytest.raises(SettingError, match="has no room for it: it needs 2 MiB, and 0 MiB are free"):
            await executor.describe()
