"""One object opens a sandbox for programs with an event loop, and for others."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import Any, cast

import pytest
from standalone_sandbox import SandboxKind, held

from codeact_team import SandboxError, SettingError, open_sandbox


def test_importing_it_imports_nothing_of_autogen() -> None:
    program = (
        "import sys, codeact_team\n"
        "codeact_team.open_sandbox\n"
        "print(*(name for name in sys.modules if name.startswith('autogen')))"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert printed.stdout == "\n"


@pytest.mark.parametrize(
    ("kind", "settings", "kind_of_error", "problem"),
    [
        ("podman", {}, SettingError, "kind is 'podman': it must be 'docker' or 'confined'"),
        ("confined", {"timeout": 0}, SettingError, "timeout: Timeout must be greater than or equal to 1."),
        ("docker", {"pids": 0}, SettingError, "pids is 0: it must be 8 or more"),
        ("docker", {"packages": "pandas"}, SettingError, "packages: Input should be a valid list"),
        ("confined", {"memory": 9}, TypeError, "open_sandbox() got an unexpected keyword argument 'memory'; did you mean 'memory_mib'?"),
        ("confined", {"image": "python:3-slim"}, TypeError, "open_sandbox() got an unexpected keyword argument 'image'"),
    ],
)  # fmt: skip
def test_a_wrong_kind_or_setting_is_refused_before_anything_starts(
    kind: str, settings: dict[str, Any], kind_of_error: type[Exception], problem: str
) -> None:
    with pytest.raises(kind_of_error) as raised:
        open_sandbox(cast("Any", kind), **settings)
    assert str(raised.value).startswith(problem)


def test_the_same_object_opens_one_after_the_other_for_both_kinds_of_programs(kind: SandboxKind) -> None:
    opening = open_sandbox(kind, setup="unit = 'cm'", modules={"m": "math"})

    async def opened() -> str:
        async with opening as sandbox:
            return (await sandbox.run_python("unit, m.sqrt(16)")).output

    with opening as sandbox:
        assert sandbox.run_python("unit, m.sqrt(9)").output == "('cm', 3.0)\n"
        with pytest.raises(RuntimeError, match="the sandbox is open already"), opening:
            pass
        assert sandbox.run_python("unit").output == "'cm'\n"
    assert asyncio.run(opened()) == "('cm', 4.0)\n"
    with opening as sandbox:
        assert sandbox.list() == {}


@pytest.mark.docker
def test_a_sandbox_that_cannot_start_is_an_error_and_leaves_nothing() -> None:
    threads, before = threading.active_count(), held("docker")
    with (
        pytest.raises(SandboxError, match="no-such-image"),
        open_sandbox("docker", image="no-such-image:none"),
    ):
        pass
    assert (threading.active_count(), held("docker")) == (threads, before)


@pytest.mark.long
async def test_it_may_be_left_in_another_task_than_it_was_entered_in(kind: SandboxKind) -> None:
    opening = open_sandbox(kind)
    sandbox = await asyncio.create_task(opening.__aenter__())
    assert (await sandbox.run_python("1")).output == "1\n"
    await asyncio.create_task(opening.__aexit__(None, None, None))
    with pytest.raises(SandboxError, match=r"^the sandbox is closed$"):
        await sandbox.run_python("1")


async def test_what_is_under_way_ends_with_the_sandbox(kind: SandboxKind) -> None:
    begun = asyncio.Event()

    async def note(_: str) -> None:
        begun.set()

    async with open_sandbox(kind) as sandbox:
        running = asyncio.create_task(
            sandbox.run_python("print(1, flush=True)\nwhile True: pass", on_output=note)
        )
        queued = [asyncio.create_task(sandbox.run_python("2")), asyncio.create_task(sandbox.get("file"))]
        await begun.wait()
    for call in (running, *queued):
        with pytest.raises(SandboxError, match=r"^the sandbox is closed$"):
            await call


def test_settings_have_their_effect(tmp_path: Any, kind: SandboxKind) -> None:
    (tmp_path / "sales.csv").write_text("a,b\n1,2\n")
    with open_sandbox(kind, data=[tmp_path / "sales.csv"], timeout=1) as sandbox:
        assert sandbox.list() == {"sales.csv": 8}
        assert sandbox.run_python("import time\ntime.sleep(60)").limit == "time (timeout: 1)"
