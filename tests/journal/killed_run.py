"""The command, stopped when it writes an entry of the journal: ``killed_run.py NTH before|torn|after|INT|TERM ARGUMENTS...``.

The first three kill it with -9, the others send it a signal. An ``NTH`` of 0 lets it live, and prints the number of entries. What the tools of the test do is kept in the file EFFECTS.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from autogen_core import CancellationToken, Component
from autogen_core.tools import BaseTool
from pydantic import BaseModel, JsonValue

from codeact_team.cli.app import main
from codeact_team.journal import log
from codeact_team.tools.approval_rules import Question
from codeact_team.tools.approvals import Answer

EFFECTS = "effects.txt"


def book(amount: int) -> int:
    """Book an amount, and return how many there are."""
    with open(EFFECTS, "a", encoding="utf-8") as file:
        file.write(f"{amount}\n")
    return len(Path(EFFECTS).read_text(encoding="utf-8").splitlines())


def note(amount: int) -> int:
    """Book an amount, and return that."""
    book(amount)
    return amount


def double(amount: int) -> int:
    """Return twice the amount."""
    return 2 * amount


async def agree(question: Question) -> Answer:
    """Says yes to everything."""
    return Answer(True)


class Amount(BaseModel):
    """What is booked."""

    amount: int


class Receipt(BaseModel):
    """What a booking returns."""

    text: str


class NoSettings(BaseModel):
    """There is nothing to set."""


class Booking(BaseTool[Amount, Receipt], Component[NoSettings]):
    """A tool of AutoGen's."""

    component_config_schema = NoSettings
    component_provider_override = "killed_run.Booking"

    def __init__(self) -> None:
        super().__init__(Amount, Receipt, type(self).__name__, "Book an amount.")

    async def run(self, args: Amount, cancellation_token: CancellationToken) -> Receipt:
        return Receipt(text=f"booked {book(args.amount)}")

    @classmethod
    def _from_config(cls, config: NoSettings) -> Booking:
        return cls()

    def _to_config(self) -> NoSettings:
        return NoSettings()


class Noting(Booking):
    """One more."""

    component_provider_override = "killed_run.Noting"


class DyingLog(log.Log):
    """Dies, or is stopped, with an entry."""

    written = 0
    nth = 0
    how = "after"

    def append(self, entry: Mapping[str, JsonValue]) -> int:
        cls = type(self)
        cls.written += 1
        if cls.written != cls.nth:
            return super().append(entry)
        if cls.how in ("INT", "TERM"):
            os.kill(os.getpid(), signal.Signals[f"SIG{cls.how}"])
            return super().append(entry)
        line = log.encode(entry, self.chain)
        os.write(self._descriptor, {"before": b"", "torn": line[: len(line) // 2], "after": line}[cls.how])
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("it is dead")


if __name__ == "__main__":
    from codeact_team.journal import recorder

    DyingLog.nth, DyingLog.how = int(sys.argv[1]), sys.argv[2]
    recorder.Log = DyingLog  # pyright: ignore[reportPrivateImportUsage]
    sys.argv[1:3] = []
    try:
        main()
    finally:
        print(f"{DyingLog.written} entries", file=sys.stderr)
