"""What the last input of a chat has done: what undoing it brings back, and what it cannot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from codeact_team.core.events import BlockEnded, ToolCallBegan, ToolCallEnded
from codeact_team.core.execution import CallOutcome
from codeact_team.journal.effect_records import EffectRecord
from codeact_team.journal.history import History
from codeact_team.journal.restoration import END
from codeact_team.journal.run_directory import RunDirectory

_NOT_CALLED = (CallOutcome.DENIED, CallOutcome.REFUSED)


@dataclass(frozen=True)
class LastInput:
    """The last input of a chat. All texts are hostile data.

    Attributes:
        text: What the person has entered.
        calls: The calls of tools that were made for it, but those that may be made twice, such as ``refund(number=17)``.
        names: The variables that its code has set.
        files: The files that its code has made, changed or removed.
    """

    text: str
    calls: Sequence[str]
    names: Sequence[str]
    files: Sequence[str]


def last_input(directory: RunDirectory) -> LastInput | None:
    """The last input of a chat that is not undone, if there is one. Blocks.

    Raises:
        JournalError: If its journal cannot be read.
    """
    history = History(directory)
    if (entered := history.inputs.last) is None:
        return None
    # what is undone is taken, and nothing else in a history that has just been read
    effects = [each for each in history.effects if each.n > entered.n and not each.is_taken]
    names: dict[str, None] = {}
    calls: list[str] = []
    for effect in effects:
        began, ended = history.events_of(effect)
        if isinstance(ended, BlockEnded):
            names |= dict.fromkeys(bound.name for bound in ended.names)
        elif isinstance(began, ToolCallBegan) and _may_be_done(effect, began, ended):
            calls.append(_in_words(began))
    return LastInput(str(history.outcome(entered)), calls, [*names], _files_since(history, entered.n))


def _may_be_done(call: EffectRecord, began: ToolCallBegan, ended: object) -> bool:
    """Whether a call was made, and may have done what nobody does twice."""
    if began.is_repeatable or call.is_not_begun:
        return False
    return not (isinstance(ended, ToolCallEnded) and ended.outcome in _NOT_CALLED)


def _in_words(call: ToolCallBegan) -> str:
    try:
        given: Any = json.loads(call.arguments)
    except ValueError:
        # they were cut
        return f"{call.name}({call.arguments})"
    if not isinstance(given, dict):
        return f"{call.name}({call.arguments})"
    arguments = cast("dict[str, object]", given)
    named = (f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in arguments.items())
    return f"{call.name}({', '.join(named)})"


def _files_since(history: History, n: int) -> Sequence[str]:
    changed: dict[str, None] = {}
    for workspace in history.files:
        before, now = history.files.before(workspace, n), history.files.before(workspace, END)
        changed |= dict.fromkeys(path for path in {**before, **now} if before.get(path) != now.get(path))
    return [*changed]
