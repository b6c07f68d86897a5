"""Running a team on a task, and telling what happened."""

from codeact_team.runs.events import Ending, EventSink, RunResult
from codeact_team.runs.failures import explain
from codeact_team.runs.run import run_team
from codeact_team.runs.tally import Tally

__all__ = ["Ending", "EventSink", "RunResult", "Tally", "explain", "run_team"]
