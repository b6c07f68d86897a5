from __future__ import annotations

from pathlib import Path

import pytest
from support.interpreter import RunningInterpreter

_BLOCKS = (
    "print(1)",
    "x = [1, 2, 3]",
    "x",
    "await asyncio.sleep(0)",
    "1 / 0",
    "x = = 1",
    "final_answer(x)",
    "import sys; sys.exit(3)",
    "y = {n: str(n) for n in range(50)}",
    "for _ in range(3): pass",
)


@pytest.mark.long
def test_ten_thousand_blocks_leave_nothing_behind(tmp_path: Path) -> None:
    with RunningInterpreter(tmp_path) as interpreter:
        interpreter.run("import asyncio, linecache, threading")
        for turn in range(1_000):
            interpreter.run(_BLOCKS[turn % len(_BLOCKS)])
        count = "len(linecache.cache), threading.active_count()"
        before = interpreter.memory(), interpreter.open_descriptors(), interpreter.run(count).output
        for turn in range(9_000):
            interpreter.run(_BLOCKS[turn % len(_BLOCKS)])
        after = interpreter.memory(), interpreter.open_descriptors(), interpreter.run(count).output
    assert after[1:] == before[1:]
    assert after[0] - before[0] < 2 << 20


@pytest.mark.long
def test_the_cost_of_a_block_does_not_grow_with_the_number_of_names(tmp_path: Path) -> None:
    with RunningInterpreter(tmp_path) as interpreter:
        costs: list[float] = []
        for setup in ("pass", "globals().update({f'name{n}': n for n in range(300_000)})"):
            interpreter.run(setup)
            start = interpreter.cpu_seconds()
            for _ in range(100):
                interpreter.run("x = 1")
            costs.append(interpreter.cpu_seconds() - start)
    # a walk over all the names would cost a hundred times as much
    assert costs[1] < 10 * costs[0]
