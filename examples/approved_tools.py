"""Who approves the calls of tools: rules first, then a person, in words that the model gets to read.

    python examples/approved_tools.py

Needs Docker, and no model: the agent runs the code in the message. Answer with `y`, `n` and a reason, or `a` for always.
In a team that `codeact-team` runs, the terminal asks by itself; `ask_with` takes AutoGen's input function.
"""

import asyncio

from codeact_team import ApprovalRule, CodeExecutorAgent, DockerSessionCodeExecutor, Scope, ask_with

TASK = """
```python
for number in (17, 18, 19):
    order = tools.get_order(number)
    if order["late"]:
        try:
            print(tools.refund(number, amount=order["paid"]))
        except tools.ToolDenied as denial:
            print(f"{number}: {denial}")
```
"""


async def get_order(number: int) -> dict[str, object]:
    """Look up an order."""
    return {"number": number, "late": number != 18, "paid": 40.0 if number == 17 else 900.0}


async def refund(number: int, amount: float) -> str:
    """Pay an amount back."""
    return f"{number}: paid back {amount}"


RULES = [
    ApprovalRule(tool="get_order", decision="allow", at_most=20),
    ApprovalRule(tool="refund", arguments={"amount": "[0-9][0-9].*"}, decision="allow"),
    ApprovalRule(tool="*", decision="ask", reason="this is a large amount"),
]


async def main() -> None:
    async with Scope():
        agent = CodeExecutorAgent(
            "clerk",
            DockerSessionCodeExecutor(),
            tools=[get_order, refund],
            approval=RULES,
            approval_handler=ask_with(input),
        )
        result = await agent.run(task=TASK)
        print(result.messages[-1].to_text())


if __name__ == "__main__":
    asyncio.run(main())
