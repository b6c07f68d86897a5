"""Restores what the code of a resumed run had left behind: files, and the state of its interpreters."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from typing import Any, cast

from autogen_core.code_executor import CodeBlock

from codeact_team.agents.block_calls import AgentBlock
from codeact_team.agents.codeact.attempts import Attempt
from codeact_team.agents.observations import load_result
from codeact_team.core.aio import FairLock
from codeact_team.core.component_effects import CodeEffect, Run, WorkspaceEffect
from codeact_team.core.effects import Effect, emit, speaking, within
from codeact_team.core.events import BlocksRepeated, BlocksRepeating, FilesPutBack
from codeact_team.core.executor_interface import (
    Change,
    ChangedFile,
    RecordedFile,
    StreamingCodeExecutor,
    Workspace,
)
from codeact_team.core.places import place_of
from codeact_team.errors import JournalError
from codeact_team.journal.blobs import Blobs
from codeact_team.journal.calls import calling
from codeact_team.journal.differences import difference
from codeact_team.journal.effect_records import EffectRecord, EffectState, SandboxHistory
from codeact_team.journal.history import History
from codeact_team.journal.recorder import Recorder, as_entry, workspace_of
from codeact_team.network.requests import NetworkRequest
from codeact_team.text.visibility import one_line
from codeact_team.tools.approvals import AskedQuestion
from codeact_team.tools.autogen_parts import PartBlock

logger = logging.getLogger(__name__)

STRAYED = "it made {} more than before"
"""Why variables are lost."""
END = 1 << 62
"""A number after the numbers of all effects."""
_MAX_TOLD = 200
"""Characters of a request that is told."""
FileEntries = Mapping[str, Any]
"""Files by path, as an entry has them."""


class Restoration:
    """Restores what code has left in its executors.

    Args:
        history: The history of the run.
        recorder: Knows what is in the workspaces.
    """

    def __init__(self, history: History, recorder: Recorder) -> None:
        self._history = history
        self._recorder = recorder
        self._restored: set[str] = set()
        """The places of executors that are as they were when the run ended."""
        self._restarts: dict[int, int] = {}
        """The restarts of their executor by the numbers of blocks, and of attempts, when they were answered."""
        self._live: set[str] = set()
        """Workspaces that were restored, or in which code has run since."""
        self._added: dict[str, set[str]] = {}
        """Files that others have added to a workspace since the run ended: they stay."""
        self._lost: dict[str, FileEntries] = {}
        """Files of a workspace that could not be restored, or may be gone."""
        self._again: set[str] = set()
        """Workspaces in which a program does again what is recorded."""
        self._turns = FairLock()
        """Held while only files are restored: several processes may start at once."""

    def answered(self, n: int, part: object) -> None:
        """Note that a block in an executor, or an attempt, is answered: it counts as long as that is not restarted."""
        if isinstance(part, StreamingCodeExecutor):
            self._restarts[n] = part.restarts

    def _counts(self, block: EffectRecord, executor: StreamingCodeExecutor) -> bool:
        return self._restarts.get(block.attempt_or_n, executor.restarts) == executor.restarts

    async def restore(self, effect: Effect[Any], n: int) -> str | None:
        """Restore what code had left in the executor of an effect, before the effect with the number ``n``.

        Returns:
            Why the state of the interpreter cannot be restored, if so.

        Raises:
            JournalError: If the journal, or a workspace, is not as it was recorded.
        """
        if isinstance(effect, WorkspaceEffect):
            await self._restore_only_files(effect.part, n)
        place = place_of(effect.part)
        if not isinstance(effect, CodeEffect) or effect.is_apart or place in self._restored:
            return None
        self._restored.add(place)
        if isinstance(effect.part, StreamingCodeExecutor):
            reason, repeated = await self._restore_session(effect.part, effect, n)
            known = {block.n for block in repeated}
            earlier = [one.n for one in self._history.effects if one.place == place and one.n < n]
            self.recall(effect.part, (block for block in earlier if block not in known))
            return reason
        return (
            "it is not known what else it would do" if self._history.sandboxes[place, None].blocks else None
        )

    async def _restore_session(
        self, executor: StreamingCodeExecutor, effect: CodeEffect[Any], n: int
    ) -> tuple[str | None, Sequence[EffectRecord]]:
        """Restore a session; returns why its state cannot be restored, if so, and the blocks that have run again."""
        sandbox = self._history.sandboxes[place_of(executor), None]
        await executor.start()
        workspace = workspace_of(executor)
        wanted: FileEntries | None = None
        if workspace in self._live:
            # other code has run there since
            there = await self._recorder.files_of(executor)
            wanted = await asyncio.to_thread(as_entry, there)
        elif workspace in self._history.files:
            wanted = await self._wanted(executor, workspace, n)
        self._live.add(workspace)
        self._recorder.write(rebuilding=workspace)
        blocks = [
            block
            for block in sandbox.blocks
            if block.n < n and sandbox.lives_on and self._counts(block, executor)
        ]
        reason = await self._repeat(effect.run, executor, sandbox, blocks, discard=executor.restart)
        if wanted is not None:
            await self._restore_files(executor, wanted)
        self._recorder.write(rebuilt=workspace)
        return reason, blocks if reason is None else ()

    def recall(self, executor: StreamingCodeExecutor, blocks: Iterable[int]) -> None:
        """Have an executor know what the code of blocks that do not run again was allowed, and what persons have said."""
        for effect in (call for block in blocks for call in self._history.effects.calls_in(block)):
            if effect.kind == NetworkRequest.kind:
                request = self._request(effect)
                executor.recall_request(request["method"], request["url"])
            elif effect.kind == AskedQuestion.kind and effect.state is EffectState.ANSWERED:
                question, answer = self._request(effect)["approval"], cast(Any, self._history.outcome(effect))
                if question["kind"] == "host" and answer is not None:
                    executor.recall_answer(
                        question["name"], is_allowed=answer["allowed"], reason=answer["reason"]
                    )

    def unkept_in(self, blocks: Iterable[int]) -> str | None:
        """Why blocks with these numbers cannot run again, if the answer to one of their requests was not kept."""
        for effect in (call for block in blocks for call in self._history.effects.calls_in(block)):
            if effect.kind == NetworkRequest.kind and effect.state is EffectState.ANSWERED:
                outcome: Any = self._history.outcome(effect, with_bytes=False)
                if not outcome["is_kept"]:
                    request = self._request(effect)
                    named = one_line(f"{request['method']} {request['url']}", _MAX_TOLD)
                    return f"the answer to {named} was not kept"
        return None

    def _request(self, effect: EffectRecord) -> Any:
        return self._recorder.redactor.restore(self._history.request(effect))

    async def begin_again(self, executor: StreamingCodeExecutor, n: int) -> None:
        """Set the files in a program's sandbox back to before the effect ``n``, from which the program does all again.

        Raises:
            JournalError: As :meth:`restore`.
        """
        workspace = workspace_of(executor)
        if workspace in self._live:
            return
        await executor.start()
        self._live.add(workspace)
        if workspace in self._history.files:
            await self._refuse_conflicts(executor, workspace)
            self._recorder.write(rebuilding=workspace)
            self._again.add(workspace)
            await self._go_back(executor, n)

    async def done_again(self, executor: object, n: int) -> None:
        """Let the files in a program's sandbox be those that the effect ``n`` had left, which was done again, or answered."""
        if not isinstance(executor, StreamingCodeExecutor):
            return
        workspace = workspace_of(executor)
        if workspace in self._again and self._history.files.has_changed(workspace, n):
            await self._go_back(executor, n + 1)

    def go_on(self, executor: StreamingCodeExecutor) -> None:
        """Note that a program does something new in its sandbox."""
        if (workspace := workspace_of(executor)) in self._again:
            self._again.remove(workspace)
            self._recorder.write(rebuilt=workspace)

    async def _restore_only_files(self, executor: object, n: int) -> None:
        """Restore the files in a workspace. Only the agents can bring back the state of an interpreter."""
        if not isinstance(executor, StreamingCodeExecutor):
            return
        async with self._turns:
            workspace = workspace_of(executor)
            if workspace in self._live or workspace not in self._history.files:
                return
            await executor.start()
            wanted = await self._wanted(executor, workspace, n)
            self._recorder.write(rebuilding=workspace)
            await self._restore_files(executor, wanted)
            self._recorder.write(rebuilt=workspace)
            self._live.add(workspace)

    async def restore_fork(self, attempt: Attempt, n: int) -> str | None:
        """Restore what the code of an attempt, whose effect has the number ``n``, had left in its fork, which is new.

        Returns:
            As of :meth:`restore`.
        """
        executor, sandbox = attempt.part, self._history.sandboxes[place_of(attempt.part), n]
        if not isinstance(executor, StreamingCodeExecutor) or attempt.executor is None:
            return None
        # a fork does not start anew
        discard = attempt.executor.stop
        return await self._repeat(attempt.run, executor, sandbox, sandbox.blocks, discard, is_fork=True)

    def report_changes(self, executors: Sequence[StreamingCodeExecutor]) -> None:
        """Report to executors which files in lasting workspaces their code had made or changed when the run ended."""
        for executor in executors:
            workspace = workspace_of(executor)
            if workspace in self._history.files and executor.workspace.lasts:
                files = self._history.files.before(workspace, END)
                executor.workspace.changed_before(self._changes(workspace, files))

    def _changes(self, workspace: str, files: FileEntries) -> Mapping[str, Change]:
        # the first entry belongs to no block
        first = self._history.files.before(workspace, 1)
        return {
            path: Change.CHANGED if path in first else Change.MADE
            for path, file in files.items()
            if first.get(path) != file
        }

    async def restore_files(
        self, executors: Sequence[StreamingCodeExecutor], n: int
    ) -> Sequence[ChangedFile]:
        """Restore the files of temporary workspaces in which no code has run since the run was resumed.

        Executors of lasting workspaces are started, so that it is known what is there.

        Args:
            executors: The executors of the run.
            n: The number of the last effect that counts.

        Returns:
            Files that code had made or changed and that are missing: they were removed, or their contents were not kept.
        """
        missing: dict[tuple[str, str], ChangedFile] = {}
        for executor in executors:
            workspace = workspace_of(executor)
            if workspace not in self._history.files:
                continue
            if workspace not in self._live:
                await executor.start()
                files = self._history.files.before(workspace, n + 1)
                if workspace.startswith("@"):
                    await self._restore_files(executor, files)
                else:
                    self._lost[workspace] = files
                    self._recorder.know_files(executor, await self._recorder.files_of(executor))
            there, lost = self._recorder.known_files(executor), self._lost.get(workspace, {})
            missing |= {
                (workspace, path): ChangedFile(path, lost[path]["size"], change)
                for path, change in self._changes(workspace, lost).items()
                if path not in there
            }
        return [*missing.values()]

    async def _repeat(
        self,
        run: Run,
        executor: StreamingCodeExecutor,
        sandbox: SandboxHistory,
        blocks: Sequence[EffectRecord],
        discard: Callable[[], Awaitable[None]],
        *,
        is_fork: bool = False,
    ) -> str | None:
        """Run blocks again, with the recorded answers to their requests.

        The files of an attempt are recorded only for all of its blocks.

        Args:
            run: Runs blocks.
            executor: The executor of the session.
            sandbox: The history of the session or of its fork.
            blocks: The blocks.
            discard: Discards the interpreter, in case they ask for something else.
            is_fork: Whether they run in a fork.

        Returns:
            Why they do not run, or what they ran for is discarded, if so.
        """
        if not blocks:
            return None
        if not executor.is_contained:
            return "it could reach more than its workspace"
        if not sandbox.is_repeatable:
            return "some of it was stopped before its end"
        if (unkept := self.unkept_in(block.n for block in blocks)) is not None:
            return unkept
        span, place, differences = self._recorder.next_span(), place_of(executor), list[str]()
        emit(BlocksRepeating(span=span, place=place, blocks=len(blocks)))
        before: EffectRecord | None = None
        for block in blocks:
            if not is_fork and (before is None or before.attempt != block.attempt):
                await self._go_back(executor, block.n)
            request = self._request(block)
            agent = block.by.partition("@")[0]
            with calling(None, block.n) as repetition, within(span), speaking(agent):
                result = await run([CodeBlock(**each) for each in request["blocks"]])
            if repetition.strayed is not None:
                # its state is unknown now
                await discard()
                return STRAYED.format(repetition.strayed)
            outcome = self._recorder.redactor.restore(self._history.outcome(block))
            load = load_result if block.kind == AgentBlock.kind else PartBlock.form.validate_python
            if (differs := difference(load(outcome), result)) is not None:
                differences.append(differs)
            if block.attempt is None:
                await self._go_back(executor, block.n + 1)
            before = block
        first, count = differences[0] if differences else None, len(differences)
        emit(BlocksRepeated(span=span, place=place, blocks=len(blocks), differing=count, difference=first))
        return None

    async def _wanted(self, executor: StreamingCodeExecutor, workspace: str, n: int) -> FileEntries:
        """The files that a workspace has to have before the effect with the number ``n``.

        What a process that was interrupted has left in a lasting one stays: it does not run again, and a program may look what
        it has done.
        """
        under_way = self._history.under_way
        is_of_processes = bool(under_way) and all(one.is_process for one in under_way.values())
        if not is_of_processes or workspace.startswith("@"):
            await self._refuse_conflicts(executor, workspace)
            return self._history.files.before(workspace, n)
        known = {
            path: RecordedFile(**file) for path, file in self._history.files.before(workspace, END).items()
        }
        self._recorder.know_files(executor, known)
        await self._recorder.record_files(executor, max(under_way))
        return as_entry(self._recorder.known_files(executor))

    async def _refuse_conflicts(self, executor: StreamingCodeExecutor, workspace: str) -> None:
        """Refuse to overwrite changes that others have made since the run ended, where these can be told from its own."""
        if workspace.startswith("@"):
            # only code reaches it
            return
        known = self._history.files.left(workspace)
        there = await self._recorder.files_of(executor)
        # contents that were not kept are not compared
        changed = [path for path, file in known.items() if file["digest"] and _differs(there.get(path), file)]
        added = [path for path in there if path not in known]
        is_known = all(block.has_left_files for block in self._history.under_way.values())
        if not is_known or workspace in self._history.files.rebuilding:
            # the run's directory has the contents by now
            if changed or added:
                emit(FilesPutBack(workspace=workspace, files=[*changed, *added]))
            return
        self._added[workspace] = {*added}
        if changed:
            named = ", ".join(changed[:5]) + (f" and {len(changed) - 5} more" if changed[5:] else "")
            raise JournalError(
                f"the run cannot go on: since it ended, somebody has changed or removed {named} in {workspace}. "
                "Nothing was overwritten; put them back, or start a new run"
            )

    async def _go_back(self, executor: StreamingCodeExecutor, n: int) -> None:
        """Restore the files that a workspace had when the block with the number ``n`` began."""
        await self._restore_files(executor, self._history.files.before(workspace_of(executor), n))

    async def _restore_files(self, executor: StreamingCodeExecutor, wanted: FileEntries) -> None:
        there, workspace = await self._recorder.files_of(executor), workspace_of(executor)
        differing = {path: file for path, file in wanted.items() if _differs(there.get(path), file)}
        self._lost[workspace] = warn_of_unkept(wanted, there)
        stays = self._added.get(workspace, ())
        # files that could not be restored are not removed either
        gone = [
            path for path, file in there.items() if path not in wanted and path not in stays and file.digest
        ]
        if await put_files(executor.workspace, self._recorder.blobs, differing, gone):
            there = await self._recorder.files_of(executor)
        self._recorder.know_files(executor, there)


async def put_files(workspace: Workspace, blobs: Blobs, files: FileEntries, gone: Sequence[str] = ()) -> bool:
    """Write files whose contents are kept into a workspace, and remove others; returns whether there were any."""
    contents = {
        path: await asyncio.to_thread(blobs.file, file["digest"], file["size"])
        for path, file in files.items()
        if file["digest"] is not None
    }
    executable = {path for path, file in files.items() if file["is_executable"]}
    if contents or gone:
        await workspace.restore(contents, executable, gone)
    return bool(contents or gone)


def warn_of_unkept(wanted: FileEntries, there: Container[str]) -> FileEntries:
    """The files that are missing because their contents were not kept, with a warning that names them."""
    missing = {path: file for path, file in wanted.items() if file["digest"] is None and path not in there}
    if missing:
        named = ", ".join([*missing][:5]) + (f" and {len(missing) - 5:,} more" if len(missing) > 5 else "")
        logger.warning(
            "files of the workspace are missing now, as they were not kept: %s. A file is not kept if it has more than 64 MiB, "
            "holds a credential, or was made when the run had nearly used up its --record-mib",
            named,
        )
    return missing


def _differs(there: RecordedFile | None, wanted: Mapping[str, Any]) -> bool:
    return there is None or (there.digest, there.is_executable) != (wanted["digest"], wanted["is_executable"])
