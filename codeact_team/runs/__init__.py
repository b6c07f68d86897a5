"""Running a team on a task, and telling what happened."""

from codeact_team.runs.events import Ending, EventSink, RunResult, ToolUse
from codeact_team.runs.failures import explain
from codeact_team.runs.opened import OpenTeam, opened_team
from codeact_team.runs.run import run_team
from codeact_team.runs.tally import Tally

__all__ = [
    "Ending",
    "EventSink",
    "OpenTeam",
    "RunResult",
    "Tally",
    "ToolUse",
    "explain",
    "opened_team",
    "run_team",
]
