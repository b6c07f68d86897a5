"""What was asked and answered."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from pydantic import BaseModel, ConfigDict

from codeact_team.approval.question import MAX_NAME_CHARS, Kind, Question, as_json, one_line
from codeact_team.approval.rules import NO_RULE, Ruling

HANDLER = "handler"

MAX_RECORDS = 500
"""How many records are kept of what a handler answered, and how many of all else: code that is allowed a thousand calls
does not drive out what a person was asked."""
_MAX_ARGUMENTS_CHARS = 500
_MAX_REASON_CHARS = 1_000


class ApprovalRecord(BaseModel):
    """A decision on a block of code, or on the call of a tool."""

    model_config = ConfigDict(frozen=True)

    what: Kind
    """Whether it is on code, or on the call of a tool."""
    name: str
    """The tool, or the language of the code."""
    arguments: str = ""
    """The tool's arguments as JSON, cut if they are long."""
    decision: Literal["allow", "deny"]
    """What was decided."""
    by: str
    """Who decided: `rule 2` (counted from 1), `handler`, `standing grant`, `no rule`, `no one to ask` or `cannot be
    shown` (to a person, whole and as it would run)."""
    reason: str = ""
    """Why."""
    seconds: float = 0.0
    """Seconds that were spent waiting for an answer."""

    @property
    def allowed(self) -> bool:
        """Whether it may be done."""
        return self.decision == "allow"


class Records:
    """The decisions of a turn, up to a limit, and how many there were beyond it."""

    def __init__(self) -> None:
        self.kept: list[ApprovalRecord] = []
        self.left_out = 0
        self._counts = Counter[bool]()

    def add(self, record: ApprovalRecord) -> None:
        """Keep a record if there is room."""
        is_answer = record.by == HANDLER
        if self._counts[is_answer] >= MAX_RECORDS:
            self.left_out += 1
            return
        self._counts[is_answer] += 1
        self.kept.append(record)


def record_of(question: Question, ruling: Ruling, *, seconds: float = 0.0) -> ApprovalRecord:
    """Record a final decision."""
    arguments = ""
    # what no rule is about is not kept, and has to cost nothing
    if question.kind == "tool" and ruling.by != NO_RULE:
        text = as_json(dict(question.arguments))
        arguments = "(too large)" if text is None else one_line(text, _MAX_ARGUMENTS_CHARS)
    return ApprovalRecord(
        what=question.kind,
        name=one_line(question.name, MAX_NAME_CHARS),
        arguments=arguments,
        decision="allow" if ruling.decision == "allow" else "deny",
        by=ruling.by,
        reason=one_line(ruling.reason, _MAX_REASON_CHARS),
        seconds=seconds,
    )
