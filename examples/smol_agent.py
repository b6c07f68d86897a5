"""An agent of smolagents whose code runs in a sandbox on this machine. Its tool runs here, and reads a file of this machine.

    pip install '.[smolagents]' 'smolagents[openai]'
    OPENAI_API_KEY=… python examples/smol_agent.py [confined]

Needs Docker, or Linux for `confined`.
"""
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false

import csv
import os
import sys
from pathlib import Path
from typing import Literal

from smolagents import CodeAgent, LogLevel, OpenAIModel, tool

from codeact_team import open_sandbox
from codeact_team.adapters.smolagents import CodeactPythonExecutor

SALES = Path(__file__).with_name("sales.csv")
TASK = "Which region's revenue grew most, and by how many percent?"


@tool
def revenue(region: str) -> dict[str, float]:
    """The revenue of a region by year. The regions are North, East, South and West.

    Args:
        region: Its name.
    """
    with SALES.open(newline="") as file:
        return {row["year"]: float(row["revenue"]) for row in csv.DictReader(file) if row["region"] == region}


def answer(kind: Literal["docker", "confined"]) -> object:
    """What the code gives to `final_answer`."""
    with open_sandbox(kind) as sandbox:
        agent = CodeAgent(
            tools=[revenue],
            model=OpenAIModel(os.environ.get("OPENAI_MODEL", "gpt-4.1")),
            executor=CodeactPythonExecutor(sandbox),
            # the sandbox isolates the code, not a list of modules
            additional_authorized_imports=["*"],
            verbosity_level=LogLevel.ERROR,
        )
        return agent.run(TASK)


if __name__ == "__main__":
    print(answer("confined" if "confined" in sys.argv[1:] else "docker"))
