"""Running a team on many tasks, and what comes of them."""

from codeact_team.batch.batch import Batch, run_batch
from codeact_team.batch.events import BatchResult
from codeact_team.batch.results import Outcome, TaskResult
from codeact_team.batch.throttle import BatchLimits

__all__ = ["Batch", "BatchLimits", "BatchResult", "Outcome", "TaskResult", "run_batch"]
