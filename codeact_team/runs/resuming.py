"""Goes on with a run that was recorded, from where it ended."""

from __future__ import annotations

import os
from collections.abc import Sequence

from codeact_team.config.for_every import ForEvery
from codeact_team.config.written import credentials_of_environment
from codeact_team.errors import JournalError
from codeact_team.journal import HiddenValues, RecordedRun, RunDirectory
from codeact_team.providers import Policy
from codeact_team.runs.recording import refuse_elsewhere
from codeact_team.runs.result import RunEnding, RunResult
from codeact_team.runs.team_runner import TeamRunner


def resumed(
    directory: RunDirectory,
    *,
    overrides: Sequence[str | ForEvery] = (),
    policy: Policy | None = None,
    out: str | os.PathLike[str] | None = None,
    sync: bool = False,
) -> tuple[TeamRunner, str]:
    """What goes on with a run, and its task. Blocks.

    Args:
        directory: Where the run is kept.
        overrides: Changes to its config, such as a limit that is raised.
        policy: What may be loaded.
        out: As of :class:`TeamRunner`.
        sync: As of :class:`TeamRunner`.

    Raises:
        JournalError: If it cannot go on.
    """
    run = RecordedRun(directory)
    about = run.about
    if about.task is None:
        raise JournalError(
            f"the run {about.id} is a program's, which gives the team its tasks: run that again, and it goes on"
        )
    if run.is_running:
        raise JournalError(f"the run {about.id} has not ended: another process works on it")
    last = run.last_event()
    if isinstance(last, RunResult) and last.ending is RunEnding.ACCEPTED:
        raise JournalError(
            f"the run {about.id} has ended, and its work was accepted: there is nothing to go on with"
        )
    refuse_elsewhere(about)
    hidden = HiddenValues(credentials_of_environment(os.environ), about.nonce)
    config, task = str(hidden.show(directory.config())), str(hidden.show(about.task))
    return TeamRunner(config, overrides=overrides, policy=policy, out=out, record=directory, sync=sync), task
