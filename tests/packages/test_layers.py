"""Packages become a layer: made once for a Python, by wheels alone, and made anew where it was changed."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from packages.conftest import Provide, Said, made
from support.command_line import in_this_process
from support.variations import mostly_long
from support.wheels import make_source_distribution, make_wheel

from codeact_team.errors import SandboxError, SettingError
from codeact_team.executors.packages.layers import Layers
from codeact_team.executors.packages.requirements import Requested


async def test_packages_come_with_what_they_need_and_are_told_by_version(provide: Provide) -> None:
    layer, said = await made(provide, "shapes")
    assert layer.packages == {"colours": "0.5", "shapes": "2.0"}
    assert any(line.startswith("getting shapes for CPython") for line in said)
    assert "CPython" in layer.interpreter


async def test_a_second_request_needs_neither_index_nor_time(provide: Provide, index: Path) -> None:
    first, _ = await made(provide, "shapes")
    shutil.rmtree(index)
    again, said = await made(provide, "shapes")
    assert (again, said) == (first, [])


@pytest.mark.long
async def test_the_same_content_is_kept_once(provide: Provide, layers: Layers) -> None:
    first, _ = await made(provide, "shapes==2.0")
    second, _ = await made(provide, "shapes", "colours")
    assert second.path == first.path
    assert layers.all() == [first]


async def test_modules_are_compiled_and_can_be_read_by_anybody(provide: Provide) -> None:
    layer, _ = await made(provide, "shapes")
    compiled = list(layer.path.glob("site-packages/__pycache__/shapes.*.pyc"))
    assert len(compiled) == 1
    for path in layer.path.rglob("*"):
        assert path.stat().st_mode & 0o444 == 0o444, path
        assert path.is_dir() or not path.stat().st_mode & 0o222, path


@pytest.mark.long
async def test_a_requirements_file_counts_with_what_it_includes(provide: Provide, tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text("colours\n")
    file = tmp_path / "requirements.txt"
    file.write_text("-r more.txt\nshapes==1.0  # the old ones\n")
    layer, _ = await made(provide, file=file)
    assert layer.packages == {"colours": "0.5", "shapes": "1.0"}
    (tmp_path / "more.txt").write_text("")
    layer, _ = await made(provide, file=file)
    assert layer.packages == {"shapes": "1.0"}


@pytest.mark.usefixtures("made_before")
async def test_a_file_that_was_changed_is_noticed_and_one_that_was_copied_is_not(
    provide: Provide, layers: Layers
) -> None:
    layer, _ = await made(provide, "shapes")
    module = layer.path / "site-packages" / "shapes.py"
    os.utime(module, ns=(1, 1))
    assert layers.changes(layer, thorough=False) == []
    content = module.read_bytes()
    module.chmod(0o644)
    module.write_bytes(content.replace(b"2", b"3"))
    os.utime(module, ns=(1, 1))
    assert layers.changes(layer, thorough=False) == ["site-packages/shapes.py"]


@pytest.mark.usefixtures("made_before")
async def test_a_change_that_keeps_size_and_time_is_found_by_reading_all(
    provide: Provide, layers: Layers
) -> None:
    layer, _ = await made(provide, "shapes")
    module = layer.path / "site-packages" / "shapes.py"
    before = module.stat()
    content = module.read_bytes()
    module.chmod(0o644)
    module.write_bytes(content.replace(b"2", b"3"))
    os.utime(module, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert layers.changes(layer, thorough=False) == []
    assert layers.changes(layer, thorough=True) == ["site-packages/shapes.py"]


@pytest.mark.usefixtures("made_before")
@pytest.mark.parametrize("what", ["added", "removed", "link"])
async def test_what_is_added_or_missing_is_noticed(provide: Provide, layers: Layers, what: str) -> None:
    layer, _ = await made(provide, "shapes")
    module = layer.path / "site-packages" / "shapes.py"
    if what == "added":
        (module.parent / "json.py").write_text("")
    else:
        module.unlink()
        if what == "link":
            module.symlink_to("/etc/passwd")
    assert layers.changes(layer, thorough=False) == [
        f"site-packages/{'json.py' if what == 'added' else 'shapes.py'}"
    ]


@pytest.mark.usefixtures("made_before")
def test_a_person_lists_verifies_and_removes_them(layers: Layers) -> None:
    [layer] = layers.all()
    listed = in_this_process("packages", "--verify")
    assert (listed.returncode, "  colours 0.5, shapes 2.0\n" in listed.stdout) == (0, True)
    (layer.path / "site-packages" / "json.py").write_text("")
    changed = in_this_process("packages", "--verify")
    assert (changed.returncode, "  changed since it was made: site-packages/json.py\n" in changed.stdout) == (
        1,
        True,
    )
    told = in_this_process("packages", "--verify", "--prune", "--json")
    [shown] = [json.loads(line) for line in told.stdout.splitlines()]
    assert (shown["changes"], shown["removed"]) == (["site-packages/json.py"], True)
    assert layers.all() == []


@pytest.mark.usefixtures("made_before")
async def test_a_layer_that_a_sandbox_has_is_not_removed(provide: Provide, layers: Layers) -> None:
    layer, _ = await made(provide, "shapes")
    with layer.held():
        assert not layers.remove(layer)
        assert layers.all() == [layer]
    assert layers.remove(layer)
    assert layers.all() == []
    assert not layer.path.exists()
    anew, _ = await made(provide, "shapes")
    assert anew.packages == layer.packages


async def test_nothing_of_a_package_runs_on_the_host(provide: Provide, index: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    make_source_distribution(index, "harmful", f"open({str(ran)!r}, 'w').close()\n")
    make_wheel(index, "sly", files={"sly.py": "", "sly.pth": f"import os; os.mkdir({str(ran)!r})\n"})
    with pytest.raises(SandboxError, match="only wheels are used") as refused:
        await made(provide, "harmful")
    assert "harmful" in str(refused.value)
    await made(provide, "sly")
    assert not ran.exists()


@pytest.mark.parametrize(
    ("requirements", "told"),
    mostly_long(
        [
            (["nowhere"], "nowhere"),
            (["shapes==2.0", "colours>1"], "colours"),
            (["shapes>=7"], "shapes"),
            (["foreign"], "foreign"),
        ]
    ),
)
async def test_what_cannot_be_had_is_told_with_its_name(
    provide: Provide, layers: Layers, index: Path, requirements: list[str], told: str
) -> None:
    make_wheel(index, "foreign", tag="cp37-cp37m-win_amd64")
    with pytest.raises(SandboxError) as refused:
        await made(provide, *requirements)
    assert told in str(refused.value)
    assert "CPython" in str(refused.value)
    assert layers.all() == []
    assert list(layers.root.glob("building-*")) == []


async def test_credentials_of_an_index_are_told_nowhere(
    provide: Provide, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:hunter2@127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    said: Said = []
    with pytest.raises(SandboxError) as refused:
        await provide("nowhere").provide(said.append)
    assert "127.0.0.1" in str(refused.value)
    assert "hunter2" not in f"{refused.value} {said}"


@pytest.mark.parametrize(
    "requirement", ["-e .", "--index-url=http://elsewhere", "shapes ==", "shapes\ncolours"]
)
def test_a_requirement_that_is_none_is_refused(requirement: str) -> None:
    with pytest.raises(SettingError, match="is not a requirement"):
        Requested([requirement])


def test_a_file_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="does not exist"):
        Requested(file=tmp_path / "requirements.txt")


async def test_packages_that_somebody_has_removed_by_hand_are_made_anew(provide: Provide) -> None:
    layer, _ = await made(provide, "shapes")
    shutil.rmtree(layer.path)
    again, said = await made(provide, "shapes")
    assert (again.path, bool(said)) == (layer.path, True)
    assert again.path.is_dir()


@pytest.mark.long
async def test_many_that_make_the_same_at_once_share_it(provide: Provide, layers: Layers) -> None:
    await made(provide, "colours")
    program = (
        "import asyncio; from codeact_team import ConfinedCommandLineCodeExecutor as Executor\n"
        "executor = Executor(packages=['shapes'])\n"
        "asyncio.run(executor.prepare())\n"
    )
    processes = [await asyncio.create_subprocess_exec(sys.executable, "-c", program) for _ in range(3)]
    assert [await process.wait() for process in processes] == [0, 0, 0]
    assert sorted(len(layer.packages) for layer in layers.all()) == [1, 2]
    assert not list(layers.root.glob("building-*"))
