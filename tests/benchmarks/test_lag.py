"""How long hostile code keeps the event loop of a recorded run from turning, by what is hostile about it. The goal is 0.1 s.

``pytest -m benchmark --workers 0 -s tests/benchmarks/test_lag.py``.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from autogen_core import CancellationToken
from autogen_ext.models.replay import ReplayChatCompletionClient
from rich.console import Console
from rich.table import Table
from support.codeact import py

from codeact_team.agents.code_executor import CodeExecutorAgent
from codeact_team.agents.codeact.agent import CodeActAgent
from codeact_team.core.executor_interface import SessionCodeExecutor
from codeact_team.executors.confined import ConfinedCommandLineCodeExecutor, ConfinedSessionCodeExecutor
from codeact_team.executors.docker import DockerCommandLineCodeExecutor, DockerSessionCodeExecutor
from codeact_team.runs.opening import open_team
from codeact_team.runs.run import TeamRun

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(1800)]

KEY = "sk-live-" + "0123456789abcdef" * 4
"""In the environment of the run."""
NEARLY = KEY[:-1]
INTERVAL = 0.002
"""Seconds between two looks at the clock."""
GOAL = 0.1

EXECUTORS = {
    "command line, confined": ConfinedCommandLineCodeExecutor,
    "session, confined": ConfinedSessionCodeExecutor,
    "command line, Docker": DockerCommandLineCodeExecutor,
    "session, Docker": DockerSessionCodeExecutor,
}
IN_CONTAINER: dict[str, object] = {"workspace": "container"}
"""The setting of those in Docker whose files are not on this machine."""
EVERYWHERE: dict[str, str] = {
    "nothing": "pass",
    "workspace: 60,000 empty files": """
import os
for d in range(60):
    os.mkdir(f'd{d}')
    for n in range(1000): open(f'd{d}/{n}', 'x').close()
""",
    "workspace: 20,000 files with names of 200 characters": """
for n in range(20_000): open(f'{n:0200}', 'x').close()
""",
    "workspace: 3,000 files whose names are newlines": """
import os
for d in range(3):
    os.mkdir('\\n' * (d + 1))
    for n in range(1000): open('\\n' * (d + 1) + '/' + '\\n' * 100 + str(n), 'x').close()
""",
    "workspace: 10,000 files with long paths of wide characters": """
import os
for n in range(15): os.mkdir(chr(0x4e00 + n) * 80); os.chdir(chr(0x4e00 + n) * 80)
for n in range(10_000): open(f'{n}', 'x').close()
""",
    "workspace: 10,000 hidden files with long paths of wide characters": """
import os
for n in range(15): os.mkdir(chr(0x4e00 + n) * 80); os.chdir(chr(0x4e00 + n) * 80)
for n in range(10_000): open(f'.{n}', 'x').close()
""",
    "workspace: three files of 60 MiB that nearly hold a credential": f"""
for n in range(3):
    with open(f'f{{n}}', 'w') as f:
        for _ in range(60): f.write(({NEARLY!r} * (1 << 14))[:1 << 20])
""",
    "workspace: 20 sparse files of 64 MiB": """
for n in range(20):
    with open(f's{n}', 'wb') as f: f.truncate(64 << 20); f.seek(n); f.write(b'x')
""",
    "workspace: 200 directories in one another, 20 times": """
import os
for n in range(20):
    home = os.getcwd()
    for _ in range(200): os.mkdir('d' * (n + 1)); os.chdir('d' * (n + 1))
    os.chdir(home)
""",
    "output: 200 MB": "for _ in range(200): print('x' * 1_000_000)",
    "output: 1 MiB of empty lines": "print('\\n' * (1 << 20))",
    "output: 1 MiB that nearly holds a credential": f"print(({NEARLY!r} * (1 << 14))[:1 << 20])",
    "output: 1 MiB of a credential": f"print(({KEY!r} * (1 << 14))[:1 << 20])",
    "output: 1 MiB of fences": "print('```python\\n' * 100_000)",
    "output: 1 MiB of tildes": "print('~' * (1 << 20)); print('~~~\\n' * (1 << 18))",
    "output: 1 MiB of quotations": "print('> ' * (1 << 19))",
    "output: 1 MiB of tags": "print('<execute>' * (1 << 17))",
    "output: 1 MiB of ends of output": "print('< / output' * 100_000)",
    "output: 1 MiB of escapes": "print('\\x1b[31m' * 200_000)",
    "output: 1 MiB that is no text": "import os; os.write(1, bytes(range(128, 256)) * (1 << 13))",
    "output: 1 MiB of digits in base64": "print('QUJD' * (1 << 18))",
    "output: 300,000 pieces": "import os\\nfor _ in range(300_000): os.write(1, b'x')".replace("\\n", "\n"),
    "output: 1 MiB of open brackets": "print('[' * (1 << 20))",
    "exception: a message of 1 MiB": "raise ValueError('x' * (1 << 20))",
    "exception: a message of 1 MiB that nearly holds a credential": f"raise ValueError({NEARLY!r} * (1 << 14))",
    "exception: 900 of one another": """
def chain(n):
    try:
        if n: chain(n - 1)
        raise ValueError(n)
    finally:
        raise KeyError(n)
chain(400)
""",
    "exception: a group of 20,000": "raise ExceptionGroup('x', [ValueError(n) for n in range(20_000)])",
    "exception: a traceback through a line of 1 MiB": "exec(compile('x = 1 / 0 #' + 'y' * (1 << 20), 'f', 'exec'))",
}
COMMANDS_TOO = ("nothing", *(what for what in EVERYWHERE if "files with" in what))
"""What the command is measured with, too: it copies the files of a run, and tells of them."""
IN_A_CONTAINER_TOO = ("workspace: 60,000 empty files", "workspace: 3,000 files whose names are newlines")
IN_A_SESSION: dict[str, str] = {
    "name: 100,000 of them": "globals().update({f'name{n}': n for n in range(100_000)})",
    "name: one of 1 MiB": "globals()['n' * (1 << 20)] = 1",
    "name: 100 of 1,000 wide characters": "globals().update({chr(0x10000 + n) * 1000: n for n in range(100)})",
    "repr: 100 MB": """
class Long:
    def __repr__(self): return 'x' * 100_000_000
value = Long()
""",
    "repr: nested 100,000 deep": "value = []\nfor _ in range(100_000): value = [value]",
    "repr: a list of a million": "value = list(range(1_000_000))\nvalue",
    "artifact: a picture that nearly holds a credential": f"""
class Picture:
    def _repr_png_(self): return b'\\x89PNG\\r\\n\\x1a\\n' + ({NEARLY!r} * (1 << 17)).encode()[:7 << 20]
Picture()
""",
    "artifact: 7 MiB of HTML": """
class Table:
    def _repr_html_(self): return '<table>' + '<tr><td>x' * 700_000
Table()
""",
    "artifact: HTML nested 500,000 deep": """
class Table:
    def _repr_html_(self): return '<div>' * 500_000
Table()
""",
    "answer: a text of 1 MiB": "final_answer('x' * (1 << 20))",
    "answer: a text that nearly holds a credential": f"final_answer(({NEARLY!r} * (1 << 13))[:400_000])",
    "answer: JSON of 400 KB": "final_answer({str(n): [n] for n in range(25_000)})",
    "answer: JSON nested 900 deep": "value = []\nfor _ in range(900): value = [value]\nfinal_answer(value)",
    "answer: 400 KB of fences": "final_answer('```python\\n' * 40_000)",
    "answer: 400 KB of Markdown": "final_answer('*_[`<' * 80_000)",
    "answer: 400 KB of quotations": "final_answer('> ' * 200_000)",
}


@dataclass
class Lag:
    """How late the loop was: at most, and all together where it was more than the goal."""

    longest: float = 0.0
    over: float = 0.0


@asynccontextmanager
async def lag_of_loop() -> AsyncGenerator[Lag]:
    lag = Lag()

    async def watch() -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(INTERVAL)
            late = time.perf_counter() - began - INTERVAL
            lag.longest = max(lag.longest, late)
            lag.over += late if late > GOAL else 0.0

    watching = asyncio.create_task(watch())
    try:
        yield lag
    finally:
        watching.cancel()
        await asyncio.wait({watching})


async def run(
    executor: type, code: str, record: Path, *, as_command: bool, **settings: object
) -> tuple[Lag, float]:
    """Lets an agent run a block and answer, in a run that is recorded. How late the loop was, and how long it took."""
    model = ReplayChatCompletionClient([py(code), *["The answer."] * 3])
    made: Any = executor(timeout=120, **settings)
    kind = CodeActAgent if isinstance(made, SessionCodeExecutor) else CodeExecutorAgent
    config = kind("coder", model_client=model, code_executor=made).dump_component().model_dump()
    began = time.perf_counter()
    if as_command:
        file = record.with_suffix(".json")
        file.write_text(json.dumps(config))
        runner = TeamRun(file, out=record.with_suffix(".out"), record=record)
        async with lag_of_loop() as lag:
            await runner.run_once("Go.")
        return lag, time.perf_counter() - began
    async with lag_of_loop() as lag, open_team(config, record=record) as team:
        await team.run(task="Go.", cancellation_token=CancellationToken())
    return lag, time.perf_counter() - began


@pytest.mark.docker
async def test_the_lag_of_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIVE_API_KEY", KEY)
    table = Table("hostile", "where", "longest lag, s", "lags over the goal, s", "the run, s")
    for number, (what, code, where, as_command, settings) in enumerate(_cases()):
        directory = tmp_path / str(number)
        lag, seconds = await run(EXECUTORS[where], code, directory, as_command=as_command, **settings)
        mark = " !" if lag.longest > GOAL else ""
        table.add_row(
            what,
            where + ", files there" * bool(settings) + ", the command" * as_command,
            f"{lag.longest:.3f}{mark}",
            f"{lag.over:.2f}",
            f"{seconds:.1f}",
        )
    Console(width=140).print(table)


def _cases() -> Iterator[tuple[str, str, str, bool, dict[str, object]]]:
    for what, code in EVERYWHERE.items():
        for where in EXECUTORS:
            yield what, code, where, False, {}
        if what in IN_A_CONTAINER_TOO:
            yield what, code, "session, Docker", False, IN_CONTAINER
        if what in COMMANDS_TOO:
            yield what, code, "command line, confined", True, {}
    for what, code in IN_A_SESSION.items():
        for where in EXECUTORS:
            if where.startswith("session"):
                yield what, code, where, False, {}
