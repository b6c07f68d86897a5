"""Goes on with a run: what its journal knows is answered from there, and what is not known is done, or told as unknown."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from contextvars import ContextVar
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from autogen_core.code_executor import CodeBlock, CodeResult
from pydantic import JsonValue

from codeact_team.approval.approvals import decided
from codeact_team.code_effects import CodeRun
from codeact_team.effects import Effect, Perform, tell
from codeact_team.errors import JournalError, RecordedError
from codeact_team.events import BlocksRepeated, FilesPutBack
from codeact_team.execution import SessionResult
from codeact_team.executor_interface import StreamingCodeExecutor
from codeact_team.journal.differences import difference
from codeact_team.journal.past import Past
from codeact_team.journal.past_effects import PastEffect, State
from codeact_team.journal.questions import asking, inside
from codeact_team.journal.recorded_order import RecordedOrder
from codeact_team.journal.recorder import Recorder, workspace_of
from codeact_team.places import place_of

_LOSS = (
    "The interpreter of the blocks before was lost: the run was interrupted, and its code was not run again, as {}. Their "
    "variables, imports and functions are gone; this block runs in a fresh one.\n"
)
_END = 1 << 62
"""After all entries."""

_repeating: ContextVar[bool] = ContextVar("codeact_team_repeating", default=False)
"""Whether code of the past runs again, to bring back its variables."""


class Resumption:
    """A handler that goes on with a run.

    Args:
        past: What is known.
        recorder: Writes down what is new.
    """

    def __init__(self, past: Past, recorder: Recorder) -> None:
        self._past = past
        self._recorder = recorder
        self._restored: set[str] = set()
        """The places of executors that are as they were when the run ended."""
        self._live: set[str] = set()
        """The workspaces that are, or that code has worked in since."""
        self._added: dict[str, set[str]] = {}
        """By the workspace, files that somebody else has added since the run ended: they stay."""
        self._order = RecordedOrder(past.order)
        self._strayed = False
        self._reached = 0
        """The number of the last entry that was an answer now."""

    async def stand(self, effect: Effect[Any], do: Perform) -> Any:
        """Answer an effect, or perform it.

        Raises:
            RecordedError: If it has failed before, and is not to be done again.
            JournalError: If the journal, or a workspace, is not what it was.
        """
        asked = self._recorder.questions.asked(effect)
        before = self._next(str(asked["key"]), effect)
        if before is None:
            if _repeating.get():
                self._strayed = True
                raise RecordedError("when this code ran first, it did not ask for this")
            if asked.get("block") is None and effect.unknown() is not None and self._past.has_more(asked):
                raise JournalError(
                    f"the run cannot go on: {effect.source} does something else than before, and might do again what it has "
                    "done. Was a prompt, or a model, changed by -s? Then begin a new run"
                )
            loss = await self._restore(effect, _END)
            return await self._recorder.perform(
                self._recorder.begin(asked), effect, partial(_after, loss, do)
            )
        await self._order.turn(before.n)
        self._reached = max(self._reached, before.n)
        if before.state is State.ANSWERED:
            if before.is_given:
                # what waited for it is not known to be undone from now on
                self._recorder.write(used=before.n)
            await effect.skip()
            return effect.load(self._recorder.questions.shown(self._past.outcome(before)))
        if before.state is State.FAILED:
            raise self._recorder.questions.error(self._past.error(before))
        if before.is_not_begun:
            with decided() if self._past.is_decided(before) else nullcontext():
                return await self._recorder.perform(before.n, effect, do)
        if await _is_contained(effect):
            loss = await self._restore(effect, before.n)
            return await self._recorder.perform(before.n, effect, partial(_after, loss, do))
        outcome = effect.unknown()
        self._recorder.settle(before.n, effect, outcome)
        return outcome

    async def finish(self, executors: Sequence[StreamingCodeExecutor]) -> None:
        """Bring back the files of temporary workspaces that no code has run in since the run goes on, as they were then."""
        for executor in executors:
            workspace = workspace_of(executor)
            if (
                workspace.startswith("@")
                and workspace in self._past.workspaces
                and workspace not in self._live
            ):
                await executor.start()
                await self._go_back(executor, self._reached + 1)

    def _next(self, key: str, effect: Effect[Any]) -> PastEffect | None:
        while (found := self._past.next(key, asking())) is not None:
            # what failed last is tried again, where that can do no harm
            if found.is_settled or found.is_not_begun or effect.unknown() is not None:
                return found
        return None

    async def _restore(self, effect: Effect[Any], n: int) -> str | None:
        """Bring back what code has left behind where other code is to run now; why that could not be done, if so."""
        place = place_of(effect.part)
        if not isinstance(effect, CodeRun) or place in self._restored:
            return None
        self._restored.add(place)
        executor, sandbox = effect.part, self._past.sandboxes[place]
        blocks = [block for block in sandbox.blocks if block.n < n and sandbox.lives_on]
        if not isinstance(executor, StreamingCodeExecutor):
            return "it is not known what else it would do" if sandbox.blocks else None
        await executor.start()
        workspace = workspace_of(executor)
        now: Mapping[str, Any] | None = None
        if workspace in self._live:
            # other code has worked there since
            now = {path: asdict(file) for path, file in (await self._recorder.files_of(executor)).items()}
        elif workspace in self._past.workspaces:
            await self._refuse_conflicts(executor, workspace)
            now = self._past.files(workspace, n)
        self._live.add(workspace)
        self._recorder.write(rebuilding=workspace)
        reason = await self._bring_back(effect, executor, blocks) if blocks else None
        if now is not None:
            await self._let_be(executor, now)
        self._recorder.write(rebuilt=workspace)
        return reason

    async def _bring_back(
        self, effect: CodeRun[Any], executor: StreamingCodeExecutor, blocks: Sequence[PastEffect]
    ) -> str | None:
        if not executor.is_contained:
            return "it could reach more than its workspace"
        if not self._past.sandboxes[place_of(executor)].is_repeatable:
            return "some of it was stopped before its end"
        if await self._repeat(effect, executor, blocks):
            return None
        await executor.restart()
        return "it asked for something else than before"

    async def _repeat(
        self, effect: CodeRun[Any], executor: StreamingCodeExecutor, blocks: Sequence[PastEffect]
    ) -> bool:
        """Run blocks again, with what their calls were answered then; whether they have asked for the same."""
        await self._go_back(executor, blocks[0].n)
        told: list[str] = []
        for block in blocks:
            request: Any = self._recorder.questions.shown(self._past.request(block))
            token = _repeating.set(True)
            try:
                with inside(block.n, is_block=True):
                    result = await effect.run([CodeBlock(**each) for each in request["blocks"]])
            finally:
                _repeating.reset(token)
            if self._strayed:
                return False
            recorded = effect.load(self._recorder.questions.shown(self._past.outcome(block)))
            if (differs := difference(recorded, result)) is not None:
                told.append(differs)
            await self._go_back(executor, block.n + 1)
        first = told[0] if told else None
        tell(
            BlocksRepeated(
                place=place_of(executor), blocks=len(blocks), differing=len(told), difference=first
            )
        )
        return True

    async def _refuse_conflicts(self, executor: StreamingCodeExecutor, workspace: str) -> None:
        if workspace.startswith("@"):
            # nothing of a person's is there
            return
        known = self._past.files(workspace, _END)
        there = await self._recorder.files_of(executor)
        # what is not kept is not compared
        changed = [path for path, file in known.items() if file["digest"] and _differs(there.get(path), file)]
        added = [path for path in there if path not in known]
        is_known = all(block.has_left_files for block in self._past.under_way.values())
        if not is_known or workspace in self._past.rebuilding:
            # whoever has changed them: what was there is kept in the run's directory now
            if changed or added:
                tell(FilesPutBack(workspace=workspace, files=[*changed, *added]))
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
        await self._let_be(executor, self._past.files(workspace_of(executor), n))

    async def _let_be(self, executor: StreamingCodeExecutor, wanted: Mapping[str, Any]) -> None:
        there = await self._recorder.files_of(executor)
        contents = {
            path: await asyncio.to_thread(self._recorder.blobs.file, file["digest"])
            for path, file in wanted.items()
            if file["digest"] is not None and _differs(there.get(path), file)
        }
        executable = {path for path, file in wanted.items() if file["is_executable"]}
        stays = self._added.get(workspace_of(executor), ())
        # nor is anything removed that could not be brought back
        gone = [
            path for path, file in there.items() if path not in wanted and path not in stays and file.digest
        ]
        if contents or gone:
            await executor.restore_files(contents, executable, gone)
            there = await self._recorder.files_of(executor)
        self._recorder.know_files(executor, there)


def _differs(there: Any, wanted: Mapping[str, JsonValue]) -> bool:
    return there is None or (there.digest, there.is_executable) != (wanted["digest"], wanted["is_executable"])


async def _is_contained(effect: Effect[Any]) -> bool:
    if not (isinstance(effect, CodeRun) and isinstance(executor := effect.part, StreamingCodeExecutor)):
        return False
    # what is enforced is known then
    await executor.start()
    return executor.is_contained


async def _after(loss: str | None, do: Perform) -> Any:
    outcome = await do()
    if loss is None or not isinstance(outcome, CodeResult):
        return outcome
    told = replace(outcome, output=_LOSS.format(loss) + outcome.output)
    if isinstance(told, SessionResult):
        told.state_lost = True
    return told
