"""The files that a run makes or changes: listed, and copied to where the person wants them; its pictures among them."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from codeact_team.agents.block_calls import AgentBlock
from codeact_team.agents.codeact.attempts import Promotion
from codeact_team.core.aio import to_the_end
from codeact_team.core.component_effects import CodeEffect
from codeact_team.core.effects import Effect, Event, Perform, emit
from codeact_team.core.events import ArtifactKept, ArtifactReference, BlockEnded
from codeact_team.core.execution import Artifact, SessionResult, bare_type
from codeact_team.core.executor_interface import ChangedFile, RecordedFile, StreamingCodeExecutor
from codeact_team.errors import CodeActTeamError, SettingError
from codeact_team.files.atomic import Directory
from codeact_team.files.opening import below, opened, parent_of
from codeact_team.files.trees import DIRECTORY
from codeact_team.journal.recorder import Files
from codeact_team.journal.result import MAX_FILES, RunFile
from codeact_team.runs.recording import Recording
from codeact_team.text.visibility import readable

logger = logging.getLogger(__name__)

_MAX_ARTIFACTS = 200
"""Pictures that are kept as files, as long as a team is open."""
_GRACE = 10.0
"""Seconds for the files of a run that was interrupted."""
_ENDINGS = {
    "application/pdf": ".pdf",
    "image/gif": ".gif",
    "image/jpeg": ".jpg",
    "image/png": ".png",
    "image/svg+xml": ".svg",
    "image/webp": ".webp",
    "text/html": ".html",
}
_TEXTS = ("text/", "application/json")
_SCRIPT = re.compile(rb"<script\b", re.IGNORECASE)

_GONE = (
    "the workspace was temporary, and these files are gone with it: copy them by `--out DIR`, or keep them by a `work_dir` "
    "of the code executor"
)
_CUT_OFF = "{:,} on which interrupted code was at work are left out until the run is resumed"
_LEFT_OPEN = "the code had not closed {}: the end of the run has written what Python held in memory, as the end of a script does"
_LACKING = "it has been removed, or its content was not kept"
_MOVED = "the directory {} was removed, or replaced by another, while the run worked"
_TEMPORARY = "the workspace is temporary, and these files go with it at the end: a `work_dir` of the code executor keeps them"


class RunFiles:
    """Keeps what sessions show, as an interceptor, and finds the files that a run has made or changed.

    Args:
        out: The directory that gets copies, and keeps what is in it; made with its parents if it is missing.
        recording: Knows the files of code that has not ended and will run again, and records the copies.

    Attributes:
        found: The files of the last run.
        notes: Remarks on them, for a person.
        due: How many could not be copied to where they were wanted, or are lost.
    """

    def __init__(self, out: str | os.PathLike[str] | None, recording: Recording) -> None:
        self._recording = recording
        self._out = None if out is None else os.path.expanduser(out)
        self._target: int | None = None
        self._has_made_out = False
        self._made_parents: list[Path] = []
        """Inner before outer."""
        self._blocks = 0
        self._artifacts = 0
        self._has_warned = False
        """Whether a note says that a workspace is temporary."""
        self._lacking: Sequence[ChangedFile] = ()
        self._copied: set[str] = set()
        """Where all files of the last run have their copies."""
        self.found: Sequence[RunFile] = ()
        self.notes: Sequence[str] = ()
        self.due: int = 0
        self._all: dict[int, dict[str, ChangedFile]] = defaultdict(dict)
        """The files of all runs since the team was opened, by the number of the executor and by path."""
        self._digests: dict[tuple[int, str], str | None] = {}
        """Those of their contents."""

    def of_all(self, executors: Sequence[StreamingCodeExecutor]) -> Sequence[RunFile]:
        """The files that all runs of the open team have made or changed. Blocks."""
        return [
            file
            for number, executor in enumerate(executors, 1)
            for file in _told([*self._all[number].values()], None, executor.workspace.path)
        ]

    async def save_all(self, executors: Sequence[StreamingCodeExecutor], out: str) -> Sequence[RunFile]:
        """Copy these files to a directory, as a run with ``out`` does.

        Raises:
            SettingError: As :meth:`make`.
        """
        saving = RunFiles(out, Recording(None))
        saved: list[RunFile] = []
        with saving.opened():
            for number, executor in enumerate(executors, 1):
                files = [*self._all[number].values()]
                copies = await saving._copies(executor, files, number)
                saved += await to_the_end(asyncio.to_thread(_told, files, copies, None))
        return saved

    def make(self) -> None:
        """Make the directory for copies, if one is wanted and missing.

        Raises:
            SettingError: If it cannot be made, or not be written.
        """
        if self._out is not None:
            with self._made(self._out):
                pass

    @contextmanager
    def opened(self) -> Generator[None]:
        """Within it, copies can be made; code that replaces the directory meanwhile does not redirect them.

        Raises:
            SettingError: As :meth:`make`.
        """
        if self._out is None:
            yield
            return
        with self._made(self._out) as (above, name, target):
            self._target = target
            try:
                yield
            finally:
                self._target = None
                if self._has_made_out:
                    # nothing may have come of the run
                    with suppress(OSError):
                        os.rmdir(name, dir_fd=above)
                        for folder in self._made_parents:
                            folder.rmdir()

    @contextmanager
    def _made(self, out: str) -> Generator[tuple[int, str, int]]:
        """The open directory above ``out``, the name of ``out`` in it, and ``out``, open."""
        with ExitStack() as stack:
            parent = Path(out).parent
            try:
                self._made_parents += [
                    folder for folder in (parent, *parent.parents) if not os.path.lexists(folder)
                ]
                parent.mkdir(parents=True, exist_ok=True)
                above, name = stack.enter_context(parent_of(out))
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=above)
                    self._has_made_out = True
            except (FileNotFoundError, FileExistsError):
                raise SettingError(
                    f"the directory {out} for files cannot be made: {parent} cannot hold directories; name another place"
                ) from None
            except OSError as error:
                raise SettingError(
                    f"the directory {out} for files cannot be made: {error.strerror}"
                ) from error
            try:
                target = os.open(name, DIRECTORY, dir_fd=above)
            except OSError as error:
                raise SettingError(
                    f"files cannot be copied to {out}: it is not a directory, or it is a link: name its target"
                ) from error
            stack.callback(os.close, target)
            if not os.access(name, os.W_OK | os.X_OK, dir_fd=above):
                raise SettingError(f"files cannot be copied to {out}: it cannot be written")
            yield above, name, target

    async def keep(self, effect: Effect[object], do: Perform) -> object:
        """An interceptor: add the pictures and charts of a block to the files of the workspace, named by step."""
        outcome = await do()
        if isinstance(effect, AgentBlock) and isinstance(outcome, SessionResult) and not effect.is_apart:
            await self._keep(outcome.artifacts, effect)
        elif isinstance(effect, Promotion):
            # artifacts of a fork that is not promoted are dropped
            await self._keep(effect.shown, effect)
        return outcome

    def count(self, event: Event) -> None:
        """A listener: count the blocks that have ended, including those that a journal has answered."""
        self._blocks += isinstance(event, BlockEnded)

    async def _keep(self, artifacts: Sequence[Artifact], effect: CodeEffect[Any]) -> None:
        executor = effect.part
        if not isinstance(executor, StreamingCodeExecutor):
            return
        for number, artifact in enumerate(artifacts, 1):
            kind = bare_type(artifact.mime_type)
            # where the code has saved it, it has a name
            if artifact.file is not None or not _is_picture(kind, artifact.data):
                continue
            if self._artifacts == _MAX_ARTIFACTS:
                logger.warning("more than %d pictures are shown: no more are kept as files", _MAX_ARTIFACTS)
            self._artifacts += 1
            if self._artifacts > _MAX_ARTIFACTS:
                return
            name = f"step-{self._blocks + 1}-{number}{_ENDINGS.get(kind, '.bin')}"
            place = executor.workspace
            try:
                name = await place.add(name, artifact.data)
            except (OSError, CodeActTeamError) as error:
                logger.warning("%s could not be kept in the workspace: %s", name, error)
                continue
            path = None if place.path is None or not place.lasts else str(place.path / name)
            kept = ArtifactReference.of(artifact)
            emit(ArtifactKept(agent=effect.source, file=name, path=path, artifact=kept))

    @asynccontextmanager
    async def found_after(
        self, executors: Callable[[], Sequence[StreamingCodeExecutor]], *, stays: bool
    ) -> AsyncGenerator[None]:
        """Find, and copy if that is wanted, what is made or changed within it, however it ends.

        Args:
            executors: Where, asked at the end.
            stays: Whether temporary workspaces stay for now.
        """
        self.found, self.notes, self.due, self._lacking = (), (), 0, ()
        if not self._recording.keeps_files:
            yield
            return
        try:
            yield
        except (Exception, asyncio.CancelledError) as error:
            try:
                async with asyncio.timeout(_GRACE if isinstance(error, asyncio.CancelledError) else None):
                    await self._find(executors(), stays=stays)
            except TimeoutError:
                self.notes = [f"the files that were made or changed could not be listed within {_GRACE:g} s"]
            raise
        left_open = list[str]()
        if not stays:
            for executor in executors():
                # before its files are looked at
                left_open += await executor.finish()
        await self._find(executors(), stays=stays)
        if left_open:
            self.notes = [*self.notes, _LEFT_OPEN.format(", ".join(map(readable, left_open)))]

    async def _find(self, executors: Sequence[StreamingCodeExecutor], *, stays: bool) -> None:
        found: list[RunFile] = []
        notes: list[str] = []
        more = 0
        seen: set[tuple[Path, str]] = set()
        self._copied = set()
        recorder = self._recording.recorder
        for number, executor in enumerate(executors, 1):
            try:
                place = executor.workspace
                changes = await place.changed()
                # two executors may have the same directory
                key = place.path or Path(f"/{number}")
                new = [file for file in changes.files if (key, file.path) not in seen]
                seen |= {(key, file.path) for file in new}
                # code that has not ended runs again, and makes its files then
                if recorder is not None and (cut_off := await recorder.cut_off(executor)):
                    whole = [file for file in new if file.path not in cut_off]
                    notes += [_CUT_OFF.format(len(new) - len(whole))] if whole != new else []
                    new = whole
                if recorder is not None:
                    known = recorder.known_files(executor)
                    new = [file for file in new if not self._is_old(number, file, known.get(file.path))]
                for file in new:
                    before = self._all[number].get(file.path, file)
                    self._all[number][file.path] = replace(file, change=before.change)
                told = new[: MAX_FILES - len(found)]
                more += len(new) - len(told)
                copies = await self._copies(executor, new, number)
                top = place.path if place.lasts or stays else None
                kept: Files = {} if recorder is None else recorder.known_files(executor)
                found += await to_the_end(asyncio.to_thread(_told, told, copies, top, kept))
            except (OSError, CodeActTeamError) as error:
                notes.append(f"the files of {type(executor).__name__} cannot be listed: {error}")
                self.due += self._target is not None
                continue
            notes += [changes.remark] if changes.remark else []
            if new and self._target is None and not (place.lasts or self._has_warned):
                notes.append(_TEMPORARY if stays else _GONE)
        if self._target is not None:
            lacking = self._lacking[: MAX_FILES - len(found)]
            more += len(self._lacking) - len(lacking)
            missing = [(None, _LACKING)] * len(lacking)
            found += await to_the_end(asyncio.to_thread(_told, lacking, missing, None))
            self.due += len(self._lacking)
        if more:
            notes.append(f"{more:,} more files are not listed here")
        self.found, self.notes = found, list(dict.fromkeys(notes))
        self._has_warned = self._has_warned or {_TEMPORARY, _GONE} & {*notes} != set()

    def _is_old(self, number: int, file: ChangedFile, known: RecordedFile | None) -> bool:
        """Whether a run before has listed a file with the content that it has: code that ran again has written it once more."""
        digest = None if known is None else known.digest
        before = self._digests.get((number, file.path))
        self._digests[number, file.path] = digest
        return digest is not None and digest == before

    def lack(self, files: Sequence[ChangedFile]) -> None:
        """Note files of the run that are lost, before the others are copied."""
        self._lacking = files

    def remove_others(self, copies: Sequence[str]) -> None:
        """Remove copies made before the run was resumed that are not among its files in the end. Blocks."""
        if self._target is None or self._out is None or self.due:
            return
        for copy in copies:
            path = os.path.relpath(copy, self._out)
            if os.path.join(self._out, path) not in self._copied:
                # it was moved or removed, or a journal has an invalid path
                with suppress(OSError, ValueError):
                    Directory(self._target).remove(path)

    async def _copies(
        self, executor: StreamingCodeExecutor, files: Sequence[ChangedFile], number: int
    ) -> Sequence[tuple[str | None, str]] | None:
        """For each file where its copy is, or else why it has none; ``None`` if no copies are wanted."""
        if (target := self._target) is None or self._out is None:
            return None
        if not files:
            return []
        if not _leads_to(self._out, target):
            self.due += len(files)
            return [(None, _MOVED.format(self._out))] * len(files)
        # the files of each sandbox stay together, and none takes the name of another's
        inner = "" if number == 1 else f"sandbox-{number}"
        Directory(target).make(inner)
        top = os.path.join(self._out, inner)
        # they are recorded before, as the process may be killed meanwhile
        expected = await to_the_end(
            asyncio.to_thread(lambda: [os.path.join(top, readable(file.path)) for file in files])
        )
        recorder = self._recording.recorder
        if recorder is not None:
            await recorder.note_copies(list(dict.fromkeys(expected)))
        with below(target, inner) as directory:
            saved = await executor.workspace.save(files, directory)
        copies = [None if one.copy is None else os.path.join(top, one.copy) for one in saved]
        # other names, where something else had these
        others = set(filter(None, copies)).difference(expected)
        if recorder is not None and others:
            await recorder.note_copies(sorted(others))
        self.due += sum(one.is_due for one in saved)
        self._copied.update(filter(None, copies))
        return [(copy, one.problem) for copy, one in zip(copies, saved, strict=True)]


def _is_picture(kind: str, data: bytes) -> bool:
    """Whether a form needs a program that draws it, as a picture or an interactive chart does. Tables are read on the page."""
    return not kind.startswith(_TEXTS) or (kind == "text/html" and _SCRIPT.search(data) is not None)


def _told(
    files: Sequence[ChangedFile],
    copies: Sequence[tuple[str | None, str]] | None,
    top: Path | None,
    kept: Files = MappingProxyType({}),
) -> list[RunFile]:
    """Files for the result. Blocks.

    Args:
        files: The files.
        copies: For each, and others behind them, where its copy is, or else why it has none; ``None`` without copies.
        top: The directory that has the files, if that stays.
        kept: The files of the workspace whose contents are recorded.
    """
    told: list[RunFile] = []
    for number, file in enumerate(files):
        path = readable(file.path)
        place = (str(top / path) if top is not None else None, "") if copies is None else copies[number]
        is_copy = copies is not None and place[0] is not None
        same = kept.get(file.path)
        digest = same.digest if same is not None and same.size == file.size else None
        told.append(RunFile(path, file.size, file.change, *place, is_copy=is_copy, sha256=digest))
    return told


def _leads_to(path: str, directory: int) -> bool:
    """Whether a path still leads to a directory that was opened by it."""
    try:
        with opened(path) as now:
            return os.path.samestat(os.fstat(now), os.fstat(directory))
    except OSError:
        return False
