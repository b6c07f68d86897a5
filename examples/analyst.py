"""An analyst: a CSV file in, an answer in words and a chart out, with packages that the sandbox has without a network.

    OPENAI_API_KEY=… python examples/analyst.py [confined]

Needs Docker, or Linux for `confined`, and a package index the first time. On the command line it is

    codeact-team run codeact --data examples/sales.csv --out result "Which region grew most? Make a chart."
"""

import asyncio
import os
import sys
from pathlib import Path

from autogen_ext.models.openai import OpenAIChatCompletionClient

from codeact_team import CodeActAgent, ConfinedSessionCodeExecutor, DockerSessionCodeExecutor, Scope

SALES = Path(__file__).with_name("sales.csv")
TASK = "Which region's revenue grew most, in percent? Save a chart of the growth as growth.png."


async def analyse(sandbox: str) -> tuple[str, bytes]:
    """The answer, and the chart."""
    model = OpenAIChatCompletionClient(model=os.environ.get("OPENAI_MODEL", "gpt-4.1"))
    executor_class = ConfinedSessionCodeExecutor if sandbox == "confined" else DockerSessionCodeExecutor
    async with Scope():
        executor = executor_class(packages=["pandas", "matplotlib"], data=[SALES])
        # missing packages are reported before the model costs anything
        await executor.prepare()
        agent = CodeActAgent("analyst", model, executor)
        result = await agent.run(task=TASK)
        chart = await executor.workspace.get("growth.png")
    await model.close()
    return result.messages[-1].to_text(), chart


if __name__ == "__main__":
    answer, chart = asyncio.run(analyse(sys.argv[1] if len(sys.argv) > 1 else "docker"))
    Path("growth.png").write_bytes(chart)
    print(f"growth.png: {len(chart)} bytes")
    print(answer)
