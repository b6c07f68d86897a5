"""Python code that is read from elsewhere runs as the file would that it is taken for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from codeact_team.executors.block_process import (
    _RUN_BLOCK,  # pyright: ignore[reportPrivateUsage]
    _RUN_PYTHON,  # pyright: ignore[reportPrivateUsage]
)
from codeact_team.executors.command_line import is_python

NAMES = "print(sorted(globals()), __doc__, __file__, __name__, __spec__, __loader__.path)"
SPAWNING = """
import multiprocessing
def f(): print('child')
if __name__ == '__main__':
    p = multiprocessing.get_context('spawn').Process(target=f)
    p.start()
    p.join()
"""


@pytest.mark.parametrize("name", ["code.py", pytest.param("sub/code.py", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "code",
    [
        NAMES,
        f"'of the code'\nfrom __future__ import annotations\n{NAMES}",
        "import sys; print(sys.argv, sys.path); import beside",
        "def f():\n    1 / 0\ntry:\n    f()\nexcept ZeroDivisionError as e:\n    raise ValueError('no') from e",
        "x = (",
        "import sys; sys.exit('said')",
        pytest.param("raise SystemExit(3)", marks=pytest.mark.long),
        pytest.param("raise KeyboardInterrupt", marks=pytest.mark.long),
        "import sys; sys.excepthook = lambda *given: print(given[0].__name__, given[2].tb_lineno)\n1 / 0",
        pytest.param(
            "import traceback\ntry: 1 / 0\nexcept Exception: traceback.print_exc()", marks=pytest.mark.long
        ),
        "\ufeff# -*- coding: utf-8 -*-\nprint('\u00e4')",
        "import inspect\ndef f(): pass\nprint(inspect.getsource(f))",
        pytest.param(
            "import threading\nthreading.Thread(target=lambda: 1 / 0, name='one').start()",
            marks=pytest.mark.long,
        ),
        pytest.param(SPAWNING, marks=pytest.mark.long),
    ],
)
def test_it_runs_as_the_file(tmp_path: Path, code: str, name: str) -> None:
    (tmp_path / "sub").mkdir()
    for place in (tmp_path, tmp_path / "sub"):
        (place / "beside.py").write_text("print('beside')")
    (tmp_path / name).write_text(code, encoding="utf-8")
    source = tmp_path / "elsewhere"
    source.write_text(code, encoding="utf-8")
    as_file = ["-c", _RUN_PYTHON, str(source), name]
    expected, ran = (
        subprocess.run([sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True)
        for arguments in ([name], as_file)
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (expected.returncode, expected.stdout, expected.stderr)


def test_it_finds_what_pip_installs_for_its_user_and_runs_nothing_there_before_the_code(
    tmp_path: Path,
) -> None:
    # an environment of its own, such as that of the tests, has no such place
    python = os.path.realpath(sys.executable)
    code, place = (
        "import os, site, beside; print(os.getenv('PYTHONUSERBASE'), site.getuserbase())",
        tmp_path / "base",
    )
    about = "import site, sys; print(site.getusersitepackages()); print([each for each in sys.path if each])"
    environment = {**os.environ, "PYTHONUSERBASE": str(place)}
    asked = subprocess.run([python, "-c", about], env=environment, capture_output=True, text=True)
    packages = Path(asked.stdout.split("\n")[0])
    packages.mkdir(parents=True)
    (packages / "beside.py").write_text("print('beside')")
    for name in ("usercustomize.py", "first.pth"):
        (packages / name).write_text("import builtins; builtins.print('planted')\n")
    expected, ran = (
        subprocess.run(command, input=code, cwd=tmp_path, env=environment, capture_output=True, text=True)
        for command in (
            [python, "-"],
            ["sh", "-c", _RUN_BLOCK, "run_block", "code.py", f"{tmp_path}/private", _RUN_PYTHON, python],
        )
    )
    assert expected.stdout == f"planted\nplanted\nbeside\n{place} {place}\n"
    assert (ran.stdout, ran.stderr) == (f"beside\n{place} {place}\n", "")


@pytest.mark.parametrize(
    ("command", "is_one"),
    [
        ("python3", True),
        ("/usr/bin/python3.12 -u -X dev", True),
        ("python3 -W error -B", True),
        ("python3 -m pytest", False),
        ("python3 -c pass", False),
        ("python3 run.py", False),
        ("pypy3", False),
        ("sh", False),
        ("sh -c python3", False),
    ],
)
def test_which_commands_run_python_code(command: str, is_one: bool) -> None:
    assert is_python(command.split()) is is_one
