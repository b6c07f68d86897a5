"""An agent of Microsoft's Agent Framework. Its code lives on in a sandbox; each refund in it is decided on this machine.

    pip install '.[agent-framework]' agent-framework-openai
    OPENAI_API_KEY=… python examples/framework_agent.py [confined]

Needs Docker, or Linux for `confined`.
"""

import asyncio
import os
import sys
from base64 import b64decode
from typing import Any, Literal, TypedDict

from agent_framework import Agent, AgentResponse, tool
from agent_framework.openai import OpenAIChatCompletionClient

from codeact_team import Answer, Question
from codeact_team.adapters.agent_framework import CodeActProvider

TASKS = [
    "Pay back all late orders, and save what was paid back as refunds.csv.",
    "How much could not be paid back?",
]


class Order(TypedDict):
    number: int
    paid: float


def late_orders() -> list[Order]:
    """The orders that are late."""
    return [{"number": 17, "paid": 40.0}, {"number": 18, "paid": 900.0}, {"number": 19, "paid": 25.0}]


@tool(approval_mode="always_require")
def refund(number: int, amount: float) -> str:
    """Pay an amount back."""
    return f"{number}: paid back {amount}"


async def decide(question: Question) -> Answer:
    """Ask the manager instead with `ask_with(input)`."""
    amount = question.arguments["amount"]
    assert isinstance(amount, float)
    return Answer(amount <= 100, "the manager makes large refunds")


def files(response: AgentResponse[Any]) -> dict[str, bytes]:
    """The files that the code has left for the user, by path."""
    contents = [content for message in response.messages for content in message.contents]
    items = [item for content in contents for item in content.items or () if item.type == "data"]
    return {item.name: b64decode(item.uri.partition(",")[2]) for item in items if item.name and item.uri}


async def main(where: Literal["docker", "confined"]) -> None:
    client = OpenAIChatCompletionClient(os.environ.get("OPENAI_MODEL", "gpt-4.1"))
    async with CodeActProvider(where, tools=[late_orders, refund], approval_handler=decide) as codeact:
        agent = Agent(client, "You are a clerk of a shop.", context_providers=[codeact])
        session = agent.create_session()
        for task in TASKS:
            response = await agent.run(task, session=session)
            for path, content in files(response).items():
                print(f"--- {path}\n{content.decode(errors='replace')}")
            print(response.text)


if __name__ == "__main__":
    asyncio.run(main("confined" if "confined" in sys.argv[1:] else "docker"))
