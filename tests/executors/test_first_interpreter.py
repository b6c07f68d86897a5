"""The first interpreter of a confined session may be a fork of its supervisor. The code cannot tell."""

from __future__ import annotations

import sys

import pytest
from support.executing import KINDS, run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="code is confined on Linux only")

LOOK = """
import gc, os, signal, sys
frames = []
frame = sys._getframe()
while frame:
    frames.append((frame.f_code.co_filename.rstrip("0123456789>"), frame.f_code.co_name))
    frame = frame.f_back
print(sys.flags, sys.argv, sys.path, sys.warnoptions, sys._xoptions, os.getcwd(), sys.getrecursionlimit())
print(frames)
print([(number, str(signal.getsignal(number)).split(" at ")[0]) for number in sorted(signal.valid_signals())])
print(signal.set_wakeup_fd(-1), signal.pthread_sigmask(signal.SIG_BLOCK, ()))
print(sorted(each for each in os.environ.items() if each[0] not in ("ANY", "HOME", "TMPDIR")))
print(os.getpgid(0) == os.getsid(0), sorted(map(int, os.listdir("/proc/self/fd")))[:3])
print(len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")))
print([each for each in gc.get_objects() if "supervisor" in type(each).__module__])
print([name for name in sys.modules if "codeact" in name], type(__import__("json").__spec__.loader))
print(open("/proc/self/status").read().split("SigQ")[0].count("TracerPid:\\t0"))
"""


@pytest.mark.parametrize(
    "setup", ["", pytest.param("prepared = 1", marks=pytest.mark.long)], ids=["nothing", "a setup"]
)
async def test_it_is_like_one_that_was_started_as_a_program(
    setup: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    make, workspace = KINDS["confined-session"].make, tmp_path_factory.mktemp("workspace")
    found: list[str] = []
    # the supervisor is given nothing that is the code's, so it starts a program
    for environment in ({}, {"ANY": "1"}):
        executor = make(environment=environment, setup=setup, work_dir=workspace)
        result = await run(executor, LOOK)
        assert result.exit_code == 0, result.output
        # the same after a restart
        await executor.restart()
        assert (await run(executor, LOOK)).output == result.output
        await executor.stop()
        found.append(result.output)
    assert found[0] == found[1]


async def test_a_shell_that_comes_first_changes_nothing_of_it() -> None:
    executor = KINDS["confined-session"].make()
    await run(
        executor, "echo 'raise SystemExit' > json.py; export A=1; trap '' INT; ulimit -n 64", language="sh"
    )
    assert (await run(executor, "import json, os; print(json.dumps(os.environ.get('A')))")).output == "null\n"
    await executor.stop()


CALLBACKS = """
import ctypes
function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)
kept = [function(lambda x, n=n: x + n) for n in range(2_000)]
print(sum(each(1) for each in kept))
"""


@pytest.mark.parametrize(
    "environment", [{}, pytest.param({"ANY": "1"}, marks=pytest.mark.long)], ids=["a fork", "a program"]
)
async def test_c_may_call_back_many_functions(environment: dict[str, str]) -> None:
    executor = KINDS["confined-session"].make(environment=environment)
    # libffi may keep a file open for that
    assert (await run(executor, CALLBACKS)).output == "2001000\n"
    await executor.restart()
    assert (await run(executor, CALLBACKS)).output == "2001000\n"
    await executor.stop()
