"""Run a team that one YAML file declares, and read its verdict as data.

    OPENAI_API_KEY=… python examples/team_from_yaml.py "How many primes are there below 10000?"

Needs Docker. The config is the shipped configs/team.yaml; `-s`-style overrides change single fields.
"""

import asyncio
import sys

from autogen_agentchat.base import TaskResult
from autogen_agentchat.messages import TextMessage

from codeact_team import Verdict, open_team


async def main(task: str) -> None:
    async with open_team(
        "team", overrides=["config.participants.executor.config.max_retries_on_error=2"]
    ) as team:
        async for message in team.run_stream(task=task):
            if isinstance(message, TextMessage):
                print(f"--- {message.source}\n{message.content}")
                if verdict := Verdict.from_metadata(message.metadata):
                    print("accepted" if verdict.accepted else "not accepted")
            elif isinstance(message, TaskResult):
                print(f"=== {message.stop_reason}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "How many primes are there below 10000?"))
