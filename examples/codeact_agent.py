"""An agent that acts by writing Python: four tasks in one session, whose variables and functions live on.

    OPENAI_API_KEY=… python examples/codeact_agent.py

Needs Docker. The last task uses the function that the model has defined for the one before.
"""

import asyncio
import os

from autogen_ext.models.openai import OpenAIChatCompletionClient

from codeact_team import CodeActAgent, DockerSessionCodeExecutor, Scope


def add(a: float, b: float) -> float:
    """Add two numbers."""
    return a + b


def multiply(a: float, b: float) -> float:
    """Multiply two numbers."""
    return a * b


TASKS = [
    "Calculate the sum of all numbers from 1 to 10.",
    "Add 5 and 3, then multiply the result by 2, with the given functions.",
    "Calculate the sum of the first 10 Fibonacci numbers.",
    "Calculate the sum of the first 20 Fibonacci numbers.",
]


async def main() -> None:
    model = OpenAIChatCompletionClient(model=os.environ.get("OPENAI_MODEL", "gpt-4.1"))
    async with Scope():
        agent = CodeActAgent("agent", model, DockerSessionCodeExecutor(), functions=[add, multiply])
        for task in TASKS:
            result = await agent.run(task=task)
            print(f"{task}\n  {result.messages[-1].to_text()}")
    await model.close()


if __name__ == "__main__":
    asyncio.run(main())
