"""The analyst's story: a table in; pandas, a chart and an answer in words out, in a sandbox without a network."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from command_line import codeact_team, lines
from support.openai_server import Json, ScriptedServer, Text

SALES = Path(__file__).parents[2] / "examples" / "sales.csv"
CODE = """```python
import matplotlib.pyplot as plt
import pandas as pd

sales = pd.read_csv("sales.csv").pivot(index="region", columns="year", values="revenue")
growth = (sales[2025] / sales[2024] - 1).mul(100).sort_values()
growth.plot.barh(title="Growth in percent")
plt.savefig("growth.png")
print(growth)
```"""
ANSWER = "East grew most: by 27.3 percent. The chart is growth.png."
ACCEPT: dict[str, Any] = {"problems": [], "accepted": True, "next_step": "", "answer": ANSWER}


# packages of an index
@pytest.mark.long
@pytest.mark.parametrize("config", [pytest.param("team", marks=pytest.mark.docker), "team-confined"])
def test_a_table_goes_in_and_an_answer_and_a_chart_come_out(config: str, tmp_path: Path) -> None:
    with ScriptedServer.in_thread([Text(CODE), Json(ACCEPT)]) as server:
        result = codeact_team(
            *("run", config, "Which region grew most? Make a chart.", "--data", str(SALES), "--json"),
            *("--out", "result", "-o", "answer.txt"),
            cwd=tmp_path,
            OPENAI_API_KEY="a-key",
            OPENAI_BASE_URL=server.base_url,
        )
    assert result.returncode == 0, result.stderr
    assert "region,year,revenue" in str(server.requests[0]["messages"])
    end = lines(result.stdout)[-1]
    assert (end["accepted"], end["answer"]) == (True, ANSWER)
    assert (tmp_path / "answer.txt").read_text() == f"{ANSWER}\n"
    chart = tmp_path / "result" / "growth.png"
    assert [(file["path"], file["change"], file["size"]) for file in end["files"]] == [
        ("growth.png", "made", chart.stat().st_size)
    ]
    assert chart.read_bytes().startswith(b"\x89PNG")
    assert chart.stat().st_uid == os.geteuid()
    assert os.listdir(tmp_path / "result") == ["growth.png"]
