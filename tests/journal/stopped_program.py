"""A program that gives a team a task, and prints the answer: ``stopped_program.py interrupt|token``.

The second is stopped by a token of AutoGen's, which a signal cancels.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from autogen_agentchat.base import TaskResult
from autogen_core import CancellationToken

from codeact_team.core.providers import Policy
from codeact_team.runs.opening import open_team


async def main(how: str) -> None:
    policy, token = Policy.from_environment(allow=["waiting_parts"]), CancellationToken()
    async with open_team(Path("config.json"), policy=policy, record="kept/it") as team:
        if how == "token":
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, token.cancel)
        async for item in team.run_stream(task="Go.", cancellation_token=token):
            if isinstance(item, TaskResult):
                print(item.messages[-1].to_text())  # pyright: ignore[reportAttributeAccessIssue]


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
