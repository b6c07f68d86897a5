"""Runs commands of ours, each in a fork, and tells what each has used, as JSON on stdout.

Its argument is a JSON list of pairs: a directory, and the words behind ``codeact-team``. Everything is imported first, which takes
longer than most commands.

A process that is forked from one with much memory counts as if it had had that much itself. So the tests do not fork what they
measure: this small program does.

The processor time is told in seconds of a machine of 2024, whichever machine this is: a fixed piece of work is measured first.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import tempfile
import time
import traceback
from typing import Any

_MEMORY = 4096 << 20
"""Bytes of address space: a machine has to survive a test that fails."""
_SECONDS = 80
_LINE = json.dumps({"at": 1.5, "type": "run_began", "span": 1, "task": "Look.", "parts": [], "record": None})
_LINES, _SECONDS_IN_2024 = 100_000, 0.15
"""How many of the lines are parsed to measure a machine, and what that took one of 2024."""


def slowness() -> float:
    """How many times longer this machine takes than one of 2024."""
    began = time.process_time()
    for _ in range(_LINES):
        json.loads(_LINE)
    return (time.process_time() - began) / _SECONDS_IN_2024


def measured(directory: str, words: list[str], slower: float) -> dict[str, Any]:
    with tempfile.TemporaryFile() as told:
        if not (pid := os.fork()):
            os._exit(_run(directory, words, told.fileno()))
        _, status, used = os.wait4(pid, 0)
        told.seek(0)
        return {
            "code": os.waitstatus_to_exitcode(status),
            "told": told.read().decode(errors="replace"),
            "mib": used.ru_maxrss / 1024,
            "seconds": (used.ru_utime + used.ru_stime) / slower,
        }


def _run(directory: str, words: list[str], told: int) -> int:
    from codeact_team.cli import main

    nowhere = os.open(os.devnull, os.O_RDWR)
    for number, descriptor in enumerate((nowhere, nowhere, told)):
        os.dup2(descriptor, number)
    os.chdir(directory)
    sys.argv = ["codeact-team", *words]
    try:
        main()
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def measure(commands: list[tuple[str, list[str]]]) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
    slower = slowness()
    import codeact_team

    for name in codeact_team.__all__:
        getattr(codeact_team, name)
    importlib.import_module("codeact_team.cli.app")
    print(json.dumps([measured(directory, words, slower) for directory, words in commands]))


if __name__ == "__main__":
    measure(json.loads(sys.argv[1]))
