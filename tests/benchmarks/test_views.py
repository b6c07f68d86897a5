"""What confined code takes without namespaces, beside what it takes in them, in the same run.

``pytest -m benchmark --workers 0 -s tests/benchmarks``. Ratios, as absolute numbers are those of a machine and its load.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest
from rich.console import Console
from rich.table import Table

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(900)]
TURNS = 3


def measured(view: str) -> dict[str, float]:
    program = [sys.executable, str(Path(__file__).with_name("views.py")), view]
    return json.loads(subprocess.run(program, stdout=subprocess.PIPE, text=True, check=True).stdout)


def test_each_view() -> None:
    turns = [(measured("namespaces"), measured("listener")) for _ in range(TURNS)]
    table = Table("", "in namespaces, ms", "without, ms", "ratio", title="Views of confined code")
    for what in turns[0][0]:
        inside, without = (median(turn[view][what] for turn in turns) for view in (0, 1))
        table.add_row(what, f"{inside:.3f}", f"{without:.3f}", f"{without / inside:.2f}")
    Console(width=100).print(table)
