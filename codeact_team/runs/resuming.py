"""Resumes a recorded run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from codeact_team.config.components import described_components
from codeact_team.config.document import Document, dotted, last_key
from codeact_team.config.loading import read_config
from codeact_team.config.overrides import ForEvery, apply_overrides
from codeact_team.core.providers import Policy
from codeact_team.errors import JournalError
from codeact_team.journal.blobs import DEFAULT_MIB
from codeact_team.journal.recorded_run import RecordedRun
from codeact_team.journal.run_directory import RunDirectory, digest_of, runs_in
from codeact_team.runs.chat import TeamChat
from codeact_team.runs.foreign_runs import Confirm, config_of, environment_for, shown_to
from codeact_team.runs.recording import Recording, refuse_elsewhere
from codeact_team.runs.run import TeamRun
from codeact_team.text.redaction import Redactor, credentials_of_environment

_CONDITIONS = ("termination_condition", "conditions")
"""Parts that only decide when to end: they may change."""


class Wanted(NamedTuple):
    """Where the user of a run wants its answer and its files; ``None`` for nowhere."""

    answer_file: Path | None = None
    files_directory: Path | None = None


def wanted_by_its_user(directory: RunDirectory) -> Wanted:
    """Where this user wanted the answer and the files of a run when it began. Of a stranger's run nothing is known. Blocks.

    Raises:
        JournalError: If the description of the run cannot be read.
    """
    if directory.chain() is None:
        return Wanted()
    about = directory.about()
    return Wanted(
        *(None if path is None else Path(path) for path in (about.answer_file, about.files_directory))
    )


def resumed(
    directory: RunDirectory,
    *,
    overrides: Sequence[str | ForEvery] = (),
    policy: Policy | None = None,
    out: str | os.PathLike[str] | None = None,
    record_mib: int | None = DEFAULT_MIB,
    sync: bool = False,
    keeps_workspace: bool = False,
    again: bool = False,
    confirm: Confirm | None = None,
) -> tuple[TeamRun, str | None]:
    """A recorded run that is ready to be resumed, and its task; of a chat a :class:`TeamChat`, without one. Blocks.

    Args:
        directory: Where the run is recorded.
        overrides: Changes to its config, such as a limit that is raised.
        policy: As of :class:`TeamRun`, and so are ``out``, ``record_mib`` and ``sync``.
        out: Where its files are copied to.
        record_mib: The most MiB that are recorded.
        sync: Whether the record survives a power cut.
        keeps_workspace: As of :class:`TeamRun`.
        again: Whether the result of accepted work is wanted once more, such as in another place.
        confirm: Asks a person whether to resume a run that this user has not recorded; ``None`` if nobody can be asked.

    Raises:
        JournalError: If it cannot be resumed.
    """
    run = RecordedRun(directory)
    about = run.about
    if about.is_of_program:
        raise JournalError(f"the run {about.id} was made by a program: to go on, {about.starting_again}")
    if run.is_running:
        raise JournalError(f"the run {about.id} has not ended: another process works on it")
    last = run.result()
    is_done = not about.is_chat and last is not None and last.ending.is_success
    # else the journal answers everything, and the result is delivered
    if is_done and run.is_delivered and not again:
        raise JournalError(
            f"the run {about.id} has ended with an answer: there is nothing to go on with. `codeact-team show` "
            "shows its answer; -o FILE writes the answer again, and --out DIR the files"
        )
    refuse_elsewhere(about, directory)
    config = directory.config()
    if about.config_digest not in (None, digest_of(config)):
        raise JournalError(
            f"the run {about.id} cannot go on: its config.yaml was changed since it began. Restore that file; to change a "
            "limit or the like, use -s"
        )
    shown = shown_to(directory, confirm)
    redactor = Redactor(credentials_of_environment(os.environ), about.nonce, shown)
    new = [change for change in overrides if isinstance(change, str)]
    before = config_of(run, redactor, shown)
    after = apply_overrides(before, new)
    was, now = _parts_of(before), _parts_of(after)
    # the journal would not recognize the callers, which would repeat their effects
    if other := [place for place in {**was, **now} if was.get(place) != now.get(place)]:
        what = f"part at {other[0]}" if other[0] else "team or agent"
        raise JournalError(
            f"the run cannot go on with another {what}: its journal identifies agents, and what they use, by name, "
            "class and place. Begin a new run, or change only their settings"
        )
    changes = [*(run.changes() if shown is None else ()), *new]
    recording = Recording(directory, mib=record_mib, sync=sync, shown=shown, changes=changes)
    environ = environment_for(shown, overrides)
    source = read_config(before, overrides=overrides, policy=policy, environ=environ)
    kind = TeamChat if about.is_chat else TeamRun
    run = kind(
        source,
        overrides=overrides,
        policy=policy,
        out=out,
        record=recording,
        keeps_workspace=keeps_workspace,
    )
    return run, None if about.task is None else str(redactor.restore(about.task))


def chat_of(resumed: tuple[TeamRun, str | None]) -> TeamChat:
    """The chat that was resumed."""
    chat, _ = resumed
    assert isinstance(chat, TeamChat), "it is the run of a chat"
    return chat


def last_chat(directory: Path, config: str | None = None) -> RunDirectory:
    """The last chat in a directory of runs that was begun in this working directory. Blocks.

    Args:
        directory: The directory of the runs.
        config: The name of the config that it has; ``None`` for any.

    Raises:
        JournalError: If none was.
    """
    here = os.getcwd()
    for run in runs_in(directory):
        with suppress(JournalError):
            about = run.about()
            if about.is_chat and about.working_directory == here and config in (None, about.config):
                return run
    named = "" if config is None else f" with {config}"
    raise JournalError(
        f"{directory} has no chat{named} from this directory: begin one by `codeact-team chat CONFIG`"
    )


def _parts_of(document: Document) -> dict[str, tuple[str, object]]:
    """The class and the name of each part that does something, by its place."""
    return {
        dotted(path): (value["provider"], value["config"].get("name"))
        for path, value in described_components(document.data)
        if isinstance(value["config"], dict) and last_key(path) not in _CONDITIONS
    }
