"""The child processes of a batch do not outlive it."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest
from support.processes import process_lives
from support.waiting import until

PARENT = """
import asyncio
from codeact_team.core.child_process import ChildProcess

async def main():
    await ChildProcess.start("slow")
    await asyncio.sleep(600)
asyncio.run(main())
"""
SLOW = """
import os, time
with open("child.new", "w") as file: file.write(str(os.getpid()))
os.rename("child.new", "child")
time.sleep(600)
"""


@pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere a child learns it from its input, once it reads that"
)
async def test_a_child_that_still_imports_ends_with_its_parent(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", PARENT, cwd=tmp_path, env=environment)
    try:
        await until((tmp_path / "child").exists, seconds=60)
        child = int((tmp_path / "child").read_text())
    finally:
        parent.kill()
        await parent.wait()
    await until(lambda: not process_lives(child))
