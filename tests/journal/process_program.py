"""A program that runs processes in an agent's sandbox, and says what came of each: ``process_program.py SECONDS NTH HOW``.

The last of them take so many seconds. It is killed with an entry of its journal, as ``killed_run`` says.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import cast

from killed_run import DyingLog

from codeact_team.agents.codeact.agent import CodeActAgent
from codeact_team.errors import SandboxError
from codeact_team.executors.base import SandboxedCodeExecutor
from codeact_team.executors.processes import Processes
from codeact_team.journal import recorder
from codeact_team.runs.opening import open_team


def say(*words: object) -> None:
    print(*words, flush=True)


def sh(code: str) -> list[str]:
    return ["sh", "-c", code]


async def run(processes: Processes, code: str, **settings: object) -> None:
    say(*await came_of(processes, code, **settings))


async def came_of(processes: Processes, code: str, **settings: object) -> tuple[object, ...]:
    try:
        result = await processes.run(sh(code), **settings)  # pyright: ignore[reportArgumentType]
    except subprocess.TimeoutExpired as error:
        return "timed out", error.timeout, error.stdout, error.stderr
    except SandboxError as error:
        return "unknown", "not known" in str(error)
    return result.returncode, result.stdout, result.stderr, result.stdout_omitted, result.limit


async def job(processes: Processes, code: str, answer: bytes | None) -> None:
    """Start a process that says that it is ready, and talk to it; leave it alone without an answer."""
    try:
        process = await processes.start(sh(code))
    except SandboxError as error:
        say("unknown", "not known" in str(error))
        return
    seen = (await process.read()).stdout
    if answer is None:
        say("started", seen)
        return
    await process.write(answer)
    code_ = await process.wait()
    while output := await process.read():
        seen += output.stdout
    say("job", seen, code_, await process.poll(), process.returncode)
    await process.aclose()


async def main(seconds: str) -> None:
    async with open_team(Path("config.json"), record="kept/it") as team:
        executor = cast("CodeActAgent", team).code_executor
        assert isinstance(executor, SandboxedCodeExecutor)
        processes = executor.processes
        await run(
            processes,
            "echo one >> ran.txt; echo out; echo ${#SECRET} >&2; exit 3",
            env={"SECRET": "hidden-4711"},
        )
        await run(processes, "wc -c; echo two >> ran.txt", input=b"typed-0815")
        await run(processes, "echo before; sleep 1000", timeout=0.5)
        await run(processes, "echo 0123456789abcdef", output_limit=4)
        try:
            await processes.run(["no-such-program"])
        except FileNotFoundError as error:
            say("no program", error.errno, error.filename)
        pieces: list[tuple[str, bytes]] = []

        async def take(stream: str, data: bytes) -> None:
            pieces.append((stream, data))

        await run(processes, "echo to the callback", on_output=take)
        say(pieces)
        await job(
            processes, "echo three >> ran.txt; echo ready; read line; echo got $line; exit 4", b"that\n"
        )
        for told in await asyncio.gather(*(came_of(processes, f"echo {n}") for n in range(5))):
            say(*told)
        await job(processes, f"echo four >> ran.txt; echo up; sleep {seconds}", None)
        await run(processes, f"echo five >> ran.txt; sleep {seconds}")
        await run(processes, "cat ran.txt")
        say("done")


if __name__ == "__main__":
    DyingLog.nth, DyingLog.how = int(sys.argv[2]), sys.argv[3]
    recorder.Log = DyingLog  # pyright: ignore[reportPrivateImportUsage]
    try:
        asyncio.run(main(sys.argv[1]))
    finally:
        print(DyingLog.written, file=sys.stderr)
