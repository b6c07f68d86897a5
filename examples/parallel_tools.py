"""Calls of tools side by side: twenty slow ones take little longer than one.

    python examples/parallel_tools.py

Needs Docker, and no model: the agent runs the code in the message.
"""

import asyncio

from codeact_team import CodeExecutorAgent, DockerSessionCodeExecutor, Scope, ToolLimits

TASK = """
```python
import asyncio, time

began = time.monotonic()
pages = await asyncio.gather(*(tools.fetch.aio(f"page {n}") for n in range(20)))
print(f"{len(pages)} pages, the last is {pages[-1]!r}: {time.monotonic() - began:.1f} s instead of 10")
```
"""


async def fetch(page: str) -> str:
    """Fetch a page.

    Args:
        page: Which one.
    """
    await asyncio.sleep(0.5)
    return f"<h1>{page}</h1>"


async def main() -> None:
    limits = ToolLimits(max_parallel=20)
    async with Scope():
        agent = CodeExecutorAgent("worker", DockerSessionCodeExecutor(), tools=[fetch], tool_limits=limits)
        result = await agent.run(task=TASK)
        print(result.messages[-1].to_text())


if __name__ == "__main__":
    asyncio.run(main())
