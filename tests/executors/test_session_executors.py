"""What a living interpreter keeps from block to block, and what ends that."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeExecutor
from support.executing import Kind, goes_on, one_interpreter, run
from support.in_sessions import output, said, streamed, until_it_says
from support.variations import mostly_long

from codeact_team.core.execution import BoundName, Outcome, SessionResult
from codeact_team.core.executor_interface import SessionCodeExecutor
from codeact_team.errors import SettingError
from codeact_team.executors.session import InterpreterCodeExecutor
from codeact_team.session import host as escalation

pytestmark = one_interpreter
LOST = "Variables, imports, functions and running processes are gone."


async def test_variables_live_on(session: InterpreterCodeExecutor) -> None:
    await output(session, "import math\ndef area(r): return math.pi * r**2")
    assert await output(session, "r = 2", "round(area(r), 2)") == "12.57\n"


async def test_names_artifacts_and_answers_come_with_the_result(session: InterpreterCodeExecutor) -> None:
    result = await said(
        session,
        "total = 55\nwords = ['a', 'b']",
        "total = 56\nfinal_answer({'total': total})\nfinal_answer(2)",
    )
    assert result.names == [
        BoundName("words", "list", "2 items", "['a', 'b']"),
        BoundName("total", "int", None, "56"),
    ]
    assert result.answer == '{"total": 56}'
    picture = "class P:\n    def _repr_png_(self): return b'\\x89PNG'\nP()"
    [artifact] = (await said(session, picture)).artifacts
    assert (artifact.mime_type, artifact.data) == ("image/png", b"\x89PNG")


async def test_a_value_comes_with_all_its_forms_and_in_the_order_in_which_it_is_shown(
    session: InterpreterCodeExecutor,
) -> None:
    shown = """
class Table:
    def __repr__(self): return 'a table'
    def _repr_html_(self): return '<table>'
    def _repr_markdown_(self): return '|'
from IPython.display import Markdown
display(Table(), Markdown('*m*'))
Table()
"""
    result = await said(session, shown)
    table = {"text/html": b"<table>", "text/markdown": b"|", "text/plain": b"a table"}
    first, second, third = (artifact.forms for artifact in result.artifacts)
    assert (first, second["text/markdown"], third) == (table, b"*m*", table)
    assert result.output.startswith("a table\n<IPython.core.display")
    assert result.output.endswith("\na table\n")


async def test_shell_blocks_share_directory_and_environment_with_each_other(
    session: InterpreterCodeExecutor,
) -> None:
    await output(session, "mkdir -p deep/er; cd deep/er; export SHARED='two words'", language="sh")
    assert await output(session, 'basename "$PWD"; echo "$SHARED"', language="bash") == "er\ntwo words\n"
    # files are the session's; where Python is, is Python's own
    assert await output(session, "import os; os.path.isdir('deep/er')") == "True\n"
    await output(session, "cd ../..; rm -r deep; unset SHARED", language="shell")


async def test_code_arrives_as_it_is(session: InterpreterCodeExecutor) -> None:
    text = "ä" * 1_500_000
    assert await output(session, f"text = '''{text}\n'''\nlen(text)") == "1500001\n"


@pytest.mark.parametrize("after", mostly_long([0.003, 0.0, 0.001, 0.01]))
async def test_a_cancellation_while_the_code_is_sent_keeps_the_variables(
    session: InterpreterCodeExecutor, monkeypatch: pytest.MonkeyPatch, after: float
) -> None:
    # it may take a busy machine a while to bring the code in, and it cannot be interrupted before
    monkeypatch.setattr(escalation, "INTERRUPT_GRACE", 30.0)
    await output(session, "kept = 3")
    code = f"text = {'x' * 5_000_000!r}"
    running = asyncio.create_task(run(session, code))
    await asyncio.sleep(after)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await output(session, "kept") == "3\n"


async def test_a_call_may_have_less_time_or_more_than_the_setting_says(
    session: InterpreterCodeExecutor, hasty: InterpreterCodeExecutor
) -> None:
    def block(code: str) -> list[CodeBlock]:
        return [CodeBlock(code=code, language="python")]

    hurried = await session.run_code_blocks(
        block("import time; time.sleep(600)"), CancellationToken(), seconds=0.5
    )
    assert (hurried.outcome, hurried.limit) == (Outcome.TIMED_OUT, "time (timeout: 0.5)")
    assert "Timeout: stopped after 0.5 s" in hurried.output
    slow = block("import time; time.sleep(1.5); print('done')")
    assert (await hasty.run_code_blocks(slow, CancellationToken(), seconds=30)).output == "done\n"
    assert (await hasty.run_code_blocks(slow, CancellationToken())).outcome is Outcome.TIMED_OUT
    for seconds in (0, -1, float("nan"), float("inf")):
        with pytest.raises(SettingError, match=r"^timeout is .*: it must be a finite number above 0$"):
            await session.run_code_blocks(slow, CancellationToken(), seconds=seconds)


async def test_code_that_is_too_large_is_refused(session: InterpreterCodeExecutor) -> None:
    result = await said(session, "#" * (17 * 1024 * 1024))
    assert (result.exit_code, result.outcome) == (1, Outcome.NOT_RUN)
    assert "MiB" in result.output
    assert await output(session, "1") == "1\n"


@pytest.mark.parametrize("language", ["", "haskell"])
async def test_other_languages_are_not_run(session: InterpreterCodeExecutor, language: str) -> None:
    assert (await said(session, "1", language=language)).outcome is Outcome.NOT_RUN
    assert tuple(session.supported_languages) == ("python", "sh", "shell", "bash")


@pytest.mark.parametrize(
    "code",
    ["import time; time.sleep(600)", pytest.param("while True: pass", marks=pytest.mark.long)],
    ids=["idle", "busy"],
)
async def test_a_time_out_keeps_the_variables(hasty: InterpreterCodeExecutor, code: str) -> None:
    await output(hasty, "kept = 1")
    result = await said(hasty, code)
    assert (result.exit_code, result.outcome, result.state_lost) == (124, Outcome.TIMED_OUT, False)
    assert "KeyboardInterrupt" in result.output
    assert await output(hasty, "kept") == "1\n"


@pytest.mark.usefixtures("short_grace")
async def test_a_time_out_of_the_shell_keeps_the_variables(hasty: InterpreterCodeExecutor) -> None:
    await output(hasty, "kept = 2")
    result = await said(hasty, "trap '' INT; while :; do sleep 0.1; done", language="sh")
    assert (result.outcome, result.state_lost) == (Outcome.TIMED_OUT, False)
    assert await output(hasty, "kept") == "2\n"


@pytest.mark.usefixtures("short_grace")
async def test_code_that_takes_no_interrupt_loses_the_variables_and_says_so(
    hasty: InterpreterCodeExecutor,
) -> None:
    await output(hasty, "lost = 1")
    result = await said(
        hasty, "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: signal.pause()"
    )
    assert (result.outcome, result.state_lost) == (Outcome.TIMED_OUT, True)
    assert LOST in result.output
    assert await goes_on(hasty)
    after = await said(hasty, "lost")
    assert "NameError" in after.output
    # said once
    assert not after.state_lost


async def test_restart_ends_what_runs(session: InterpreterCodeExecutor) -> None:
    async with aclosing(streamed(session, "import time; print('up'); time.sleep(60)")) as items:
        await until_it_says(items, "up\n")
        restarting = asyncio.create_task(session.restart())
        result = [item async for item in items][-1]
        await restarting
    assert isinstance(result, SessionResult)
    assert (result.outcome, result.state_lost) == (Outcome.LOST, True)


async def test_modules_and_setup_are_there_in_every_fresh_interpreter(kind: Kind, tmp_path: Path) -> None:
    executor = kind.make(
        work_dir=tmp_path,
        modules={"m": "math", "path": "os.path"},
        setup="def half(x):\n    return x / m.tau",
    )
    assert isinstance(executor, InterpreterCodeExecutor)
    executor.add_setup("more = 1")
    executor.add_setup("more = 1")
    assert await output(executor, "half(m.pi), path.sep, more") == "(0.5, '/', 1)\n"
    executor.add_setup("later = 2")
    assert await output(executor, "del half, more\nlater") == "2\n"
    await executor.restart()
    assert await output(executor, "half(m.pi), more, later") == "(0.5, 1, 2)\n"
    await said(executor, "import os; os._exit(1)")
    assert await output(executor, "half(m.pi), more, later") == "(0.5, 1, 2)\n"
    await executor.stop()


async def test_setup_that_fails_is_an_error_of_the_settings(kind: Kind) -> None:
    executor = kind.make(modules={"x": "no_such_module"})
    with pytest.raises(SettingError, match="no_such_module") as caught:
        await run(executor, "1")
    assert "ModuleNotFoundError" in str(caught.value)
    await executor.stop()


@pytest.mark.parametrize(
    "wrong", [{"modules": {"a b": "x"}}, {"modules": {"x": "os; import y"}}, {"modules": {"x": ""}}]
)
def test_modules_that_are_none_are_refused(kind: Kind, wrong: dict[str, dict[str, str]]) -> None:
    with pytest.raises(ValueError, match="is not a name and a module"):
        kind.make(**wrong)


@pytest.mark.usefixtures("short_grace")
async def test_what_a_cancelled_block_has_cost_is_told_to_the_next_one_and_the_setup_is_run_again(
    kind: Kind,
) -> None:
    async with kind.make(setup="prepared = 1") as executor:
        assert isinstance(executor, InterpreterCodeExecutor)
        await output(executor, "kept = 3")
        # what it says comes while nothing interrupts it any more
        stubborn = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('up')\nwhile True: signal.pause()"
        stream = streamed(executor, stubborn)
        assert "up" in str(await anext(stream))
        # nobody reads what came of it
        await stream.aclose()
        result = await said(executor, "print(prepared)")
        assert " was lost: " in result.output
        assert "Their variables, imports and functions are gone" in result.output
        assert result.output.endswith("\n1\n")
        assert result.state_lost
        assert not (await said(executor, "prepared")).state_lost


async def test_what_a_background_process_writes_belongs_to_the_next_block(
    session: InterpreterCodeExecutor,
) -> None:
    assert await output(session, "(sleep 0.2; echo later) &", language="sh") == ""
    await asyncio.sleep(0.6)
    assert await output(session, "print('now')") == "later\nnow\n"


async def test_one_config_makes_the_same_executor_again(kind: Kind, tmp_path: Path) -> None:
    executor = kind.make(work_dir=tmp_path, modules={"m": "math"}, setup="x = m.e", timeout=5)
    loaded = CodeExecutor.load_component(executor.dump_component())
    assert isinstance(loaded, SessionCodeExecutor)
    result = await loaded.execute_code_blocks(
        [CodeBlock(code="x > m.e - 1", language="python")], CancellationToken()
    )
    assert result.output == "True\n"
    await loaded.stop()


async def test_sessions_side_by_side_keep_their_own_variables(
    kind: Kind, session: InterpreterCodeExecutor
) -> None:
    async with kind.make() as other:
        assert isinstance(other, InterpreterCodeExecutor)
        await asyncio.gather(output(session, "n = 1"), output(other, "n = 2"))
        assert await asyncio.gather(output(session, "n * n"), output(other, "n * n")) == ["1\n", "4\n"]
