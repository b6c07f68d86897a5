"""What only the Docker executor has; the rest is in the conformance suite."""

from __future__ import annotations

import asyncio
import os
import re
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, FunctionWithRequirements, with_requirements
from support.executing import KINDS, run

from codeact_team.core.execution import Outcome
from codeact_team.errors import SettingError
from codeact_team.executors.docker import DockerCommandLineCodeExecutor, DockerSessionCodeExecutor
from codeact_team.sandbox.docker import naming
from codeact_team.sandbox.docker.address import engine_url
from codeact_team.sandbox.docker.description import describe
from codeact_team.sandbox.docker.engine import at_engine, connect
from codeact_team.sandbox.temporary import places

pytestmark = pytest.mark.docker


def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


def broken() -> int:
    """Cannot be loaded where this package is not."""
    return 1


async def test_full_disk_is_named(tmp_path: Path) -> None:
    blocks = (
        ("open('/tmp/big', 'wb').write(bytes(20_000_000))", "python", "tmpfs_mib: 16"),
        ("open('big', 'wb').write(bytes(20_000_000))", "python", "max_file_mib: 12"),
        ("head -c 20000000 /dev/zero > big", "sh", "max_file_mib: 12"),
    )
    async with DockerCommandLineCodeExecutor(work_dir=tmp_path, tmpfs_mib=16, max_file_mib=12) as executor:
        for code, language, field in blocks:
            result = await run(executor, code, language=language)
            assert result.exit_code != 0
            assert result.limit is not None
            assert field in result.limit


async def test_workspace_in_the_container() -> None:
    before = KINDS["docker"].held()
    async with DockerCommandLineCodeExecutor(workspace="container") as executor:
        result = await run(executor, "open('kept', 'w').write('1')", "print(open('kept').read())")
        assert (result.output, result.code_file) == ("1\n", None)
        with pytest.raises(RuntimeError):
            _ = executor.work_dir
        endless = [CodeBlock(code="print('up', flush=True)\nwhile True: pass", language="python")]
        async with aclosing(executor.execute_code_blocks_stream(endless, CancellationToken())) as items:
            assert "up" in str(await anext(items))
        assert (await run(executor, "print(open('kept').read())")).output == "1\n"
        # the first process of the container is out of reach
        assert (await run(executor, "import os, signal; os.kill(-1, 9)")).exit_code == 1
        assert (await run(executor, "print(open('kept').read())")).output == "1\n"
        # where the container is gone, the result says what is lost with it
        async with aclosing(executor.execute_code_blocks_stream(endless, CancellationToken())) as items:
            assert "up" in str(await anext(items))
            KINDS["docker"].lose(KINDS["docker"].held() - before)
            said = "".join([str(item) async for item in items if isinstance(item, str)])
        assert said.endswith("the next code runs in a fresh sandbox.")
        assert (await run(executor, "import os; print(os.listdir())")).output.startswith("['tmp_code")


@pytest.mark.long
async def test_code_of_an_owner_less_directory_has_a_user_of_its_own_or_the_persons() -> None:
    async with DockerCommandLineCodeExecutor() as executor:
        user = int((await run(executor, "id -u", language="sh")).output)
    # root of a rootless engine is the person
    persons = 0 if at_engine(describe).is_rootless else os.geteuid()
    assert user == persons if os.geteuid() else user >= 0x70000000


@pytest.mark.long
async def test_temporary_workspace_of_another_user_is_in_the_container() -> None:
    async with DockerCommandLineCodeExecutor(user="1234:1234") as executor:
        result = await run(executor, "touch made && id -u", language="sh")
    assert (result.output, result.code_file) == ("1234\n", None)


@pytest.mark.long
async def test_name_that_is_taken_gets_a_suffix() -> None:
    name = f"codeact-test-{os.getpid()}"
    one, two = (DockerCommandLineCodeExecutor(container_name=name) for _ in range(2))
    await asyncio.gather(one.start(), two.start())
    with closing(connect(engine_url())) as client:
        found = client.containers(filters={"name": name})
    await asyncio.gather(one.stop(), two.stop())
    assert sorted(len(container["Names"][0]) for container in found) == [len(name) + 1, len(name) + 10]


async def test_functions() -> None:
    executor = DockerCommandLineCodeExecutor(
        functions=[add], functions_module="helpers", delete_tmp_files=True
    )
    # the first calls come at the same time
    use = "from helpers import add; print(add(1, 2))"
    results = await asyncio.gather(*(run(executor, use) for _ in range(3)))
    assert [result.output for result in results] == ["3\n"] * 3
    # they are there in every new container
    await executor.restart()
    assert (await run(executor, use)).output == "3\n"
    await executor.stop()
    assert re.search(
        r"`helpers`(?s:.*)\ndef add\(.*\n    \"\"\"The sum", executor.format_functions_for_prompt()
    )
    with pytest.raises(SettingError, match="add"):
        executor.dump_component()


@pytest.mark.long
async def test_functions_that_do_not_load_are_an_error() -> None:
    functions: list[FunctionWithRequirements[int, ...]] = [
        with_requirements(global_imports=["nowhere_to_be_found"])(broken),
        with_requirements(python_packages=["nowhere-to-be-found"])(broken),
    ]
    for function, message in zip(functions, ("Functions failed to load", "Pip install failed"), strict=True):
        executor = DockerCommandLineCodeExecutor(functions=[function])
        with pytest.raises(SettingError, match=message):
            await run(executor, "print(1)")
        await executor.stop()


@pytest.mark.long
async def test_functions_are_not_installed_by_a_cancelled_call() -> None:
    executor = DockerCommandLineCodeExecutor(functions=[add])
    token = CancellationToken()
    token.cancel()
    assert (await run(executor, "print(1)", token=token)).outcome is Outcome.CANCELLED
    assert (await run(executor, "import functions; print(functions.add(1, 1))")).output == "2\n"
    await executor.stop()


def test_what_is_looser_than_the_default_is_known() -> None:
    executor = DockerCommandLineCodeExecutor(network="bridge", memory_mib=2048, pids=100, user="0:0")
    assert executor.relaxations == ("network: bridge", "memory_mib: 2048 (default 1024)", "user: 0:0")
    assert DockerCommandLineCodeExecutor().relaxations == ()


@pytest.mark.parametrize(
    "wrong",
    [
        {"workspace": "container", "work_dir": "coding"},
        {"workspace": "container", "bind_dir": "coding"},
        {"functions_module": "not a name"},
        {"extra_volumes": {"/srv": {"bind": "/srv", "mod": "ro"}}},
        {"extra_volumes": {"/srv": {"bind": "/srv", "mode": "readonly"}}},
        {"extra_volumes": {"/srv": {"mode": "ro"}}},
        {"device_requests": [{"Drivers": "nvidia"}]},
        {"device_requests": [{"Count": "all"}]},
        {"pull": "sometimes"},
        {"max_file_mib": 0},
        {"cpus": 0},
    ],
)
def test_contradictions_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        DockerCommandLineCodeExecutor(**wrong)


def test_current_directory_as_workspace_warns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # as AutoGen's class does
    monkeypatch.chdir(tmp_path)
    with pytest.warns(DeprecationWarning, match="current directory"):
        DockerCommandLineCodeExecutor(work_dir=".")


@pytest.mark.long
async def test_a_package_that_a_shell_block_installs_can_be_imported(tmp_path: Path) -> None:
    wheel = tmp_path / "greeting-1.0-py3-none-any.whl"
    information = {
        "METADATA": "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    with ZipFile(wheel, "w") as archive:
        archive.writestr("greeting.py", "WORDS = 'hello'")
        for name, text in information.items():
            archive.writestr(f"greeting-1.0.dist-info/{name}", text)
    # the image may have no pip; and Debian's Python asks for this variable
    pip = Path(pytest.importorskip("pip").__file__).parent
    executor = DockerSessionCodeExecutor(
        work_dir=tmp_path,
        extra_volumes={str(pip): {"bind": "/opt/pip/pip", "mode": "ro"}},
        environment={"PYTHONPATH": "/opt/pip", "PIP_BREAK_SYSTEM_PACKAGES": "1"},
    )
    async with executor:
        # a place that was looked at in vain is not forgotten
        missing = await run(executor, "import greeting")
        assert "ModuleNotFoundError" in missing.output
        installed = await run(executor, f"python3 -m pip install --no-index ./{wheel.name}", language="sh")
        assert installed.exit_code == 0, installed.output
        assert (await run(executor, "import greeting; greeting.WORDS")).output == "'hello'\n"


@pytest.mark.long
async def test_a_file_that_cannot_be_deleted_in_time_holds_up_no_block(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codeact_team.executors.block_process.DELETE_TIMEOUT", 0.5)
    slow = tmp_path / "rm"
    slow.write_text('#!/bin/sh\ncase $3 in tmp_code_*) sleep 60 ;; *) exec /bin/rm "$@" ;; esac\n')
    slow.chmod(0o755)
    path = {"PATH": "/workspace:/usr/local/bin:/usr/bin:/bin"}
    async with DockerCommandLineCodeExecutor(
        work_dir=tmp_path, delete_tmp_files=True, environment=path
    ) as executor:
        assert (await run(executor, "print('first')")).output == "first\n"
        assert "files of code blocks stay in the sandbox" in caplog.text
        assert (await run(executor, "print('second')")).output == "second\n"
        running = await run(executor, "cat /proc/[0-9]*/comm", language="sh")
        assert set(running.output.split()) == {"python3", "sh"}
    assert any(name.startswith("tmp_code_") for name in os.listdir(tmp_path))


async def test_what_an_init_command_leaves_running_reaches_neither_supervisor_nor_host() -> None:
    noise = "(while sleep 0.02; do echo noise; done) & (while read -r line; do echo $line; done) & exit 0"
    async with DockerSessionCodeExecutor(init_command=noise) as executor:
        for number in range(3):
            assert (
                await run(executor, f"import time; time.sleep(0.05); print({number})")
            ).output == f"{number}\n"


WHO = "import getpass, os, pwd; print(getpass.getuser(), [one.pw_name for one in pwd.getpwall() if one.pw_uid == os.getuid()])"


async def test_where_the_engine_does_not_see_the_file_the_user_has_its_name_in_variables_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Unseen(naming.NamedUser):
        def __init__(self, user: str) -> None:
            super().__init__(user)
            # as on the machine of another engine
            self.file = Path(f"/gone-{os.getpid()}/passwd")

    monkeypatch.setattr(naming, "_unseen", set[str]())
    monkeypatch.setattr(naming, "NamedUser", Unseen)
    for _ in range(2):
        async with DockerSessionCodeExecutor(workspace="container") as executor:
            assert (await run(executor, WHO)).output == "sandbox []\n"


async def test_the_file_that_names_the_user_ends_with_the_container() -> None:
    def held() -> set[str]:
        return {
            str(path) for place in places() for path in place.glob(f"codeact-team-{os.getpid()}-*/passwd")
        }

    before = held()
    async with DockerSessionCodeExecutor(workspace="container") as executor:
        assert (await run(executor, WHO)).output == "sandbox ['sandbox']\n"
        assert len(held() - before) == 1
    assert held() == before
