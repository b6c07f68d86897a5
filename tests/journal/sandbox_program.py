"""A program that records what it does with a sandbox: ``sandbox_program.py KIND NTH before|torn|after``.

It is killed with an entry of its journal, as ``killed_run`` says.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any, Literal

from killed_run import DyingLog, book

from codeact_team import AsyncSandbox, SandboxError, open_sandbox, record_run
from codeact_team.journal import recorder

SETTINGS: dict[str, dict[str, Any]] = {"confined": {"confinement": "best_effort"}, "docker": {}}
UNKNOWN = "nobody knows"


async def work(sandbox: AsyncSandbox) -> list[str]:
    """Use all that a sandbox has; returns what came of it."""
    told: list[str] = []

    async def output(one: AsyncSandbox, code: str) -> str:
        result = await one.run_python(code, tools=[book])
        return UNKNOWN if "not known" in result.output else result.output

    async def run(one: AsyncSandbox, code: str) -> None:
        told.append(await output(one, code))

    await run(sandbox, "booked = tools.book(amount=4)\nrows = [1]")
    await sandbox.put("notes.txt", "first\n")
    try:
        counted = await sandbox.run(["sh", "-c", "echo second >> notes.txt; cat notes.txt"])
        told.append(counted.stdout.decode())
    except SandboxError:
        # it was under way
        told.append(UNKNOWN)
    first, second = await sandbox.fork(2)
    async with first, second:
        told += await asyncio.gather(
            output(first, "rows.append(2); rows"), output(second, "rows.append(3); rows")
        )
        point = await sandbox.checkpoint()
        await run(sandbox, "rows.clear(); open('notes.txt', 'a').write('third\\n')")
        await run(first, "rows.append(4); rows")
        await sandbox.rollback(point)
    await run(sandbox, "import os; rows, sorted(name for name in os.listdir() if name[0] != '.')")
    told.append(str(dict(await sandbox.list())))
    told.append((await sandbox.get("notes.txt")).decode())
    return told


async def main(kind: Literal["docker", "confined"]) -> None:
    async with record_run("kept/it", open_sandbox(kind, **SETTINGS[kind])) as sandbox:
        print(*await work(sandbox), sep="\n", flush=True)


if __name__ == "__main__":
    DyingLog.nth, DyingLog.how = int(sys.argv[2]), sys.argv[3]
    recorder.Log = DyingLog  # pyright: ignore[reportPrivateImportUsage]
    try:
        asyncio.run(main(sys.argv[1]))  # pyright: ignore[reportArgumentType]
    finally:
        print(DyingLog.written, file=sys.stderr)
