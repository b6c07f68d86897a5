"""A program that asks for approval on a terminal as a run does. Its argument is JSON:

``rules``; ``asked``, a list of calls (``name`` and ``arguments``) and of code (``code``, so many ``times``), all at once;
``noise``, what the code prints meanwhile; ``file``, where the records go; beside it stands the longest turn of the loop.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

from codeact_team.cli.prompts import asking_the_person
from codeact_team.cli.screen import Screen, reported
from codeact_team.tools.approval_rules import ApprovalRule
from codeact_team.tools.approvals import ApprovalRecord, Approvals


async def work(screen: Screen, plan: dict[str, Any]) -> list[ApprovalRecord]:
    approvals = Approvals([ApprovalRule(**rule) for rule in plan["rules"]], None, "helper")
    screen.text(plan["noise"], end="")
    asking: asyncio.Future[Any]

    def leave() -> None:
        screen.text("left")
        asking.cancel()

    with asking_the_person(screen, leave, as_json="--json" in sys.argv):
        asking = asyncio.gather(*(ask(approvals, thing) for thing in plan["asked"]))
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, asking.cancel)
    making_noise = asyncio.ensure_future(make_noise(screen, plan["noise"]))
    screen.wait()
    try:
        longest = await longest_turn(asking)
        Path(plan["file"]).with_name("longest_turn").write_text(str(longest))
    except asyncio.CancelledError:
        screen.text("stopped")
    making_noise.cancel()
    return approvals.take_records()


async def longest_turn(asking: asyncio.Future[Any]) -> float:
    longest, before = 0.0, time.process_time()
    while not asking.done():
        await asyncio.sleep(0.001)
        now = time.process_time()
        longest, before = max(longest, now - before), now
    await asking
    return longest


async def ask(approvals: Approvals, thing: dict[str, Any]) -> ApprovalRecord:
    if "code" in thing:
        return await approvals.code(thing["code"] * thing.get("times", 1))
    return await approvals.call(thing["name"], thing["arguments"])


async def make_noise(screen: Screen, noise: str) -> None:
    while noise:
        screen.text(noise, end="")
        screen.wait()
        await asyncio.sleep(0.02)


def main() -> None:
    with reported() as screen:
        plan = json.loads(sys.argv[1])
        records = asyncio.run(work(screen, plan))
        Path(plan["file"]).write_text(json.dumps([record.model_dump(mode="json") for record in records]))
        screen.text("done")


if __name__ == "__main__":
    main()
