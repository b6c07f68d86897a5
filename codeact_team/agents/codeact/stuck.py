"""Noticing that an agent does the same again and again."""

from __future__ import annotations

from collections.abc import Sequence

from autogen_core.code_executor import CodeBlock

from codeact_team.execution import ExecutionResult

MAX_REPETITIONS = 3
"""How many steps in a row may bring nothing new."""


class Repetition:
    """Counts the steps in a row that bring nothing new: the same code with the same result has been there before.

    What is new in between starts the count anew, so that a test may be run after each of many changes; going round in
    a circle of several steps is noticed as well.

    Attributes:
        steps: How many there have been in a row.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._seen: set[int] = set()

    def note(self, blocks: Sequence[CodeBlock], result: ExecutionResult) -> None:
        """Note what ran, and what came of it."""
        code = tuple((block.language, block.code.strip()) for block in blocks)
        step = hash((code, result.exit_code, result.outcome, result.output))
        self.steps = self.steps + 1 if step in self._seen else 0
        self._seen.add(step)
