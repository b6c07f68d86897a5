"""Small tasks with a scripted model: a batch on a Ray cluster beside one in processes of this machine, as many of them.

``pytest -m benchmark --workers 0 -s tests/benchmarks/test_ray.py``. The cluster is one of this machine alone, so that what differs is
what Ray costs: the way of a message through two more processes, and a slower start. The runs take turns, and the last column
compares medians.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from batch.batches import coder, doubling, numbers
from benchmarks.conftest import Figures
from rich.console import Console
from rich.table import Table
from support.openai_server import ScriptedServer
from support.ray_cluster import authenticated

from codeact_team.batch.batch import run_batch
from codeact_team.core.effects import Event

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(3600)]

TASKS = int(os.environ.get("BENCHMARK_TASKS", "200"))
TURNS = int(os.environ.get("BENCHMARK_TURNS", "3"))
WORKERS = 2


async def batch(base_url: str, out: Path, **where: Any) -> tuple[float, float]:
    """Seconds until the first task begins, and seconds from then on for each."""
    called, began = time.perf_counter(), 0.0

    def listen(event: Event) -> None:
        nonlocal began
        if event.type == "task_began":
            began = began or time.perf_counter()

    result = await run_batch(
        coder(base_url), numbers(TASKS), out=out, workers=WORKERS, listeners=[listen], **where
    )
    assert (result.outcomes, result.wrong) == ({"answered": TASKS}, 0)
    return began - called, (time.perf_counter() - began) / TASKS


async def test_overhead_of_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figure: Figures) -> None:
    for name, value in authenticated(tmp_path).items():
        monkeypatch.setenv(name, value)
    places: dict[str, dict[str, Any]] = {
        "processes of this machine": {},
        "Ray": {"engine": "ray", "address": "local"},
    }
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in places}
    with ScriptedServer.in_thread(doubling) as server:
        for turn in range(TURNS):
            for name, where in places.items():
                out = tmp_path / f"{name}-{turn}"
                measured[name].append(await batch(server.base_url, out, **where))
    table = Table("where", "start (s)", "a task (ms)", "of that here")
    base = median(each for _, each in measured["processes of this machine"])
    for name, values in measured.items():
        start, each = median(start for start, _ in values), median(each for _, each in values)
        table.add_row(name, f"{start:.1f}", f"{each * 1000:.1f}", f"{each / base:.2f}")
        figure(f"A small task of a batch by {WORKERS} workers: {name}", f"{each * 1000:.0f} ms")
    Console(width=100).print(table)
