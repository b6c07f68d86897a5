"""A process of its own that uses an executor; for what happens to such a process.

``flood KIND``: prints by how many MiB its memory has grown at most while code printed 80 MB, and how much of the
output was kept and omitted, in bytes. ``wait KIND DIRECTORY``: says ``up`` while code runs that beats in the directory.
``held KIND DIRECTORY``: the same, but the code first does what it can to the processes by which its sandbox ends.
``jobs KIND DIRECTORY``: says ``up`` while 20 processes beat there, each of which has left another one. ``unread KIND``: prints by
how many MiB its memory has grown while processes flooded it with output, of which it read a part, or none.
"""

from __future__ import annotations

import asyncio
import re
import sys
from contextlib import aclosing
from pathlib import Path

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock

import codeact_team

KINDS = {
    "docker": codeact_team.DockerCommandLineCodeExecutor,
    "confined": codeact_team.ConfinedCommandLineCodeExecutor,
    "docker-session": codeact_team.DockerSessionCodeExecutor,
    "confined-session": codeact_team.ConfinedSessionCodeExecutor,
}
FLOOD = "import os\nfor _ in range(8_000): os.write(1, b'x' * 9_999 + b'\\n')"
BEAT = """
import os, signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    with open("beat", "a") as file:
        while True:
            file.write("x")
            file.flush()
            time.sleep(0.02)
while not (os.path.exists("beat") and os.path.getsize("beat")): time.sleep(0.01)
print("up")
time.sleep(600)
"""
HOLD = """
import os, resource, signal
def attempt(deed, *arguments):
    try: deed(*arguments)
    except OSError: pass
def children():
    with open("/proc/1/task/1/children") as file: found = {int(pid) for pid in file.read().split()}
    return found - {os.getpid()}
for pid in (1, *children()):
    attempt(os.kill, pid, signal.SIGSTOP)
    attempt(resource.prlimit, pid, resource.RLIMIT_NOFILE, (0, 0))
    attempt(os.sched_setscheduler, pid, os.SCHED_IDLE, os.sched_param(0))
if os.fork() == 0:
    os.setsid()
    while True: attempt(os.kill, 1, signal.SIGCHLD)
"""


def memory_mib(key: str) -> int:
    found = re.search(rf"^{key}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) // 1024


async def flood(kind: str) -> None:
    executor = KINDS[kind]()
    await executor.execute_code_blocks([CodeBlock(code="print()", language="python")], CancellationToken())
    before = memory_mib("VmRSS")
    result = await executor.execute_code_blocks(
        [CodeBlock(code=FLOOD, language="python")], CancellationToken()
    )
    print(memory_mib("VmHWM") - before, len(result.output), result.omitted_bytes)
    await executor.stop()


async def wait(code: str, kind: str, directory: str) -> None:
    executor = KINDS[kind](work_dir=directory, timeout=600)
    blocks = [CodeBlock(code=code, language="python")]
    async with aclosing(executor.execute_code_blocks_stream(blocks, CancellationToken())) as items:
        async for item in items:
            print(item, end="", flush=True)


async def jobs(kind: str, directory: str) -> None:
    executor = KINDS[kind](work_dir=directory)
    for _ in range(20):
        job = await executor.processes.start(["python3", "-c", BEAT])
        assert b"up" in (await job.read()).stdout
    print("up", flush=True)
    await asyncio.sleep(600)


async def unread(kind: str) -> None:
    executor = KINDS[kind](pids=512)
    await executor.processes.run(["true"])
    before = memory_mib("VmRSS")
    flooding = ["sh", "-c", "exec head -c 20000000 /dev/zero"]
    jobs = [await executor.processes.start(flooding) for _ in range(20)]
    results = await asyncio.gather(*(executor.processes.run(flooding) for _ in range(20)))
    assert [await job.wait() for job in jobs] == [result.returncode for result in results] == [0] * 20
    print(memory_mib("VmHWM") - before)
    await executor.stop()


async def main(what: str, *arguments: str) -> None:
    codes = {"wait": BEAT, "held": HOLD + BEAT}
    others = {"flood": flood, "jobs": jobs, "unread": unread}
    await (wait(codes[what], *arguments) if what in codes else others[what](*arguments))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
