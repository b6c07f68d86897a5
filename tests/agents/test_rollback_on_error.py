"""``rollback_on_error``: code that fails leaves variables and files as they were."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.agents import Streaming, replay, turn
from support.codeact import agent_of, outputs, py

from codeact_team.agents.code_executor import CodeExecutorAgent
from codeact_team.errors import SettingError
from codeact_team.executors.confined import ConfinedSessionCodeExecutor

FIRST = py("rows = [1, 2]\nwith open('rows.txt', 'w') as file: print(rows, file=file)")
HALF = py(
    "rows.append(3); extra = 1\nwith open('rows.txt', 'w') as file: file.write('half')\nraise ValueError('half way')"
)
LOOK = py("print(rows, 'extra' in globals(), open('rows.txt').read())")
SET_BACK = "Variables and files of the workspace are again as they were before this code."


async def test_a_retry_begins_with_the_variables_as_they_were(
    fresh_session: ConfinedSessionCodeExecutor,
) -> None:
    client = replay(FIRST, HALF, LOOK, "done")
    agent = agent_of(client, fresh_session, rollback_on_error=True)
    _, failed, looked = outputs(await turn(agent))
    assert "half way" in failed
    assert SET_BACK in failed
    assert looked == "[1, 2] False [1, 2]\n\n"


async def test_without_it_they_are_half_changed(fresh_session: ConfinedSessionCodeExecutor) -> None:
    agent = agent_of(replay(FIRST, HALF, LOOK, "done"), fresh_session)
    _, failed, looked = outputs(await turn(agent))
    assert SET_BACK not in failed
    assert looked == "[1, 2, 3] True half\n"


async def test_an_interpreter_that_dies_is_set_back_too(fresh_session: ConfinedSessionCodeExecutor) -> None:
    agent = agent_of(
        replay(FIRST, py("import os; os._exit(3)"), LOOK, "done"), fresh_session, rollback_on_error=True
    )
    _, failed, looked = outputs(await turn(agent))
    assert SET_BACK in failed
    assert looked == "[1, 2] False [1, 2]\n\n"


async def test_what_cannot_be_copied_is_told_with_the_failure(
    fresh_session: ConfinedSessionCodeExecutor,
) -> None:
    agent = agent_of(
        replay(
            py("rows = [1]; log = open('log', 'w')"), py("rows.append(2)\nboom"), py("print(rows)"), "done"
        ),
        fresh_session,
        rollback_on_error=True,
    )
    _, failed, looked = outputs(await turn(agent))
    assert "[Variables may be half changed by this code: " in failed
    assert "log is open for writing" in failed
    assert looked == "[1, 2]\n"


def test_it_needs_variables() -> None:
    with pytest.raises(SettingError, match="rollback_on_error: Streaming keeps no variables to go back to"):
        CodeExecutorAgent("executor", Streaming(), rollback_on_error=True)


async def test_files_that_nothing_has_written_to_are_no_news(
    fresh_session: ConfinedSessionCodeExecutor, tmp_path: Path
) -> None:
    async with ConfinedSessionCodeExecutor(work_dir=tmp_path) as executor:
        agent = agent_of(replay(FIRST, HALF, LOOK, "done"), executor, rollback_on_error=True)
        (tmp_path / "given.csv").write_text("a,b")
        before = (tmp_path / "given.csv").stat()
        await turn(agent)
        after = (tmp_path / "given.csv").stat()
        assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    # nothing of the copies is left
    assert sorted(os.listdir(tmp_path)) == ["given.csv", "rows.txt"]
