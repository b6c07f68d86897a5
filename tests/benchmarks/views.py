"""What confined code takes in one view, in milliseconds, as JSON. The argument: ``namespaces``, or ``listener`` to do without them."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from statistics import median

sys.path.append(str(Path(__file__).parents[1]))

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from benchmarks.timing import milliseconds
from sandboxes.confined_host import do_without

from codeact_team import ConfinedCommandLineCodeExecutor, ConfinedSessionCodeExecutor, open_sandbox
from codeact_team.executors.base import SandboxedCodeExecutor

STARTS, BLOCKS = 7, 40
CALLS = """
import os, statistics, tarfile, time
def each(action, count):
    times = []
    for _ in range(count):
        began = time.perf_counter()
        action()
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)
def fork():
    if not (child := os.fork()): os._exit(0)
    os.waitpid(child, 0)
open("file", "w").close()
with tarfile.open("many.tar", "w") as tar:
    for number in range(10_000): tar.add("file", f"many/{number // 100}/{number}")
def unpack(): os.system("rm -rf many; tar -xf many.tar")
print(each(lambda: os.chmod("file", 0o600), 2000), each(fork, 200), each(unpack, 3))
"""
TOOL = """
import time
began = time.perf_counter()
for number in range(200): tools.double(number)
print(1000 * (time.perf_counter() - began) / 200)
"""


def double(value: int) -> int:
    """Double a number."""
    return 2 * value


async def said(executor: SandboxedCodeExecutor, code: str, language: str = "python") -> str:
    result = await executor.execute_code_blocks(
        [CodeBlock(code=code, language=language)], CancellationToken()
    )
    assert result.exit_code == 0, result.output
    return result.output


async def first_result() -> None:
    async with ConfinedSessionCodeExecutor() as executor:
        await said(executor, "1")


async def measured() -> dict[str, float]:
    await first_result()
    found = {"start to first result": median([await milliseconds(first_result()) for _ in range(STARTS)])}
    async with ConfinedSessionCodeExecutor() as executor:
        await said(executor, "1")
        found["a block of a session"] = median(
            [await milliseconds(said(executor, "1")) for _ in range(5 * BLOCKS)]
        )
        chmod, fork, unpack = map(float, (await said(executor, CALLS)).split())
        found |= {"chmod": chmod, "fork and wait": fork, "tar -x of 10,000 files": unpack}
    async with ConfinedCommandLineCodeExecutor() as executor:
        await said(executor, "true", "sh")
        for language, code in (("sh", "true"), ("python", "1")):
            found[f"a block of {language}"] = median(
                [await milliseconds(said(executor, code, language)) for _ in range(BLOCKS)]
            )
    async with open_sandbox("confined") as sandbox:
        found["a call of a tool"] = float((await sandbox.run_python(TOOL, tools=[double])).output)
    return found


if __name__ == "__main__":
    if sys.argv[1] == "listener":
        do_without(["namespaces"])
    print(json.dumps(asyncio.run(measured())))
