"""Packages that a person adds in the middle of a chat."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import codeact_team
from support.openai_server import ScriptedServer, Text
from support.terminal import on_a_terminal
from support.wheels import make_wheel, use_index
from test_cli_chat import ask, codeact, leave
from test_cli_chat_kept import ON, kill, python

MAKES = python("x = 41\nopen('a.txt', 'w').write('made')")
SHOWS = python("import shapes\nx = x + 1\nprint(x, open('a.txt').read(), shapes.version)")
DRAWS = python("import shapes, colours\nprint(x, shapes.version, colours.version)")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The variables with which packages are found."""
    index = use_index(tmp_path, monkeypatch)
    for name in ("shapes", "colours"):
        make_wheel(index, name)
    (tmp_path / "work").mkdir()
    return {"XDG_CACHE_HOME": str(tmp_path / "cache")}


def test_packages_come_with_variables_and_files_and_stay_with_the_chat(
    tmp_path: Path, cache: dict[str, str]
) -> None:
    work = tmp_path / "work"
    with ScriptedServer.in_thread(
        [MAKES, Text("Made."), SHOWS, Text("Shown."), DRAWS, Text("Drawn.")]
    ) as server:
        command, variables = codeact(server)
        entered = "Make.\n/package nowhere\n/package shapes\nShow.\n"
        done = codeact_team(*command, cwd=work, stdin=entered, **variables, **cache)
        more = codeact_team(*ON, "--package", "colours", cwd=work, stdin="Draw.\n", **variables, **cache)
    assert "error: the packages nowhere cannot be installed for " in done.stderr
    assert (
        "a new sandbox gets shapes: files stay; variables come back, as the code of the chat runs again\n"
        in done.stderr
    )
    assert "the code has shapes now\n" in done.stderr
    assert "\n42 made 1.0\n" in done.stdout
    assert "\n42 1.0 1.0\n" in more.stdout
    assert "shapes 1.0" in str(server.requests[2]["messages"]), "the model is told"


@pytest.mark.long
@pytest.mark.parametrize("confined", [True, pytest.param(False, marks=pytest.mark.docker)])
def test_a_person_is_asked_first_and_packages_survive_a_kill_and_undo(
    tmp_path: Path, cache: dict[str, str], *, confined: bool
) -> None:
    work = tmp_path / "work"
    with ScriptedServer.in_thread(
        [MAKES, Text("Made."), SHOWS, Text("Shown."), DRAWS, Text("Drawn.")]
    ) as server:
        command, variables = codeact(server, confined=confined)
        with on_a_terminal(*command, cwd=work, **variables, **cache) as terminal:
            ask(terminal, "/package shapes")
            terminal.wait_for("Begin a new sandbox? y yes, n no >")
            terminal.type("n\r")
            ask(terminal, "/package colours")
            terminal.wait_for("Begin a new sandbox? y yes, n no >")
            terminal.type("y\r")
            terminal.wait_for("the code has colours now")
            ask(terminal, "Make.")
            terminal.wait_for("Made.\n\n── answered")
            ask(terminal, "/package shapes")
            terminal.wait_for("Begin a new sandbox? y yes, n no >")
            terminal.type("y\r")
            terminal.wait_for("the code has shapes now")
            ask(terminal, "Show.")
            terminal.wait_for("\n42 made 1.0\n")
            terminal.wait_for("Shown.\n\n── answered")
            ask(terminal, "/undo")
            terminal.wait_for("the last message is undone")
            terminal.wait_for("\n> ")
            kill(terminal)
        with on_a_terminal(*ON, cwd=work, **variables, **cache) as terminal:
            ask(terminal, "Draw.")
            terminal.wait_for("\n41 1.0 1.0\n")
            terminal.wait_for("Drawn.\n\n── answered")
            assert leave(terminal) == 0
