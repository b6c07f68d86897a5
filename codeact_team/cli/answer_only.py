"""The answer of a run, and nothing else."""

from __future__ import annotations

from codeact_team.cli.conversation import reasons_of
from codeact_team.cli.notices import tell_beside
from codeact_team.cli.screen import Screen
from codeact_team.effects import Event
from codeact_team.runs import RunEnding, RunResult


class AnswerOnly:
    """A listener that prints the answer of a run; what is to be known beside it is told as notices."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def __call__(self, event: Event) -> None:
        """Print an event, if it is the last one."""
        tell_beside(self._screen, event)
        if isinstance(event, RunResult):
            self._result(event)

    def _result(self, result: RunResult) -> None:
        if result.answer is not None:
            self._screen.prose(result.answer)
            label = "best answer so far, not accepted"
        elif result.error is None and result.signal is None:
            label = "there is no answer"
        else:
            # what went wrong is told by an error
            return
        if result.answer is None or result.ending is not RunEnding.ACCEPTED:
            self._screen.notice("warning", " · ".join([label, *reasons_of(result)]))
