"""Noticing that an agent does the same again and again."""

from __future__ import annotations

import re
from collections.abc import Sequence

from autogen_core.code_executor import CodeBlock

from codeact_team.execution import ExecutionResult

MAX_REPETITIONS = 3
"""How many steps in a row may bring nothing new."""

_CHANGES_BY_ITSELF = re.compile(
    r"<block \d+>"  # in tracebacks: a session counts its blocks
    r"|\b0x[0-9a-f]{6,}"  # where an object is in memory
    r"|(?<=/tmp)[a-z0-9_]{8}\b"  # what tempfile makes up
    r"|\b(?:\d{4}-\d\d-\d\d[T ])?\d?\d:\d\d:\d\d(?:[.,]\d+)?"  # when something was
    r"|\b(?:\d+\.\d+ ?s(?:ec(?:ond)?s?)?|\d+(?:\.\d+)? ?[mµun]s)\b"  # how long it took
)


class Repetition:
    """Counts the steps in a row that bring nothing new: the same code with the same result has been there before.

    What changes by itself makes no result a new one: numbers of blocks, addresses, names of temporary files, times.

    What is new in between starts the count anew, so that a test may be run after each of many changes; going round in
    a circle of several steps is noticed as well.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._seen: set[int] = set()

    def note(self, blocks: Sequence[CodeBlock], result: ExecutionResult) -> None:
        """Note what ran, and what came of it."""
        code = tuple((block.language, block.code.strip()) for block in blocks)
        output = _CHANGES_BY_ITSELF.sub("", result.output)
        step = hash((code, result.exit_code, result.outcome, output))
        self.steps = self.steps + 1 if step in self._seen else 0
        self._seen.add(step)
