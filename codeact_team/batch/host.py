"""What a worker asks of its driver, and tells it. All of it is plain data, whatever carries it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Protocol

OUT_OF_BUDGET = "the budget of the batch is used up"
"""How the reason begins for which a run is broken off, whose work goes on when the batch may spend more."""


@dataclass(frozen=True)
class Begun:
    """A run begins, or goes on; then what it has spent before is told again."""


@dataclass(frozen=True)
class Called:
    """A model was asked.

    Attributes:
        is_limited: Whether its server had too many requests.
        retry_after: How many seconds it wants to be left alone then, where it says so.
        tokens: What the call has used.
    """

    is_limited: bool = False
    retry_after: float | None = None
    tokens: int = 0


@dataclass(frozen=True)
class Spent:
    """Tokens were spent, be it now or, as a journal knows, before."""

    model: str
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True)
class Retried:
    """Something is tried again after ``seconds``, as what is around it has failed."""

    reason: str
    seconds: float


@dataclass(frozen=True)
class Noted:
    """Something was logged for the person."""

    level: str
    text: str


Told = Begun | Called | Spent | Retried | Noted
_KINDS: dict[str, type[Told]] = {kind.__name__: kind for kind in (Begun, Called, Spent, Retried, Noted)}


class Host(Protocol):
    """The driver, for a worker."""

    async def admit(self, job: str) -> str | None:
        """Wait until a model may be asked; why none may be asked any more, if so. :class:`Called` has to follow.

        Args:
            job: The name of the job that asks.
        """
        ...

    async def holds(self, job: str, lease: str) -> bool:
        """Whether a lease of a job, as :attr:`Lease.written` has it, is the newest.

        Args:
            job: The name of the job.
            lease: What its worker was given.
        """
        ...

    def tell(self, job: str, told: Told) -> None:
        """Take what a worker tells of a job."""
        ...


def dump(told: Told) -> dict[str, Any]:
    """What is told, as JSON."""
    return {"kind": type(told).__name__, **asdict(told)}


def load(data: dict[str, Any]) -> Told:
    """What was dumped."""
    return _KINDS[data["kind"]](**{name: value for name, value in data.items() if name != "kind"})
