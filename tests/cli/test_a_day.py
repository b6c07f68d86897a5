"""A day's use, on a terminal, by what the README says: a spreadsheet, a kill, two more questions, and the chart."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.openai_server import ScriptedServer, Text
from support.terminal import on_a_terminal
from test_cli_chat import ask, codeact, leave

LOOK = """```python
import openpyxl
import matplotlib
matplotlib.use("agg")
import matplotlib.pyplot as plt
rows = [row for row in openpyxl.load_workbook("sales.xlsx").active.iter_rows(min_row=2, values_only=True)]
total = {}
for region, amount in rows:
    total[region] = total.get(region, 0) + amount
plt.bar(list(total), list(total.values()))
plt.savefig("growth.png")
print(total)
```"""


@pytest.mark.long
def test_a_spreadsheet_is_analysed_and_the_chat_about_it_survives_a_kill(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in (("region", "amount"), ("north", 3), ("south", 2), ("north", 4)):
        book.worksheets[0].append(row)
    book.save(tmp_path / "sales.xlsx")
    replies = [
        Text(LOOK),
        Text("North sold most. The chart is in growth.png."),
        Text("```python\nprint(len(rows), 'rows')\n```"),
        Text("There are three."),
        Text("```python\nprint(total['south'] * 2)\n```"),
        Text("It is four."),
    ]
    with ScriptedServer.in_thread(replies) as server:
        command, variables = codeact(server)
        begin = [*command, "--data", "sales.xlsx", "--out", "result"]
        with on_a_terminal(*begin, cwd=tmp_path, **variables) as terminal:
            ask(terminal, "Which region sold most? Make a chart.")
            terminal.wait_for("── answered")
            terminal.wait_for("\n> ")
            terminal.process.kill()
            terminal.end()
            (made,) = re.findall(r"made (\S+growth\.png)", terminal.text)
        with on_a_terminal("chat", "--continue", cwd=tmp_path, **variables) as terminal:
            ask(terminal, "How many rows are there?")
            terminal.wait_for("\n3 rows\n")
            ask(terminal, "And twice the south?")
            terminal.wait_for("\n4\n")
            terminal.wait_for("It is four.")
            assert leave(terminal) == 0
    assert "sales.xlsx" in str(server.requests[0]["messages"])
    assert made == "result/growth.png"
    assert (tmp_path / made).read_bytes().startswith(b"\x89PNG")
