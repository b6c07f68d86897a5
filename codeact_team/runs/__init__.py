"""Running a team on tasks, and what comes of it."""

from codeact_team.config.credentials import without_secrets
from codeact_team.runs.failures import explain
from codeact_team.runs.replaying import ReplayedRun, replay_run, replayed
from codeact_team.runs.result import Cost, RunEnding, RunResult, ToolUse
from codeact_team.runs.resuming import resumed
from codeact_team.runs.run_files import RunFile
from codeact_team.runs.summary import WorkEnd
from codeact_team.runs.team_runner import TeamRunner

__all__ = [
    "Cost",
    "ReplayedRun",
    "RunEnding",
    "RunFile",
    "RunResult",
    "TeamRunner",
    "ToolUse",
    "WorkEnd",
    "explain",
    "replay_run",
    "replayed",
    "resumed",
    "without_secrets",
]
