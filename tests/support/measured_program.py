"""Runs a program and tells what it has used, as one line of JSON after what it prints to stderr.

A process that is forked from one with much memory counts as if it had had that much itself, also when it has become another
program. So the tests do not start what they measure: this small program does.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys

_MEMORY = 4096 << 20
"""Bytes of address space: a machine has to survive a test that fails."""
_SECONDS = 40


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
    code = subprocess.run(sys.argv[1:], check=False).returncode
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = used.ru_utime + used.ru_stime
    print(json.dumps({"code": code, "mib": used.ru_maxrss / 1024, "seconds": seconds}), file=sys.stderr)


if __name__ == "__main__":
    main()
