"""How a run goes on that has not come to an accepted end."""

from __future__ import annotations

import shlex

from codeact_team.effects import Event
from codeact_team.events import RunBegan
from codeact_team.files.saving import readable
from codeact_team.runs import RunEnding, RunResult
from codeact_team.runs.task_stream import TIME_LIMIT


class GoingOn:
    """A listener that knows at the end of a run how it goes on."""

    def __init__(self) -> None:
        self._record: str | None = None
        self._result: RunResult | None = None

    def __call__(self, event: Event) -> None:
        """Take note of an event."""
        match event:
            case RunBegan():
                self._record = None if event.past_the_door else event.record
                self._result = None
            case RunResult():
                self._result = event
            case _:
                pass

    def redelivery(self, option: str) -> str:
        """What to do for what could not be delivered, for a person, after what is said of that; by an option of resume."""
        if self._record is None:
            return ""
        return f"; to try again: codeact-team resume {shlex.quote(readable(self._record))} {option}"

    def advice(self, record: str | None = None, *, of_program: bool = False) -> str | None:
        """What to do for it, for a person; ``None`` where there is nothing to do.

        Args:
            record: Where it is kept now, if that is not where it was kept then.
            of_program: Whether a program gives the team its tasks.
        """
        ending = None if self._result is None else self._result.ending
        # of one that is parked, the questions are told
        if self._record is None or ending in (RunEnding.ACCEPTED, RunEnding.PARKED):
            return None
        if of_program:
            return "to go on: run the program again"
        command = f"codeact-team resume {shlex.quote(readable(record or self._record))}"
        if self._result is None or ending is not RunEnding.NOT_ACCEPTED:
            return f"to go on: {command}"
        reason = self._result.stop_reason or ""
        if reason.startswith(TIME_LIMIT):
            return f"to go on: {command}"
        # a team that came to its end by itself comes to the same once more
        return f"to go on with a higher limit: {command} -s PATH=VALUE" if reason else None
