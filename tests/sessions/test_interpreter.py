from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support.interpreter import Gone, RunningInterpreter


# separate globals and locals made these raise NameError
@pytest.mark.parametrize(
    ("code", "output"),
    [
        ("def f(n):\n    return n if n < 2 else f(n - 1) + f(n - 2)\nf(10)", "55\n"),
        ("import math\ndef f():\n    return math.floor(2.5)\nf()", "2\n"),
        ("base = 10\n[base + n for n in range(3) if base > n]", "[10, 11, 12]\n"),
        ("def twice(f):\n    return lambda n: 2 * f(n)\n@twice\ndef f(n):\n    return 1 + base(n)\nbase = abs\nf(-1)",
         "4\n"),
        ("class A:\n    def other(self):\n        return B()\nclass B(A):\n    pass\ntype(A().other()).__name__", "'B'\n"),
        ("def count():\n    yield from range(limit)\nlimit = 3\nlist(count())", "[0, 1, 2]\n"),
        ("from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n    y: 'P | None' = None\nP(1)",
         "P(x=1, y=None)\n"),
        ("import pickle\nclass Q:\n    pass\ntype(pickle.loads(pickle.dumps(Q()))) is Q", "True\n"),
        ("if __name__ == '__main__':\n    print('main')", "main\n"),
        ("import sys\nsys.modules['__main__'].__dict__ is globals(), sys.argv", "(True, [''])\n"),
    ],
)  # fmt: skip
def test_code_finds_its_names(interpreter: RunningInterpreter, code: str, output: str) -> None:
    ran = interpreter.run(code)
    assert (ran.output, ran.exit_code) == (output, 0)


def test_a_class_of_one_block_is_pickled_in_another(interpreter: RunningInterpreter) -> None:
    interpreter.run("class Point:\n    def __init__(self, x):\n        self.x = x")
    assert interpreter.run("import pickle\npickle.loads(pickle.dumps(Point(7))).x").output == "7\n"


def test_modules_of_the_workspace_are_imported(fresh_interpreter: RunningInterpreter, tmp_path: Path) -> None:
    (tmp_path / "helpers.py").write_text("def double(n):\n    return 2 * n\n")
    assert fresh_interpreter.run("from helpers import double\ndouble(4)").output == "8\n"


def test_a_module_of_the_workspace_does_not_stand_in_for_one_of_ours(tmp_path: Path) -> None:
    # such a file used to shadow the real module for all later blocks
    for name in ("json", "os", "traceback", "queue", "asyncio", "ctypes", "codeact_team"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('of the workspace')")
    with RunningInterpreter(tmp_path) as interpreter:
        assert "ZeroDivisionError" in interpreter.run("1 / 0").output
        assert interpreter.run("async def f(): return 5\nawait f()").output == "5\n"
        assert "of the workspace" in interpreter.run("import codeact_team").output


@pytest.mark.parametrize(
    ("code", "output"),
    [
        ("1 + 1", "2\n"),
        ("x = 3\nx", "3\n"),
        ("[\n    1,\n    2,\n]", "[1, 2]\n"),
        ("dict(\n    a=1,\n    b=(\n        2\n    ),\n)", "{'a': 1, 'b': 2}\n"),
        ("'text'", "'text'\n"),
        ("None", ""),
        ("x = 3", ""),
        ("1\n2", "2\n"),
        ("if True:\n    5", ""),
        ("print('a'); 'b'", "a\n'b'\n"),
        ("'a documentation string'\nx = 1", ""),
        ("", ""),
        ("# nothing", ""),
        ("\n\n", ""),
        ("'\\ud800'", "'\\ud800'\n"),
    ],
)
# the value of a multi-line last expression used to be lost
def test_the_last_expression_is_shown(interpreter: RunningInterpreter, code: str, output: str) -> None:
    ran = interpreter.run(code)
    assert (ran.output, ran.exit_code) == (output, 0)


def test_the_last_value_is_bound_to_an_underscore(interpreter: RunningInterpreter) -> None:
    interpreter.run("6 * 7")
    interpreter.run("None")
    assert interpreter.run("print(_)").output == "42\n"


def test_a_display_hook_of_the_code_is_used(fresh_interpreter: RunningInterpreter) -> None:
    fresh_interpreter.run("import sys\nsys.displayhook = lambda value: print('shown', value)")
    assert fresh_interpreter.run("5").output == "shown 5\n"


def test_code_runs_once(interpreter: RunningInterpreter) -> None:
    # failing code used to run a second time
    interpreter.run("runs = 0")
    interpreter.run("runs += 1\nprint('before')\n1 / 0")
    assert interpreter.run("runs").output == "1\n"


def test_an_import_from_the_future_holds_for_its_own_block(interpreter: RunningInterpreter) -> None:
    code = "def f(x: int): pass\nf.__annotations__['x']"
    assert interpreter.run(f"from __future__ import annotations\n{code}").output == "'int'\n"
    assert interpreter.run(code).output == "<class 'int'>\n"


def test_the_runner_shares_no_future_with_the_code(interpreter: RunningInterpreter) -> None:
    assert interpreter.run("def f(x: int): pass\nf.__annotations__['x']").output == "<class 'int'>\n"


@pytest.mark.parametrize(
    ("code", "exit_code", "output"),
    [
        ("import sys; sys.exit()", 0, ""),
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit(256 + 7)", 7, ""),
        ("import sys; sys.exit(-1)", 255, ""),
        ("import sys; sys.exit(True)", 1, ""),
        ("import sys; sys.exit('that was it')", 1, "that was it\n"),
        ("raise SystemExit((1, 2))", 1, "(1, 2)\n"),
        ("exit(4)", 4, ""),
        ("import asyncio\nawait asyncio.sleep(0)\nraise SystemExit(5)", 5, ""),
    ],
)
def test_an_exit_is_an_exit_code(
    interpreter: RunningInterpreter, code: str, exit_code: int, output: str
) -> None:
    interpreter.run("kept = 'kept'")
    ran = interpreter.run(code)
    assert (ran.exit_code, ran.output, ran.interrupted) == (exit_code, output, False)
    assert interpreter.run("kept").output == "'kept'\n"


def test_an_exit_whose_code_cannot_be_told_is_a_failure(interpreter: RunningInterpreter) -> None:
    ran = interpreter.run(
        "class Bad:\n    def __str__(self): raise ValueError('no text')\nraise SystemExit(Bad())"
    )
    assert ran.exit_code == 1
    assert "no text" in ran.output


@pytest.mark.parametrize(
    "error",
    ["KeyboardInterrupt", "GeneratorExit", "BaseException('x')", "StopIteration", "ZeroDivisionError"],
)
@pytest.mark.parametrize("before", ["", "import asyncio\nawait asyncio.sleep(0)\n"])
def test_any_exception_of_the_code_is_a_failure(
    interpreter: RunningInterpreter, error: str, before: str
) -> None:
    ran = interpreter.run(f"{before}raise {error}")
    assert (ran.exit_code, ran.interrupted) == (1, False)
    assert "Traceback" in ran.output
    assert interpreter.run("'alive'").output == "'alive'\n"


@pytest.mark.parametrize("code", ["x = 1\0", "(" * 300, "-" * 100_000 + "1", "x = [" * 5000])
def test_text_that_is_no_code_is_a_failure(interpreter: RunningInterpreter, code: str) -> None:
    ran = interpreter.run(code)
    assert ran.exit_code == 1
    assert "Error" in ran.output
    assert interpreter.run("'alive'").output == "'alive'\n"


@pytest.mark.parametrize(
    ("value", "answer"),
    [
        ("'text'", "text"),
        ("42", "42"),
        # one notation, whether it is alone or inside something
        ("None", "null"),
        ("True", "true"),
        ("[True, None]", "[true, null]"),
        ("{'a': [1, 2.5, None]}", '{"a": [1, 2.5, null]}'),
        ("{'ok': True, 'on': __import__('datetime').date(2024, 2, 29)}", '{"ok": true, "on": "2024-02-29"}'),
        ("'äöü €'", "äöü €"),
        ("{'ä'}", '["ä"]'),
        ("type('Text', (str,), {'__str__': lambda self: 'lie'})('true')", "true"),
        ("object", "<class 'object'>"),
        ("'\\ud800'", "?"),
    ],
)
def test_the_final_answer_is_reported_as_text(
    interpreter: RunningInterpreter, value: str, answer: str
) -> None:
    ran = interpreter.run(f"print(final_answer({value}))")
    assert (ran.answer, ran.output) == (answer, "None\n")


def test_a_recursive_final_answer_is_its_repr(interpreter: RunningInterpreter) -> None:
    assert interpreter.run("x = []\nx.append(x)\nfinal_answer(x)").answer == "[[...]]"


@pytest.mark.parametrize(
    ("value", "is_json", "problem"),
    [
        ("'text'", False, ""),
        ("{'a': [1, 2.5, None, True]}", True, ""),
        ("(1, 2)", True, ""),
        ("float('nan')", False, "not JSON compliant"),
        ("{1: {'of': float('inf')}}", False, "not JSON compliant"),
        ("[{1, 2}]", False, "set: JSON has dicts, lists, "),
        ("type('int64', (), {'__module__': 'numpy'})()", False, "numpy.int64: JSON has dicts, "),
        ("{(1, 2): 3}", False, "keys must be str"),
        ("(lambda x: x.append(x) or x)([])", False, "Circular"),
        ("'x' * 100_001", False, "it has 100001 characters; 100000 are possible"),
        ("chr(0) * 90_000", False, "it has 90000 characters; 40000 are possible"),
        ("type('A' * 1_000_000, (), {})()", False, "characters left out"),
    ],
)
def test_it_is_told_whether_the_final_answer_is_json_and_why_not(
    interpreter: RunningInterpreter, value: str, is_json: bool, problem: str
) -> None:
    ran = interpreter.run(f"final_answer({value})")
    assert (ran.exit_code, ran.report["answer_is_json"]) == (0, is_json)
    assert problem in ran.report["answer_problem"]
    assert bool(problem) is bool(ran.report["answer_problem"])


def test_the_first_final_answer_of_a_block_counts(interpreter: RunningInterpreter) -> None:
    assert interpreter.run("final_answer(1)\nfinal_answer(2)").answer == "1"
    assert interpreter.run("final_answer(3)").answer == "3"
    assert interpreter.run("pass").answer is None


def test_the_final_answer_of_a_block_that_fails_counts(interpreter: RunningInterpreter) -> None:
    ran = interpreter.run("final_answer([1])\n1 / 0")
    assert (ran.answer, ran.exit_code) == ("[1]", 1)


def test_a_final_answer_that_has_no_text_is_a_failure(interpreter: RunningInterpreter) -> None:
    ran = interpreter.run("class A:\n    def __repr__(self): raise ValueError('no text')\nfinal_answer(A())")
    assert (ran.answer, ran.exit_code) == (None, 1)
    assert "answers.py" not in ran.output
    assert "final_answer(A())" in ran.output


def test_final_answer_is_there_again_in_the_next_block(interpreter: RunningInterpreter) -> None:
    interpreter.run("import builtins\ndel builtins.final_answer")
    assert interpreter.run("final_answer(1)").answer == "1"


@pytest.mark.parametrize("character", ["x", "\0", "😀", '"'])
def test_a_long_final_answer_is_cut_in_the_middle(interpreter: RunningInterpreter, character: str) -> None:
    answer = interpreter.run(f"final_answer('begin' + {character!r} * 1_000_000 + 'end')").answer
    assert answer is not None
    assert answer.startswith("begin" + character)
    assert answer.endswith(character + "end")
    assert " characters left out]" in answer
    assert len(answer) < 100_100


def test_a_forked_child_does_not_answer(interpreter: RunningInterpreter) -> None:
    ran = interpreter.run(
        "import os\npid = os.fork()\nif pid:\n    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])\n"
        "else:\n    print('child')\n    raise ValueError('in the child')"
    )
    assert ran.exit_code == 0
    assert ran.output.startswith("child\nTraceback")
    assert interpreter.run("status").output == "1\n"


def test_a_forked_child_writes_what_it_holds_back(interpreter: RunningInterpreter) -> None:
    ran = interpreter.run(
        "import os, sys\npid = os.fork()\nif pid:\n    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
        "else:\n    sys.stdout = open(1, 'w', closefd=False)\n    print('child')\n    sys.exit(3)"
    )
    assert ran.output == "child\n3\n"


def test_code_can_use_a_pool_of_processes(interpreter: RunningInterpreter) -> None:
    ran = interpreter.run(
        "import multiprocessing\ndef square(n):\n    return n * n\n"
        "with multiprocessing.get_context('fork').Pool(2) as pool:\n    print(pool.map(square, range(4)))"
    )
    assert ran.output == "[0, 1, 4, 9]\n"


def test_the_end_of_the_commands_ends_the_interpreter(interpreter: RunningInterpreter) -> None:
    interpreter.run("import threading, time\nthreading.Thread(target=time.sleep, args=(1000,)).start()")
    assert interpreter.hang_up() == 0


@pytest.mark.parametrize(
    "code",
    [
        "import os; os.closerange(3, 4096)",
        pytest.param("import os; os.closerange(0, 4096)", marks=pytest.mark.long),
        "import os; os.closerange(3, 4096); fds = [open('/dev/zero') for _ in range(20)]",
        pytest.param("import os; os.closerange(3, 4096); 1 / 0", marks=pytest.mark.long),
        "import os\nfor fd in range(3, 1000):\n    os.dup2(1, fd)",
    ],
)
def test_closed_pipes_end_the_interpreter_with_a_clear_status(
    interpreter: RunningInterpreter, code: str
) -> None:
    with pytest.raises(Gone) as gone:
        interpreter.run(code)
    assert gone.value.status == os.EX_SOFTWARE
    if "(0," not in code:
        assert "the interpreter cannot go on: OSError: " in gone.value.output


def test_nonsense_on_the_pipe_ends_the_interpreter_with_a_clear_status(tmp_path: Path) -> None:
    with RunningInterpreter(tmp_path) as interpreter:
        interpreter.send_raw(b"nonsense")
        with pytest.raises(Gone) as gone:
            interpreter.finish()
    assert gone.value.status == os.EX_SOFTWARE


def test_other_programs_do_not_inherit_the_pipes(interpreter: RunningInterpreter) -> None:
    ran = interpreter.run(
        "import subprocess, sys\n"
        "subprocess.run([sys.executable, '-c', 'import os; print(os.listdir(\"/proc/self/fd\"))'], close_fds=False)"
    )
    # the fourth is the one that lists them
    assert len(json.loads(ran.output.replace("'", '"').split("\n")[0])) == 4
