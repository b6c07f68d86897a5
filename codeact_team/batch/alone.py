"""The model calls of a single run, tried again as in a batch."""

from __future__ import annotations

from typing import Any

from codeact_team.batch.results import TaskRetried
from codeact_team.batch.tasks import Job
from codeact_team.batch.throttle import BatchLimits, CallEnded, RateLimit, Report
from codeact_team.batch.worker import Meter
from codeact_team.core.autogen_internals import leave_retries, sets_retries
from codeact_team.core.effects import Effect, Event, Perform, emit
from codeact_team.core.events import ModelCallEnded, ModelCallPutOff
from codeact_team.journal.result import is_too_many
from codeact_team.models.clients import ModelCall

_LIMITED = 6
"""Retries after too many requests: where a server does not say how long to wait, they take a minute, as most limits do."""
_OTHERS = 2
"""Retries after other failures, as OpenAI's client has them."""


class PatientCalls(Meter):
    """Tries model calls of a run again where a server is not there, overloaded, or has failed; :meth:`attach` begins that.

    After too many requests, all calls wait as long as the server says.

    Args:
        retries: How often in a row; ``None`` for what the model client's own ``max_retries`` says, or else two times, and
            six times after too many requests.
    """

    _shares_a_key = False

    def __init__(self, retries: int | None) -> None:
        job = Job("", 1, "", text="", files=(), overrides=(), fields={}, expected=None, checker=None)
        super().__init__(job, _OwnDriver(), {}, _LIMITED if retries is None else retries)
        self._wanted = retries
        self._failure: BaseException | None = None

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        if isinstance(event, ModelCallEnded) and event.error is None:
            self._taken = 0

    def take_retry(self, reason: str) -> float | None:
        is_limited = self._failure is not None and is_too_many(self._failure)
        if self._wanted is None and not is_limited and self._taken >= _OTHERS:
            return None
        return super().take_retry(reason)

    async def intercept(self, effect: Effect[Any], do: Perform) -> Any:
        if not isinstance(effect, ModelCall) or (self._wanted is None and sets_retries(effect.part)):
            return await do()
        # a client that waits by itself does not tell
        leave_retries(effect.part)

        async def once() -> Any:
            try:
                return await do()
            except Exception as error:
                self._failure = error
                raise

        return await super().intercept(effect, once)


class _OwnDriver:
    """The driver of one run, which tells of retries by events."""

    def __init__(self) -> None:
        self._rate = RateLimit(BatchLimits())
        self._retried: TaskRetried | None = None

    async def admit(self, job: str) -> str | None:
        await self._rate.admit(job)
        return None

    async def holds(self, job: str, lease: str) -> bool:
        return True

    def report(self, job: str, report: Report) -> None:
        match report:
            case TaskRetried():
                self._retried = report
            case CallEnded():
                self._rate.ended(job, report)
                retried, self._retried = self._retried, None
                if retried is not None:
                    seconds = self._rate.pause if report.is_limited else retried.seconds
                    emit(ModelCallPutOff(reason=retried.reason, seconds=seconds))
            case _:
                pass
