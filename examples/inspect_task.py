"""An Inspect task whose model has a shell and a living interpreter on this machine, and whose scorer runs the model's program.

    pip install '.[inspect]'
    OPENAI_API_KEY=… python examples/inspect_task.py [confined]
    OPENAI_API_KEY=… inspect eval examples/inspect_task.py --model openai/gpt-4.1 -T where=confined

Needs Docker, but not Compose, or Linux for `confined`.
"""

import os
import sys
from pathlib import Path

from inspect_ai import Task, eval, task  # pyright: ignore[reportUnknownVariableType]
from inspect_ai.agent import react
from inspect_ai.dataset import Sample
from inspect_ai.scorer import CORRECT, INCORRECT, Score, Scorer, Target, accuracy, scorer
from inspect_ai.solver import TaskState
from inspect_ai.tool import Tool, bash, tool
from inspect_ai.util import sandbox

from codeact_team.adapters.inspect import CodeactEnvironment

SALES = Path(__file__).with_name("sales.csv")
QUESTIONS = {"has grown most": "East", "has shrunk": "South"}


@tool
def interpreter() -> Tool:
    async def execute(code: str) -> str:
        """Run Python code. Variables, imports and functions are there in the next call.

        Args:
            code: The code. The value of its last line is shown.
        """
        result = await sandbox().as_type(CodeactEnvironment).sandbox.run_python(code)
        return result.output

    return execute


@scorer(metrics=[accuracy()])
def prints_the_target() -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        ran = await sandbox().exec(["python3", "answer.py"], timeout=30)
        value = CORRECT if ran.stdout.strip() == target.text else INCORRECT
        return Score(value=value, answer=ran.stdout.strip(), explanation=ran.stderr)

    return score


@task
def sales(where: str = "docker") -> Task:
    return Task(
        dataset=[
            Sample(
                id=region,
                input=f"sales.csv has the revenue of each region, year by year. Write answer.py, which reads it and prints the "
                f"name of the region that {question}.",
                target=region,
                files={"sales.csv": str(SALES)},
            )
            for question, region in QUESTIONS.items()
        ],
        solver=react(tools=[interpreter(), bash(timeout=60)]),
        scorer=prints_the_target(),
        sandbox=f"codeact-{where}",
    )


def main(where: str) -> None:
    model = f"openai/{os.environ.get('OPENAI_MODEL', 'gpt-4.1')}"
    (log,) = eval(sales(where), model=model, display="none")
    if log.status != "success":
        sys.exit(f"the task ended with {log.status}: {log.error.message if log.error else ''}")
    for sample in log.samples or []:
        for score in (sample.scores or {}).values():
            print(f"{sample.id}: {score.value} {score.answer}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "docker")
