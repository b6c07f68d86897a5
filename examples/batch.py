"""Many tasks, each in a sandbox of its own: how many of the answers are right, and which are not.

    python examples/batch.py result

Run it again, also after Ctrl-C or a crash: it goes on with the tasks that are not done. Needs OPENAI_API_KEY. The same on the
command line: codeact-team batch codeact-confined examples/tasks.jsonl --out result
"""

import asyncio
import json
import sys
from pathlib import Path

from codeact_team import run_batch

TASKS = Path(__file__).with_name("tasks.jsonl")


def main(out: str) -> None:
    overrides = ["config.code_executor.config.packages=[]"]
    result = asyncio.run(run_batch("codeact-confined", TASKS, out=out, overrides=overrides))
    for line in Path(out, "results.jsonl").read_text().splitlines():
        one = json.loads(line)
        print(one["id"], "is right" if one["correct"] else f"is not right: {one['answer']}")
    if result.accuracy is not None:
        print(f"{result.accuracy.value:.0%} are right")


if __name__ == "__main__":
    main(sys.argv[1])
