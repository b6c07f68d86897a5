"""The command, killed with -9 when it writes an entry of the journal: ``killed_run.py NTH before|torn|after ARGUMENTS...``.

An ``NTH`` of 0 lets it live, and prints the number of entries. What the tools of the test do is kept in the file EFFECTS.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from pydantic import JsonValue

from codeact_team.cli.app import main
from codeact_team.journal import log

EFFECTS = "effects.txt"


def book(amount: int) -> int:
    """Book an amount, and return how many there are."""
    with open(EFFECTS, "a", encoding="utf-8") as file:
        file.write(f"{amount}\n")
    return len(Path(EFFECTS).read_text(encoding="utf-8").splitlines())


class DyingLog(log.Log):
    """Dies with an entry."""

    written = 0
    nth = 0
    how = "after"

    def append(self, entry: Mapping[str, JsonValue]) -> None:
        cls = type(self)
        cls.written += 1
        if cls.written != cls.nth:
            super().append(entry)
            return
        line = log.encode(entry)
        os.write(self._descriptor, {"before": b"", "torn": line[: len(line) // 2], "after": line}[cls.how])
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    from codeact_team.journal import recorder

    DyingLog.nth, DyingLog.how = int(sys.argv[1]), sys.argv[2]
    recorder.Log = DyingLog  # pyright: ignore[reportPrivateImportUsage]
    sys.argv[1:3] = []
    try:
        main()
    finally:
        print(DyingLog.written, file=sys.stderr)
