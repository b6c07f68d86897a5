"""What one run of an agent may cost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Self

from autogen_core import CancellationToken
from autogen_core.models import RequestUsage
from pydantic import BaseModel, Field, JsonValue, TypeAdapter

from codeact_team.aio import Timer
from codeact_team.effects import Door, Effect, perform
from codeact_team.events import ClockRead
from codeact_team.execution_records import Ending

LAST_CALL_SECONDS = 30.0
"""How long the last call to the model may go on when the time is over."""


class Limits(BaseModel):
    """What a run may cost."""

    max_steps: int = Field(default=20, ge=1)
    """How often the model may write, with or without code, in one run."""
    max_seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Wall-clock time of one run in seconds, without that for which a person is asked for approval; what is under way
    then is stopped, and one last call of at most 30 seconds makes the answer."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Tokens of one run, those of prompts included; a last call that makes the answer comes on top."""


class Clock(Effect[bool]):
    """An agent looks whether its time is over; the outcome says so."""

    kind = "clock"
    form = TypeAdapter(bool)

    def __init__(self, source: str) -> None:
        self.source = source

    def request(self) -> JsonValue:
        return {"clock": "max_seconds"}

    def began(self, span: int) -> ClockRead:
        return ClockRead(span=span, agent=self.source)

    def ended(self, span: int, outcome: bool | None, error: BaseException | None) -> ClockRead:
        return ClockRead(span=span, agent=self.source, over=outcome)


class Budget:
    """What a run has used up of its limits.

    A context manager, within which :attr:`token` is cancelled when the time is over, and :attr:`last_call` a little
    later; the caller's token cancels both.
    """

    def __init__(
        self,
        limits: Limits,
        cancellation_token: CancellationToken,
        source: str = "",
        door: Door | None = None,
    ) -> None:
        self.token = CancellationToken()
        """For whatever the run waits for."""
        self.last_call = CancellationToken()
        """For the call to the model that makes the answer where there is none."""
        self.steps = 0
        """How often the model has written."""
        self.time_is_over = False
        """Whether the time was used up when the clock was last looked at."""
        self._limits = limits
        self._timer: Timer | None = None
        self._has_expired = False
        self._source = source
        self._door = door
        self._caller = cancellation_token
        for token in (self.token, self.last_call):
            cancellation_token.add_callback(token.cancel)

    async def look(self) -> None:
        """Look at the clock, where there is a limit of time, and the caller has not stopped the run anyhow."""
        if self._limits.max_seconds is None or self.time_is_over or self._caller.is_cancelled():
            return
        self.time_is_over = await perform(Clock(self._source), self._read, self._door)
        if self.time_is_over and not self._has_expired:
            # told by whatever stands in the door
            self._end_time()

    def spent(self, usage: RequestUsage | None) -> Ending | None:
        """Which limit is reached, if one is, with these tokens of all calls so far."""
        limits = self._limits
        tokens = 0 if usage is None else usage.prompt_tokens + usage.completion_tokens
        if self.time_is_over:
            return Ending.MAX_SECONDS
        if limits.max_tokens is not None and tokens >= limits.max_tokens:
            return Ending.MAX_TOKENS
        if self.steps >= limits.max_steps:
            return Ending.MAX_STEPS
        return None

    def paused(self) -> AbstractContextManager[None]:
        """Within it, the time does not go by."""
        return nullcontext() if self._timer is None else self._timer.paused()

    def __enter__(self) -> Self:
        if self._limits.max_seconds is not None:
            self._timer = _timer(self._limits.max_seconds, self._end_time)
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.close()

    async def _read(self) -> bool:
        return self._has_expired

    def _end_time(self) -> None:
        self._has_expired = True
        if self._timer is not None:
            self._timer.close()
        self.token.cancel()
        self._timer = _timer(LAST_CALL_SECONDS, self.last_call.cancel)


def _timer(seconds: float, callback: Callable[[], object]) -> Timer:
    return Timer(asyncio.get_running_loop().time() + seconds, callback)
