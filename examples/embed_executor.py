"""Put our executor agent into AutoGen teams that you build by hand: round robin, selector, and a team in a team.

    OPENAI_API_KEY=… python examples/embed_executor.py [round-robin | selector | nested]

Needs Docker. The executor's container starts on first use; the scope stops it, however deep in the team it is.
"""

import asyncio
import os
import sys

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import Team
from autogen_agentchat.conditions import MaxMessageTermination, SourceMatchTermination
from autogen_agentchat.teams import RoundRobinGroupChat, SelectorGroupChat
from autogen_agentchat.ui import Console
from autogen_core.models import ChatCompletionClient
from autogen_ext.models.openai import OpenAIChatCompletionClient

from codeact_team import CodeExecutorAgent, DockerCommandLineCodeExecutor, Scope

TASK = "Write a program that prints the first ten square numbers."


def build(kind: str, model: ChatCompletionClient) -> Team:
    coder = AssistantAgent(
        "coder",
        model,
        description="Writes Python programs.",
        system_message="Solve the task with one ```python program that prints the answer.",
    )
    executor = CodeExecutorAgent(
        "executor",
        DockerCommandLineCodeExecutor(timeout=30),
        description="Runs the coder's programs. Always speaks after the coder.",
        sources=["coder"],
    )
    if kind == "selector":
        return SelectorGroupChat(
            [coder, executor], model, termination_condition=SourceMatchTermination(["executor"])
        )
    team = RoundRobinGroupChat([coder, executor], termination_condition=SourceMatchTermination(["executor"]))
    if kind == "nested":
        writer = AssistantAgent(
            "writer",
            model,
            description="Explains results.",
            system_message="Explain the result in one sentence.",
        )
        return RoundRobinGroupChat([team, writer], termination_condition=MaxMessageTermination(4))
    return team


async def main(kind: str) -> None:
    model = OpenAIChatCompletionClient(model=os.environ.get("OPENAI_MODEL", "gpt-4.1"))
    async with Scope():
        await Console(build(kind, model).run_stream(task=TASK))
    await model.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "round-robin"))
