"""Compares the recorded result of a block with a new one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher

from autogen_core.code_executor import CodeResult

from codeact_team.core.execution import ExecutionResult, Outcome, SessionResult

_MAX_LINES = 40
"""Compared of each side, from the first that differs: to compare lines takes cubic time."""
_MAX_LENGTH = 120
"""Characters; a line that is longer counts as several."""
_CONTEXT = 3
_ADDRESS = re.compile(r"(?<=\bat )0x[0-9a-f]+|\b0x[0-9a-f]{9,16}\b")
"""As objects show it; other shorter numbers mean something."""
_TEMPORARY = re.compile(r"\bcodeact-team-\d+-\w{8}\b")
"""The names of temporary directories."""


def difference(recorded: CodeResult, now: CodeResult, *, paths: Mapping[str, str] = {}) -> str | None:
    """Compare the exit code, the output and the answer of two results.

    Addresses in memory and the names of temporary directories do not count.

    Args:
        recorded: The recorded result.
        now: The new one.
        paths: Directories that may differ, such as temporary workspaces, and the names that replace them.

    Returns:
        ``None`` if they are alike; else a unified diff, at most 25,000 characters; hostile data.
    """
    pairs = (
        ([_ending(recorded)], [_ending(now)]),
        (_lines(recorded.output, paths), _lines(now.output, paths)),
        (_answer(recorded, paths), _answer(now, paths)),
    )
    changed = [line for before, after in pairs for line in _changed(before, after)]
    return "\n".join(["--- recorded", "+++ now", *changed]) if changed else None


def _ending(result: CodeResult) -> str:
    outcome = result.outcome if isinstance(result, ExecutionResult) else Outcome.COMPLETED
    how = "" if outcome is Outcome.COMPLETED else f" ({outcome.value.replace('_', ' ')})"
    return f"exit code {result.exit_code}{how}"


def _answer(result: CodeResult, paths: Mapping[str, str]) -> list[str]:
    answer = result.answer if isinstance(result, SessionResult) else None
    return [] if answer is None else _lines(f"final answer: {answer}", paths)


def _lines(text: str, paths: Mapping[str, str]) -> list[str]:
    if known := sorted(filter(None, paths), key=len, reverse=True):
        pattern = rf"(?:{'|'.join(map(re.escape, known))})(?!\w)"
        text = re.sub(pattern, lambda found: paths[found[0]], text)
    text = _TEMPORARY.sub("codeact-team-…", _ADDRESS.sub("0x…", text))
    return [
        line[start : start + _MAX_LENGTH]
        for line in text.split("\n")
        for start in range(0, len(line) or 1, _MAX_LENGTH)
    ]


def _changed(before: Sequence[str], after: Sequence[str]) -> Iterator[str]:
    """One hunk of a diff, with all lines between the first and the last change."""
    if before == after:
        return
    first = _in_common(before, after)
    last = min(_in_common(before[::-1], after[::-1]), min(len(before), len(after)) - first)
    start, end = max(0, first - _CONTEXT), first + _MAX_LINES
    one, other = (side[start : min(len(side) - last + _CONTEXT, end)] for side in (before, after))
    is_cut = max(len(before), len(after)) - last > end
    steps = SequenceMatcher(None, one, other, autojunk=False).get_opcodes()
    if is_cut and len(steps) > 2 and steps[-1][0] != "equal":
        # it may come only from where the lines are cut
        del steps[-1]
    yield f"@@ -{start + 1},{steps[-1][2]} +{start + 1},{steps[-1][4]} @@"
    for kind, i, i_end, j, j_end in steps:
        if kind == "equal":
            yield from (f" {line}" for line in one[i:i_end])
            continue
        yield from (f"-{line}" for line in one[i:i_end])
        yield from (f"+{line}" for line in other[j:j_end])
    if is_cut:
        yield "[… the rest is not compared]"


def _in_common(one: Sequence[str], other: Sequence[str]) -> int:
    """Return the number of first lines that are the same."""
    pairs = zip(one, other, strict=False)
    return next((n for n, (mine, yours) in enumerate(pairs) if mine != yours), min(len(one), len(other)))
