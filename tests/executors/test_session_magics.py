"""Magics of blocks in sandboxes: programs run there, and what needs a network says how it is done here."""

from __future__ import annotations

import pytest
from support.executing import living_interpreters, run
from support.in_sessions import output

from codeact_team.executors.session import InterpreterCodeExecutor

pytestmark = living_interpreters


async def test_programs_run_in_the_sandbox(session: InterpreterCodeExecutor) -> None:
    await session.workspace.put("given.txt", "a\nb\n")
    assert await output(session, "lines = !wc -l < given.txt\nlines, _exit_code") == "(['2'], 0)\n"
    assert await output(session, "%%bash\nprintf '%s;' $(cat given.txt)\nmkdir sub") == "a;b;"
    there = await output(session, "%cd sub\n%pwd")
    assert there.splitlines() == [there.splitlines()[0], repr(there.splitlines()[0])]
    assert await output(session, "!cat ../given.txt") == "a\nb\n"
    await output(session, "%cd -")


async def test_a_failure_ends_a_block_where_it_does_in_a_notebook(session: InterpreterCodeExecutor) -> None:
    result = await run(session, "!false\nprint(_exit_code)")
    assert (result.exit_code, result.output) == (0, "1\n")
    result = await run(session, "%%bash\nexit 3")
    assert result.exit_code == 1
    assert "CalledProcessError: Command 'bash' returned non-zero exit status 3." in result.output


async def test_a_command_that_takes_too_long_is_stopped_with_its_block(
    hasty: InterpreterCodeExecutor,
) -> None:
    await run(hasty, "kept = 5")
    result = await run(hasty, "!echo begun; sleep 60; echo not reached")
    assert result.output.startswith("begun\n")
    assert "not reached\n" not in result.output.replace("60; echo not reached", "")
    assert (await run(hasty, "kept")).output == "5\n"


@pytest.mark.parametrize(
    "command", ["%pip install no-such-thing", "!pip install -q 'no-such-thing>=1' 2>&1 | tail"]
)
async def test_pip_says_how_a_package_can_be_added(session: InterpreterCodeExecutor, command: str) -> None:
    result = await run(session, command)
    assert (result.exit_code, result.missing_module) == (1, "no-such-thing")
    assert (
        "The sandbox has no module 'no-such-thing', and nothing can be installed from inside" in result.output
    )
    assert "packages: [NAME]" in result.output
