"""Runs a program and tells what it has used, as one line of JSON after what it prints to stderr.

A process that is forked from one with much memory counts as if it had had that much itself, also when it has become another
program. So the tests do not start what they measure: this small program does.

The processor time is told in seconds of a machine of 2024, whichever machine this is: a fixed piece of work is measured first.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time

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


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
    slower = slowness()
    code = subprocess.run(sys.argv[1:], check=False).returncode
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = used.ru_utime + used.ru_stime
    print(
        json.dumps({"code": code, "mib": used.ru_maxrss / 1024, "seconds": seconds / slower}), file=sys.stderr
    )


if __name__ == "__main__":
    main()
