from __future__ import annotations

from pathlib import Path

import pytest
from support.interpreter import RunningInterpreter
from support.variations import mostly_long


@pytest.fixture
def interpreter(interpreter: RunningInterpreter) -> RunningInterpreter:
    interpreter.run("import os, sys")
    return interpreter


@pytest.mark.parametrize("locale", mostly_long(["C", "POSIX", "C.UTF-8", "de_DE.ISO-8859-1"]))
def test_output_is_unicode_whatever_the_locale(tmp_path: Path, locale: str) -> None:
    with RunningInterpreter(
        tmp_path, environment={"LC_ALL": locale, "PYTHONIOENCODING": "latin-1"}
    ) as interpreter:
        assert interpreter.run("print('€')").output == "€\n"


@pytest.mark.parametrize(
    "code",
    [
        "import io; sys.stdout = sys.stderr = io.StringIO()",
        "sys.stdout = sys.stderr = None",
        "del sys.stdout, sys.stderr",
        "sys.stdout.close(); sys.stderr.close()",
        "sys.stdout.detach(); sys.stderr.detach()",
        "os.close(1); os.close(2)",
        "os.closerange(0, 3)",
        "os.dup2(os.open(os.devnull, os.O_WRONLY), 1); os.dup2(1, 2)",
        "os.close(1); kept = open('/dev/zero')",
        "sys.stdout = open(os.devnull, 'w'); sys.stderr = sys.stdout",
        "os.set_blocking(1, False)",
        "class Broken:\n    def flush(self): raise ValueError('no flush')\nsys.stdout = Broken()",
    ],
)
def test_streams_are_put_back_for_the_next_block(interpreter: RunningInterpreter, code: str) -> None:
    interpreter.run(code)
    ran = interpreter.run(
        "print('out')\nprint('error', file=sys.stderr)\nos.write(1, b'raw\\n')\nos.write(2, b'raw 2\\n')\n"
        "os.system('echo child')\nsys.__stdout__ is sys.stdout, os.get_blocking(1)"
    )
    assert ran.output == "out\nerror\nraw\nraw 2\nchild\n(True, True)\n"


@pytest.mark.parametrize("most", [512, 32])
def test_code_that_has_opened_all_that_it_may_goes_on(
    fresh_interpreter: RunningInterpreter, most: int
) -> None:
    code = f"""
import os, resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({most}, {most}))
fds = []
try:
    while True: fds.append(os.open('/', os.O_RDONLY))
except OSError as error: print(error.strerror)
"""
    assert fresh_interpreter.run(code).output == "Too many open files\n"
    assert fresh_interpreter.run("for fd in fds: os.close(fd)\nlen(fds) > 10").output == "True\n"


def test_a_flush_that_fails_is_told(interpreter: RunningInterpreter) -> None:
    ran = interpreter.run(
        "class Broken:\n    def flush(self): raise ValueError('no flush')\nsys.stdout = Broken()"
    )
    assert (ran.exit_code, "ValueError: no flush" in ran.output) == (1, True)


def test_what_the_stream_of_the_code_holds_back_is_written_at_the_end_of_its_block(
    interpreter: RunningInterpreter,
) -> None:
    ran = interpreter.run("sys.stdout = open(1, 'w', closefd=False)\nprint('held back')\n1 / 0")
    assert ran.output.startswith("held back\nTraceback")


def test_output_to_a_string_stays_there(interpreter: RunningInterpreter) -> None:
    ran = interpreter.run(
        "import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()) as text:\n    print('in')\n"
        "text.getvalue()"
    )
    assert ran.output == "'in\\n'\n"


def test_a_child_in_the_background_can_write_later(interpreter: RunningInterpreter) -> None:
    interpreter.run(
        "import subprocess\nchild = subprocess.Popen(['sh', '-c', 'read x; echo later'], stdin=-1)"
    )
    ran = interpreter.run("child.communicate(b'go\\n')\nchild.returncode")
    assert ran.output == "later\n0\n"
