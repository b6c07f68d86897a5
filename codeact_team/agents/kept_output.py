"""Output that is too long for a model to read whole, kept where code can read it."""

from __future__ import annotations

import logging
from itertools import count

from codeact_team.errors import SandboxError
from codeact_team.execution import ExecutionResult, Outcome
from codeact_team.executor_interface import SessionCodeExecutor
from codeact_team.observations import MAX_OBSERVATION_CHARS, encodable
from codeact_team.sessions.protocol import KEPT_APART

logger = logging.getLogger(__name__)


async def keep_output(executor: SessionCodeExecutor, result: ExecutionResult) -> str | None:
    """Put output that is cut where it is passed on into a new file of the workspace, for as long as the executor runs.

    Returns:
        The file's path; ``None`` where none is needed, or the workspace takes none.
    """
    output = result.output
    if len(output) <= MAX_OBSERVATION_CHARS or result.outcome is Outcome.CANCELLED:
        return None
    try:
        there = await executor.list_files()
        names = (f"output-{number}.txt" for number in count(1))
        name = next(name for name in names if f"{KEPT_APART}/{name}" not in there)
        return await executor.put_file(name, encodable(output), temporary=True)
    except (OSError, ValueError, SandboxError) as error:
        logger.warning("output that was cut could not be kept in the workspace: %s", error)
        return None
