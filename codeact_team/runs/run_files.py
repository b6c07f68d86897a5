"""The files that a run makes or changes: told, and copied to where the person wants them; its pictures among them."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codeact_team.agents.block_calls import AgentBlock
from codeact_team.agents.codeact.attempts import Promotion
from codeact_team.core.aio import to_the_end
from codeact_team.core.atomic_files import Directory
from codeact_team.core.component_effects import CodeEffect
from codeact_team.core.effects import Effect, Event, Perform, emit
from codeact_team.core.events import ArtifactKept, ArtifactReference, BlockEnded
from codeact_team.core.execution import Artifact, SessionResult
from codeact_team.core.executor_interface import Change, ChangedFile, StreamingCodeExecutor
from codeact_team.core.files import below, opened, parent_of
from codeact_team.core.trees import DIRECTORY
from codeact_team.core.visibility import readable
from codeact_team.errors import CodeActTeamError, SettingError

logger = logging.getLogger(__name__)

_MAX_ARTIFACTS = 200
"""Artifacts that are kept as files, as long as a team is open."""
_MAX_TOLD = 1000
"""Files of a run that its result tells; more are copied."""
_GRACE = 10.0
"""Seconds for the files of a run that was interrupted."""
_ENDINGS = {
    "application/json": ".json",
    "image/gif": ".gif",
    "image/jpeg": ".jpg",
    "image/png": ".png",
    "image/svg+xml": ".svg",
    "image/webp": ".webp",
    "text/html": ".html",
    "text/latex": ".tex",
    "text/markdown": ".md",
    "text/plain": ".txt",
}

_GONE = (
    "the workspace was temporary, and these files are gone with it: `--out DIR` copies them, and a `work_dir` of the code "
    "executor keeps them"
)
_CUT_OFF = "left out are {:,} that interrupted code was at work on: they come when the run is resumed"
_LACKING = "it was removed since, or its content was not kept"
_MOVED = "the directory {} was removed, or replaced by another, while the run worked"
_TEMPORARY = "the workspace is temporary, and goes with these files at the end: a `work_dir` of the code executor keeps them"


@dataclass(frozen=True)
class RunFile:
    """A file that a run has made or changed.

    Attributes:
        path: Where in the workspace. What cannot be seen in its name is replaced; hostile data.
        size: In bytes.
        change: What has become of it.
        found_at: Where on this machine it is found now; ``None`` where it is gone, or only in a container.
        problem: Why there is no copy, where one was wanted.
    """

    path: str
    size: int
    change: Change
    found_at: str | None = None
    problem: str = ""


def _leads_to(path: str, directory: int) -> bool:
    """Whether a path still leads to a directory that was opened by it."""
    try:
        with opened(path) as now:
            return os.path.samestat(os.fstat(now), os.fstat(directory))
    except OSError:
        return False


class RunFiles:
    """Keeps what sessions show, as an interceptor, and finds what a run has made or changed.

    Args:
        out: The directory that gets copies; made if it is missing, beside what is there.
        cut_off: Tells which files of an executor are of code that has not ended, and will run again: they are not the run's yet.
        note_copies: Is told where copies will be, before they are made.

    Attributes:
        found: The files of the last run.
        notes: What else there is to say of them, in words.
        due: How many are not where they were wanted: they could not be copied, or are not to be had.
    """

    def __init__(
        self,
        out: str | os.PathLike[str] | None,
        cut_off: Callable[[StreamingCodeExecutor], Awaitable[Collection[str]]],
        note_copies: Callable[[Sequence[str]], Awaitable[object]],
    ) -> None:
        self._cut_off = cut_off
        self._note_copies = note_copies
        self._out = None if out is None else os.fspath(out)
        self._target: int | None = None
        self._has_made_out = False
        self._blocks = 0
        self._artifacts = 0
        self._has_warned = False
        """Whether it is told that a workspace is temporary."""
        self._lacking: Sequence[ChangedFile] = ()
        self._copied: set[str] = set()
        """Where all files of the last run have their copies."""
        self.found: Sequence[RunFile] = ()
        self.notes: Sequence[str] = ()
        self.due = 0

    def make(self) -> None:
        """Make sure that there is a directory that copies can be written to, if there is to be one.

        Raises:
            SettingError: If there is none, and none can be made.
        """
        if self._out is not None:
            with self._made(self._out):
                pass

    @contextmanager
    def opened(self) -> Generator[None]:
        """Within it, copies can be made; code that may change the directory meanwhile leads them nowhere else.

        Raises:
            SettingError: If they cannot.
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

    @contextmanager
    def _made(self, out: str) -> Generator[tuple[int, str, int]]:
        """The directory above the one for copies, open; the name that this has there; and it, open."""
        with ExitStack() as stack:
            try:
                above, name = stack.enter_context(parent_of(out))
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=above)
                    self._has_made_out = True
            except FileNotFoundError:
                raise SettingError(
                    f"the directory {out} for files cannot be made: there is no directory {Path(out).parent}; make it, or "
                    "check the path"
                ) from None
            except OSError as error:
                raise SettingError(
                    f"the directory {out} for files cannot be made: {error.strerror}"
                ) from error
            try:
                target = os.open(name, DIRECTORY, dir_fd=above)
            except OSError as error:
                raise SettingError(
                    f"files cannot be copied to {out}: it is no directory, or is a link: name what that leads to"
                ) from error
            stack.callback(os.close, target)
            if not os.access(name, os.W_OK | os.X_OK, dir_fd=above):
                raise SettingError(f"files cannot be copied to {out}: it cannot be written")
            yield above, name, target

    async def keep(self, effect: Effect[object], do: Perform) -> object:
        """An interceptor: add what a block has made beside text to the files of the workspace, named by step."""
        outcome = await do()
        if isinstance(effect, AgentBlock) and isinstance(outcome, SessionResult) and not effect.is_apart:
            await self._keep_all(outcome.artifacts, effect)
        elif isinstance(effect, Promotion):
            # what was shown in a branch that is not promoted is nobody's
            await self._keep_all(effect.shown, effect)
        return outcome

    def count(self, event: Event) -> None:
        """A listener: know how many blocks have ended, be it that a journal has answered them."""
        self._blocks += isinstance(event, BlockEnded)

    async def _keep_all(self, artifacts: Sequence[Artifact], effect: CodeEffect[Any]) -> None:
        for number, artifact in enumerate(artifacts, 1):
            await self._keep(artifact, f"step-{self._blocks + 1}-{number}", effect)

    async def _keep(self, artifact: Artifact, stem: str, effect: CodeEffect[Any]) -> None:
        if self._artifacts == _MAX_ARTIFACTS:
            logger.warning(
                "more than %d pictures and tables are shown: no more are kept as files", _MAX_ARTIFACTS
            )
        self._artifacts += 1
        if self._artifacts > _MAX_ARTIFACTS:
            return
        executor = effect.part
        if not isinstance(executor, StreamingCodeExecutor):
            return
        name = stem + _ENDINGS.get(artifact.mime_type.partition(";")[0].strip().lower(), ".bin")
        try:
            name = await executor.workspace.add(name, artifact.data)
        except (OSError, CodeActTeamError) as error:
            logger.warning("%s could not be kept in the workspace: %s", name, error)
            return
        place = executor.workspace
        path = None if place.path is None or not place.lasts else str(place.path / name)
        told = ArtifactReference.of(artifact)
        emit(ArtifactKept(agent=effect.source, file=name, path=path, artifact=told))

    @asynccontextmanager
    async def found_after(
        self, executors: Callable[[], Sequence[StreamingCodeExecutor]], *, stays: bool
    ) -> AsyncGenerator[None]:
        """Whatever happens within it, afterwards it is known what has been made or changed, and copied if that is wanted.

        Args:
            executors: Where, asked at the end.
            stays: Whether temporary workspaces stay for now.
        """
        self.found, self.notes, self.due, self._lacking = (), (), 0, ()
        try:
            yield
        except asyncio.CancelledError:
            try:
                async with asyncio.timeout(_GRACE):
                    await self._find(executors(), stays=stays)
            except TimeoutError:
                self.notes = [f"what was made or changed could not be found out within {_GRACE:g} s"]
            raise
        except Exception:
            await self._find(executors(), stays=stays)
            raise
        await self._find(executors(), stays=stays)

    async def _find(self, executors: Sequence[StreamingCodeExecutor], *, stays: bool) -> None:
        found: list[RunFile] = []
        notes: list[str] = []
        more = 0
        seen: set[tuple[Path, str]] = set()
        self._copied = set()
        for number, executor in enumerate(executors, 1):
            try:
                place = executor.workspace
                changes = await place.changed()
                # two executors may have the same directory
                key = place.path or Path(f"/{number}")
                new = [file for file in changes.files if (key, file.path) not in seen]
                seen |= {(key, file.path) for file in new}
                if cut_off := await self._cut_off(executor):
                    whole = [file for file in new if file.path not in cut_off]
                    notes += [_CUT_OFF.format(len(new) - len(whole))] if whole != new else []
                    new = whole
                told = new[: _MAX_TOLD - len(found)]
                more += len(new) - len(told)
                copies = await self._copies(executor, new, number)
                top = place.path if place.lasts or stays else None
                found += await to_the_end(asyncio.to_thread(_told, told, copies, top))
            except (OSError, CodeActTeamError) as error:
                notes.append(f"the files of {type(executor).__name__} are not known: {error}")
                self.due += self._target is not None
                continue
            notes += [changes.remark] if changes.remark else []
            if new and self._target is None and not (place.lasts or self._has_warned):
                notes.append(_TEMPORARY if stays else _GONE)
        if self._target is not None:
            lacking = self._lacking[: _MAX_TOLD - len(found)]
            more += len(self._lacking) - len(lacking)
            missing = [(None, _LACKING)] * len(lacking)
            found += await to_the_end(asyncio.to_thread(_told, lacking, missing, None))
            self.due += len(self._lacking)
        if more:
            notes.append(f"{more:,} more files are not listed here")
        self.found, self.notes = found, list(dict.fromkeys(notes))
        self._has_warned = self._has_warned or {_TEMPORARY, _GONE} & {*notes} != set()

    def lack(self, files: Sequence[ChangedFile]) -> None:
        """Note files of the run that are not to be had any more, before what there is is copied."""
        self._lacking = files

    def remove_others(self, copies: Sequence[str]) -> None:
        """Remove copies of a time before the run was resumed that are not among its files in the end. Blocks.

        Args:
            copies: Where they are, if nobody has moved or changed them since.
        """
        if self._target is None or self._out is None or self.due:
            return
        for copy in copies:
            path = os.path.relpath(copy, self._out)
            if os.path.join(self._out, path) not in self._copied:
                # it is elsewhere or gone, or what a journal says is no path
                with suppress(OSError, ValueError):
                    Directory(self._target).remove(path)

    async def _copies(
        self, executor: StreamingCodeExecutor, files: Sequence[ChangedFile], number: int
    ) -> Sequence[tuple[str | None, str]] | None:
        """For each file where its copy is, and else why there is none; ``None`` where no copies are wanted."""
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
        # before, as the process may be killed meanwhile
        expected = await to_the_end(asyncio.to_thread(_expected, top, files))
        await self._note_copies([*expected])
        with below(target, inner) as directory:
            saved = await executor.workspace.save(files, directory)
        copies = [None if one.copy is None else os.path.join(top, one.copy) for one in saved]
        # other names, where something else had these
        if others := [copy for copy in copies if copy is not None and copy not in expected]:
            await self._note_copies(others)
        self.due += sum(one.is_due for one in saved)
        self._copied.update(filter(None, copies))
        return [(copy, one.problem) for copy, one in zip(copies, saved, strict=True)]


def _expected(top: str, files: Sequence[ChangedFile]) -> Collection[str]:
    """Where the copies of files will be, if nothing else is there, in that order. Blocks."""
    return dict.fromkeys(os.path.join(top, readable(file.path)) for file in files)


def _told(
    files: Sequence[ChangedFile], copies: Sequence[tuple[str | None, str]] | None, top: Path | None
) -> list[RunFile]:
    """What a person reads of files. Blocks.

    Args:
        files: These.
        copies: For each, and others behind them, where its copy is, and else why there is none; ``None`` without copies.
        top: The directory that they are found in without copies, if they are.
    """
    if copies is not None:
        return [
            RunFile(readable(file.path), file.size, file.change, *copy)
            for file, copy in zip(files, copies, strict=False)
        ]
    return [
        RunFile(path, file.size, file.change, None if top is None else str(top / path))
        for file in files
        for path in [readable(file.path)]
    ]
