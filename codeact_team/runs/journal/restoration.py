"""Brings back what a run had when it was cut off."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import chain
from typing import Any

from autogen_core.code_executor import CodeBlock, CodeResult
from pydantic import JsonValue

from codeact_team.agents.block_calls import AgentBlock
from codeact_team.agents.codeact.attempts import Attempt
from codeact_team.agents.observations import load_result
from codeact_team.core.component_effects import CodeEffect, Run
from codeact_team.core.effects import Effect, emit
from codeact_team.core.events import BlocksRepeated, FilesPutBack
from codeact_team.core.execution import ExecutionResult, Outcome, SessionResult
from codeact_team.core.executor_interface import Change, ChangedFile, StreamingCodeExecutor
from codeact_team.core.places import place_of
from codeact_team.errors import JournalError
from codeact_team.runs.journal.history import EffectRecord, History, SandboxHistory
from codeact_team.runs.journal.recorder import Recorder, as_entry, workspace_of
from codeact_team.runs.journal.requests import inside_block
from codeact_team.tools.autogen_parts import PartBlock

_MAX_LINES = 40
"""Of each side, from the first that differs: to compare lines takes cubic time."""
_MAX_LENGTH = 120
"""Characters; a line that is longer counts as several."""
_CONTEXT = 3
_ADDRESS = re.compile(r"(?<=\bat )0x[0-9a-f]+|\b0x[0-9a-f]{9,16}\b")
"""As objects show it; elsewhere what is shorter is a number that means something."""

_TEMPORARY = re.compile(r"\bcodeact-team-\d+-\w{8}\b")
"""The names of temporary directories."""


def difference(recorded: CodeResult, now: CodeResult, *, paths: Mapping[str, str] = {}) -> str | None:
    """Compare what came of a block with what has come of it now.

    Exit code, output and the answer that code has given are compared; addresses in memory and the names of temporary
    directories are not.

    Args:
        recorded: What came of it then.
        now: What has come of it now.
        paths: Directories that may differ, such as temporary workspaces, and a name for each, which stands in their place.

    Returns:
        ``None`` if they are alike; else a unified diff, at most 25,000 characters; hostile data.
    """
    told = list(
        chain(
            _changed([_ending(recorded)], [_ending(now)]),
            _changed(_lines(recorded.output, paths), _lines(now.output, paths)),
            _changed(_answer(recorded, paths), _answer(now, paths)),
        )
    )
    return "\n".join(["--- recorded", "+++ now", *told]) if told else None


def _ending(result: CodeResult) -> str:
    outcome = result.outcome if isinstance(result, ExecutionResult) else Outcome.COMPLETED
    how = "" if outcome is Outcome.COMPLETED else f" ({outcome.value.replace('_', ' ')})"
    return f"exit code {result.exit_code}{how}"


def _answer(result: CodeResult, paths: Mapping[str, str]) -> list[str]:
    answer = result.answer if isinstance(result, SessionResult) else None
    return [] if answer is None else _lines(f"final answer: {answer}", paths)


def _lines(text: str, paths: Mapping[str, str]) -> list[str]:
    if known := sorted(filter(None, paths), key=len, reverse=True):
        pattern = rf"(?:{'|'.join(map(re.escape, known))})(?!\w)"
        text = re.sub(pattern, lambda found: paths[found[0]], text)
    text = _TEMPORARY.sub("codeact-team-…", _ADDRESS.sub("0x…", text))
    return [
        line[start : start + _MAX_LENGTH]
        for line in text.split("\n")
        for start in range(0, len(line) or 1, _MAX_LENGTH)
    ]


def _changed(before: Sequence[str], after: Sequence[str]) -> Iterator[str]:
    """What has changed, as one hunk of a diff, with the lines in between."""
    if before == after:
        return
    first = _in_common(before, after)
    last = min(_in_common(before[::-1], after[::-1]), min(len(before), len(after)) - first)
    start, end = max(0, first - _CONTEXT), first + _MAX_LINES
    one, other = (side[start : min(len(side) - last + _CONTEXT, end)] for side in (before, after))
    is_cut = max(len(before), len(after)) - last > end
    steps = SequenceMatcher(None, one, other, autojunk=False).get_opcodes()
    if is_cut and len(steps) > 2 and steps[-1][0] != "equal":
        # what looks like a change there may come only from where it is cut
        del steps[-1]
    yield f"@@ -{start + 1},{steps[-1][2]} +{start + 1},{steps[-1][4]} @@"
    for kind, i, i_end, j, j_end in steps:
        if kind == "equal":
            yield from (f" {line}" for line in one[i:i_end])
            continue
        yield from (f"-{line}" for line in one[i:i_end])
        yield from (f"+{line}" for line in other[j:j_end])
    if is_cut:
        yield "[… the rest is not compared]"


def _in_common(one: Sequence[str], other: Sequence[str]) -> int:
    """How many lines both begin with."""
    pairs = zip(one, other, strict=False)
    return next((n for n, (mine, yours) in enumerate(pairs) if mine != yours), min(len(one), len(other)))


logger = logging.getLogger(__name__)

END = 1 << 62
"""After all entries."""
NOT_ASKED = "when this code ran first, it did not ask for this"
"""The error that code gets which asks for something else than before."""
_STRAYED = "it asked for something else than before"


@dataclass
class RepeatedBlock:
    """Code of the past that runs again, to bring back its variables.

    Attributes:
        has_strayed: Whether it has asked for something else than before.
    """

    has_strayed: bool = False


_repetition: ContextVar[RepeatedBlock | None] = ContextVar("codeact_team_repetition", default=None)


def repetition() -> RepeatedBlock | None:
    """That to which the code belongs that asks for something now, if it belongs to one."""
    return _repetition.get()


class Restoration:
    """Brings back what code has left behind in its executors.

    Args:
        history: What is known.
        recorder: Knows what is in the workspaces.
    """

    def __init__(self, history: History, recorder: Recorder) -> None:
        self._history = history
        self._recorder = recorder
        self._restored: set[str] = set()
        """The places of executors that are as they were when the run ended."""
        self._live: set[str] = set()
        """The workspaces that are, or that code has worked in since."""
        self._added: dict[str, set[str]] = {}
        """By the workspace, files that somebody else has added since the run ended: they stay."""
        self._lost: dict[str, Mapping[str, Any]] = {}
        """By the workspace, files that could not be brought back, or may be gone."""

    async def restore(self, effect: Effect[Any], n: int) -> str | None:
        """Bring back what code has left behind in an executor of which something is asked now.

        Args:
            effect: What is asked.
            n: The number of its entry: what was left behind later does not count.

        Returns:
            Why that could not be done, if so.

        Raises:
            JournalError: If the journal, or a workspace, is not what it was.
        """
        place = place_of(effect.part)
        if not isinstance(effect, CodeEffect) or effect.is_apart or place in self._restored:
            return None
        self._restored.add(place)
        executor, sandbox = effect.part, self._history.sandboxes[place, None]
        blocks = [block for block in sandbox.blocks if block.n < n and sandbox.lives_on]
        if not isinstance(executor, StreamingCodeExecutor):
            return "it is not known what else it would do" if sandbox.blocks else None
        await executor.start()
        workspace = workspace_of(executor)
        now: Mapping[str, Any] | None = None
        if workspace in self._live:
            # other code has worked there since
            there = await self._recorder.files_of(executor)
            now = await asyncio.to_thread(as_entry, there)
        elif workspace in self._history.workspaces:
            await self._refuse_conflicts(executor, workspace)
            now = self._history.files(workspace, n)
        self._live.add(workspace)
        self._recorder.write(rebuilding=workspace)
        reason = await self._bring_back(effect, executor, blocks, sandbox) if blocks else None
        if now is not None:
            await self._let_be(executor, now)
        self._recorder.write(rebuilt=workspace)
        return reason

    async def restore_branch(self, attempt: Attempt, n: int) -> str | None:
        """Bring back what the code of an attempt has left behind in its branch, which has just been made anew.

        Args:
            attempt: The attempt.
            n: The number of its entry.

        Returns:
            Why that could not be done, if so.
        """
        executor, sandbox = attempt.part, self._history.sandboxes[place_of(attempt.part), n]
        if not (sandbox.blocks and isinstance(executor, StreamingCodeExecutor)):
            return None
        if (reason := _why_not_again(executor, sandbox)) is not None:
            return reason
        if await self._repeat(attempt.run, executor, sandbox.blocks, is_branch=True):
            return None
        assert attempt.branch is not None, "it has just been made"
        # nobody knows what it is now, and a branch does not begin anew
        await attempt.branch.stop()
        return _STRAYED

    def report_changes(self, executors: Sequence[StreamingCodeExecutor]) -> None:
        """Let executors know what their code had made or changed, in workspaces that last, when the run ended."""
        for executor in executors:
            workspace = workspace_of(executor)
            if workspace in self._history.workspaces and not workspace.startswith("@"):
                executor.workspace.changed_before(
                    self._changes(workspace, self._history.files(workspace, END))
                )

    def _changes(self, workspace: str, files: Mapping[str, Any]) -> Mapping[str, Change]:
        """Those of the files in a workspace that code had made or changed by then."""
        # the first entry belongs to no block
        first = self._history.files(workspace, 1)
        return {
            path: Change.CHANGED if path in first else Change.MADE
            for path, file in files.items()
            if first.get(path) != file
        }

    async def restore_files(
        self, executors: Sequence[StreamingCodeExecutor], n: int
    ) -> Sequence[ChangedFile]:
        """Bring back the files of temporary workspaces that no code has run in since the run goes on.

        Lasting ones are started at least, so that it is known what is there.

        Args:
            executors: Whose.
            n: The number of the last entry that counts.

        Returns:
            What code had made or changed, and what is not there now: somebody has removed it, or its content was not kept.
        """
        lacking: dict[tuple[str, str], ChangedFile] = {}
        for executor in executors:
            workspace = workspace_of(executor)
            if workspace not in self._history.workspaces:
                continue
            if workspace not in self._live:
                await executor.start()
                if workspace.startswith("@"):
                    await self._go_back(executor, n + 1)
                else:
                    self._lost[workspace] = self._history.files(workspace, n + 1)
                    self._recorder.know_files(executor, await self._recorder.files_of(executor))
            there, lost = self._recorder.known_files(executor), self._lost.get(workspace, {})
            lacking |= {
                (workspace, path): ChangedFile(path, lost[path]["size"], change)
                for path, change in self._changes(workspace, lost).items()
                if path not in there
            }
        return [*lacking.values()]

    async def _bring_back(
        self,
        effect: CodeEffect[Any],
        executor: StreamingCodeExecutor,
        blocks: Sequence[EffectRecord],
        sandbox: SandboxHistory,
    ) -> str | None:
        if (reason := _why_not_again(executor, sandbox)) is not None:
            return reason
        if await self._repeat(effect.run, executor, blocks):
            return None
        await executor.restart()
        return _STRAYED

    async def _repeat(
        self,
        run: Run,
        executor: StreamingCodeExecutor,
        blocks: Sequence[EffectRecord],
        *,
        is_branch: bool = False,
    ) -> bool:
        """Run blocks again, with what their calls were answered then; whether they have asked for the same.

        What those of an attempt have done to their files is recorded only for all of them.
        """
        told: list[str] = []
        before: EffectRecord | None = None
        for block in blocks:
            if not is_branch and (before is None or before.attempt != block.attempt):
                await self._go_back(executor, block.n)
            differs = await self._run_again(run, block)
            if differs is None:
                return False
            told += filter(None, [differs])
            if block.attempt is None:
                await self._go_back(executor, block.n + 1)
            before = block
        first = told[0] if told else None
        emit(
            BlocksRepeated(
                place=place_of(executor), blocks=len(blocks), differing=len(told), difference=first
            )
        )
        return True

    async def _run_again(self, run: Run, block: EffectRecord) -> str | None:
        """How what comes of a block differs from before, empty if it does not; ``None`` if it has strayed."""
        request: Any = self._recorder.redactor.restore(self._history.request(block))
        again = RepeatedBlock()
        token = _repetition.set(again)
        try:
            with inside_block(block.n):
                result = await run([CodeBlock(**each) for each in request["blocks"]])
        finally:
            _repetition.reset(token)
        if again.has_strayed:
            return None
        return difference(self._recorded(block), result) or ""

    def _recorded(self, block: EffectRecord) -> CodeResult:
        outcome = self._recorder.redactor.restore(self._history.outcome(block))
        return (
            load_result(outcome) if block.kind == AgentBlock.kind else PartBlock.form.validate_python(outcome)
        )

    async def _refuse_conflicts(self, executor: StreamingCodeExecutor, workspace: str) -> None:
        if workspace.startswith("@"):
            # nothing of a person's is there
            return
        known = self._history.files(workspace, END)
        there = await self._recorder.files_of(executor)
        # what is not kept is not compared
        changed = [path for path, file in known.items() if file["digest"] and _differs(there.get(path), file)]
        added = [path for path in there if path not in known]
        is_known = all(block.has_left_files for block in self._history.under_way.values())
        if not is_known or workspace in self._history.rebuilding:
            # whoever has changed them: what was there is kept in the run's directory now
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
        """Let the workspace be as it was when the block with the number ``n`` began."""
        await self._let_be(executor, self._history.files(workspace_of(executor), n))

    async def _let_be(self, executor: StreamingCodeExecutor, wanted: Mapping[str, Any]) -> None:
        there = await self._recorder.files_of(executor)
        contents = {
            path: await asyncio.to_thread(self._recorder.blobs.file, file["digest"], file["size"])
            for path, file in wanted.items()
            if file["digest"] is not None and _differs(there.get(path), file)
        }
        self._lost[workspace_of(executor)] = warn_of_unkept(wanted, there)
        executable = {path for path, file in wanted.items() if file["is_executable"]}
        stays = self._added.get(workspace_of(executor), ())
        # nor is anything removed that could not be brought back
        gone = [
            path for path, file in there.items() if path not in wanted and path not in stays and file.digest
        ]
        if contents or gone:
            await executor.workspace.restore(contents, executable, gone)
            there = await self._recorder.files_of(executor)
        self._recorder.know_files(executor, there)


def warn_of_unkept(wanted: Mapping[str, Any], there: Container[str]) -> Mapping[str, Any]:
    """Tell which files cannot be brought back, as their contents were not kept.

    Args:
        wanted: The files, as an entry has them.
        there: Those that are in the workspace anyway.

    Returns:
        Those that cannot.
    """
    missing = {path: file for path, file in wanted.items() if file["digest"] is None and path not in there}
    if missing:
        named = ", ".join([*missing][:5]) + (f" and {len(missing) - 5:,} more" if len(missing) > 5 else "")
        logger.warning(
            "files of the workspace are missing now, as they were not kept: %s. What has more than 64 MiB or holds a credential "
            "is not kept, nor what was made when the run had nearly used up what is kept of it (--record-mib)",
            named,
        )
    return missing


def _why_not_again(executor: StreamingCodeExecutor, sandbox: SandboxHistory) -> str | None:
    """Why code cannot run again, if so."""
    if not executor.is_contained:
        return "it could reach more than its workspace"
    return None if sandbox.is_repeatable else "some of it was stopped before its end"


def _differs(there: Any, wanted: Mapping[str, JsonValue]) -> bool:
    return there is None or (there.digest, there.is_executable) != (wanted["digest"], wanted["is_executable"])
