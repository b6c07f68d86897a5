"""Let somebody, or something, approve each execution.

    python examples/approval.py

Needs Docker, no model. `approve` here is a rule; asking a person is the same function with an `input()` in it. In a
YAML config, name it by its import path: `approval_func: my_package.approvals:approve`, and run with
`--allow my_package`.
"""

import asyncio

from autogen_agentchat.agents import ApprovalRequest, ApprovalResponse
from autogen_agentchat.messages import TextMessage
from autogen_core import CancellationToken

from codeact_team import CodeExecutorAgent, DockerCommandLineCodeExecutor


def approve(request: ApprovalRequest) -> ApprovalResponse:
    if "rm " in request.code:
        return ApprovalResponse(approved=False, reason="files are not deleted here")
    return ApprovalResponse(approved=True, reason="harmless")


async def main() -> None:
    async with DockerCommandLineCodeExecutor() as executor:
        agent = CodeExecutorAgent("executor", executor, approval_func=approve)
        for command in ("echo hello", "rm -rf *"):
            task = TextMessage(content=f"```sh\n{command}\n```", source="user")
            response = await agent.on_messages([task], CancellationToken())
            print(f"{command}: {response.chat_message.to_text().strip()}")


if __name__ == "__main__":
    asyncio.run(main())
