"""The lines that install this package: each works as it stands, in a copy of what is committed, for somebody with nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from documents import PAGES, Block, blocks_of, commands_of
from running import assert_same
from support.checkout import copy_checkout
from support.command_line import with_index

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

BLOCKS = [block for block in blocks_of(PAGES["guides/deploy"]) if block.language == "console install"]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what is to be committed, beside a home directory."""
    (tmp_path / "home").mkdir()
    return copy_checkout(tmp_path / "checkout")


def run(command: str, directory: Path) -> str:
    """The output of a command that succeeds. ``uv`` is there, and keeps what it has fetched; of this environment nothing is."""
    home = directory.parent / "home"
    programs = home / ".local/bin"
    programs.mkdir(parents=True, exist_ok=True)
    for name in ("uv", "uvx"):
        if not (programs / name).exists():
            (programs / name).symlink_to(Path(sys.executable).with_name(name))
    cache = os.environ.get("UV_CACHE_DIR", str(Path.home() / ".cache/uv"))
    variables = {"HOME": str(home), "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin", "UV_CACHE_DIR": cache}
    ran = subprocess.run(
        ["bash", "-c", command],
        cwd=directory,
        env=with_index(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert ran.returncode == 0, f"$ {command}\n{ran.stdout}"
    return ran.stdout


@pytest.mark.parametrize("block", BLOCKS, ids=["pip", "uv", "wheel"])
def test_the_commands_of_the_guide_install_it(block: Block, checkout: Path) -> None:
    for command in commands_of(block):
        printed = run(command.text, checkout)
        if command.printed:
            assert_same(command.printed, printed)
    [installed] = checkout.parent.glob("home/*/bin/codeact-team")
    shutil.rmtree(checkout)
    (elsewhere := checkout.parent / "elsewhere").mkdir()
    assert "✓ tools" in run(f"{installed} validate tools", elsewhere)


@pytest.mark.parametrize("extras", ["otel", "test"])
def test_a_wheel_of_pip_installs_with_extras_anywhere(extras: str, checkout: Path) -> None:
    run("python3 -m venv ~/venv && ~/venv/bin/pip wheel -q --no-deps -w ~/dist .", checkout)
    shutil.rmtree(checkout)
    (elsewhere := checkout.parent / "elsewhere").mkdir()
    run(f'~/venv/bin/pip install -q "$(echo ~/dist/*.whl)[{extras}]" && ~/venv/bin/pip check', elsewhere)
    assert run("~/venv/bin/codeact-team --version", elsewhere).startswith("codeact-team ")
    assert "Tutorial" in run("~/venv/bin/codeact-team help", elsewhere)
