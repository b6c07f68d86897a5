"""The directories that code of a run works in, where these are not its own: a config's ``work_dir``, another run's workspace."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from hashlib import sha256

from codeact_team.config.document import Document, dotted, last_key, walk
from codeact_team.errors import JournalError, SettingError
from codeact_team.files.opening import lock, made_named, opened
from codeact_team.journal.recorded_run import RecordedRun
from codeact_team.journal.run_directory import RunDirectory
from codeact_team.journal.seal import key_file

logger = logging.getLogger(__name__)

_MOST = 4096
"""Bytes of the name of a run."""


@contextmanager
def claimed(document: Document, run: str | None) -> Generator[None]:
    """Within it, no other run of this user works in a ``work_dir`` of a config. Blocks.

    Args:
        document: The config.
        run: The name of the run, for the other one; ``None`` if it is not recorded.

    Raises:
        SettingError: If another run works in one.
    """
    with ExitStack() as stack:
        seen: set[str] = set()
        for path, value in walk(document.data):
            if (
                last_key(path) == "work_dir"
                and isinstance(value, str)
                and (real := os.path.realpath(value)) not in seen
            ):
                seen.add(real)
                stack.enter_context(_claimed(real, value, dotted(path), run))
        yield


@contextmanager
def _claimed(real: str, work_dir: str, setting: str, run: str | None) -> Generator[None]:
    name = sha256(os.fsencode(real)).hexdigest()[:32]
    with ExitStack() as stack:
        try:
            directory = stack.enter_context(made_named(key_file().parent / "work_dirs", 0o700))
            file = os.open(
                name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=directory
            )
        except (OSError, JournalError) as error:
            logger.debug("other runs cannot be told that this one works in %s: %s", work_dir, error)
            yield
            return
        stack.callback(os.close, file)
        if not lock(file):
            other = os.pread(file, _MOST, 0).decode(errors="replace")
            raise SettingError(
                f"the work_dir {work_dir} is in use by {other or 'another run'}, and two runs would mix their files: wait "
                f"until it has ended, or give this run a directory of its own by -s {setting}=null"
            )
        named = "a run that is not recorded" if run is None else f"the run {run}"
        os.ftruncate(file, 0)
        os.pwrite(file, os.fsencode(f"{named} (process {os.getpid()})"), 0)
        yield


def files_of(directory: RunDirectory) -> list[str]:
    """The paths of the files in the workspace of a run, for the setting ``data`` of another one; no links. Blocks.

    Raises:
        JournalError: If it has no workspace of its own, or still works in it.
    """
    if RecordedRun(directory).is_running:
        raise JournalError(f"the run {directory.path.name} has not ended: its files may still change")
    found = list[str]()
    for workspace in directory.workspaces():
        with opened(workspace) as top:
            for name in sorted(os.listdir(top)):
                # code may have put a link there
                kind = os.stat(name, dir_fd=top, follow_symlinks=False).st_mode
                if not name.startswith(".") and (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
                    found.append(str(workspace / name))
    if not found:
        raise JournalError(
            f"the run {directory.path.name} has left no files in a workspace of its own; if its config names a work_dir, they are "
            "there"
        )
    return found
