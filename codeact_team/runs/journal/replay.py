"""Answers a run from the journal of another one; only its code runs for real, and what comes of it is compared."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from autogen_core.code_executor import CodeResult

from codeact_team.agents.codeact.attempts import Attempt, Fork
from codeact_team.core.component_effects import CodeEffect, CodeRun
from codeact_team.core.effects import Effect, Perform
from codeact_team.core.executor_interface import StreamingCodeExecutor
from codeact_team.core.places import place_of
from codeact_team.core.redaction import Redactor
from codeact_team.errors import JournalError, RecordedError
from codeact_team.runs.journal.history import EffectRecord, EffectState, History
from codeact_team.runs.journal.requests import Request, asking, inside, recorded_error, request_of
from codeact_team.runs.journal.restoration import difference, tell_unkept
from codeact_team.runs.journal.resumption import RecordedOrder


class Replay:
    """An interceptor that answers what is asked as it was answered then, and lets code run for real, until that differs.

    Args:
        history: What is known of the run then.
        redactor: Replaces credentials by placeholders.
        workspaces: The directories that stand for those of then, each with the name that the journal has for it.
        end: Ends the run, for a reason.
        until: How many calls of code run; ``None`` for all.
        beyond_workspace: Whether code may run that can reach more than its workspace.

    Attributes:
        blocks: How many calls of code have come to the same as then.
        answered: How many questions were answered.
        changed: What was asked otherwise than then: how often, by who asked, and for what sort of effect.
        difference: What is otherwise than then, where that has ended the run; hostile data.
        end_of_record: Why the run could not go on, where its journal ends there.
        is_stopped: Whether it was ended from here.
    """

    def __init__(
        self,
        history: History,
        redactor: Redactor,
        workspaces: Mapping[str, str],
        end: Callable[[str], None],
        *,
        until: int | None = None,
        beyond_workspace: bool = False,
    ) -> None:
        self._history = history
        self._redactor = redactor
        self._workspaces = workspaces
        self._end = end
        self._until = until
        self._beyond = beyond_workspace
        self._order = RecordedOrder(history.order)
        self._ready: set[str] = set()
        self._strayed: str | None = None
        self.blocks = self.answered = 0
        self.changed = Counter[tuple[str, str]]()
        self.difference: str | None = None
        self.end_of_record: str | None = None
        self.is_stopped = False

    async def intercept(self, effect: Effect[Any], do: Perform) -> Any:
        """Answer an effect as it was answered then, or run its code.

        Raises:
            RecordedError: If it had failed then; or code asks for what it did not ask for then.
            JournalError: If the journal cannot be read, or code must not run again.
        """
        request = await request_of(effect, self._redactor)
        if isinstance(effect, Attempt):
            return await self._attempt(effect, request, do)
        before = self._history.next_settled(request)
        if before is None:
            self._stray(request)
        if before.key != request.key:
            self.changed[effect.source, effect.kind] += 1
        if isinstance(effect, CodeRun):
            return await self._run(effect, before, do)
        if isinstance(effect, CodeEffect):
            return await self._branch(effect, before, do)
        await self._order.turn(before.n)
        if before.state is EffectState.FAILED:
            raise recorded_error(self._history.error(before), self._redactor)
        self.answered += 1
        await effect.skip()
        return effect.load(self._redactor.restore(self._history.outcome(before)))

    def _stray(self, request: Request) -> NoReturn:
        agent, _, place = request.by.partition("@")
        what = f"{agent or place} has asked for one {request.kind.replace('_', ' ')} more than is recorded"
        if request.is_of_block:
            self._strayed = what
            raise RecordedError("when this code ran first, it did not ask for this")
        self.end_of_record = what
        self._stop(what)

    def _stop(self, reason: str) -> NoReturn:
        self.is_stopped = True
        self._end(reason)
        # as that will be here by and by
        raise asyncio.CancelledError(reason)

    async def _run(self, effect: CodeRun[Any], before: EffectRecord, do: Perform) -> Any:
        await self._make_ready(effect.part)
        with inside(before.n, effect):
            now = await do()
        await self._order.turn(before.n)
        if before.state is EffectState.FAILED:
            recorded, told = (
                now,
                f"then it could not run: {recorded_error(self._history.error(before), self._redactor)}",
            )
        else:
            recorded = effect.load(self._redactor.restore(self._history.outcome(before)))
            told = self._difference(before, recorded, now)
        if told is not None:
            self.difference = told
            self._stop("its code has come to something else than then")
        self.blocks += 1
        if self.blocks == self._until:
            self._stop(f"code has run {_times(self.blocks)}")
        return recorded

    async def _attempt(self, attempt: Attempt, request: Request, do: Perform) -> Any:
        """Make an attempt once more, whatever has become of it then."""
        before = self._history.next(request.key, asking())
        if before is None:
            self._stray(request)
        with inside(before.n, attempt):
            outcome = await do()
        await self._order.turn(before.n)
        return outcome

    async def _branch(self, effect: CodeEffect[Any], before: EffectRecord, do: Perform) -> Any:
        """Make branches of a session, or go on with one."""
        await self._make_ready(effect.part)
        now = await do()
        await self._order.turn(before.n)
        recorded = None if before.state is EffectState.FAILED else effect.load(self._history.outcome(before))
        if now != recorded:
            which = "branches of its session" if isinstance(effect, Fork) else "a branch of its session"
            self.difference = (
                f"--- recorded\n+++ now\n-{which}: {recorded or 'made'}\n+{which}: {now or 'made'}"
            )
            self._stop("its session is not what it was then")
        self.answered += 1
        return now

    def _difference(self, before: EffectRecord, recorded: CodeResult, now: CodeResult) -> str | None:
        told = difference(recorded, now, paths=self._workspaces)
        if self._strayed is not None:
            return "\n".join(filter(None, [told, self._strayed]))
        if told is None and (missing := len(self._history.left_in(before.n))):
            return f"then its code has asked for {missing} more"
        return told

    async def _make_ready(self, executor: object) -> None:
        """Start what code is to run in, with the files that were there when it started then."""
        if isinstance(executor, StreamingCodeExecutor):
            await executor.start()
        if not (self._beyond or (isinstance(executor, StreamingCodeExecutor) and executor.is_contained)):
            raise JournalError(
                "its code can reach more than its workspace, and would do again there what it has done: change that by -s, "
                "or replay it with --beyond-workspace"
            )
        if not isinstance(executor, StreamingCodeExecutor):
            return
        path = str(executor.workspace.path or "")
        name = self._workspaces.get(path, f"@{place_of(executor)}")
        if name in self._ready:
            return
        self._ready.add(name)
        files = self._history.files(name, 1)
        contents = {
            path: await asyncio.to_thread(self._history.blobs.file, file["digest"], file["size"])
            for path, file in files.items()
            if file["digest"] is not None
        }
        tell_unkept(files, ())
        executable = {path for path, file in files.items() if file["is_executable"]}
        if contents:
            await executor.workspace.restore(contents, executable, [])


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
