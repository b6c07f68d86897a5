from __future__ import annotations

import sys
from pathlib import Path
from textwrap import dedent

import pytest
from support.interpreter import RunningInterpreter


def places(output: str) -> list[str]:
    """Where the frames of a traceback are, such as ``<block 1>:2 f``."""
    found: list[str] = []
    for line in output.splitlines():
        if line.lstrip(" |").startswith('File "'):
            _, file, rest = line.split('"')
            number, _, function = rest.removeprefix(", line ").partition(", in ")
            found.append(f"{Path(file).name}:{number} {function}".rstrip())
    return found


def test_the_failing_lines_are_shown(interpreter: RunningInterpreter) -> None:
    ran = interpreter.run("x = 0\n1 / x")
    assert ran.output == dedent("""\
        Traceback (most recent call last):
          File "<block 1>", line 2, in <module>
            1 / x
            ~~^~~
        ZeroDivisionError: division by zero
        """)
    ran = interpreter.run("def f():\n    1 / x\nf()")
    assert places(ran.output) == ["<block 2>:3 <module>", "<block 2>:2 f"]


def test_the_lines_are_those_of_python_for_any_line_end(interpreter: RunningInterpreter) -> None:
    ran = interpreter.run("x = '\x0c \x1c \u2028'\r\ny = 1\rz = 2\n1 / 0")
    assert "line 4, in <module>\n    1 / 0\n" in ran.output


def test_a_function_of_an_earlier_block_is_shown_with_its_lines(interpreter: RunningInterpreter) -> None:
    interpreter.run("def f():\n    raise ValueError('here')")
    ran = interpreter.run("f()")
    assert "    raise ValueError('here')\n" in ran.output
    assert places(ran.output) == ["<block 2>:1 <module>", "<block 1>:2 f"]


def test_frames_of_libraries_are_left_out(interpreter: RunningInterpreter) -> None:
    ran = interpreter.run("import json\njson.loads('{')")
    assert places(ran.output) == ["<block 1>:2 <module>"]
    assert "json.decoder.JSONDecodeError: " in ran.output
    ran = interpreter.run("import missing_module")
    assert places(ran.output) == ["<block 2>:1 <module>"]


def test_frames_of_installed_packages_are_left_out(
    fresh_interpreter: RunningInterpreter, tmp_path: Path
) -> None:
    package = tmp_path / "lib" / "site-packages"
    package.mkdir(parents=True)
    (package / "installed.py").write_text("def call(f):\n    return f()\n")
    ran = fresh_interpreter.run("import sys\nsys.path.append('lib/site-packages')\nimport installed\ninstalled.call(missing)"
                                .replace("missing", "lambda: 1 / 0"))  # fmt: skip
    assert places(ran.output) == ["<block 1>:4 <module>", "<block 1>:4 <lambda>"]


def test_frames_of_the_workspace_and_of_executed_text_are_shown(
    fresh_interpreter: RunningInterpreter, tmp_path: Path
) -> None:
    (tmp_path / "helpers.py").write_text("def fail():\n    exec('1 / 0')\n")
    ran = fresh_interpreter.run("import helpers\nhelpers.fail()")
    assert places(ran.output) == ["<block 1>:2 <module>", "helpers.py:2 fail", "<string>:1 <module>"]


@pytest.mark.parametrize("raising", ["raise KeyError(1) from error", "raise KeyError(1)"])
def test_frames_are_left_out_of_chained_exceptions(interpreter: RunningInterpreter, raising: str) -> None:
    ran = interpreter.run(
        f"import json\ntry:\n    json.loads('{{')\nexcept ValueError as error:\n    {raising}"
    )
    assert places(ran.output) == ["<block 1>:3 <module>", "<block 1>:5 <module>"]
    assert "JSONDecodeError" in ran.output
    assert "KeyError: 1" in ran.output


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exception groups came with 3.11")
def test_frames_are_left_out_of_exception_groups(interpreter: RunningInterpreter) -> None:
    ran = interpreter.run(
        "import asyncio, json\nasync def f():\n    json.loads('{')\n"
        "async with asyncio.TaskGroup() as group:\n    group.create_task(f())"
    )
    assert places(ran.output) == ["<block 1>:4 <module>", "<block 1>:3 f"]
    assert "JSONDecodeError" in ran.output


def test_the_exception_itself_is_left_as_it_was(interpreter: RunningInterpreter) -> None:
    interpreter.run(
        "import json\ntry:\n    json.loads('{')\nexcept ValueError as error:\n    kept = error\nraise kept"
    )
    ran = interpreter.run("import traceback\nlen(traceback.extract_tb(kept.__traceback__)) > 2")
    assert ran.output == "True\n"


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("x = = 1", '  File "<block 1>", line 1\n    x = = 1\n        ^\nSyntaxError: invalid syntax\n'),
        ("\nreturn 1", '  File "<block 1>", line 2\n    return 1\n'),
        ("x = 1\n  y = 2", "IndentationError: unexpected indent\n"),
        ("def f():\n    x = 1\n    global x", "    global x\n"),
        ("await 5 = 3", "SyntaxError: "),
    ],
)
def test_a_syntax_error_shows_its_line(interpreter: RunningInterpreter, code: str, shown: str) -> None:
    ran = interpreter.run(code)
    assert shown in ran.output
    assert "Traceback" not in ran.output


def test_a_syntax_error_of_other_text_is_not_mixed_up(interpreter: RunningInterpreter) -> None:
    ran = interpreter.run("compile('x = = 1', 'other.txt', 'exec')")
    assert places(ran.output) == ["<block 1>:1 <module>", "other.txt:1"]
    assert "    x = = 1\n" in ran.output


@pytest.mark.parametrize("code", ["def f(): f()\nf()", "def f(): g()\ndef g(): f()\nf()"])
def test_endless_recursion_is_told_briefly(interpreter: RunningInterpreter, code: str) -> None:
    ran = interpreter.run(code)
    assert ran.output.endswith("RecursionError: maximum recursion depth exceeded\n")
    assert " more " in ran.output
    assert len(ran.output.splitlines()) < 70
    assert interpreter.run("'alive'").output == "'alive'\n"


@pytest.mark.parametrize(
    "method", ["__str__(self): raise ValueError", "__str__(self): return 5", "__str__(self): self.__str__()"]
)
def test_an_exception_that_cannot_be_told_does_no_harm(interpreter: RunningInterpreter, method: str) -> None:
    ran = interpreter.run(f"class Bad(Exception):\n    def {method}\nraise Bad")
    assert ran.exit_code == 1
    assert "Bad" in ran.output
    assert interpreter.run("'alive'").output == "'alive'\n"


def test_a_hostile_exception_does_no_harm(interpreter: RunningInterpreter) -> None:
    ran = interpreter.run(
        "class Bad(Exception):\n    __traceback__ = __cause__ = property(lambda self: 1 / 0)\n"
        "    __notes__ = 5\n    def __getattribute__(self, name): raise SystemExit(9)\nraise Bad"
    )
    assert ran.exit_code == 1
    assert "Bad" in ran.output


def test_a_repr_that_raises_is_a_failure_of_the_block(interpreter: RunningInterpreter) -> None:
    ran = interpreter.run("class Bad:\n    def __repr__(self): raise ValueError('no')\nBad()")
    assert ran.exit_code == 1
    assert places(ran.output) == ["<block 1>:3 <module>", "<block 1>:2 __repr__"]


def test_warnings_show_their_line(interpreter: RunningInterpreter) -> None:
    ran = interpreter.run("import warnings\nwarnings.warn('careful')")
    assert ran.output == "<block 1>:2: UserWarning: careful\n  warnings.warn('careful')\n"


def test_inspect_finds_the_source(interpreter: RunningInterpreter) -> None:
    interpreter.run("import inspect\n\ndef f(x):\n    return x\n")
    assert interpreter.run("print(inspect.getsource(f))").output == "def f(x):\n    return x\n\n"


def test_inspect_finds_the_source_of_classes(interpreter: RunningInterpreter) -> None:
    interpreter.run(
        "class Longer: pass\nclass Long:\n    x = 1\nclass Old:\n    def f(self): return 1\nold = Old"
    )
    interpreter.run("if 1:\n    class Old:\n        def g(self): return 2\nclass Long2: pass")
    ran = interpreter.run(
        "import inspect\nprint(inspect.getsource(Long), inspect.getsource(old), inspect.getsource(Old))"
    )
    assert ran.output == (
        "class Long:\n    x = 1\n class Old:\n    def f(self): return 1\n"
        "     class Old:\n        def g(self): return 2\n\n"
    )
    assert "OSError" in interpreter.run("inspect.getsource(type('Made', (), {}))").output


def test_a_traceback_goes_to_standard_error_wherever_the_code_has_turned_it_to(
    interpreter: RunningInterpreter,
) -> None:
    ran = interpreter.run("import io, os, sys\nsys.stderr = io.StringIO()\nos.close(2)\n1 / 0")
    assert "ZeroDivisionError" in ran.output


def test_only_source_that_can_be_needed_is_kept(fresh_interpreter: RunningInterpreter) -> None:
    fresh_interpreter.run("import linecache")
    for code in (
        "x = 1",
        "def f(): pass",
        "[n for n in '']",
        "y = [lambda: n for n in '']",
        "1 / 0",
        "class A: pass",
    ):
        fresh_interpreter.run(code)
    ran = fresh_interpreter.run("sorted(name for name in linecache.cache if name.startswith('<block'))")
    assert ran.output == "['<block 3>', '<block 5>', '<block 7>', '<block 8>']\n"


@pytest.mark.long
def test_the_source_that_is_kept_is_bounded(fresh_interpreter: RunningInterpreter) -> None:
    filler = ("#" * 1_000 + "\n") * 2_000
    for _ in range(15):
        fresh_interpreter.run(f"def f():\n    return 1 / 0\n{filler}")
    ran = fresh_interpreter.run(
        "import linecache, sys\nkept = {n: e for n, e in linecache.cache.items() if n.startswith('<block')}\n"
        "size = sum(sys.getsizeof(line) for entry in kept.values() for line in entry[2])\n"
        "'<block 1>' in kept, '<block 15>' in kept, size < 17 * 2**20"
    )
    assert ran.output == "(False, True, True)\n"
    assert "    return 1 / 0\n" in fresh_interpreter.run("f()").output
