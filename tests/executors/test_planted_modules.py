"""Files named like modules of the standard library, which earlier code has left in a session's workspace."""

from __future__ import annotations

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from support.executing import LIVING, usually
from support.host_tools import Offered, echo

from codeact_team.core.executor_interface import SessionCodeExecutor
from codeact_team.executors.session import InterpreterCodeExecutor

pytestmark = usually("confined-session", among=LIVING)

PLANT = """
import sys
for name in sys.stdlib_module_names:
    with open(f"{name}.py", "w") as file:
        file.write("import builtins; builtins.planted = getattr(builtins, 'planted', ()) + (__name__,)\\nraise ImportError\\n")
"""
"""What is imported of this calls the tools of whoever has the session then, or does anything else as them."""

IMPORTED = "import builtins; print(*getattr(builtins, 'planted', ()))"

FAILING = [
    "xyz",
    "'\\u00e9\\u6f22' + 1",
    "def f(:",
    "return 1",
    "eval('1 +')",
    "exec('a = 1\\n  b = 2')",
    "[].appendd",
    "import nonexisting_thing",
    "raise ExceptionGroup('a', [ValueError('\\u00e9'), KeyError()])",
    "class Odd(Exception):\n    def __str__(self): return self.missing\nraise Odd",
    "def deep(): deep()\ndeep()",
    "import warnings\nwarnings.warn('here')",
    "'\\.'\nassert (1, 2)",
    "async def f(): 1 / 0\nawait f()",
    "import threading\nt = threading.Thread(target=lambda: 1 / 0)\nt.start()\nt.join()",
    "class Shown:\n    def _repr_html_(self): return 1 / 0\nShown()",
    "class Shown:\n    def __repr__(self): return 1 / 0\nShown()",
    "class Ending:\n    def __del__(self): 1 / 0\nEnding()\nNone",
    "'x' * 3_000_000",
    "tools.echo(valu=1)",
    "tools.echo(value={1, object()})",
    "tools.ecko()",
    "await tools.echo.aio(value=1)",
    "tools.echo.__signature__",
    "final_answer(object())",
    "import sys\nsys.stdout.close()\nsys.exit('no \\u00e9')",
    (
        "import os, signal, threading\nthreading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()\n"
        "os.kill(os.getpid(), signal.SIGINT)"
    ),
]
"""Blocks that import nothing that the interpreter has not."""


async def output(executor: SessionCodeExecutor, *code: str) -> str:
    blocks = [CodeBlock(code=each, language="python") for each in code]
    return (await executor.run_code_blocks(blocks, CancellationToken(), tools=Offered(echo=echo))).output


async def test_none_is_imported_but_by_the_code_itself(session: InterpreterCodeExecutor) -> None:
    await output(session, PLANT)
    await session.restart()
    [fork] = await session.fork()
    for executor in (session, fork):
        for code in FAILING:
            await output(executor, code)
        assert await output(executor, IMPORTED) == "\n"
    await fork.stop()
    # a module of the workspace is the code's own, whatever its name
    named = "try: import turtle\nexcept ImportError: print(*planted)"
    assert await output(session, named) == "turtle\n"
    by_name = (
        "import importlib\ntry: importlib.import_module('tabnanny')\nexcept ImportError: print(*planted)"
    )
    assert await output(session, by_name) == "turtle tabnanny\n"
    await session.restart()
