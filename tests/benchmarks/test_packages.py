"""What packages cost: how long a start takes with a layer that is there, beside one without packages in the same run.

``pytest -m benchmark --workers 0 -s tests/benchmarks/test_packages.py``. Needs a package index the first time.
"""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from benchmarks.flood import SESSIONS
from benchmarks.timing import milliseconds
from rich.console import Console
from rich.table import Table

from codeact_team.executors.packages.layers import Layers

pytestmark = [pytest.mark.benchmark, pytest.mark.docker, pytest.mark.timeout(600)]

ROUNDS = 15
BLOCK = CodeBlock("print(1)", "python")
PACKAGES = ["pandas", "matplotlib>=3.8"]
WAYS: dict[str, dict[str, Any]] = {
    "without, ms": {},
    "with pandas and matplotlib, ms": {"packages": PACKAGES},
}


async def test_a_start_with_packages() -> None:
    table = Table("", *WAYS, "more, ms", title="a start of a session")
    for kind, make in SESSIONS.items():
        starts: dict[str, list[float]] = {way: [] for way in WAYS}
        results: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(ROUNDS):
            # in turns, so that a busy moment hits them both
            for way, settings in WAYS.items():
                executor = make(**settings)
                starts[way].append(await milliseconds(executor.start()))
                # at once, which waits for the comparison of the packages; in a run, a model is asked meanwhile
                first = await milliseconds(executor.execute_code_blocks([BLOCK], CancellationToken()))
                results[way].append(starts[way][-1] + first)
                await executor.stop()
        for name, times in ((kind, starts), (f"{kind}, with a block at once", results)):
            # the first start got the packages, or asked the sandbox's Python
            medians = [median(found[1:]) for found in times.values()]
            table.add_row(name, *(f"{value:.0f}" for value in medians), f"{medians[1] - medians[0]:.0f}")
    layers = [layer for layer in Layers().all() if "pandas" in layer.packages]
    Console(width=140).print(table, f"{len(layers)} layer(s) with pandas, for all of them")
