"""What people know from notebooks: earlier values, silence by a semicolon, contexts and loops that live on, modules that change."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.interpreter import RunningInterpreter


def test_earlier_values_have_the_names_that_a_notebook_gives_them(
    fresh_interpreter: RunningInterpreter,
) -> None:
    for code in ("'one'", "'two'", "None", "'three'"):
        fresh_interpreter.run(code)
    assert fresh_interpreter.run("_, __, ___").output == "('three', 'two', 'one')\n"
    assert fresh_interpreter.run("sorted(map(str, Out.values()))[-1], len(Out)").output == "('two', 4)\n"
    assert fresh_interpreter.run("_1, In[2]").output == "('one', \"'two'\")\n"
    missing = fresh_interpreter.run("Out[99]")
    assert "no value of this block is kept" in missing.output
    # names of the code come first
    fresh_interpreter.run("_ = 'mine'")
    fresh_interpreter.run("'shown'")
    assert fresh_interpreter.run("_").output == "'mine'\n"


def test_only_the_last_values_are_kept(fresh_interpreter: RunningInterpreter) -> None:
    fresh_interpreter.run("class Large: pass\nimport weakref\nlarge = Large()\nseen = weakref.ref(large)")
    fresh_interpreter.run("large")
    fresh_interpreter.run("del large")
    for number in range(20):
        fresh_interpreter.run(f"{number}")
    assert fresh_interpreter.run("len(Out) <= 17, seen()").output == "(True, None)\n"


@pytest.mark.parametrize(
    ("code", "output"),
    [
        ("5;", ""),
        ("5 ; # why", ""),
        ("x = 3\r\nx;\r\n", ""),
        ("x = 'ä'; x;", ""),
        ("'a;'", "'a;'\n"),
        ("5 # ;", "5\n"),
        ("(5\n)", "5\n"),
        ("'''\f;'''[0];", ""),
    ],
)
def test_a_semicolon_behind_the_last_value_hides_it(
    interpreter: RunningInterpreter, code: str, output: str
) -> None:
    ran = interpreter.run(code)
    assert (ran.output, ran.exit_code) == (output, 0)


def test_a_context_lives_on_whether_blocks_await_or_not(fresh_interpreter: RunningInterpreter) -> None:
    code = "import asyncio, decimal, contextvars\ndecimal.getcontext().prec = 5\nawait asyncio.sleep(0)"
    fresh_interpreter.run(code)
    assert fresh_interpreter.run("decimal.Decimal(1) / 3").output == "Decimal('0.33333')\n"
    fresh_interpreter.run("v = contextvars.ContextVar('v')\ntoken = v.set(1)")
    assert fresh_interpreter.run("await asyncio.sleep(0)\nv.get()").output == "1\n"
    fresh_interpreter.run("v.set(2)\nawait asyncio.sleep(0)\n1 / 0")
    assert fresh_interpreter.run("v.get()").output == "2\n"
    # a task has a copy of its own, as everywhere
    fresh_interpreter.run("async def change(): v.set(3)\nawait asyncio.create_task(change())")
    assert fresh_interpreter.run("v.get()").output == "2\n"
    assert fresh_interpreter.run("v.reset(token)\n'v' in str(v)").output == "True\n"


def test_the_thread_has_an_event_loop_between_blocks(fresh_interpreter: RunningInterpreter) -> None:
    code = (
        "import asyncio\nasync def f():\n    return asyncio.get_running_loop()\nasyncio.run(f()).is_closed()"
    )
    assert fresh_interpreter.run(code).output == "True\n"
    code = "loop = asyncio.get_event_loop()\nloop.run_until_complete(f()) is loop"
    assert fresh_interpreter.run(code).output == "True\n"
    assert fresh_interpreter.run("await f() is loop").output == "True\n"
    fresh_interpreter.run("loop.close()")
    assert fresh_interpreter.run("asyncio.get_event_loop().is_closed()").output == "False\n"
    # one that the code has set is left alone
    fresh_interpreter.run("own = asyncio.new_event_loop()\nasyncio.set_event_loop(own)")
    assert fresh_interpreter.run("asyncio.get_event_loop() is own\n").output == "True\n"
    assert fresh_interpreter.run("own.close()").exit_code == 0


def test_a_block_that_makes_a_task_has_a_running_loop(fresh_interpreter: RunningInterpreter) -> None:
    code = "import asyncio\nasync def f():\n    return 5\ntask = asyncio.create_task(f())\ntask.done()"
    # the first block of all imports asyncio only while it runs
    fresh_interpreter.run("import asyncio")
    assert fresh_interpreter.run(code).output == "False\n"
    assert fresh_interpreter.run("await task").output == "5\n"
    own = "async def main():\n    return await asyncio.create_task(f())\nasyncio.run(main())"
    assert fresh_interpreter.run(own).output == "5\n"


def test_the_last_error_is_there_for_a_debugger_in_the_next_block(
    fresh_interpreter: RunningInterpreter,
) -> None:
    fresh_interpreter.run("import io, pdb, sys\ndef g(y):\n    return 1 / y\ng(0)")
    asked = "sys.stdin = io.StringIO('p y\\nq\\n')\npdb.pm()"
    assert "(Pdb) 0\n" in fresh_interpreter.run(asked).output
    assert fresh_interpreter.run("hasattr(sys, 'last_value')").output == "False\n"


def test_a_module_that_code_has_just_rewritten_is_read_anew(
    fresh_interpreter: RunningInterpreter, tmp_path: Path
) -> None:
    # of the same size, and in the same second
    code = "open('changing.py', 'w').write('value = 1')\nimport changing, importlib\nchanging.value"
    assert fresh_interpreter.run(code).output == "1\n"
    code = "open('changing.py', 'w').write('value = 2')\nimportlib.reload(changing).value"
    assert fresh_interpreter.run(code).output == "2\n"
    code = "import sys\nopen('changing.py', 'w').write('value = 3')\ndel sys.modules['changing']\nimport changing\nchanging.value"
    assert fresh_interpreter.run(code).output == "3\n"
    assert not (tmp_path / "__pycache__").exists()


def test_code_may_print_values_in_its_own_way(fresh_interpreter: RunningInterpreter) -> None:
    hook = "import sys\nbefore = sys.displayhook\ndef hook(value):\n    print('mine:')\n    before(value)\n"
    assert fresh_interpreter.run(f"{hook}sys.displayhook = hook\n'one'").output == "mine:\n'one'\n"
    assert fresh_interpreter.run("2").output == "mine:\n2\n"
    assert fresh_interpreter.run("print(_, __, Out[2])").output == "2 one 2\n"
    shown = "class Shown:\n    def __repr__(self): return 'text'\n    def _repr_html_(self): return '<p>'\nShown()"
    ran = fresh_interpreter.run(shown)
    assert (ran.output, ran.artifacts) == ("mine:\ntext\n", [("text/html", b"<p>")])
    assert fresh_interpreter.run("sys.displayhook = sys.__displayhook__\n5").output == "5\n"
