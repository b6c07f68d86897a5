"""Keeps a run in a directory: its config, and a journal of what happens."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from codeact_team.config.loading import CheckedConfig
from codeact_team.config.written import credentials_of, write_config
from codeact_team.effects import Effect, Event, Perform
from codeact_team.errors import JournalError
from codeact_team.events import Opened
from codeact_team.executor_interface import StreamingCodeExecutor
from codeact_team.journal import About, Recorder, new_id

_VERSIONED = ("codeact-team", "autogen-core", "autogen-agentchat", "autogen-ext")


class Recording:
    """A listener and a handler that record a run from :meth:`begin` to :meth:`end`, if it is to be recorded.

    Args:
        runs: The directory for runs; ``None`` to record nothing.
    """

    def __init__(self, runs: Path | None) -> None:
        self._runs = runs
        self._recorder: Recorder | None = None

    @property
    def place(self) -> str | None:
        """The directory of the run that is recorded now, if one is."""
        return None if self._recorder is None else str(self._recorder.directory.path)

    def begin(
        self,
        config: CheckedConfig,
        task: str,
        executors: Sequence[StreamingCodeExecutor],
        opened: Opened,
    ) -> None:
        """Record from now on, if anything is to be recorded. Blocks.

        Args:
            config: What runs.
            task: What it has to do.
            executors: Where code runs; none of them may reach the directory.
            opened: What was told before.

        Raises:
            JournalError: If it cannot be recorded.
        """
        if self._runs is None:
            return
        _refuse_what_code_reaches(self._runs, executors)
        credentials = credentials_of(config.document, os.environ)
        about = About(
            id=new_id(),
            task=task,
            config=config.document.name,
            working_directory=os.getcwd(),
            versions={"python": platform.python_version(), **{name: version(name) for name in _VERSIONED}},
        )
        self._recorder = Recorder.create(self._runs, about, write_config(config.document), credentials)
        self._recorder(opened)

    def __call__(self, event: Event) -> None:
        if self._recorder is not None:
            self._recorder(event)

    async def stand(self, effect: Effect[Any], do: Perform) -> Any:
        """A handler: see :meth:`Recorder.stand`."""
        return await (do() if self._recorder is None else self._recorder.stand(effect, do))

    def end(self) -> None:
        """Record nothing more. Idempotent."""
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.close()


def _refuse_what_code_reaches(runs: Path, executors: Sequence[StreamingCodeExecutor]) -> None:
    """Refuse a directory that code could read or write: it would know, or change, its own past."""
    directory = runs.resolve()
    for executor in executors:
        for path in executor.reached:
            if directory.is_relative_to(reached := path.resolve()) or reached.is_relative_to(directory):
                raise JournalError(
                    f"the run cannot be recorded in {runs}: its code can reach {path}, and so what is recorded of it. Choose "
                    "another directory by --run-dir, or run it with --no-record"
                )
