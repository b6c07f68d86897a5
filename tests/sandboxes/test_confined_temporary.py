"""`/tmp` of a confined sandbox: its own, at its own path, and without a way to what is in that of the machine."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest
from confined_support import python, started

from codeact_team.sandbox.base import Cause, diagnose
from codeact_team.sandbox.confined.sandbox import ConfinedSandbox

TMP = Path("/tmp")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="by namespaces of Linux")


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncGenerator[ConfinedSandbox]:
    async with started(tmp_path, tmpfs_mib=16) as sandbox:
        if Cause.UNSEEN not in sandbox.limits:
            pytest.skip("this machine forbids namespaces")
        yield sandbox


@pytest.fixture
def beside() -> Generator[Path]:
    """A directory in the machine's `/tmp`."""
    with tempfile.TemporaryDirectory(dir=TMP) as directory:
        yield Path(directory)


async def test_code_writes_to_it_and_the_machine_sees_nothing(sandbox: ConfinedSandbox, beside: Path) -> None:
    name = f"{beside.name}-of-code"
    output, _ = await python(
        sandbox, f"import os; open('/tmp/{name}', 'w').write('1'); print(os.listdir('/tmp'))"
    )
    assert name in output
    assert beside.name not in output.replace(name, "")
    assert not (TMP / name).exists()
    # it lives as long as the sandbox
    assert (await python(sandbox, f"print(open('/tmp/{name}').read())"))[0] == "1\n"


async def test_it_has_one_size_with_the_temporary_directory(sandbox: ConfinedSandbox) -> None:
    code = """if True:
        import os
        open("/tmp/a", "wb").write(bytes(10 << 20))
        open(os.environ["TMPDIR"] + "/b", "wb").write(bytes(10 << 20))
    """
    output, exit = await python(sandbox, code)
    said = diagnose(sandbox.limits, exit_code=exit.code, output=output)
    assert said is not None
    assert "tmpfs_mib: 16" in said


async def test_no_way_to_what_is_visible_can_be_moved_or_replaced(
    sandbox: ConfinedSandbox, tmp_path: Path
) -> None:
    code = """if True:
        import os, sys
        workspace, home = os.getcwd(), os.environ["TMPDIR"]
        for path in (home, "/tmp/" + workspace.split("/")[2], os.path.dirname(workspace)):
            for change in (lambda: os.rename(path, path + "-moved"), lambda: os.rmdir(path)):
                try:
                    change()
                    print("changed", path)
                except OSError as error:
                    print(error.strerror)
        try:
            open(os.path.dirname(workspace) + "/file", "w")
            print("written")
        except OSError as error:
            print(error.strerror)
    """
    assert tmp_path.is_relative_to(TMP)
    output, _ = await python(sandbox, code)
    assert "changed" not in output
    assert "written" not in output
    assert len(output.splitlines()) == 7


async def test_what_is_readable_in_it_stays_read_only(tmp_path: Path, beside: Path) -> None:
    (beside / "text").write_text("to be read")
    async with started(tmp_path, readable=[str(beside)]) as sandbox:
        output, _ = await python(
            sandbox, f"print(open('{beside}/text').read()); open('/tmp/new', 'w'); print('new')"
        )
        assert output == "to be read\nnew\n"
        output, exit = await python(sandbox, f"open('{beside}/text', 'w')")
        assert exit.code == 1
    assert (beside / "text").read_text() == "to be read"


@pytest.mark.parametrize("readable", ["a link in it", "all of it"])
async def test_it_is_the_machines_and_read_only_where_code_could_replace_a_way(
    readable: str, tmp_path: Path, beside: Path
) -> None:
    link = TMP / f"{beside.name}-link"
    link.symlink_to(beside)
    (beside / "text").write_text("to be read")
    try:
        shown = str(link) if readable == "a link in it" else str(TMP)
        async with started(tmp_path, readable=[shown]) as sandbox:
            assert (await python(sandbox, f"print(open('{link}/text').read())"))[0] == "to be read\n"
            output, exit = await python(sandbox, "open('/tmp/codeact-team-new', 'w')")
            assert exit.code == 1, output
            code = "import os; open(os.environ['TMPDIR'] + '/new', 'w'); print('new')"
            assert (await python(sandbox, code))[0] == "new\n"
    finally:
        os.unlink(link)
    assert not (TMP / "codeact-team-new").exists()
