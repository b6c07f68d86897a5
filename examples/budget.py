"""A limit to what a team may spend, in money: any team of AutoGen's, with prices of your own.

    OPENAI_API_KEY=... python examples/budget.py

Two agents talk until the money is used up; the model is not asked again then.
"""

import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient

from codeact_team import BudgetSpent, BudgetTermination, Dispatcher, Event, wrap


def show(event: Event) -> None:
    if isinstance(event, BudgetSpent):
        print(f"spent {event.spent['cost']:.4f} {event.currency}, left {event.left['cost']:.4f}")


async def main() -> None:
    client = OpenAIChatCompletionClient(model="gpt-4.1-nano-2025-04-14")
    budget = BudgetTermination(
        max_cost=0.0005,
        # for a million tokens
        prices={"gpt-4.1-nano-2025-04-14": {"prompt": 0.10, "completion": 0.40}},
    )
    model = wrap(client)
    agents = [
        AssistantAgent(name, model, system_message=f"You are for {name}. Argue in a sentence or two.")
        for name in ("tea", "coffee")
    ]
    with Dispatcher() as dispatcher:
        dispatcher.listen(show)
        team = RoundRobinGroupChat([*agents], termination_condition=budget)
        result = await team.run(task="What is the better drink?")
    print(result.stop_reason)
    await client.close()


if __name__ == "__main__":
    asyncio.run(main())
