"""What one run of an agent may cost."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from autogen_core import CancellationToken
from autogen_core.models import RequestUsage

from codeact_team.aio import Timer
from codeact_team.observations import Ending


@dataclass(frozen=True)
class Limits:
    """What a run may cost.

    Attributes:
        max_steps: How often the model may write, with or without code.
        max_seconds: Wall-clock time in seconds, without that for which a person is asked for approval.
        max_tokens: Tokens of all calls to the model, prompts and completions.
    """

    max_steps: int
    max_seconds: float | None = None
    max_tokens: int | None = None


class Budget:
    """What a run has used up of its limits.

    A context manager, within which the :attr:`token` is cancelled when the time is over.

    Args:
        limits: What the run may cost.
        cancellation_token: The caller's; cancels the :attr:`token` as well.

    Attributes:
        token: For whatever the run waits for.
        steps: How often the model has written.
        time_is_over: Whether the time is used up.
    """

    def __init__(self, limits: Limits, cancellation_token: CancellationToken) -> None:
        self.token = CancellationToken()
        self.steps = 0
        self.time_is_over = False
        self._limits = limits
        self._timer: Timer | None = None
        cancellation_token.add_callback(self.token.cancel)

    def spent(self, usage: RequestUsage | None) -> Ending | None:
        """Which limit is reached, if one is.

        Args:
            usage: The tokens of all calls so far.
        """
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
            deadline = asyncio.get_running_loop().time() + self._limits.max_seconds
            self._timer = Timer(deadline, self._end_time)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.close()

    def _end_time(self) -> None:
        self.time_is_over = True
        self.token.cancel()
