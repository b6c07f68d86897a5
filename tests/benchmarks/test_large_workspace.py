"""How long a workspace with many small files holds a recorded run up, beside a bare loop that keeps the same contents.

``pytest -m benchmark --workers 0 -s tests/benchmarks/test_large_workspace.py``. Ratios, as absolute numbers are those of a machine
and its load. Those of processor time depend less on what else runs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from benchmarks.test_recording import config
from rich.console import Console
from rich.table import Table

from codeact_team.core.effects import Event
from codeact_team.core.events import BlockEnded, ModelCallBegan
from codeact_team.runs.run import TeamRun

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(1200)]

PACKAGES, FILES, SIZE = 600, 100, 4096
MAKE = """
import os, time
for package in range({packages}):
    above = f"node_modules/{{package}}/lib"
    os.makedirs(above)
    for number in range({files}):
        with open(f"{{above}}/{{number}}.js", "wb") as file:
            file.write(f"{{package}}/{{number}} ".encode().ljust({size}, b"x")[:{size}])
print(time.time())
"""
STEPS = {
    "all are new": MAKE,
    "none has changed": "\nimport time\nprint(time.time())\n",
    "one has changed": "\nopen('new.txt', 'w').close()\nprint(time.time())\n",
}


class Took(NamedTuple):
    """Seconds on the clock, and of this process's processor time."""

    clock: float
    processor: float


def now() -> Took:
    return Took(time.time(), time.process_time())


def bare_loop(source: Path, target: Path) -> Took:
    """Read, hash, write and rename all files."""
    for number in range(256):
        (target / f"{number:02x}").mkdir(parents=True)
    began = now()
    for above, _, names in os.walk(source):
        for name in names:
            with open(f"{above}/{name}", "rb") as file:
                data = file.read()
            digest = sha256(data).hexdigest()
            with open(f"{target}/new", "wb") as file:
                file.write(data)
            os.rename(f"{target}/new", f"{target}/{digest[:2]}/{digest[2:]}")
    ended = now()
    return Took(ended.clock - began.clock, ended.processor - began.processor)


async def after_blocks(code: Sequence[str], record: Path | None) -> list[Took]:
    """The time from the end of each block until the model is asked again, and the processor time of the whole step."""
    ends: list[float] = []
    asked: list[Took] = []

    def listen(event: Event) -> None:
        if isinstance(event, ModelCallBegan):
            asked.append(now())
        elif isinstance(event, BlockEnded):
            # the last line of the code
            ends.append(float(event.output))

    replies = [*(f"```python{one}```" for one in code), "It is done."]
    run = TeamRun(config(replies, len(replies), timeout=600), record=record, record_mib=None)
    run.dispatcher.listen(listen)
    await run.run_once("Make many files.")
    steps = zip(pairwise(asked), ends, strict=True)
    return [Took(after.clock - end, after.processor - before.processor) for (before, after), end in steps]


@pytest.mark.parametrize("size", [SIZE, 0])
async def test_a_workspace_with_many_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    code = [one.format(packages=PACKAGES, files=FILES, size=size) for one in STEPS.values()]
    source = tmp_path / "source"
    source.mkdir()
    monkeypatch.chdir(source)
    exec(code[0], {})
    bare = bare_loop(source, tmp_path / "target")
    plain, recorded = await after_blocks(code, None), await after_blocks(code, tmp_path / "runs")
    table = Table(
        "",
        "without a record, s",
        "recorded, s",
        "of the bare loop",
        "of its processor time",
        title=f"{PACKAGES * FILES:,} files of {size:,} bytes; bare loop: {bare.clock:.1f} s",
    )
    for step, without, kept in zip(STEPS, plain, recorded, strict=True):
        ratio, of_processor = kept.clock / bare.clock, kept.processor / bare.processor
        table.add_row(
            step, f"{without.clock:.2f}", f"{kept.clock:.2f}", f"{ratio:.2f}", f"{of_processor:.2f}"
        )
    Console(width=120).print(table)
