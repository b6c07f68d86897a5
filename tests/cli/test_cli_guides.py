"""`codeact-team help`: the guides in a terminal, and the errors that name one."""

from __future__ import annotations

import inspect
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from zipfile import ZipFile

import pytest
from support.command_line import codeact_team, environment
from support.terminal import on_a_terminal

from codeact_team import errors
from codeact_team.core.shipped import shipped_guides

ROOT = Path(__file__).parents[2]
NAMED = {
    kind.guide
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, errors.CodeActTeamError) and kind.guide
}


def test_without_a_topic_all_guides_are_listed_with_their_titles(tmp_path: Path) -> None:
    printed = codeact_team("help", cwd=tmp_path).stdout
    for name in ("tutorial", *(path.stem for path in (ROOT / "docs" / "guides").glob("*.md"))):
        assert f"\n{name} " in f"\n{printed}"
    assert "Platforms" in printed


def test_a_guide_is_printed_as_it_is_written_with_the_commands_that_show_the_pages_it_names(
    tmp_path: Path,
) -> None:
    result = codeact_team("help", "platforms", cwd=tmp_path)
    assert result.returncode == 0
    written = (ROOT / "docs" / "guides" / "platforms.md").read_text()
    assert result.stdout.splitlines()[0] == written.splitlines()[0]
    assert "](" not in result.stdout
    assert "codeact-team help data" in codeact_team("help", "tutorial", cwd=tmp_path).stdout


def test_a_link_to_a_file_that_is_no_guide_becomes_its_path(tmp_path: Path) -> None:
    printed = codeact_team("help", "approval", cwd=tmp_path).stdout
    assert "[code](../../examples/approval.py)" in (ROOT / "docs" / "guides" / "approval.md").read_text()
    assert "code (`examples/approval.py`)" in printed
    printed = codeact_team("help", "deploy", cwd=tmp_path).stdout
    assert "Dockerfile (`examples/deployment/Dockerfile`)" in printed
    assert "its socket |" in printed, "a link within the page is its text"


@pytest.mark.long
def test_the_lines_of_a_paragraph_are_filled_on_a_terminal_of_any_width(tmp_path: Path) -> None:
    with on_a_terminal("help", "approval", cwd=tmp_path) as terminal:
        assert terminal.end() == 0
    _, paragraph, *_ = terminal.text.split("\n\n")
    lines = paragraph.split("\n")
    assert len(lines) > 1
    for line, following in pairwise(lines):
        assert len(line.rstrip()) + 1 + len(following.split()[0]) > 100, line


def test_a_guide_is_rendered_on_a_terminal(tmp_path: Path) -> None:
    with on_a_terminal("help", "platforms", cwd=tmp_path) as terminal:
        assert terminal.end() == 0
    assert "Run it without Docker" in terminal.text
    assert "\x1b[" in terminal.raw
    assert "`doctor`" not in terminal.text


def test_a_command_is_a_topic_too(tmp_path: Path) -> None:
    assert (
        codeact_team("help", "show", cwd=tmp_path).stdout
        == codeact_team("show", "--help", cwd=tmp_path).stdout
    )


def test_a_guide_of_the_name_of_a_command_says_where_its_options_are(tmp_path: Path) -> None:
    assert codeact_team("help", "batch", cwd=tmp_path).stdout.endswith("codeact-team batch --help\n")


def test_an_unknown_topic_is_an_error_with_the_nearest_one(tmp_path: Path) -> None:
    result = codeact_team("help", "platform", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr == "error: no guide is called 'platform'; did you mean 'platforms'?\n"


@pytest.mark.parametrize("guide", sorted(NAMED))
def test_the_guide_that_an_error_names_is_there(guide: str) -> None:
    assert guide in shipped_guides()


def test_an_error_names_its_guide(tmp_path: Path) -> None:
    (tmp_path / "team.yaml").write_text("provider: shop.Agent\nconfig: {}\n")
    result = codeact_team("run", "team.yaml", "x", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.endswith("; more: codeact-team help security\n")


@pytest.mark.long
def test_the_wheel_has_the_guides(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, env=environment(), check=True, timeout=100, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {f"codeact_team/_docs/guides/{name}.md" for name in NAMED} <= names
    assert "codeact_team/_docs/tutorial.md" in names
