"""A changed set of packages takes the wheels that are there from other sets, and only them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Self

import pytest
from packages.conftest import Provide, made
from support.command_line import in_this_process
from support.wheels import make_wheel

from codeact_team.executors.packages.layers import Layer, Layers
from codeact_team.sandbox.base import PythonIdentity
from codeact_team.sandbox.confined.sandbox import ConfinedSandbox


def inodes(layer: Layer, name: str) -> list[int]:
    """Those of a wheel's module, and of what it was compiled to."""
    packages = layer.path / "site-packages"
    [compiled] = packages.glob(f"__pycache__/{name}.*.pyc")
    return [(packages / f"{name}.py").stat().st_ino, compiled.stat().st_ino]


@pytest.mark.usefixtures("made_before")
async def test_an_added_package_is_all_that_is_added(provide: Provide, layers: Layers, index: Path) -> None:
    make_wheel(index, "squares")
    first, _ = await made(provide, "shapes")
    # what was only needed is asked for now
    second, _ = await made(provide, "shapes", "colours", "squares")
    assert second.packages == {**first.packages, "squares": "1.0"}
    for name in ("shapes", "colours"):
        assert inodes(first, name) == inodes(second, name)
    alone = [path for path in second.path.rglob("*") if path.is_file() and path.stat().st_nlink == 1]
    assert alone
    assert all("squares" in str(path.relative_to(second.path)) for path in alone)
    assert layers.size() < first.size + second.size
    assert "MiB: a wheel that several have is kept once\n" in in_this_process("packages").stdout
    assert [layers.changes(layer, thorough=True) for layer in layers.all()] == [[], []]


@pytest.mark.usefixtures("made_before")
async def test_without_the_set_that_had_it_first_a_wheel_stays_as_long_as_one_needs_it(
    provide: Provide, layers: Layers
) -> None:
    first, _ = await made(provide, "shapes")

    def remove_it(said: str) -> None:
        # in the middle of making the next one
        if said.startswith("compiling"):
            assert layers.remove(first)

    packages = provide("shapes==1.0", "colours")
    await packages.provide(remove_it)
    second = packages.layer
    await packages.release()
    assert second is not None
    assert layers.all() == [second]
    assert layers.changes(second, thorough=True) == []
    assert (second.path / "site-packages" / "colours.py").stat().st_nlink == 1


@pytest.mark.long
async def test_no_file_is_shared_with_the_cache_of_uv(provide: Provide) -> None:
    layer, _ = await made(provide, "colours")
    assert {path.stat().st_nlink for path in layer.path.rglob("*") if path.is_file()} == {1}


@pytest.mark.usefixtures("made_before")
@pytest.mark.parametrize(
    "what",
    [
        "changed",
        pytest.param("writable", marks=pytest.mark.long),
        pytest.param("gone", marks=pytest.mark.long),
    ],
)
async def test_what_was_changed_in_a_set_does_not_get_into_another(
    provide: Provide, layers: Layers, what: str
) -> None:
    first, _ = await made(provide, "shapes")
    [compiled] = first.path.glob("site-packages/__pycache__/colours.*.pyc")
    before = compiled.stat()
    compiled.chmod(0o644)
    if what == "changed":
        compiled.write_bytes(bytes(before.st_size))
        os.utime(compiled, ns=(before.st_atime_ns, before.st_mtime_ns))
        compiled.chmod(0o444)
    elif what == "gone":
        compiled.unlink()
    second, _ = await made(provide, "shapes==1.0", "colours")
    [new] = second.path.glob("site-packages/__pycache__/colours.*.pyc")
    assert b"0.5" in new.read_bytes()
    assert (new.stat().st_nlink, new.stat().st_mode & 0o777) == (1, 0o444)
    assert layers.changes(second, thorough=True) == []


async def test_a_wheel_that_brings_files_of_another_stays_among_its_own(
    provide: Provide, layers: Layers, index: Path
) -> None:
    forged = {f"__pycache__/colours.{sys.implementation.cache_tag}.pyc": "forged", "colours.py": "forged = 1"}
    make_wheel(index, "sly", files=forged)
    with_it, _ = await made(provide, "sly")
    compiled = with_it.path.glob("site-packages/__pycache__/*")
    assert [b"forged" in path.read_bytes()[:16] for path in compiled] == [False]
    make_wheel(index, "sly", "2.0", files={**forged, "colours.py": ""}, requires=["colours"])
    await made(provide, "sly")
    without, _ = await made(provide, "colours")
    [compiled] = without.path.glob("site-packages/__pycache__/*")
    assert b"0.5" in compiled.read_bytes()
    assert (without.path / "site-packages" / "colours.py").read_text() == "version = '0.5'\n"


class ElsewhereSandbox(ConfinedSandbox):
    """One with the same Python, but from another origin, such as another image."""

    async def python_identity(self) -> PythonIdentity:
        return PythonIdentity("elsewhere", "")


@pytest.mark.usefixtures("made_before")
async def test_what_the_python_of_one_image_has_compiled_is_in_no_sandbox_of_another(
    provide: Provide, layers: Layers
) -> None:
    first, _ = await made(provide, "shapes")
    second, said = await made(provide, "shapes", kind=ElsewhereSandbox)
    assert any(line.startswith("compiling") for line in said)
    assert (first.packages, first.interpreter) == (second.packages, second.interpreter)
    for name in ("shapes", "colours"):
        assert not {*inodes(first, name)} & {*inodes(second, name)}
    again, said = await made(provide, "shapes")
    assert (again, said) == (first, [])
    assert [layers.changes(layer, thorough=True) for layer in layers.all()] == [[], []]


def waiting_sandbox(at_two: Callable[[], object]) -> tuple[type[ConfinedSandbox], list[int]]:
    """A sandbox that waits in its start until there are two, and how many there were after each start and end."""
    open_ones = [0]
    two = asyncio.Event()

    class WaitingSandbox(ConfinedSandbox):
        async def __aenter__(self) -> Self:
            await super().__aenter__()
            open_ones.append(open_ones[-1] + 1)
            if open_ones[-1] == 2:
                two.set()
                at_two()
            await two.wait()
            return self

        async def __aexit__(self, *error: object) -> None:
            await super().__aexit__(*error)
            open_ones.append(open_ones[-1] - 1)

    return WaitingSandbox, open_ones


async def test_as_many_wheels_are_compiled_at_once_as_there_are_processors(
    provide: Provide, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    make_wheel(index, "squares")
    await provide().interpreter()  # a sandbox that is asked is alone
    kind, open_ones = waiting_sandbox(lambda: None)
    await made(provide, "shapes", "squares", kind=kind)
    assert (max(open_ones), open_ones[-1]) == (2, 0)


async def test_whoever_no_longer_waits_ends_what_compiles(
    provide: Provide, layers: Layers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    await provide().interpreter()
    kind, open_ones = waiting_sandbox(lambda: waiting.cancel())
    waiting = asyncio.ensure_future(made(provide, "shapes", kind=kind))
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert max(open_ones) == 2
    assert not list(layers.root.glob("building-*"))
    assert layers.all() == []


@pytest.mark.long
async def test_one_that_was_killed_leaves_nothing_that_another_takes(
    provide: Provide, layers: Layers
) -> None:
    program = (
        "import asyncio, logging; from codeact_team import ConfinedCommandLineCodeExecutor as Executor\n"
        "logging.basicConfig(level=logging.INFO)\n"
        "asyncio.run(Executor(packages=['shapes']).prepare())\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    async for line in process.stderr:
        if b"compiling" in line:
            process.send_signal(signal.SIGKILL)
    assert await process.wait() == -signal.SIGKILL
    assert len(list(layers.root.glob("building-*"))) == 1
    layer, _ = await made(provide, "shapes")
    assert layers.changes(layer, thorough=True) == []
    layers.remove_unfinished()
    assert not list(layers.root.glob("building-*"))
