"""What the executors with a living interpreter do beside what every executor does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeExecutor
from support.executing import Kind, living_interpreters, run

from codeact_team import Outcome, SessionCodeExecutor, SessionResult
from codeact_team.errors import SettingError
from codeact_team.execution import BoundName
from codeact_team.executors.session import InterpreterCodeExecutor
from codeact_team.sessions import escalation

pytestmark = living_interpreters
LOST = "Variables, imports, functions and running processes are gone."


@pytest.fixture(scope="module")
def session(executor: InterpreterCodeExecutor) -> InterpreterCodeExecutor:
    """The shared executor, known to be one with an interpreter."""
    return executor


async def said(executor: InterpreterCodeExecutor, *code: str, language: str = "python") -> SessionResult:
    result = await run(executor, *code, language=language)
    assert isinstance(result, SessionResult)
    return result


async def output(executor: InterpreterCodeExecutor, *code: str, language: str = "python") -> str:
    result = await said(executor, *code, language=language)
    assert result.exit_code == 0, result.output
    return result.output


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


async def test_a_cancellation_while_the_code_is_sent_keeps_the_variables(
    session: InterpreterCodeExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    # it may take a busy machine a while to bring the code in, and it cannot be interrupted before
    monkeypatch.setattr(escalation, "INTERRUPT_GRACE", 30.0)
    await output(session, "kept = 3")
    code = f"text = {'x' * 5_000_000!r}"
    for after in (0.0, 0.001, 0.003, 0.01):
        running = asyncio.create_task(run(session, code))
        await asyncio.sleep(after)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await output(session, "kept") == "3\n"


async def test_code_that_is_too_large_is_refused(session: InterpreterCodeExecutor) -> None:
    result = await said(session, "#" * (17 * 1024 * 1024))
    assert (result.exit_code, result.outcome) == (1, Outcome.NOT_RUN)
    assert "MiB" in result.output
    assert await output(session, "1") == "1\n"


@pytest.mark.parametrize("language", ["", "haskell"])
async def test_other_languages_are_not_run(session: InterpreterCodeExecutor, language: str) -> None:
    assert (await said(session, "1", language=language)).outcome is Outcome.NOT_RUN
    assert tuple(session.supported_languages) == ("python", "sh", "shell", "bash")


async def test_a_time_out_keeps_the_variables(hasty: InterpreterCodeExecutor) -> None:
    await output(hasty, "kept = 1")
    result = await said(hasty, "while True: pass")
    assert (result.exit_code, result.outcome, result.state_lost) == (124, Outcome.TIMED_OUT, False)
    assert "KeyboardInterrupt" in result.output
    assert await output(hasty, "kept") == "1\n"


async def test_a_time_out_of_the_shell_keeps_the_variables(hasty: InterpreterCodeExecutor) -> None:
    await output(hasty, "kept = 2")
    result = await said(hasty, "trap '' INT; while :; do sleep 0.1; done", language="sh")
    assert (result.outcome, result.state_lost) == (Outcome.TIMED_OUT, False)
    assert await output(hasty, "kept") == "2\n"


async def test_code_that_takes_no_interrupt_loses_the_variables_and_says_so(
    hasty: InterpreterCodeExecutor,
) -> None:
    await output(hasty, "lost = 1")
    result = await said(
        hasty, "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
    )
    assert (result.outcome, result.state_lost) == (Outcome.TIMED_OUT, True)
    assert LOST in result.output
    after = await said(hasty, "lost")
    assert "NameError" in after.output
    # said once
    assert not after.state_lost


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import os; os._exit(3)", "exit code 3"),
        ("import ctypes; ctypes.string_at(0)", "segmentation fault"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "signal 9"),
        ("import os; os.closerange(3, 4096)", "exit code"),
        (
            "import os\nfor fd in range(3, 30):\n    try: os.write(fd, b'forged' * 9)\n    except OSError: pass\ninput()",
            "no report of this block",
        ),
    ],
    ids=["ends itself", "segfault", "kills itself", "closes everything", "forges"],
)
async def test_a_lost_interpreter_is_explained_and_replaced(
    session: InterpreterCodeExecutor, code: str, why: str
) -> None:
    result = await said(session, f"before = 1\nprint('before')\n{code}")
    assert (result.outcome, result.state_lost) == (Outcome.LOST, True)
    assert result.exit_code != 0
    # where nobody counts what the memory limit kills, a guess is called one
    assert result.limit is None or ("9" in why and result.limit.startswith("What killed it is not known."))
    assert result.output.startswith("before\n")
    assert why in result.output
    assert LOST in result.output
    after = await said(session, "'before' in dir()")
    assert (after.output, after.state_lost) == ("False\n", False)


async def test_memory_is_named_as_the_reason(small: InterpreterCodeExecutor, kind: Kind) -> None:
    result = await said(small, "x = []\nwhile True: x.append(bytearray(1_000_000))")
    assert result.exit_code != 0
    assert result.limit is not None
    assert kind.fields["memory"] in result.limit
    assert await output(small, "1 + 1") == "2\n"


async def test_an_interpreter_that_ends_between_blocks_is_explained_by_the_next(
    session: InterpreterCodeExecutor,
) -> None:
    await output(session, "import os, threading, time\nthreading.Timer(0.1, os._exit, [5]).start()")
    await asyncio.sleep(0.4)
    result = await said(session, "print('ran'); 'threading' in dir()")
    assert result.state_lost
    assert result.exit_code == 0
    assert "exit code 5" in result.output
    assert result.output.endswith("ran\nFalse\n")


async def test_a_lost_sandbox_is_explained_and_replaced(kind: Kind, tmp_path: Path) -> None:
    before = kind.held()
    executor = kind.make(work_dir=tmp_path)
    assert isinstance(executor, InterpreterCodeExecutor)
    blocks = [CodeBlock(code="import time; print('up'); time.sleep(60)", language="python")]
    stream = executor.execute_code_blocks_stream(blocks, CancellationToken())
    async with aclosing(stream) as items:
        await _until(items, "up\n")
        await asyncio.to_thread(kind.lose, kind.held() - before)
        result = [item async for item in items][-1]
    assert isinstance(result, SessionResult)
    assert (result.outcome, result.exit_code, result.state_lost) == (Outcome.LOST, 137, True)
    assert LOST in result.output
    assert await output(executor, "again = 1\nprint('again')") == "again\n"
    # also between two calls
    await asyncio.to_thread(kind.lose, kind.held() - before)
    result = await said(executor, "print('ran'); 'again' in dir()")
    assert result.state_lost
    assert "was lost" in result.output
    assert result.output.endswith("ran\nFalse\n")
    await executor.stop()
    assert kind.held() == before


async def _until(items: AsyncGenerator[object, None], words: str) -> None:
    seen = ""
    while not seen.endswith(words):
        seen += str(await anext(items))


async def test_restart_keeps_the_sandbox_and_forgets_the_variables(kind: Kind, tmp_path: Path) -> None:
    executor = kind.make(work_dir=tmp_path, setup="ready = True")
    assert isinstance(executor, InterpreterCodeExecutor)
    await output(executor, "mine = 1", "open('kept', 'w').write('x')")
    await output(executor, "cd /tmp; export GONE=1; (sleep 60 &) ", language="sh")
    held = kind.held()
    await executor.restart()
    assert kind.held() == held
    assert await output(executor, "ready, 'mine' in dir()") == "(True, False)\n"
    assert await output(executor, 'ls kept; echo "$GONE"', language="sh") == "kept\n\n"
    assert "sleep" not in await output(executor, "cat /proc/[0-9]*/cmdline || :", language="sh")
    await executor.stop()


async def test_restart_ends_what_runs(kind: Kind) -> None:
    executor = kind.make()
    blocks = [CodeBlock(code="import time; print('up'); time.sleep(60)", language="python")]
    async with aclosing(executor.execute_code_blocks_stream(blocks, CancellationToken())) as items:
        await _until(items, "up\n")
        restarting = asyncio.create_task(executor.restart())
        result = [item async for item in items][-1]
        await restarting
    assert isinstance(result, SessionResult)
    assert (result.outcome, result.state_lost) == (Outcome.LOST, True)
    await executor.stop()


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


async def test_files_go_in_and_out(session: InterpreterCodeExecutor, work_dir: Path) -> None:
    data = bytes(range(256)) * 20_000
    await session.put_file("in/deep/data.bin", data)
    assert (
        await output(session, "open('in/deep/data.bin', 'rb').read() == bytes(range(256)) * 20_000")
        == "True\n"
    )
    await output(session, "open('out.bin', 'wb').write(open('in/deep/data.bin', 'rb').read()[::-1])")
    assert await session.get_file("out.bin") == data[::-1]
    files = await session.list_files()
    assert files["in/deep/data.bin"] == files["out.bin"] == len(data)
    assert (work_dir / "out.bin").stat().st_size == len(data)
    await session.put_file("out.bin", "Wörter")
    assert await session.get_file("out.bin") == "Wörter".encode()
    await output(session, "rm -r in out.bin", language="sh")


async def test_a_planted_link_is_replaced_and_reaches_no_file_of_the_host(
    session: InterpreterCodeExecutor, work_dir: Path, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("secret")
    await output(session, f"import os; os.symlink({str(victim)!r}, 'link')")
    with pytest.raises(OSError, match=r"link|victim"):
        await session.get_file("link")
    await session.put_file("link", b"new")
    assert victim.read_text() == "secret"
    assert not (work_dir / "link").is_symlink()
    await output(session, "rm link", language="sh")


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../x", "a\0b", "."])
async def test_paths_outside_the_workspace_are_misuse(session: InterpreterCodeExecutor, path: str) -> None:
    with pytest.raises(ValueError, match="workspace"):
        await session.put_file(path, b"")
    with pytest.raises(ValueError, match="workspace"):
        await session.get_file(path)


async def test_files_that_cannot_be_read_or_written_are_errors(session: InterpreterCodeExecutor) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        await session.get_file("nowhere")
    await output(session, "mkdir -p d; mkfifo fifo", language="sh")
    with pytest.raises(OSError, match="d"):
        await session.get_file("d")
    with pytest.raises(OSError, match="fifo"):
        await session.get_file("fifo")
    with pytest.raises(OSError, match="d"):
        await session.put_file("d", b"x")
    with pytest.raises(ValueError, match="64 MiB"):
        await session.put_file("large", bytes(64 * 1024 * 1024 + 1))
    await output(session, "rm -r d fifo", language="sh")


async def test_what_a_cancelled_block_has_cost_is_told_to_the_next_one_and_the_setup_is_run_again(
    kind: Kind,
) -> None:
    async with kind.make(setup="prepared = 1") as executor:
        assert isinstance(executor, InterpreterCodeExecutor)
        await output(executor, "kept = 3")
        # what it says comes while nothing interrupts it any more
        stubborn = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('up')\nwhile True: signal.pause()"
        stream = executor.execute_code_blocks_stream(
            [CodeBlock(code=stubborn, language="python")], CancellationToken()
        )
        assert "up" in str(await anext(stream))
        # nobody reads what came of it
        await stream.aclose()
        result = await said(executor, "print(prepared)")
        assert "lost: it was killed. Their variables, imports and functions are gone" in result.output
        assert result.output.endswith("\n1\n")
        assert result.state_lost
        assert not (await said(executor, "prepared")).state_lost


async def test_a_file_request_that_is_cancelled_leaves_the_session_usable(
    session: InterpreterCodeExecutor,
) -> None:
    content = bytes(30_000_000)
    await session.put_file("big", content)
    for turns_of_the_loop in (1, 2, 10, 50):
        getting = asyncio.create_task(session.get_file("big"))
        for _ in range(turns_of_the_loop):
            await asyncio.sleep(0)
        if getting.cancel():
            with pytest.raises(asyncio.CancelledError):
                await getting
        else:  # A quick machine was done by then.
            assert getting.result() == content
        assert await output(session, "1 + 1") == "2\n"
    await output(session, "rm big", language="sh")


async def test_what_a_background_process_writes_belongs_to_the_next_block(
    session: InterpreterCodeExecutor,
) -> None:
    assert await output(session, "(sleep 0.2; echo later) &", language="sh") == ""
    await asyncio.sleep(0.6)
    assert await output(session, "print('now')") == "later\nnow\n"


async def test_a_flood_from_the_background_is_bounded_and_delays_nothing(kind: Kind) -> None:
    executor = kind.make()
    assert isinstance(executor, InterpreterCodeExecutor)
    await output(executor, "yes flood &", language="sh")
    for number in range(3):
        result = await said(executor, f"number = {number}")
        assert (result.outcome, result.names[0].preview) == (Outcome.COMPLETED, str(number))
        assert len(result.output) < 2_000_000
    await executor.restart()
    assert await output(executor, "print('calm')") == "calm\n"
    await executor.stop()


@pytest.mark.parametrize(
    "code", ["f() { f | f & }; f", "f() { f | f & }; f; sleep 1"], ids=["left behind", "waited for"]
)
async def test_a_fork_bomb_ends_with_a_restart(small: InterpreterCodeExecutor, code: str) -> None:
    await said(small, code, language="sh")
    await said(small, "print('starved?')")
    await small.restart()
    assert await output(small, "print('next')") == "next\n"
    assert await output(small, "echo next", language="sh") == "next\n"


async def test_output_that_is_forged_as_frames_is_output(session: InterpreterCodeExecutor) -> None:
    code = "import os, struct\nfor kind in range(256): os.write(1, struct.pack('>BI', kind, 0) * 3)\nos.write(2, b'\\n')"
    assert (await said(session, code)).outcome is Outcome.COMPLETED
    assert await output(session, "print('next')") == "next\n"


async def test_garbage_on_the_way_to_the_supervisor_ends_the_interpreter_and_no_more(
    session: InterpreterCodeExecutor,
) -> None:
    code = """
import os, stat
for fd in range(3, 100):
    try:
        if stat.S_ISFIFO(os.fstat(fd).st_mode): os.write(fd, b"garbage" * 100)
    except OSError: pass
import time; time.sleep(30)
"""
    began = time.monotonic()
    result = await said(session, code)
    assert time.monotonic() - began < 20
    assert (result.outcome, result.state_lost) == (Outcome.LOST, True)
    assert "no report of this block" in result.output
    assert await output(session, "print('next')") == "next\n"


async def test_one_config_makes_the_same_executor_again(kind: Kind, tmp_path: Path) -> None:
    executor = kind.make(work_dir=tmp_path, modules={"m": "math"}, setup="x = m.e", timeout=5)
    loaded = CodeExecutor.load_component(executor.dump_component())
    assert isinstance(loaded, SessionCodeExecutor)
    result = await loaded.execute_code_blocks(
        [CodeBlock(code="x > m.e - 1", language="python")], CancellationToken()
    )
    assert result.output == "True\n"
    await loaded.stop()


async def test_sessions_side_by_side_keep_their_own_variables(kind: Kind) -> None:
    executors = [kind.make() for _ in range(4)]
    await asyncio.gather(*(run(executor, f"n = {n}") for n, executor in enumerate(executors)))
    results = await asyncio.gather(*(run(executor, "n * n") for executor in executors))
    assert [result.output for result in results] == [f"{n * n}\n" for n in range(4)]
    await asyncio.gather(*(executor.stop() for executor in executors))
