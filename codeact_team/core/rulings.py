"""Rules of which the first that fits decides: to allow, to deny, or to ask a person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from pydantic import AfterValidator, Field, StringConstraints, ValidationInfo

Decision: TypeAlias = Literal["allow", "deny", "ask"]

NO_RULE = "no rule"


def _of_allowing(at_most: int | None, info: ValidationInfo) -> int | None:
    if at_most is not None and info.data.get("decision") in ("deny", "ask"):
        raise ValueError("can be used with 'decision: allow' only")
    return at_most


AtMost = Annotated[int | None, Field(ge=1, strict=True), AfterValidator(_of_allowing)]
"""How often a rule may allow something; its field stands behind ``decision``."""

Glob = Annotated[str, StringConstraints(min_length=1)]

LONGEST_MATCHED = 100_000
"""Characters of a text that is matched with a glob. The event loop waits meanwhile, for a time in proportion to them."""

_TOO_LONG_FOR_RULE = (
    f"it cannot be checked against {{}}, which looks at a text of at most {LONGEST_MATCHED:,} characters: this one "
    "is longer, or nested too deeply"
)


def matches(glob: str, text: str | None) -> bool | None:
    """Whether the whole text fits; ``None`` if there is none, or it is too long to be matched."""
    if not glob.strip("*"):
        return True
    if text is None or len(text) > LONGEST_MATCHED:
        return None
    return fnmatchcase(text, glob)


class Ruling(NamedTuple):
    """The decision of the rules, by which rule, such as ``rule 2``, and why; a denial always has a reason."""

    decision: Decision
    by: str
    reason: str = ""


Asked = TypeVar("Asked", contravariant=True)


class DecidingRule(Protocol[Asked]):
    """A decision on whatever it fits."""

    @property
    def decision(self) -> Decision: ...

    @property
    def reason(self) -> str: ...

    @property
    def at_most(self) -> int | None:
        """The number of times that it may allow something."""
        ...

    def fits(self, question: Asked, /) -> bool | None:
        """Whether it applies to this; ``None`` if something is too long to be matched."""
        ...


class RuleChain(Generic[Asked]):
    """Rules, of which the first that fits decides, with counts of how often each has allowed something.

    Args:
        rules: The rules.
        otherwise: The ruling on what no rule fits.
    """

    def __init__(self, rules: Sequence[DecidingRule[Asked]], *, otherwise: Ruling) -> None:
        self.rules: tuple[DecidingRule[Asked], ...] = tuple(rules)
        self._otherwise = otherwise
        self._used = Counter[int]()

    def reset(self) -> None:
        """Set the counts back to zero."""
        self._used.clear()

    def decide(self, question: Asked) -> Ruling:
        """Apply the rules, and count if one allows it."""
        used_up: Ruling | None = None
        for number, rule in enumerate(self.rules, start=1):
            fits = rule.fits(question)
            if fits is False:
                continue
            by = f"rule {number}"
            if fits is None:
                return Ruling("deny", by, _TOO_LONG_FOR_RULE.format(by))
            if rule.at_most is not None and self._used[number] >= rule.at_most:
                times = f"{rule.at_most} time{'' if rule.at_most == 1 else 's'}"
                used_up = used_up or Ruling("deny", by, f"{by} allows this {times}, which are used up")
                continue
            if rule.decision == "allow":
                self._used[number] += 1
            reason = rule.reason or (f"{by} denies it" if rule.decision == "deny" else "")
            return Ruling(rule.decision, by, reason)
        return used_up or self._otherwise
