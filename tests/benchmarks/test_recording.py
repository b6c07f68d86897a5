"""What recording adds to a step of a run, and how large a run is that is kept.

A step of the same run without a record, with AutoGen's replay client, which itself takes longer the longer the run is, is
measured beside it. ``pytest -m benchmark --workers 0 -s tests/benchmarks/test_recording.py``.
"""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest
from rich.console import Console
from rich.table import Table

from codeact_team.core.effects import Event
from codeact_team.core.events import BlockEnded
from codeact_team.journal.run_directory import find_run
from codeact_team.runs.chat import TeamChat
from codeact_team.runs.run import TeamRun

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(1200)]

SHORT, LONG, CHAT = 30, 3000, 300
WINDOW = 25


def config(replies: Sequence[str], steps: int, **executor: object) -> str:
    model = {
        "chat_completions": [*replies],
        "model_info": {
            "vision": False,
            "function_calling": False,
            "json_output": False,
            "family": "unknown",
            "structured_output": False,
        },
    }
    settings = {
        "name": "coder",
        "model_client": {"provider": "autogen_ext.models.replay.ReplayChatCompletionClient", "config": model},
        "code_executor": {
            "provider": "codeact_team.ConfinedSessionCodeExecutor",
            "config": {"confinement": "best_effort", **executor},
        },
        "max_steps": steps,
    }
    return json.dumps({"provider": "codeact_team.CodeActAgent", "config": settings})


async def milliseconds_of_steps(steps: int, record: Path | None) -> list[float]:
    """The processor time of this process for each step of a run."""
    marks: list[float] = []

    def listen(event: Event) -> None:
        if isinstance(event, BlockEnded):
            marks.append(1000 * time.process_time())

    replies = [f"```python\nx = {number}\nprint('the value is', x)\n```" for number in range(steps)]
    run = TeamRun(config([*replies, "It is done."], steps + 1), record=record, record_mib=None)
    run.dispatcher.listen(listen)
    await run.run_once("Count.")
    assert len(marks) == steps
    return [after - before for before, after in pairwise(marks)]


def sizes_of(runs: Path) -> tuple[int, int]:
    """The bytes of the last run's journal and blobs, and gzipped."""
    directory = find_run("last", runs)
    kept = [directory.lines.read_bytes(), *(blob.read_bytes() for blob in directory.blobs.rglob("*/*"))]
    return sum(map(len, kept)), sum(len(gzip.compress(data)) for data in kept)


async def test_what_recording_adds_to_a_step(tmp_path: Path) -> None:
    table = Table("at step", "without, ms", "recorded, ms", "added, ms")
    for steps in (SHORT, LONG):
        plain = await milliseconds_of_steps(steps, None)
        recorded = await milliseconds_of_steps(steps, tmp_path / f"runs-{steps}")
        without, within = median(plain[-WINDOW:]), median(recorded[-WINDOW:])
        table.add_row(f"{steps:,}", f"{without:.2f}", f"{within:.2f}", f"{within - without:.2f}")
    Console(width=100).print(table)
    sizes = Table("run", "KiB", "gzipped, KiB", "of a step, bytes")
    for steps in (SHORT, LONG):
        size, packed = sizes_of(tmp_path / f"runs-{steps}")
        sizes.add_row(f"{steps:,} steps", f"{size / 1024:.1f}", f"{packed / 1024:.1f}", f"{size / steps:.0f}")
    chat = TeamChat(config([f"You said {number}." for number in range(CHAT)], 3), record=tmp_path / "chats")
    async with chat.open():
        for number in range(CHAT):

            async def ask(text: str = f"Say {number}.") -> str:
                return text

            await chat.run(await chat.next_input(ask))
    size, packed = sizes_of(tmp_path / "chats")
    sizes.add_row(f"a chat of {CHAT}", f"{size / 1024:.1f}", f"{packed / 1024:.1f}", f"{size / CHAT:.0f}")
    Console(width=100).print(sizes)
