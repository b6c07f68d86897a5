"""A deep agent whose shell and files are in a sandbox on this machine: a CSV file in, an answer and a report out.

    pip install '.[deepagents]' langchain-openai
    OPENAI_API_KEY=… python examples/deep_agent.py [confined]

Needs Docker, or Linux for `confined`.
"""
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false

import os
import sys
from pathlib import Path
from typing import Literal

from deepagents import create_deep_agent
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI

from codeact_team import open_sandbox
from codeact_team.adapters.deepagents import CodeactSandbox

SALES = Path(__file__).with_name("sales.csv")
TASK = "Which region's revenue grew most, in percent? Write the growth of each region to report.md."


def analyse(kind: Literal["docker", "confined"]) -> tuple[str, str]:
    """The answer, and the report."""
    with open_sandbox(kind, data=[SALES]) as sandbox:
        agent = create_deep_agent(
            model=ChatOpenAI(model=os.environ.get("OPENAI_MODEL", "gpt-4.1")),
            backend=CodeactSandbox(sandbox),
            system_prompt=f"Your files are in {sandbox.workspace_path}, and sales.csv is there.",
        )
        state = agent.invoke({"messages": [HumanMessage(TASK)]})
        return state["messages"][-1].text, sandbox.get("report.md").decode()


if __name__ == "__main__":
    answer, report = analyse("confined" if "confined" in sys.argv[1:] else "docker")
    print(report)
    print(answer)
