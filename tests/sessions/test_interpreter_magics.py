"""Magics in blocks: what they do, what they print, and where their errors stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.interpreter import RunningInterpreter
from support.variations import mostly_long


@pytest.mark.parametrize(
    ("code", "output"),
    mostly_long(
        [
            ("!echo a; echo b >&2; echo c", "a\nb\nc\n"),
            ("print('before')\n!echo in\nprint('after')", "before\nin\nafter\n"),
            ("x = !echo a; echo b >&2\nx, x.s, x.n, x.l", "(['a', 'b'], 'a b', 'a\\nb', ['a', 'b'])\n"),
            ("!!echo a", "['a']\n"),
            ("!exit 3\n_exit_code", "3\n"),
            ("y = !exit 4\n_exit_code", "4\n"),
            ("for i in range(2):\n    !echo {i}\n", "0\n1\n"),
            ("d = {'k': [1, 2]}\n!echo {d['k'][0:1]} {d!s} $d.items", None),
            ("d = {'k': [1, 2]}\n!echo '{d['k'][0:1]}' $HOMELESS", "{d[k][0:1]}\n"),
            ("n = 'file'\n!echo $n {n.upper()} '$n' $$n | sed 's/ *$//'", "file FILE $n\n"),
            ("def f(here):\n    !echo {here} $here\nf(7)", "7 7\n"),
            ("%%bash\nfor i in 1 2; do echo $i {i}; done", "1 {i}\n2 {i}\n"),
            ("%%sh -e\nfalse || echo went on\nx=1; echo ${x}\n", "went on\n1\n"),
            ("%env GIVEN=to all\n!echo $GIVEN", "env: GIVEN=to all\nto all\n"),
            ("%env GIVEN 2\n%env GIVEN", "env: GIVEN=2\n'2'\n"),
            ("%matplotlib inline", ""),
            ("%time 6 * 7;", None),
            ("v = 5 \\\n  % 3\nv", "2\n"),
            ("'''\n!ls\n'''", "'\\n!ls\\n'\n"),
            ("   i = 1\n   if i:\n       !echo $i\n   i", "1\n1\n"),
            ("\ufeffprint('bom')", "bom\n"),
            ("\ufeff", ""),
            ("get_ipython().system('echo q')\nget_ipython().getoutput('echo r')", "q\n['r']\n"),
            ("get_ipython().run_cell_magic('bash', '', 'echo s')", "s\n"),
        ],
        usual=6,
    ),
)
def test_a_block_with_magics_runs_as_in_a_notebook(
    interpreter: RunningInterpreter, code: str, output: str | None
) -> None:
    ran = interpreter.run(code)
    assert ran.exit_code == 0, ran.output
    assert output is None or ran.output == output


@pytest.mark.parametrize(
    ("code", "line", "shown"),
    [
        ("!true\n1 / 0", 2, "1 / 0"),
        ("x = !echo a \\\n b\n\n1 / 0", 4, "1 / 0"),
        ("%%time\n\n1 / 0", 3, "1 / 0"),
        ("  x = '''\n  '''\n  1 / 0", 3, "1 / 0"),
        ("if True:\n    %time 1 / 0", 2, "%time 1 / 0"),
        ("# first\n%no_such_magic", 2, "%no_such_magic"),
        ("\n%%bash\nfalse", 2, "%%bash"),
        ("def f():\n    y = %env NOT_THERE\nf()", 2, "y = %env NOT_THERE"),
    ],
)
def test_a_traceback_shows_the_line_that_was_written(
    interpreter: RunningInterpreter, code: str, line: int, shown: str
) -> None:
    ran = interpreter.run(code)
    assert ran.exit_code == 1
    number = interpreter.blocks
    assert re.search(
        rf'  File "<block {number}>", line {line}, in (?:\w+|<module>)\n    {re.escape(shown)}\n', ran.output
    )
    assert f"    {shown}\n" in ran.output
    assert "get_ipython" not in ran.output


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("!ls\nx = (", "line 2\n    x = (\n        ^\nSyntaxError: '(' was never closed\n"),
        ("x y = !ls", "line 1\n    x y = !ls\nSyntaxError: invalid syntax\n"),
        ("x = (\n!ls", "line 1\n    x = (\n        ^\nSyntaxError: '(' was never closed\n"),
    ],
)
def test_a_syntax_error_is_that_of_what_was_written(
    interpreter: RunningInterpreter, code: str, error: str
) -> None:
    ran = interpreter.run(code)
    assert ran.exit_code == 1
    assert ran.output.endswith(error)
    assert "another exception" not in ran.output


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("%nope 1", "UsageError: there is no magic %nope here; there are %autoreload, %cat, %cd, "),
        ("%%nope\n1", "UsageError: there is no magic %%nope here; there are %%bash, "),
        ("x = 1\n%%bash\nls", "UsageError: %%bash has to begin the block, as its first line\n"),
        ("%time %time 1", "UsageError: what is timed cannot time something itself\n"),
        ("%%time x\ny", "UsageError: %%time has no code beside it: write it into the lines below\n"),
        ("%%writefile\nx", "UsageError: write %%writefile [-a] FILE\n"),
        ("%run", "UsageError: write %run [-i] FILE ARGUMENTS\n"),
        (
            "%%bash\nexit 3",
            "subprocess.CalledProcessError: Command 'bash' returned non-zero exit status 3.\n",
        ),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(
    interpreter: RunningInterpreter, code: str, sentence: str
) -> None:
    ran = interpreter.run(code)
    assert ran.exit_code == 1
    assert sentence in ran.output


@pytest.mark.parametrize(
    "code", ["%load_ext cython", "%matplotlib widget", "%config Application.verbose_crash = True"]
)
def test_what_has_no_effect_says_so_and_the_block_goes_on(interpreter: RunningInterpreter, code: str) -> None:
    ran = interpreter.run(f"{code}\n'on'")
    assert f"{code}: has no effect, as t" in ran.output
    assert ran.output.endswith("'on'\n")


def test_time_prints_how_long_it_took_and_gives_the_value(interpreter: RunningInterpreter) -> None:
    times = r"CPU times: user .+, sys: .+, total: .+\nWall time: [\d.]+ (ns|µs|ms|s)\n"
    assert re.fullmatch(times + "3\n", interpreter.run("%time 1 + 2").output)
    ran = interpreter.run("%time values = [1, 2]\nvalues")
    assert re.fullmatch(times + re.escape("[1, 2]\n"), ran.output)
    ran = interpreter.run("%%time\nimport asyncio\nlater = await asyncio.sleep(0, 'later')\n!echo it\nlater")
    assert re.fullmatch("it\n'later'\n" + times, ran.output)
    assert {"later", "asyncio"} <= ran.names.keys()
    assert re.fullmatch(r"it\n" + times, interpreter.run("%time !echo it").output)


def test_timeit_runs_code_many_times(interpreter: RunningInterpreter) -> None:
    ran = interpreter.run("n = []\ndef f(x):\n    %timeit -n 3 -r2 n.append(x)\nf(5)\nn")
    line, values, _ = ran.output.split("\n")
    assert re.fullmatch(r".+ ± .+ per loop \(mean ± std\. dev\. of 2 runs, 3 loops each\)", line)
    assert values == str([5] * 6)
    ran = interpreter.run("%%timeit -n 1 -r 1 z = 8\nn.append(z)\n!echo $n[-1]\n")
    assert ran.exit_code == 0, ran.output
    assert interpreter.run("n[-1]").output == "8\n"


def test_the_directory_changes_for_later_blocks(interpreter: RunningInterpreter, tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    home = interpreter.run("%pwd").output
    assert interpreter.run(f"%cd {tmp_path}/a b\n!pwd").output == f"{tmp_path}/a b\n" * 2
    assert interpreter.run("where = %pwd\nwhere").output == f"'{tmp_path}/a b'\n"
    assert interpreter.run("%cd -\n%pwd").output.endswith(home)


def test_a_file_is_written_listed_and_run(fresh_interpreter: RunningInterpreter) -> None:
    run = fresh_interpreter.run
    assert (
        run("%%writefile part.py\nimport sys\nfound = sys.argv, __name__, 'own' in globals()").output
        == "Writing part.py\n"
    )
    assert run("%%writefile -a part.py\n1 / found[2]").output == "Appending to part.py\n"
    assert run("%ls").output == "part.py\n"
    ran = run("own = 1\n%run part.py one 'two three'")
    assert ran.output.endswith("ZeroDivisionError: division by zero\n")
    assert "line 1, in <module>\n    %run part.py" in ran.output.replace("line 2", "line 1")
    assert run("found").output == "(['part.py', 'one', 'two three'], '__main__', False)\n"
    assert run("%run -i part\nfound").output == "(['part.py'], '__main__', True)\n"
    assert run("%who list").output == "There are no variables.\n"
    assert run("%who").output == "found   own   sys\n"
    assert "own             int             1\n" in run("%whos").output


def test_help_tells_what_an_object_is(interpreter: RunningInterpreter) -> None:
    interpreter.run("def known(a, b=2):\n    'What it does.'\n    !true")
    ran = interpreter.run("known?")
    assert "Signature: known(a, b=2)\nType: function\n" in ran.output
    assert "Docstring: What it does.\n" in ran.output
    assert "    !true\n" in interpreter.run("known??").output
    assert interpreter.run("?unknown").output == "Object `unknown` not found.\n"
    assert interpreter.run("import math\nmath.is*?").output.startswith("math.isclose\nmath.isfinite\n")
    assert interpreter.run("know*?").output == "known\n"
    assert interpreter.run("%cd?").output.startswith("%cd: Change the directory")


def test_errors_are_shown_without_tracebacks_until_they_are_wanted(interpreter: RunningInterpreter) -> None:
    assert interpreter.run("%xmode minimal").output == "Exception reporting mode: Minimal\n"
    assert interpreter.run("1 / 0").output == "ZeroDivisionError: division by zero\n"
    interpreter.run("%xmode Plain")
    assert "line 1, in <module>" in interpreter.run("1 / 0").output


@pytest.mark.parametrize(
    ("magic", "kind"),
    [
        ("html", "text/html"),
        ("markdown", "text/markdown"),
        ("latex", "text/latex"),
        ("svg", "image/svg+xml"),
    ],
)
def test_the_rest_of_a_block_is_shown(interpreter: RunningInterpreter, magic: str, kind: str) -> None:
    ran = interpreter.run(f"%%{magic}\n<svg>5</svg>\n")
    assert [shown for shown, _ in ran.artifacts] == [kind]
    assert ran.exit_code == 0


def test_what_a_block_writes_is_captured(interpreter: RunningInterpreter) -> None:
    code = "%%capture kept\nimport sys\nprint('a')\n!echo b\nprint('c', file=sys.stderr)\nset_there = 1"
    ran = interpreter.run(code)
    assert (ran.output, ran.exit_code) == ("", 0)
    assert "set_there" in ran.names
    assert (
        interpreter.run("kept.stdout, kept.stderr, str(kept)").output == "('a\\nb\\n', 'c\\n', 'a\\nb\\n')\n"
    )
    assert interpreter.run("kept.show()").output == "a\nb\nc\n"
    assert interpreter.run("%%capture --no-stderr\nprint('a')\nprint('c', file=sys.stderr)").output == "c\n"
    ran = interpreter.run("%%capture kept\nprint('lost')\n1 / 0")
    assert "line 3, in <module>" in ran.output
    assert "lost\n" not in ran.output
    assert interpreter.run("print('on')\n!echo and on").output == "on\nand on\n"


def test_changed_modules_are_loaded_anew(fresh_interpreter: RunningInterpreter, tmp_path: Path) -> None:
    module = tmp_path / "changing.py"
    module.write_text("def f(): return 1")
    run = fresh_interpreter.run
    assert run("%load_ext autoreload\n%autoreload 2").output == ""
    assert run("import changing\nfrom changing import f\nf()").output == "1\n"
    module.write_text("def f(): return 20")
    assert run("f(), changing.f()").output == "(20, 20)\n"
    module.write_text("1 / 0  # broken")
    assert "ZeroDivisionError" in run("f()").output
    assert run("f()").output == "20\n"
    run("%autoreload 0")
    module.write_text("def f(): return 300")
    assert run("f()").output == "20\n"


def test_variables_are_forgotten_and_another_python_runs(interpreter: RunningInterpreter) -> None:
    assert interpreter.run("mine = 1\n%reset -f\n'mine' in dir()").output == "False\n"
    assert interpreter.run("%who_ls").output == "[]\n"
    assert interpreter.run("mine = 1\n%reset").exit_code == 1
    assert interpreter.run("%%python3\nprint('mine' in dir())\n").output == "False\n"


def test_a_command_is_interrupted_with_its_block(interpreter: RunningInterpreter) -> None:
    interpreter.start("!trap '' INT; echo begun; while :; do sleep 1; done")
    ran = interpreter.interrupt_when("begun\n")
    assert ran.interrupted
    assert interpreter.run("'alive'").output == "'alive'\n"
    interpreter.start("%%bash\necho begun\nsleep 100\necho not reached")
    ran = interpreter.interrupt_when("begun\n")
    assert ran.interrupted
    assert "not reached" not in ran.output


def test_magics_run_after_the_name_get_ipython_is_gone(interpreter: RunningInterpreter) -> None:
    interpreter.run("del get_ipython")
    assert interpreter.run("!echo still").output == "still\n"
    assert (
        interpreter.run("get_ipython().user_ns is globals(), get_ipython().config").output == "(True, {})\n"
    )


def test_libraries_see_no_notebook(fresh_interpreter: RunningInterpreter, tmp_path: Path) -> None:
    library = tmp_path / "site-packages"
    library.mkdir()
    asking = "import sys\ntry:\n    get_ipython()\nexcept NameError:\n    bare = None\n"
    asking += "def ask():\n    return bare, sys.modules['IPython'].get_ipython()\n"
    (library / "asking.py").write_text(asking)
    code = f"import sys\nsys.path.append({str(library)!r})\nimport asking\n'IPython' in sys.modules"
    assert fresh_interpreter.run(code).output == "False\n"
    # code that was a notebook asks like that
    code = "from IPython import get_ipython as found\nfound() is get_ipython(), asking.ask()"
    assert fresh_interpreter.run(code).output == "(True, (None, None))\n"
    assert (
        fresh_interpreter.run("from IPython import get_ipython\nget_ipython().system('echo a')").exit_code
        == 0
    )
    # where a library is handed the object, nothing happens
    code = "shell = get_ipython()\nshell.events.register('post_execute', print)\nshell.enable_gui('qt')"
    assert fresh_interpreter.run(code).output == ""
