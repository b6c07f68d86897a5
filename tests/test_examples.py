"""Every example runs, as a person would start it, with a scripted server in the place of the model."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.fork_server import forked_by_command, start
from support.openai_server import AnyReply, Json, ScriptedServer, Text

EXAMPLES = Path(__file__).parents[1] / "examples"

pytestmark = [pytest.mark.docker, pytest.mark.long]

_SQUARES = Text("```python\nprint([n * n for n in range(1, 11)])\n```")
_OUTPUT = "[1, 4, 9, 16, 25, 36, 49, 64, 81, 100]"


def run_example(
    name: str,
    *arguments: str,
    replies: Sequence[AnyReply] | Callable[[Any], AnyReply],
    cwd: Path,
    stdin: str = "",
    executable: str = sys.executable,
) -> str:
    with ScriptedServer.in_thread(replies) as server:
        variables = {"OPENAI_API_KEY": "key-of-a-test", "OPENAI_BASE_URL": server.base_url}
        with start(
            [str(EXAMPLES / name), *arguments],
            cwd=cwd,
            environment=os.environ | variables,
            stdin=subprocess.PIPE,
            executable=executable,
        ) as process:
            output, errors = process.communicate(stdin.encode(), timeout=110)
    assert process.returncode == 0, errors.decode()
    return output.decode()


@pytest.mark.usefixtures("offline_packages")
def test_team_from_yaml_repairs_and_accepts(tmp_path: Path) -> None:
    output = run_example(
        "team_from_yaml.py",
        replies=[
            Text("```python\nprint(1 / 0)\n```"),
            Json({"reason": "It divides by zero; count instead.", "retry": True}),
            Text("```python\nprint(sum(all(n % d for d in range(2, n)) for n in range(2, 100)))\n```"),
            Json({"problems": [], "accepted": True, "next_step": ""}),
        ],
        cwd=tmp_path,
    )
    assert "--- executor\n25" in output
    assert "accepted\n=== reflection accepted the work" in output


@pytest.mark.parametrize(
    ("kind", "replies"),
    [
        ("selector", [Text("coder"), _SQUARES, Text("executor")]),
        # a round robin within another
        ("nested", [_SQUARES, Text("These are the squares of 1 to 10.")]),
    ],
)
def test_the_executor_agent_works_in_hand_built_teams(
    kind: str, replies: list[AnyReply], tmp_path: Path
) -> None:
    assert _OUTPUT in run_example("embed_executor.py", kind, replies=replies, cwd=tmp_path)


def test_custom_language_shares_the_workspace(tmp_path: Path) -> None:
    assert run_example("custom_language.py", replies=[], cwd=tmp_path).split() == ["a", "1", "b", "2"]


def test_approval_denies_and_allows(tmp_path: Path) -> None:
    output = run_example("approval.py", replies=[], cwd=tmp_path)
    assert "echo hello: hello" in output
    assert "Reason: files are not deleted here" in output


def test_codeact_solves_the_notebook_tasks_with_variables_and_functions_that_live_on(tmp_path: Path) -> None:
    output = run_example(
        "codeact_agent.py",
        replies=[
            Text("```python\ntotal = sum(range(1, 11))\ntotal\n```"),
            Text("The sum is 55."),
            Text("```python\nresult = multiply(add(5, 3), 2)\nprint(result)\n```"),
            Text("The result is 16."),
            Text(
                "```python\ndef fibonacci(count):\n    numbers = [0, 1]\n    while len(numbers) < count:\n"
                "        numbers.append(numbers[-1] + numbers[-2])\n    return numbers[:count]\n\n"
                "sum(fibonacci(10))\n```"
            ),
            Text("The sum is 88."),
            # only the interpreter remembers it
            Text("```python\nfinal_answer(sum(fibonacci(20)))\n```"),
        ],
        cwd=tmp_path,
    )
    answers = [line.strip() for line in output.splitlines() if line.startswith("  ")]
    assert answers == ["The sum is 55.", "The result is 16.", "The sum is 88.", "10945"]


def test_a_typed_answer_is_corrected_and_read(tmp_path: Path) -> None:
    count = (
        "years = [year for year in range(1900, 2101) if year % 4 == 0 and (year % 100 or year % 400 == 0)]"
    )
    output = run_example(
        "typed_answer.py",
        replies=[
            Text(f"```python\n{count}\nfinal_answer({{'count': len(years)}})\n```"),
            Text("```python\nfinal_answer({'count': len(years), 'last': years[-1]})\n```"),
        ],
        cwd=tmp_path,
    )
    assert output == "LeapYears(count=49, last=2096)\n"


def test_sqlite_tools_answer_from_a_database_that_the_sandbox_has_not(tmp_path: Path) -> None:
    output = run_example(
        "sqlite_tools.py",
        replies=[
            Text(
                "```python\nprint(tools.tables())\nrows = tools.query('SELECT * FROM sales')\n"
                "revenue = {}\nfor row in rows:\n"
                "    revenue[row['region']] = revenue.get(row['region'], 0) + row['pieces'] * row['price']\n"
                "print(max(revenue, key=revenue.get))\ntools.query('DROP TABLE sales')\n```"
            ),
            Text("The north."),
            Text(
                "```python\npieces = {}\nfor row in rows:\n"
                "    pieces[row['region']] = pieces.get(row['region'], 0) + row['pieces']\n"
                "final_answer(max(pieces, key=pieces.get))\n```"
            ),
        ],
        cwd=tmp_path,
    )
    answers = [line.strip() for line in output.splitlines() if line.startswith("  ")]
    assert answers == ["The north.", "west"]


def test_parallel_tools_take_little_longer_than_one(tmp_path: Path) -> None:
    output = run_example("parallel_tools.py", replies=[], cwd=tmp_path)
    assert output.startswith("20 pages, the last is '<h1>page 19</h1>': ")


def test_approved_tools_ask_beyond_a_limit(tmp_path: Path) -> None:
    output = run_example("approved_tools.py", replies=[], cwd=tmp_path, stdin="n too much\n")
    assert "clerk wants to call refund" in output
    assert "17: paid back 40.0\n" in output
    assert "19: not approved: too much\n" in output


def test_mcp_tools_are_called_by_code_without_a_network(tmp_path: Path) -> None:
    # it starts mcp_server.py, which is forked as well
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.join(forked_by_command())} "$@"\n')
    python.chmod(0o700)
    output = run_example(
        "mcp_tools.py",
        replies=[
            Text(
                "```python\nfew = [name for name in tools.stock.articles() if tools.stock.count(article=name) < 10]\n"
                "print(tools.stock.order(few[0], 50))\ntools.stock.order('bolt', 1)\n```"
            ),
            Text("I ordered 50 gears."),
        ],
        cwd=tmp_path,
        executable=str(python),
    )
    assert output == "I ordered 50 gears.\n"


def test_a_listener_hears_of_tokens_and_blocks(tmp_path: Path) -> None:
    output = run_example("listener.py", replies=[], cwd=tmp_path)
    assert "coder ran code: exit code 1 after " in output
    assert output.count("coder asked ") > output.count("coder ran code: exit code 0 after ") == 3


@pytest.mark.parametrize("sandbox", ["docker", "confined"])
def test_each_program_is_marked_in_a_copy_of_the_sandbox(sandbox: str, tmp_path: Path) -> None:
    output = run_example("grading.py", sandbox, replies=[], cwd=tmp_path)
    assert output.splitlines() == [
        "ada is right",
        "bob is wrong: 30",
        "cy fails: TypeError: unsupported operand type(s) for +: 'int' and 'str'",
        "eve takes too long",
        "numbers.txt has 9 bytes, as before",
    ]


_CHART = """```python
import matplotlib.pyplot as plt
import pandas as pd

sales = pd.read_csv("sales.csv").pivot(index="region", columns="year", values="revenue")
growth = (sales[2025] / sales[2024] - 1).mul(100).sort_values()
growth.plot.barh(title="Growth of revenue in percent")
plt.savefig("growth.png")
growth
```"""
_GREW = "```python\nfinal_answer(f'{growth.idxmax()} grew most: by {growth.max():.1f} percent.')\n```"


# packages of an index
@pytest.mark.parametrize("sandbox", ["docker", "confined"])
def test_the_analyst_reads_a_table_and_answers_with_a_chart(sandbox: str, tmp_path: Path) -> None:
    output = run_example("analyst.py", sandbox, replies=[Text(_CHART), Text(_GREW)], cwd=tmp_path)
    assert output.endswith("East grew most: by 27.3 percent.\n")
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")


def test_a_batch_tells_which_answers_are_right_and_goes_on(tmp_path: Path) -> None:
    squares = "open('squares.txt', 'w').write(chr(10).join(str(n * n) for n in range(1, 6)))"

    def answer(body: Any) -> AnyReply:
        task = str(body["messages"])
        if "How many primes" in task:
            return Text("24")
        if len(body["messages"]) > 3:
            return Text("East\n")
        code = squares if "Write the squares" in task else "print(open('sales.csv').read())"
        return Text(f"```python\n{code}\n```")

    asked: list[Any] = []

    def counted(body: Any) -> AnyReply:
        asked.append(body)
        return answer(body)

    for _ in range(2):
        output = run_example("batch.py", "result", replies=counted, cwd=tmp_path)
        assert output.splitlines() == [
            "primes is not right: 24",
            "grown is right",
            "squares is right",
            "67% are right",
        ]
    # the second time nothing was left to do
    assert len(asked) == 5


def test_budget_ends_a_team_that_has_spent_its_money(tmp_path: Path) -> None:
    said = Text("Mine.", prompt_tokens=1500, completion_tokens=100)
    output = run_example("budget.py", replies=[said] * 3, cwd=tmp_path)
    assert output.splitlines()[:2] == ["spent 0.0002 USD, left 0.0003", "spent 0.0004 USD, left 0.0001"]
    assert output.splitlines()[-1].startswith("the budget is used up: 0.00057 of 0.0005 USD; ")


def test_warm_sandboxes_serve_each_program_in_one_of_its_own(tmp_path: Path) -> None:
    output = run_example("warm_sandboxes.py", replies=[], cwd=tmp_path)
    assert output == "2 sandboxes are ready\n120 []\n3628800 []\n1307674368000 []\n"
