"""What a worker and its batch have in common, and the limits of both."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from autogen_core.models import RequestUsage

from codeact_team.agents.ledger import Price
from codeact_team.errors import SettingError

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


_WINDOW = 60.0
_PAUSE = 1.0
"""Seconds for which a server is left alone that has too many requests, and does not say for how long; then twice that."""
_LONGEST_PAUSE = 60.0


@dataclass(frozen=True)
class BatchLimits:
    """What all tasks of a batch together may use. ``None`` is no limit.

    Attributes:
        max_tokens: Tokens of all calls of models.
        max_cost: Money for them, by the prices of the config's budget.
        max_requests: Calls of models at the same time.
        requests_per_minute: Calls that begin within any minute.
        tokens_per_minute: Tokens that are used within any minute, as far as that is known before.

    Raises:
        SettingError: If one is not above 0.
    """

    max_tokens: int | None = None
    max_cost: float | None = None
    max_requests: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None

    def __post_init__(self) -> None:
        for name, limit in asdict(self).items():
            if limit is not None and not limit > 0:
                raise SettingError(f"{name}: {limit} is not above 0")


class Ledger:
    """What a batch has spent.

    Args:
        limits: What it may spend.
        prices: Of models, by their names.
        currency: Of the prices.

    Attributes:
        tokens: What was spent so far.
    """

    def __init__(self, limits: BatchLimits, prices: Mapping[str, Price], currency: str) -> None:
        self._limits = limits
        self._prices = prices
        self.currency = currency
        self._jobs: dict[str, tuple[int, float]] = {}
        """What each job has spent that is under way."""
        self.tokens = 0
        self._cost = 0.0

    @property
    def cost(self) -> float | None:
        """What that has cost; ``None`` where there are no prices."""
        return round(self._cost, 9) if self._prices else None

    def add(self, tokens: int, cost: float | None) -> None:
        """Enter what was spent before."""
        self.tokens += tokens
        self._cost += cost or 0.0

    def begin(self, job: str) -> None:
        """Let a job begin, or begin once more: it tells again what it has spent before."""
        tokens, cost = self._jobs.pop(job, (0, 0.0))
        self.tokens -= tokens
        self._cost -= cost
        self._jobs[job] = 0, 0.0

    def enter(self, job: str, spent: Spent) -> None:
        """Enter what was spent."""
        price = self._prices.get(spent.model)
        usage = RequestUsage(spent.prompt_tokens, spent.completion_tokens)
        cost = 0.0 if price is None else price.of(usage)
        tokens = usage.prompt_tokens + usage.completion_tokens
        known = self._jobs.get(job, (0, 0.0))
        self._jobs[job] = known[0] + tokens, known[1] + cost
        self.tokens += tokens
        self._cost += cost

    def end(self, job: str) -> None:
        """What a job has spent will not change any more."""
        self._jobs.pop(job, None)

    def refusal(self) -> str | None:
        """Why nothing more may be spent; ``None`` if something may."""
        limits = self._limits
        if limits.max_tokens is not None and self.tokens >= limits.max_tokens:
            return f"{OUT_OF_BUDGET}: {self.tokens:,} of {limits.max_tokens:,} tokens"
        if limits.max_cost is not None and self._cost >= limits.max_cost:
            return f"{OUT_OF_BUDGET}: {self._cost:,.4f} of {limits.max_cost:,.4f} {self.currency}"
        return None


class RateLimit:
    """Lets calls of models begin, in the order in which they ask. A server with too many requests makes all of them wait.

    After that, half as many calls may be under way as were then, and one more for each that succeeds.

    Args:
        limits: What is allowed.
    """

    def __init__(self, limits: BatchLimits) -> None:
        self._limits = limits
        self._waiting: deque[tuple[str, asyncio.Future[None]]] = deque()
        self._under_way: Counter[str] = Counter()
        """Calls, by their job."""
        self._began: deque[float] = deque()
        self._used: deque[tuple[float, int]] = deque()
        self._mean_tokens = 0.0
        self._paused_until = 0.0
        self._pause = _PAUSE
        self._at_once: int | None = None
        """How many calls may be under way after a server had too many."""
        self._timer: asyncio.TimerHandle | None = None

    async def admit(self, job: str) -> None:
        """Wait until a call may begin."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((job, turn))
        self._pump()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.called(job, Called())
            raise

    def called(self, job: str, called: Called) -> None:
        """A call has ended."""
        if job not in self._under_way:
            return
        now = asyncio.get_running_loop().time()
        under_way = self._under_way.total()
        self._under_way[job] -= 1
        if not self._under_way[job]:
            del self._under_way[job]
        if called.tokens:
            self._used.append((now, called.tokens))
            self._mean_tokens += (called.tokens - self._mean_tokens) / min(100, len(self._used))
        if called.is_limited:
            # those that were under way then may be told the same
            if now >= self._paused_until:
                self._at_once = max(1, under_way // 2)
                self._pause = min(_LONGEST_PAUSE, self._pause * 2)
            wait = self._pause / 2 if called.retry_after is None else called.retry_after
            self._paused_until = max(self._paused_until, now + wait)
        elif called.tokens and self._at_once is not None:
            self._at_once += 1
            self._pause = _PAUSE
        self._pump()

    def lost(self, job: str) -> None:
        """Whoever ran a job is gone, with the calls that were under way."""
        self._under_way.pop(job, None)
        self._pump()

    def _pump(self) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting:
            job, turn = self._waiting[0]
            if turn.done():
                self._waiting.popleft()
                continue
            wait = self._wait(loop.time())
            if wait is None:
                return
            if wait > 0:
                self._timer = loop.call_later(wait, self._pump)
                return
            self._waiting.popleft()
            self._under_way[job] += 1
            self._began.append(loop.time())
            turn.set_result(None)

    def _wait(self, now: float) -> float | None:
        """Seconds until the next call may begin; ``None`` for when another one has ended."""
        limits, under_way = self._limits, self._under_way.total()
        while self._began and self._began[0] <= now - _WINDOW:
            self._began.popleft()
        while self._used and self._used[0][0] <= now - _WINDOW:
            self._used.popleft()
        most = [most for most in (limits.max_requests, self._at_once) if most is not None]
        if most and under_way >= min(most):
            return None
        waits = [self._paused_until - now]
        if limits.requests_per_minute is not None and len(self._began) >= limits.requests_per_minute:
            waits.append(self._began[-limits.requests_per_minute] + _WINDOW - now)
        if limits.tokens_per_minute is not None:
            expected = sum(tokens for _, tokens in self._used) + under_way * self._mean_tokens
            if expected >= limits.tokens_per_minute:
                if not self._used:
                    return None
                waits.append(self._used[0][0] + _WINDOW - now)
        return max(0.0, *waits)
