"""What stands in the door of each run of a batch: models are asked when the driver says so, and again where it helps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from codeact_team.batch.host import Called, Host, Retried, Spent
from codeact_team.clients import ModelCall
from codeact_team.effects import Effect, Event, Perform
from codeact_team.events import ModelCallEnded
from codeact_team.runs.failures import explain, is_of_infrastructure, is_too_many, retry_after

_FIRST_WAIT = 0.5
_LONGEST_WAIT = 60.0


class Retries:
    """How often something may still be tried again for one job, as what is around it has failed.

    Args:
        most: How often in all.
        tell: Is told of each.
    """

    def __init__(self, most: int, tell: Callable[[Retried], None]) -> None:
        self._most = most
        self._taken = 0
        self._tell = tell

    def take(self, reason: str) -> float | None:
        """How many seconds to wait before the next try; ``None`` if there is none left."""
        if self._taken >= self._most:
            return None
        seconds = min(_LONGEST_WAIT, _FIRST_WAIT * 2**self._taken)
        self._taken += 1
        self._tell(Retried(reason, seconds))
        return seconds


class Meter:
    """A handler and a listener: asks the driver before a model is asked, and tells it what that has used.

    Args:
        job: The name of the job.
        host: The driver.
        retries: For calls that fail by what is around them.
        end: Ends the run, with the reason why no model may be asked any more.
    """

    def __init__(self, job: str, host: Host, retries: Retries, end: Callable[[str], None]) -> None:
        self._job = job
        self._host = host
        self._retries = retries
        self._end = end

    def __call__(self, event: Event) -> None:
        """Tell what was spent, be it answered by a journal: so it counts for whoever goes on with a batch, too."""
        if isinstance(event, ModelCallEnded) and not event.cached and (usage := event.usage) is not None:
            self._host.tell(self._job, Spent(event.model, usage.prompt_tokens, usage.completion_tokens))

    async def stand(self, effect: Effect[Any], do: Perform) -> Any:
        """Let a call of a model pass when that is allowed.

        Raises:
            CancelledError: If it is not any more; the run ends.
        """
        if not isinstance(effect, ModelCall):
            return await do()
        while True:
            if (refusal := await self._host.admit(self._job)) is not None:
                self._end(refusal)
                raise asyncio.CancelledError
            called = Called()
            try:
                outcome = await do()
                called = Called(tokens=outcome.usage.prompt_tokens + outcome.usage.completion_tokens)
                return outcome
            except Exception as error:
                called = Called(is_limited=is_too_many(error), retry_after=retry_after(error))
                if not is_of_infrastructure(error) or (wait := self._retries.take(explain(error))) is None:
                    raise
            finally:
                self._host.tell(self._job, called)
            # too many requests are a matter of all, whom the driver lets wait
            if not called.is_limited:
                await asyncio.sleep(wait)
