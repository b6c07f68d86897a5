"""The recipes of CONTRIBUTING.md work as they stand there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[1]
MOST_FILES = 3
"""That one has to touch to add any of these, its test among them."""


def recipe(title: str) -> list[tuple[str, str]]:
    """The language and the text of each block under a heading."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    section = re.split(r"^### ", text, flags=re.MULTILINE)
    (found,) = [part for part in section if part.startswith(title + "\n")]
    return re.findall(r"```(\w+)\n(.*?)```", found, flags=re.DOTALL)


def patched(tmp_path: Path, diff: str) -> Path:
    """A copy of the project to which a recipe was applied, which finds its places by the lines around them."""
    for room in ("codeact_team", "configs"):
        shutil.copytree(ROOT / room, tmp_path / room)
    for file, change in _changes(diff):
        path = tmp_path / file
        lines = change.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line.startswith(" "))
        after = "".join(line[1:] for line in lines)
        if not before:
            path.write_text(after)
            continue
        text = path.read_text()
        assert text.count(before) == 1, f"{file} has changed: the recipe no longer finds its place"
        path.write_text(text.replace(before, after))
    return tmp_path


def _changes(diff: str) -> list[tuple[str, str]]:
    """The file and the lines of each change."""
    found: list[tuple[str, str]] = []
    for file, changes in re.findall(
        r"^\+\+\+ b/(\S+)\n((?:@@ .*\n(?:[ +].*\n)+)+)", diff, flags=re.MULTILINE
    ):
        found += [(file, change) for change in re.split(r"^@@ .*\n", changes, flags=re.MULTILINE)[1:]]
    return found


def run(*arguments: str, cwd: Path, package: Path = ROOT) -> str:
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(package)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_a_listener(tmp_path: Path) -> None:
    ((_, program),) = recipe("A listener")
    assert re.search(r"^coder ran code for 0\.\d+ s$", run("-c", program, cwd=tmp_path), re.MULTILINE)


def test_an_interceptor(tmp_path: Path) -> None:
    ((_, program),) = recipe("An interceptor")
    output = run("-c", program, cwd=tmp_path)
    assert re.search(r"^block: \d\.\d+ s$", output, re.MULTILINE)
    assert re.search(r"^model_call: \d\.\d+ s$", output, re.MULTILINE)


@pytest.mark.docker
def test_a_setting_of_the_sandbox(tmp_path: Path) -> None:
    (_, diff), (_, program) = recipe("A setting of the sandbox")
    assert diff.count("+++ ") + 1 <= MOST_FILES
    package = patched(tmp_path, diff)
    run("-c", program, cwd=tmp_path, package=package)
    schema = run("-m", "codeact_team", "schema", cwd=tmp_path, package=package)
    assert "The processors on which the code may run" in schema


def test_an_effect(tmp_path: Path) -> None:
    (_, diff), (_, program) = recipe("An effect")
    assert diff.count("+++ ") + 1 <= MOST_FILES
    package = patched(tmp_path, diff)
    run("-c", program, cwd=tmp_path, package=package)
    shown = run("-m", "codeact_team", "show", "runs/names", cwd=tmp_path, package=package)
    assert 'name_lookup {"host": "localhost"} · done' in shown
    assert "max_name_lookups" in run("-m", "codeact_team", "schema", cwd=tmp_path, package=package)


def test_a_command(tmp_path: Path) -> None:
    ((_, diff),) = recipe("A command")
    assert diff.count("+++ ") + 1 <= MOST_FILES
    package = patched(tmp_path, diff)
    output = run("-m", "codeact_team", "paths", "quickstart-codeact", cwd=tmp_path, package=package)
    assert "config.code_executor.config.timeout" in output.splitlines()
