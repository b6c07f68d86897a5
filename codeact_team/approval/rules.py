"""Rules that decide on code and on calls of tools, and the order in which they are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationInfo,
    field_validator,
    model_validator,
)

from codeact_team.approval.matching import LONGEST_MATCHED, matches, matches_value
from codeact_team.approval.question import Question

NO_RULE = "no rule"

Glob = Annotated[str, StringConstraints(min_length=1)]


class ApprovalRule(BaseModel):
    """What to do with some code, or with some calls of tools. Of several rules, the first that fits decides.

    Where no rule fits, code runs and tools are called; a closing rule with `tool: "*"` and `decision: ask` makes a
    person decide on all other calls. In globs, `*` stands for any text, `?` for one character and `[abc]` for one of
    several, so write `[[]` for a bracket; capitals and small letters differ, and the whole text has to fit.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    tool: Glob | None = None
    """For calls of tools whose name fits this glob, such as `orders.*`: the name below `tools` by which code calls
    it."""
    code: Glob | None = None
    """For blocks of code that fit this glob as a whole, such as `*import socket*`. The same can be written in many
    ways, so this does not keep code from anything: the sandbox does."""
    arguments: dict[str, Glob] = Field(default_factory=dict)
    """Globs for arguments of the tool, by name; all have to fit. They see the value that the tool will get: text as it
    is, other values as compact JSON with sorted keys, whole numbers as `100` and `100.0`. In paths and URLs they see
    where these lead: `/data/*` does not allow `/data/../etc/passwd`, and `/etc/*` denies it. An argument that is not
    passed does not fit, so deny the rest rather than single values. What is longer than 100,000 characters is matched
    by `*` only; where another glob would have to be matched with it, it is denied."""
    decision: Literal["allow", "deny", "ask"]
    """Whether to allow it, to deny it, or to ask a person."""
    reason: str = ""
    """Why: the model reads it if this is denied, the person who is asked sees it."""
    at_most: int | None = Field(default=None, ge=1, strict=True)
    """How often this rule may allow something before the agent is reset. After that it does not fit any more, and what
    no later rule decides is denied."""

    @model_validator(mode="after")
    def _is_for_one_kind(self) -> Self:
        if (self.tool is None) == (self.code is None):
            raise ValueError("a rule has either 'tool' or 'code'")
        return self

    @field_validator("arguments")
    @classmethod
    def _is_for_a_tool(cls, arguments: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        if arguments and info.data.get("code") is not None:
            raise ValueError("goes with 'tool' only, as code has no arguments")
        return arguments

    @field_validator("at_most")
    @classmethod
    def _is_for_allowing(cls, at_most: int | None, info: ValidationInfo) -> int | None:
        if at_most is not None and info.data.get("decision") in ("deny", "ask"):
            raise ValueError("goes with 'decision: allow' only")
        return at_most

    def fits(self, question: Question) -> bool | None:
        """Tell whether the rule is for this; ``None`` if something is too long to be matched."""
        if self.code is not None:
            return question.kind == "code" and matches(self.code, question.code)
        if question.kind != "tool" or not self.arguments.keys() <= question.arguments.keys():
            return False
        if not matches(self.tool or "", question.name):
            return False
        can_tell = True
        for name, glob in self.arguments.items():
            matched = matches_value(glob, question.arguments[name], allowing=self.decision == "allow")
            if matched is False:
                return False
            can_tell = can_tell and matched is not None
        return True if can_tell else None


class Ruling(NamedTuple):
    """What the rules say."""

    decision: Literal["allow", "deny", "ask"]
    by: str
    """Who says so."""
    reason: str = ""
    """Why; it may be empty where nothing is denied."""


class Chain:
    """Rules, of which the first that fits decides, and how often each has allowed something."""

    def __init__(self, rules: Sequence[ApprovalRule]) -> None:
        self.rules = tuple(rules)
        self._used = Counter[int]()

    def reset(self) -> None:
        """Forget how often something was allowed."""
        self._used.clear()

    def decide(self, question: Question) -> Ruling:
        """Apply the rules; count it where one of them allows something."""
        used_up: Ruling | None = None
        for number, rule in enumerate(self.rules, start=1):
            fits, by = rule.fits(question), f"rule {number}"
            if fits is None:
                return Ruling("deny", by, _too_long(by))
            if not fits:
                continue
            if rule.at_most is not None and self._used[number] >= rule.at_most:
                used_up = used_up or Ruling("deny", by, _used_up(rule.at_most, by))
                continue
            if rule.decision == "allow":
                self._used[number] += 1
            reason = rule.reason or (f"{by} denies it" if rule.decision == "deny" else "")
            return Ruling(rule.decision, by, reason)
        return used_up or Ruling("allow", NO_RULE)


def _too_long(by: str) -> str:
    return (
        f"it cannot be checked against {by}, which looks at a text of at most {LONGEST_MATCHED:,} characters: this one "
        "is longer, or nested too deeply"
    )


def _used_up(at_most: int, by: str) -> str:
    return f"{by} allows this {at_most} time{'' if at_most == 1 else 's'}, which are used up"
