"""A program that gives a team two tasks and prints the answers: ``killed_program.py NTH before|torn|after``, as ``killed_run``."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from killed_run import DyingLog

from codeact_team.core.providers import Policy
from codeact_team.journal import recorder
from codeact_team.runs.opening import open_team


async def main() -> None:
    async with open_team(
        Path("config.json"), policy=Policy.from_environment(allow=["killed_run"]), record="kept/it"
    ) as team:
        for task in ("Go.", "Once more."):
            result = await team.run(task=task)
            print(result.messages[-1].to_text())  # pyright: ignore[reportAttributeAccessIssue]


if __name__ == "__main__":
    DyingLog.nth, DyingLog.how = int(sys.argv[1]), sys.argv[2]
    recorder.Log = DyingLog  # pyright: ignore[reportPrivateImportUsage]
    try:
        asyncio.run(main())
    finally:
        print(DyingLog.written, file=sys.stderr)
