"""The journal of a run: what happened, what was asked of the world, and what came of it, so that nothing is lost."""

from codeact_team.journal.hidden_values import HiddenValues
from codeact_team.journal.parking import Parking
from codeact_team.journal.past import Past
from codeact_team.journal.recorded_run import RecordedEffect, RecordedRun
from codeact_team.journal.recorder import Recorder
from codeact_team.journal.replay import Replay
from codeact_team.journal.resumption import Resumption
from codeact_team.journal.run_directory import About, RunDirectory, find_run, new_id, runs_in

__all__ = [
    "About",
    "HiddenValues",
    "Parking",
    "Past",
    "RecordedEffect",
    "RecordedRun",
    "Recorder",
    "Replay",
    "Resumption",
    "RunDirectory",
    "find_run",
    "new_id",
    "runs_in",
]
