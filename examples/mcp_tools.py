"""The tools of an MCP server as Python functions, in a sandbox that has no network.

    OPENAI_API_KEY=… python examples/mcp_tools.py

Needs Docker and `pip install '.[mcp]'`. The server runs on this machine; a server over HTTP is given by
`StreamableHttpServerParams`. In YAML it is a component under `workbench`, and a server that is started needs
`--allow-unsafe`.
"""

import asyncio
import os
import sys
from pathlib import Path

from autogen_ext.models.openai import OpenAIChatCompletionClient
from autogen_ext.tools.mcp import McpWorkbench, StdioServerParams

from codeact_team import ApprovalRule, CodeActAgent, DockerSessionCodeExecutor, Scope

SERVER = StdioServerParams(command=sys.executable, args=[str(Path(__file__).with_name("mcp_server.py"))])
RULES = [
    ApprovalRule(tool="stock.order", decision="allow", at_most=1),
    ApprovalRule(tool="stock.order", decision="deny", reason="one order a day"),
]


async def main() -> None:
    model = OpenAIChatCompletionClient(model=os.environ.get("OPENAI_MODEL", "gpt-4.1"))
    async with Scope():
        agent = CodeActAgent(
            "keeper",
            model,
            DockerSessionCodeExecutor(),
            workbench=McpWorkbench(SERVER),
            approval=RULES,
        )
        result = await agent.run(task="Order 50 pieces of whatever article there are fewer than ten of.")
        print(result.messages[-1].to_text())
    await model.close()


if __name__ == "__main__":
    asyncio.run(main())
