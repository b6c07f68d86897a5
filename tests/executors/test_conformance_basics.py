"""What every executor does with code that means no harm."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import shutil
import textwrap
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeExecutor
from pydantic import BaseModel, ValidationError
from support.executing import (
    FRESH,
    Kind,
    each_part_once,
    fresh_processes,
    one_interpreter,
    one_part,
    run,
    usually,
)
from support.variations import mostly_long

from codeact_team.config import yaml12
from codeact_team.core.execution import ExecutionResult, Outcome, SessionResult
from codeact_team.core.scope import Scope
from codeact_team.errors import SandboxError, SettingError
from codeact_team.executors.base import SandboxedCodeExecutor


def stream(executor: SandboxedCodeExecutor, code: str) -> AsyncGenerator[str | ExecutionResult, None]:
    return executor.execute_code_blocks_stream([CodeBlock(code=code, language="python")], CancellationToken())


def files(directory: Path) -> dict[str, str]:
    return {
        str(file.relative_to(directory)): file.read_text(errors="replace")
        for file in directory.rglob("*")
        if file.is_file()
    }


async def until(items: AsyncGenerator[str | ExecutionResult, None], words: str) -> None:
    """Read what the code writes until it has written ``words``; how much comes at a time is not defined."""
    seen = ""
    while not seen.endswith(words):
        item = await anext(items)
        assert isinstance(item, str)
        seen += item


async def test_result_of_code_that_succeeds(executor: SandboxedCodeExecutor) -> None:
    result = await run(executor, "print('hello')")
    assert (result.exit_code, result.output, result.outcome) == (0, "hello\n", Outcome.COMPLETED)
    assert result.limit is None
    assert result.omitted_bytes == 0
    assert 0 < result.seconds < 30


@usually("docker", "confined-session")
async def test_processor_time_of_code_and_of_what_it_starts_is_in_the_result(
    executor: SandboxedCodeExecutor,
) -> None:
    spin = "import time\nend = time.process_time() + 0.15\nwhile time.process_time() < end: pass"
    in_a_child = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {spin!r}], check=True)"
    for code in (spin, in_a_child):
        result = await run(executor, code)
        assert result.processor_seconds is not None
        # a clock may tick a hundred times a second
        assert result.processor_seconds > 0.12
    idle = await run(executor, "pass")
    assert idle.processor_seconds is not None
    assert idle.processor_seconds < 0.25


@pytest.mark.parametrize(
    "code",
    [
        "# -*- coding: utf-7 -*-\n# harmless +AAo-print('hidden')+AAo-",
        "# coding: unicode_escape\n# harmless \\nprint('hidden')",
        "# filename: named.py\n# coding: raw_unicode_escape\n# harmless \\u000aprint('hidden')",
        "\r# coding: utf-7\n# harmless +AAo-print('hidden')+AAo-",
    ],
)
@usually("confined", "confined-session")
async def test_no_statement_hides_in_a_comment_by_its_encoding(
    executor: SandboxedCodeExecutor, code: str
) -> None:
    result = await run(executor, code)
    if isinstance(result, SessionResult):
        # an interpreter that lives on gets text, of which no comment says how it is encoded
        assert (result.exit_code, result.output) == (0, "")
    else:
        assert result.exit_code != 0
        assert result.output.startswith("A comment declares the encoding ")
    assert (await run(executor, "# coding: utf-8\nprint('ü')")).output == "ü\n"


@usually("docker", "confined", "confined-session")
async def test_result_of_code_that_fails(executor: SandboxedCodeExecutor) -> None:
    result = await run(executor, "print('before'); 1 / 0")
    assert result.exit_code == 1
    assert result.output.startswith("before\n")
    assert "ZeroDivisionError" in result.output
    assert (result.outcome, result.limit) == (Outcome.COMPLETED, None)


@pytest.mark.parametrize("code", [pytest.param(3, marks=pytest.mark.long), 124, 137])
@usually("docker", "confined", "confined-session")
async def test_exit_code_is_the_programs_own(executor: SandboxedCodeExecutor, code: int) -> None:
    # a program that exits with 124, as the timeout command does, has not timed out
    result = await run(executor, f"import sys; sys.exit({code})")
    assert (result.exit_code, result.outcome) == (code, Outcome.COMPLETED)


@fresh_processes
async def test_code_file_is_visible_on_the_host(executor: SandboxedCodeExecutor, work_dir: Path) -> None:
    code = "# filename: folder/shown.py\nopen('made.txt', 'w').write('by code')"
    result = await run(executor, code)
    assert result.code_file == str(work_dir / "folder" / "shown.py")
    assert files(work_dir)["folder/shown.py"] == code
    assert files(work_dir)["made.txt"] == "by code"


@fresh_processes
async def test_code_arrives_as_it_is(executor: SandboxedCodeExecutor) -> None:
    # more than any pipe holds, line ends of all kinds, a NUL and characters beyond ASCII
    code = "# \0 \r\n#" + "x" * 3_000_000 + "\r\nprint(len(open(__file__, newline='').read()), 'ä', end='')"
    result = await run(executor, "import sys\nsys.exit()", code.replace("\0", ""))
    assert result.output == f"{len(code) - 1} ä"


@usually("docker", "confined", "confined-session")
async def test_output_keeps_the_order_of_writing(executor: SandboxedCodeExecutor) -> None:
    code = """
        import ctypes, os, subprocess, sys
        libc = ctypes.CDLL(None)
        for number in range(20):
            print(number, "out")
            print(number, "err", file=sys.stderr)
            libc.printf(b"%d stdio\\n", number)
            libc.fflush(None)
            subprocess.run(["sh", "-c", f"echo {number} child; echo {number} child err >&2"])
            os.write(1, b"%d raw\\n" % number)
        """
    expected = [
        f"{number} {what}\n"
        for number in range(20)
        for what in ("out", "err", "stdio", "child", "child err", "raw")
    ]
    assert (await run(executor, textwrap.dedent(code))).output == "".join(expected)


@usually("docker", "confined", "confined-session")
async def test_blocks_run_one_after_the_other_in_one_workspace(executor: SandboxedCodeExecutor) -> None:
    result = await run(
        executor, "_ = open('shared', 'w').write('1')", "print(open('shared').read())", "print(2)"
    )
    assert (result.exit_code, result.output) == (0, "1\n2\n")


@usually("confined", among=FRESH)
async def test_each_block_is_a_fresh_process(executor: SandboxedCodeExecutor) -> None:
    result = await run(
        executor, "x = 1; import os; os.environ['X'] = '1'; os.chdir('/')", "print('x' in dir())"
    )
    assert result.output == "False\n"


@usually("confined", "confined-session")
async def test_blocks_after_a_failed_one_are_reported_as_not_run(executor: SandboxedCodeExecutor) -> None:
    result = await run(
        executor, "print('one')", "print('two'); raise SystemExit(7)", "print('three')", "print('four')"
    )
    assert result.exit_code == 7
    assert result.output == "one\ntwo\n[2 more code block(s) not run: block 2 failed]"


@usually("confined", "confined-session")
async def test_unsupported_language_is_a_result(executor: SandboxedCodeExecutor) -> None:
    # and what a supported one beside it wrote is there
    blocks = [CodeBlock(code="print(1)", language="python"), CodeBlock(code="main = id", language="haskell")]
    result = await executor.execute_code_blocks(blocks, CancellationToken())
    assert (result.exit_code, result.outcome) == (1, Outcome.NOT_RUN)
    assert result.output.startswith("1\nUnsupported language 'haskell'; this executor runs python, sh")


@usually("confined", among=FRESH)
@pytest.mark.parametrize(
    ("language", "code", "output"),
    [
        ("Python", "print(1)", "1\n"),
        ("sh", "echo $((1 + 1))", "2\n"),
        ("shell", "echo $0 | grep -c tmp_code", "1\n"),
        ("bash", "a=(1 2 3); echo ${#a[@]}", "3\n"),
        # languages that the config adds
        ("sorted", "b\na\n", "a\nb\n"),
        ("twice", "echo once", "once\nonce\n"),
    ],
)
async def test_languages(executor: SandboxedCodeExecutor, language: str, code: str, output: str) -> None:
    assert language.lower() in executor.supported_languages
    result = await run(executor, code, language=language)
    assert (result.exit_code, result.output) == (0, output)


@usually("confined", among=FRESH)
@pytest.mark.parametrize(
    "name",
    mostly_long(
        [
            *("plain.py", "a/deep/folder/x.py", "--help", "x" * 255, "$(id);.py", "\ud800.py"),
            *("-c", "-c.py", "two words.py", "ünïcode.py", "./x.py", "a//b.py", "no_suffix"),
        ],
        usual=6,
    ),
)
async def test_file_names_that_can_be_used(executor: SandboxedCodeExecutor, name: str) -> None:
    # one that looks like an option is a file nevertheless
    result = await run(executor, f"# filename: {name}\nprint('ran')")
    assert (result.exit_code, result.output, result.outcome) == (0, "ran\n", Outcome.COMPLETED)


@usually("confined", among=FRESH)
@pytest.mark.parametrize(
    "name", ["", " ", ".", "..", "../x.py", "a/../../x.py", "/tmp/x.py", "/", "x" * 256, "a/" * 600 + "x", "a\0.py", "json.py", "re/__init__.py"]
)  # fmt: skip
async def test_file_names_that_cannot_be_used_are_results(
    executor: SandboxedCodeExecutor, work_dir: Path, name: str
) -> None:
    before = files(work_dir)
    result = await run(executor, f"# filename: {name}\nprint('ran')")
    assert (result.exit_code, result.outcome) == (1, Outcome.NOT_RUN)
    assert "Filename" in result.output
    assert len(result.output) < 300
    assert files(work_dir) == before


@usually("confined", among=FRESH)
async def test_no_block_hides_a_module_of_python_from_later_ones(executor: SandboxedCodeExecutor) -> None:
    await run(executor, "# filename: json.py\n")
    await run(executor, "# filename: json/__init__.py\n")
    assert (await run(executor, "import json; print(json.dumps(1))")).output == "1\n"


@usually("confined", among=FRESH)
async def test_file_name_of_a_directory_is_a_result(executor: SandboxedCodeExecutor) -> None:
    await run(executor, "import os; os.makedirs('taken', exist_ok=True)")
    result = await run(executor, "# filename: taken\nprint('ran')")
    assert result.exit_code != 0
    assert "irectory" in result.output


@usually("confined", "confined-session")
async def test_nothing_to_run_is_misuse(executor: SandboxedCodeExecutor) -> None:
    with pytest.raises(SettingError, match="No code blocks"):
        await executor.execute_code_blocks([], CancellationToken())


@usually("docker", "confined", "confined-session")
async def test_stdin_is_empty(executor: SandboxedCodeExecutor) -> None:
    assert "EOFError" in (await run(executor, "input()")).output


@usually("docker", "confined", "confined-session")
async def test_output_that_is_no_text_is_replaced(executor: SandboxedCodeExecutor) -> None:
    code = r"import os; _ = os.write(1, b'\xff\xfe ok \xc3'); _ = os.write(1, b'\xa4 \xe2\x82')"
    parts = [part async for part in stream(executor, code)]
    result = parts[-1]
    assert isinstance(result, ExecutionResult)
    assert result.output == "\ufffd\ufffd ok ä \ufffd"
    assert "".join(part for part in parts if isinstance(part, str)) == result.output


async def test_output_comes_while_the_code_runs(executor: SandboxedCodeExecutor, work_dir: Path) -> None:
    # the code goes on only when its first words have been read
    code = (
        "import os, time\nprint('first')\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('second')"
    )
    chunks: list[str] = []
    async with aclosing(stream(executor, code)) as items:
        async for item in items:
            if isinstance(item, ExecutionResult):
                assert item.output == "".join(chunks) == "first\nsecond\n"
            else:
                assert item
                chunks.append(item)
                (work_dir / "go").touch()
    assert chunks[0] in ("first", "first\n")


@usually("docker", "confined", "confined-session")
async def test_a_reader_who_leaves_stops_the_code(executor: SandboxedCodeExecutor, work_dir: Path) -> None:
    code = "import time\nprint(1)\nfor n in range(1000): time.sleep(0.05); open('alive', 'w').write(str(n))"
    async with aclosing(stream(executor, code)) as items:
        await until(items, "1\n")
    (work_dir / "alive").unlink(missing_ok=True)
    assert (await run(executor, "print(2)")).output == "2\n"
    await asyncio.sleep(0.2)
    assert not (work_dir / "alive").exists()


@usually("confined", "confined-session")
async def test_concurrent_calls_get_their_own_output(executor: SandboxedCodeExecutor) -> None:
    # two agents on one executor, whose blocks name the same file
    code = "# filename: same.py\nimport time; print({n}); time.sleep(0.05); print({n})"
    results = await asyncio.gather(*(run(executor, code.format(n=n)) for n in range(5)))
    assert [result.output for result in results] == [f"{n}\n{n}\n" for n in range(5)]


@usually("docker", "confined-session")
def test_event_loops_share_an_executor(executor: SandboxedCodeExecutor) -> None:
    outputs: dict[int, str] = {}

    def use(n: int) -> None:
        outputs[n] = asyncio.run(run(executor, f"import time; time.sleep(0.05); print({n})")).output

    threads = [threading.Thread(target=use, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outputs == {n: f"{n}\n" for n in range(4)}


@fresh_processes
async def test_life_cycle(kind: Kind) -> None:
    before = kind.held()
    executor = kind.make()
    await executor.stop()
    await executor.restart()
    assert kind.held() == before
    await executor.start()
    inside = kind.held()
    await executor.start()
    assert kind.held() == inside
    assert len(inside) == len(before) + 1
    await run(executor, "# filename: kept\n")
    await executor.restart()
    assert len(kind.held()) == len(before) + 1
    assert kind.held() != inside
    assert (await run(executor, "ls k*", language="sh")).output == "kept\n"
    await executor.stop()
    await executor.stop()
    assert kind.held() == before
    # it starts on use
    assert (await run(executor, "ls", language="sh")).output.startswith("tmp_code_")
    await executor.stop()
    assert kind.held() == before


@one_part
async def test_a_scope_stops_what_is_used_inside_it_and_was_made_before(kind: Kind) -> None:
    before = kind.held()
    executor = kind.make()
    async with Scope():
        await run(executor, "print(1)")
        assert kind.held() != before
    assert kind.held() == before


@one_part
async def test_a_temporary_workspace_is_removed_whatever_is_in_it(
    kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    # deeper than a path can name
    code = """
        import os
        open("file", "w").close()
        os.symlink("/usr", "link")
        os.makedirs("closed/inner")
        os.chmod("closed", 0)
        for _ in range(20):
            os.mkdir("deep" * 60)
            os.chdir("deep" * 60)
        os.chdir("/")
    """
    executor = kind.make()
    result = await run(executor, textwrap.dedent(code))
    assert result.exit_code == 0, result.output
    directory = executor.work_dir
    assert (directory / "file").is_file()
    await executor.stop()
    assert not directory.exists()
    assert "left" not in caplog.text


@usually("confined", among=FRESH)
async def test_a_lost_sandbox_is_a_result_and_the_next_call_gets_a_new_one(
    kind: Kind, tmp_path: Path
) -> None:
    before = kind.held()
    executor = kind.make(work_dir=tmp_path)
    async with aclosing(stream(executor, "import time; print('up'); time.sleep(60)")) as items:
        await until(items, "up\n")
        await asyncio.to_thread(kind.lose, kind.held() - before)
        result = [item async for item in items][-1]
    assert isinstance(result, ExecutionResult)
    assert (result.outcome, result.exit_code) == (Outcome.LOST, 137)
    assert result.output.startswith("up\nThe sandbox was lost: ")
    assert result.output.endswith("the next code runs in a fresh sandbox.")
    assert (await run(executor, "print('again')")).output == "again\n"
    # also between two calls
    await asyncio.to_thread(kind.lose, kind.held() - before)
    assert (await run(executor, "print('again')")).output == "again\n"
    await executor.stop()


@one_part
async def test_a_workspace_that_was_removed_is_made_anew(kind: Kind, tmp_path: Path) -> None:
    async with kind.make(work_dir=tmp_path / "workspace") as executor:
        await assert_made_anew(executor)
        # another one in its place is not the one that the sandbox has
        executor.work_dir.rename(tmp_path / "elsewhere")
        executor.work_dir.mkdir()
        assert (await run(executor, "open('made', 'w').write('y')")).exit_code == 0
        assert (executor.work_dir / "made").read_text() == "y"


@one_interpreter
async def test_a_temporary_workspace_that_was_removed_is_made_anew(kind: Kind) -> None:
    async with kind.make() as executor:
        await assert_made_anew(executor)


async def assert_made_anew(executor: SandboxedCodeExecutor) -> None:
    assert (await run(executor, "mine = 1")).exit_code == 0
    shutil.rmtree(executor.work_dir)
    result = await run(executor, "open('made', 'w').write('x'); print('mine' in dir())")
    assert result.output.endswith("False\n")
    assert (executor.work_dir / "made").read_text() == "x"
    if isinstance(result, SessionResult):
        assert result.state_lost
        assert "was lost: its work_dir was removed." in result.output


@one_part
async def test_stop_and_restart_end_what_runs(kind: Kind) -> None:
    before = kind.held()
    executor = kind.make()
    for act in (executor.restart, executor.stop):
        async with aclosing(stream(executor, "import time; print('up'); time.sleep(60)")) as items:
            await until(items, "up\n")
            await act()
            result = [item async for item in items][-1]
        assert isinstance(result, ExecutionResult)
        assert result.outcome is Outcome.LOST
        assert "memory" not in result.output
    assert "was lost: the executor was stopped" in result.output
    assert kind.held() == before


@usually("confined", among=FRESH)
async def test_files_of_the_blocks_are_deleted_where_asked(kind: Kind, tmp_path: Path) -> None:
    executor = kind.make(work_dir=tmp_path, delete_tmp_files=True)
    result = await run(executor, "# filename: -x.py\n", "print(1)", "1 / 0", "print(2)")
    assert result.exit_code == 1
    assert list(files(tmp_path)) == ["-x.py"], "it has named itself: the next block may need it"
    await executor.stop()


@usually("confined", among=FRESH)
@pytest.mark.parametrize("kept", [False, True])
async def test_files_of_the_blocks_stay_as_long_as_the_executor_runs_or_for_good(
    kind: Kind, tmp_path: Path, *, kept: bool
) -> None:
    executor = kind.make(work_dir=tmp_path, **({"delete_tmp_files": False} if kept else {}))
    (tmp_path / "helper.py").write_text("answer = 42\n")
    result = await run(executor, "import helper\nprint(helper.answer)")
    assert result.output == "42\n"
    (file,) = (name for name in files(tmp_path) if name.startswith("tmp_code_"))
    assert result.code_file == f"{tmp_path}/{file}"
    await executor.stop()
    assert (file in files(tmp_path)) is kept
    assert "helper.py" in files(tmp_path)


@one_part
async def test_a_directory_is_made_only_beside_what_is_there_and_told(
    kind: Kind, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(SandboxError, match=rf"there is no directory {tmp_path}/mistyped; make it"):
        await run(kind.make(work_dir=tmp_path / "mistyped" / "coding"), "print(1)")
    assert os.listdir(tmp_path) == []
    executor = kind.make(work_dir=tmp_path / "coding")
    with caplog.at_level(logging.INFO, "codeact_team"):
        await run(executor, "print(1)")
    await executor.stop()
    assert f"made the work_dir {tmp_path / 'coding'}" in caplog.messages


@each_part_once
@pytest.mark.parametrize("work_dir", ["/proc/nowhere", "/dev/null", "/dev/null/x"])
async def test_a_workspace_that_cannot_be_is_an_error(kind: Kind, work_dir: str) -> None:
    with pytest.raises(SandboxError, match=work_dir):
        await run(kind.make(work_dir=work_dir), "print(1)")


@pytest.mark.parametrize(
    "wrong",
    [{"languages": {"x": ""}}, {"languages": {"x": "'"}}, {"languages": {"a b": "x"}}],
)
@fresh_processes
def test_languages_that_cannot_work_are_refused(kind: Kind, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="languages"):
        kind.make(**wrong)


@pytest.mark.parametrize("wrong", [{"timeout": 0}, {"timeout": -1}, {"memory_mib": 0}, {"pids": 0}])
def test_settings_that_cannot_work_are_refused(kind: Kind, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="|".join(wrong)):
        kind.make(**wrong)


def test_unknown_keys_are_refused(kind: Kind) -> None:
    # such as the mem_limit of another library, once silently ignored
    config = kind.make().dump_component()
    config.config["mem_limit"] = "1g"
    with pytest.raises(ValidationError, match="mem_limit"):
        CodeExecutor.load_component(config)
    with pytest.raises((ValidationError, TypeError), match="mem_limit"):
        kind.make(mem_limit="1g")


RULES = [
    {
        "host": "a.test",
        "ports": [80, 443],
        "networks": [],
        "decision": "allow",
        "reason": "",
        "repeatable": False,
    }
]
CREDENTIALS = [{"name": "KEY", "hosts": ["a.test"], "header": "Authorization: Bearer {value}"}]


@pytest.mark.parametrize("excluded", [["network"], ["egress", "credentials", "extra_ca"]])
def test_dump_and_load_keep_every_field(kind: Kind, excluded: list[str], tmp_path: Path) -> None:
    plain: Any = kind.make()
    schema: type[BaseModel] = plain.component_config_schema
    fields = schema.model_fields
    others: dict[str, Any] = {
        "image": "other", "container_name": "c", "timeout": 7, "work_dir": str(tmp_path), "workspace_mib": 77, "workspace_files": 777, "bind_dir": "/elsewhere", "auto_remove": False, "stop_container": False, "functions_module": "helpers", "device_requests": [{"Driver": "nvidia", "Count": -1}], "extra_volumes": {"/srv": {"bind": "/srv", "mode": "ro"}}, "extra_hosts": {"h": "1.2.3.4"}, "init_command": "true", "delete_tmp_files": True, "languages": {"x": "y z"}, "pull": "never", "network": "bridge", "memory_mib": 333, "cpus": 0.5, "pids": 99, "user": "1:1", "read_only": False, "tmpfs_mib": 33, "max_file_mib": 44, "environment": {"A": "b"}, "runtime": "runsc", "unenforced_limits": ["cpus"], "confinement": "best_effort", "readable": ["/srv"], "shared_memory": True, "modules": {"np": "numpy"}, "setup": "x = 1", "data": ["sales.csv"], "packages": ["six"], "packages_file": str(tmp_path / "requirements.txt"), "egress": RULES, "credentials": CREDENTIALS, "extra_ca": ["company.pem"],
    }  # fmt: skip
    (tmp_path / "requirements.txt").touch()
    settings = {name: value for name, value in others.items() if name in fields and name not in excluded}
    # a workspace in the container excludes the two directories
    assert set(fields) - set(settings) <= {"workspace", *excluded}
    dumped = kind.make(**settings).dump_component()
    left = {
        name: fields[name].get_default(call_default_factory=True)
        for name in ("workspace", *excluded)
        if name in fields
    }
    assert dumped.config == {name: value for name, value in left.items() if value is not None} | settings
    loaded: Any = CodeExecutor.load_component(yaml12.parse(yaml12.write(dumped.model_dump()))[0])
    assert type(loaded) is kind.make
    assert loaded.dump_component() == dumped
    assert all(
        value != fields[name].get_default(call_default_factory=True) for name, value in settings.items()
    )


@usually("confined-session", "docker-session")
@pytest.mark.parametrize("method", mostly_long(["spawn", "forkserver"]))
async def test_worker_processes_find_what_the_code_defines(
    executor: SandboxedCodeExecutor, method: str
) -> None:
    code = f"""
import multiprocessing
class Point:
    def __init__(self, x): self.x = x
factor = 3
def scaled(n): return Point(n * factor)
if __name__ == "__main__":
    with multiprocessing.get_context({method!r}).Pool(1) as pool:
        print([type(each) is Point and each.x for each in pool.map(scaled, [1, 2])])
"""
    assert (await run(executor, code)).output == "[3, 6]\n"


@one_part
async def test_loaded_twice_from_one_config_they_run_side_by_side(kind: Kind) -> None:
    # a fixed name or directory must not make the second remove what the first uses
    named = {"container_name": f"codeact-twice-{id(kind)}"} if "container_name" in inspect.signature(kind.make).parameters else {}  # fmt: skip
    config = kind.make(**named).dump_component()
    one, two = (CodeExecutor.load_component(config) for _ in range(2))
    assert isinstance(one, SandboxedCodeExecutor)
    assert isinstance(two, SandboxedCodeExecutor)
    await one.start()
    slow = asyncio.create_task(run(one, "import time; time.sleep(0.5); print('one')"))
    assert (await run(two, "print('two')")).output == "two\n"
    await two.stop()
    assert (await slow).output == "one\n"
    await one.stop()


WHO = """
import getpass, locale, os, pwd, subprocess
print(getpass.getuser(), locale.getpreferredencoding(), subprocess.run("printf $LANG", shell=True, capture_output=True, text=True).stdout)
print(pwd.getpwuid(os.getuid()).pw_name if os.getuid() else "sandbox", os.path.expanduser("~") == os.environ["HOME"])
with open(os.path.expanduser("~/written"), "w") as file: file.write("é")
print(subprocess.run(["cat", os.path.expanduser("~/written")], capture_output=True, text=True).stdout)
"""


async def test_the_user_has_a_name_a_home_and_a_locale(executor: SandboxedCodeExecutor) -> None:
    result = await run(executor, WHO)
    assert result.output == "sandbox UTF-8 C.UTF-8\nsandbox True\né\n"
