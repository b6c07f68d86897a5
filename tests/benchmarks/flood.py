"""Uses one executor and prints by how many MiB the memory of this process has grown while code printed 200 MB."""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from autogen_ext.code_executors.docker import DockerCommandLineCodeExecutor as AutoGenExecutor

from codeact_team.executors.confined import ConfinedCommandLineCodeExecutor, ConfinedSessionCodeExecutor
from codeact_team.executors.docker import DockerCommandLineCodeExecutor, DockerSessionCodeExecutor

COMMAND_LINE: dict[str, Callable[..., Any]] = {
    "AutoGen, Docker": AutoGenExecutor,
    "command line, Docker": DockerCommandLineCodeExecutor,
    "command line, confined": ConfinedCommandLineCodeExecutor,
}
SESSIONS: dict[str, Callable[..., Any]] = {
    "session, Docker": DockerSessionCodeExecutor,
    "session, confined": ConfinedSessionCodeExecutor,
}
FLOOD = "import os\nfor _ in range(20_000): os.write(1, b'x' * 9_999 + b'\\n')"


async def run(executor: Any, code: str) -> None:
    blocks = [CodeBlock(code=code, language="python")]
    result = await executor.execute_code_blocks(blocks, CancellationToken())
    assert result.exit_code == 0, result.output


def memory_mib(key: str) -> float:
    found = re.search(rf"^{key}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024


async def flood(kind: str) -> float:
    with tempfile.TemporaryDirectory() as directory:
        executor = (COMMAND_LINE | SESSIONS)[kind](work_dir=directory)
        await executor.start()
        await run(executor, "print()")
        before = memory_mib("VmRSS")
        await run(executor, FLOOD)
        grown = memory_mib("VmHWM") - before
        await executor.stop()
    return grown


if __name__ == "__main__":
    print(asyncio.run(flood(sys.argv[1])))
