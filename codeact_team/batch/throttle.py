"""The limits that the driver of a batch sets to all its workers together, by what they report."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import ClassVar, Protocol

from pydantic import ConfigDict

from codeact_team.batch.results import BatchNoted, TaskProgressed, TaskRetried
from codeact_team.core.accounting import ModelUsage
from codeact_team.errors import SettingError

OUT_OF_BUDGET = "the budget of the batch is used up"
"""The beginning of the reason why runs are interrupted that resume with a higher limit."""

KEY_REFUSED = "the batch stops"
"""The beginning of the reason why runs are interrupted that resume with the right key."""
BATCH_ENDS = (OUT_OF_BUDGET, KEY_REFUSED)


@dataclass(frozen=True)
class CallEnded:
    """A model call has ended.

    Attributes:
        is_limited: Whether the server refused it because of too many requests.
        retry_after: Seconds for which the server then wants no more, where it says so.
        tokens: How many the call used.
        is_answered: Whether the model has answered.
        refusal: Why the server refuses the key, or this call with it.
        is_unauthorized: Whether the refusal is about the key alone, so that all other calls will be refused, too.
    """

    is_limited: bool = False
    retry_after: float | None = None
    tokens: int = 0
    is_answered: bool = False
    refusal: str | None = None
    is_unauthorized: bool = False


Report = CallEnded | ModelUsage | TaskRetried | TaskProgressed | BatchNoted
"""A usage covers all calls of the job's run so far, those from the journal included. The driver emits the events."""


class DriverInterface(Protocol):
    """The driver, as its workers call it."""

    async def admit(self, job: str) -> str | None:
        """Wait until a model call may begin. Its caller has to report the end by :class:`CallEnded`.

        Returns:
            Why no model may be called any more; ``None`` if this call may begin.
        """
        ...

    async def holds(self, job: str, lease: str) -> bool:
        """Whether a lease of a job, as :attr:`Lease.written` has it, is still the newest."""
        ...

    def report(self, job: str, report: Report) -> None:
        """Take a report about a job."""
        ...


_WINDOW = 60.0
_PAUSE = 1.0
"""Seconds for which a server with too many requests is left alone if it does not say how long; doubled each time."""
_LONGEST_PAUSE = 60.0


@dataclass(frozen=True)
class BatchLimits:
    """The limits of all tasks of a batch together. ``None`` is no limit.

    Attributes:
        max_tokens: Tokens of all model calls.
        max_cost: Money for all model calls, by the prices of the config's budget.
        max_requests: Model calls at the same time.
        requests_per_minute: Model calls that begin within any minute.
        tokens_per_minute: Tokens used within any minute, as far as that can be foreseen.

    Raises:
        SettingError: If a limit is not above 0.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    max_tokens: int | None = None
    max_cost: float | None = None
    max_requests: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None

    def __post_init__(self) -> None:
        for name, limit in asdict(self).items():
            if not isinstance(limit, int | float | None):
                raise SettingError(f"{name}: a number is expected, not {limit!r}")
            if limit is not None and not limit > 0:
                raise SettingError(f"{name}: {limit} is not above 0")


class BatchLedger:
    """Account of the model calls of all tasks, which refuses more when a limit is reached.

    Attributes:
        currency: The currency of the prices; ``None`` if models have no prices.
        tokens: The number of tokens so far.
    """

    def __init__(self, limits: BatchLimits, currency: str | None) -> None:
        self._limits = limits
        self.currency = currency
        self._jobs: dict[str, ModelUsage] = {}
        """The usage, as entered, of each job that is not finished."""
        self.tokens: int = 0
        self._cost = 0.0

    @property
    def cost(self) -> float | None:
        """The money so far; ``None`` where models have no prices."""
        return None if self.currency is None else round(self._cost, 9)

    def add(self, tokens: int, cost: float | None) -> None:
        """Add what a job has used that was finished before."""
        self.tokens += tokens
        self._cost += cost or 0.0

    def enter(self, job: str, usage: ModelUsage) -> None:
        """Enter what a job has used in all. It replaces what was entered for the job before."""
        before = self._jobs.get(job, ModelUsage())
        self._jobs[job] = usage
        self.add(usage.tokens - before.tokens, usage.cost - before.cost)

    def finish(self, job: str, tokens: int, cost: float | None) -> None:
        """Keep what a job has used for good; what its result says, if its run was finished before and only judged now."""
        if self._jobs.pop(job, None) is None:
            self.add(tokens, cost)

    def refusal(self) -> str | None:
        """Return the limit that is reached, in a sentence; ``None`` if more may be used."""
        limits = self._limits
        if limits.max_tokens is not None and self.tokens >= limits.max_tokens:
            return f"{OUT_OF_BUDGET}: {self.tokens:,} of {limits.max_tokens:,} tokens"
        if limits.max_cost is not None and self._cost >= limits.max_cost:
            return f"{OUT_OF_BUDGET}: {self._cost:,.4f} of {limits.max_cost:,.4f} {self.currency}"
        return None


class RateLimit:
    """Admits model calls, first come, first served. A server with too many requests makes all of them wait.

    After such a pause, half as many calls may be under way as before it, and one more for each call that succeeds.
    """

    def __init__(self, limits: BatchLimits) -> None:
        self._limits = limits
        self._waiting: deque[tuple[str, asyncio.Future[None]]] = deque()
        self._under_way: Counter[str] = Counter()
        """The number of calls by job."""
        self._began: deque[float] = deque()
        self._used: deque[tuple[float, int]] = deque()
        self._mean_tokens = 0.0
        self._paused_until = 0.0
        self._pause = _PAUSE
        self._at_once: int | None = None
        """The most calls that may be under way since a server had too many requests; ``None`` before that."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def pause(self) -> float:
        """Seconds for which no call begins, as a server has had too many requests."""
        return max(0.0, self._paused_until - asyncio.get_running_loop().time())

    async def admit(self, job: str, waits: Callable[[], object] = lambda: None) -> None:
        """Wait until a call may begin; ``waits`` is called if it may not at once."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((job, turn))
        self._pump()
        if not turn.done():
            waits()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.ended(job, CallEnded())
            raise

    def ended(self, job: str, call: CallEnded) -> None:
        """Note that a call of a job has ended."""
        if job not in self._under_way:
            return
        now = asyncio.get_running_loop().time()
        under_way = self._under_way.total()
        self._under_way[job] -= 1
        if not self._under_way[job]:
            del self._under_way[job]
        if call.tokens:
            self._used.append((now, call.tokens))
            self._mean_tokens += (call.tokens - self._mean_tokens) / min(100, len(self._used))
        if call.is_limited:
            # the other calls that were under way are probably refused, too
            if now >= self._paused_until:
                self._at_once = max(1, under_way // 2)
                self._pause = min(_LONGEST_PAUSE, self._pause * 2)
            wait = self._pause / 2 if call.retry_after is None else call.retry_after
            self._paused_until = max(self._paused_until, now + wait)
        elif call.tokens and self._at_once is not None:
            self._at_once += 1
            self._pause = _PAUSE
        self._pump()

    def lost(self, job: str) -> None:
        """Note that the worker of a job is gone, with the calls of the job."""
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
        """Seconds until the next call may begin; ``None`` if another one has to end first."""
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
