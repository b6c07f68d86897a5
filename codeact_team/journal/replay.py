"""Replays a run from its journal: only code runs for real, and its results are compared with the recorded ones."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from autogen_core.code_executor import CodeResult
from pydantic import JsonValue

from codeact_team.agents.codeact.attempts import Attempt, Fork
from codeact_team.core.component_effects import CodeEffect, CodeRun, WorkspaceEffect
from codeact_team.core.effects import Effect, EffectFailure, Perform
from codeact_team.core.executor_interface import StreamingCodeExecutor
from codeact_team.core.places import place_of
from codeact_team.errors import JournalError, RecordedError
from codeact_team.journal.answers import NOT_ASKED, RecordedAnswers, is_contained
from codeact_team.journal.chat_input import ChatInput
from codeact_team.journal.conversations import Conversations
from codeact_team.journal.differences import difference
from codeact_team.journal.effect_records import EffectRecord, EffectState
from codeact_team.journal.history import History
from codeact_team.journal.requests import Request, Requests
from codeact_team.journal.restoration import put_files, warn_of_unkept
from codeact_team.text.redaction import Redactor
from codeact_team.text.visibility import cut

_STOPPED = "a person has stopped it then"
_MAX_TOLD = 500
"""Characters of an outcome in a difference."""


class Replay(RecordedAnswers):
    """Answers a run from its history and runs its code for real, until a result differs.

    Args:
        history: The history of the recorded run.
        redactor: Replaces credentials by placeholders.
        workspaces: The directories that stand for the recorded ones, each with the name that the journal has for it.
        end: Ends the run, for a reason.
        until: How many calls of code run; ``None`` for all.
        beyond_workspace: Whether code may run that can reach more than its workspace.

    Attributes:
        blocks: How many calls of code had the recorded result.
        answered: How many effects were answered.
        changed: How many requests differed from the recorded ones, by agent and kind of the effect.
        difference: How the result that ended the run differs; hostile data. ``None`` if none did.
        end_of_record: Why the run could not continue, where its journal ends there.
        is_stopped: Whether the replay ended the run.
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
        super().__init__(history, redactor)
        self._workspaces = workspaces
        self._end = end
        self._until = until
        self._beyond = beyond_workspace
        self._ready: set[str] = set()
        """The names of workspaces that have the files of the start."""
        self._strayed: str | None = None
        """The first request of code that the record does not have."""
        self._input: int | None = None
        """The last input of a chat that was answered."""
        self.blocks: int = 0
        self.answered: int = 0
        self.changed: Counter[tuple[str, str]] = Counter[tuple[str, str]]()
        self.difference: str | None = None
        self.end_of_record: str | None = None
        self.is_stopped: bool = False

    @property
    def requests(self) -> Requests:
        """Makes the requests for effects, as the history has them."""
        return Requests(self._redactor, self._history.chain, Conversations())

    def _find(self, effect: Effect[Any], request: Request) -> EffectRecord | None:
        return self._history.effects.next_settled(request)

    async def _perform_unknown(self, effect: Effect[Any], request: Request, do: Perform) -> Any:
        if not isinstance(effect, ChatInput):
            self._refuse(request)
        return await do()

    def _refuse(self, request: Request) -> NoReturn:
        agent, _, place = request.by.partition("@")
        told = f"{agent or place} has made {request.in_words} more than is recorded"
        if request.is_of_block:
            self._strayed = told
            raise RecordedError(NOT_ASKED)
        if self._history.inputs.was_stopped(self._input):
            self._end(_STOPPED)
            raise asyncio.CancelledError(_STOPPED)
        self.end_of_record = told
        self._stop(told)

    def _stop(self, reason: str) -> NoReturn:
        self.is_stopped = True
        self._end(reason)
        # the end of the run cancels this task in a moment
        raise asyncio.CancelledError(reason)

    async def _answer(self, effect: Effect[Any], request: Request, record: EffectRecord, do: Perform) -> Any:
        request.call.n = record.n
        if isinstance(effect, Attempt):
            outcome = await do()
            await self._order.turn(record.n)
            return outcome
        if record.kind == ChatInput.kind:
            self._input = record.n
        elif record.was_stopped:
            self.end_of_record = "a person stopped the code here, and it is not known how far it got"
            self._stop(self.end_of_record)
        if record.key != request.key:
            self.changed[effect.source, effect.kind] += 1
        if isinstance(effect, CodeEffect):
            if not effect.is_apart:
                await self._make_ready(effect.part)
            if effect.is_done_again and not isinstance(effect, CodeRun):
                return await self._compare_done(effect, record, do)
            now = await do()
            await self._order.turn(record.n)
            return (
                self._compare_run(effect, record, now)
                if isinstance(effect, CodeRun)
                else self._compare_fork(effect, record, now)
            )
        await self._order.turn(record.n)
        if record.state is EffectState.FAILED:
            raise self._error(record)
        self.answered += 1
        await effect.skip()
        if isinstance(effect, WorkspaceEffect):
            await self._put_changes(effect.part, record.n)
        return self._outcome(effect, record)

    def _compare_run(self, effect: CodeRun[Any], record: EffectRecord, now: CodeResult) -> Any:
        recorded = now
        if record.state is EffectState.FAILED:
            self.difference = f"when it was recorded, it could not run: {self._error(record)}"
        else:
            recorded = self._outcome(effect, record)
            self.difference = self._difference(record, recorded, now)
        if self.difference is not None:
            self._stop("the result of its code differs from the recorded one")
        self.blocks += 1
        if self.blocks == self._until:
            self._stop(f"code has run {'once' if self.blocks == 1 else f'{self.blocks} times'}")
        return recorded

    def _difference(self, record: EffectRecord, recorded: CodeResult, now: CodeResult) -> str | None:
        # an exported run has it so
        paths = {os.path.expanduser("~"): "~", **self._workspaces}
        told = difference(recorded, now, paths=paths)
        if self._strayed is not None:
            return "\n".join(filter(None, [told, self._strayed]))
        if told is None and (missing := self._history.effects.count_left_in(record.n)):
            return f"when it was recorded, its code asked for {missing} more"
        return told

    def _compare_fork(self, effect: CodeEffect[Any], record: EffectRecord, now: str | None) -> str | None:
        recorded = None if record.state is EffectState.FAILED else self._outcome(effect, record)
        if now != recorded:
            which = "forks of its session" if isinstance(effect, Fork) else "a fork of its session"
            self._stop_at(which, recorded or "made", now or "made", "session")
        self.answered += 1
        return now

    async def _compare_done(self, effect: CodeEffect[Any], record: EffectRecord, do: Perform) -> Any:
        """Do with a program's sandbox what was done with it then, and compare what came of that."""
        outcome, error = None, None
        try:
            outcome = await do()
            now = effect.dumped(outcome)
        except JournalError:
            raise
        except Exception as failure:
            error, now = failure, EffectFailure.of(failure).type
        await self._order.turn(record.n)
        recorded: JsonValue
        if record.state is EffectState.FAILED:
            recorded = self._error(record).type_name
        else:
            recorded = self._redactor.restore(self._history.outcome(record))
        if now != recorded:
            self._stop_at(effect.kind.replace("_", " "), _told(recorded), _told(now), "sandbox")
        self.answered += 1
        if error is not None:
            raise error
        return outcome

    def _stop_at(self, what: str, recorded: str, now: str, whose: str) -> NoReturn:
        """End the run at something of its session or its sandbox that has come out otherwise."""
        self.difference = f"--- recorded\n+++ now\n-{what}: {recorded}\n+{what}: {now}"
        self._stop(f"its {whose} differs from the recorded one")

    def _name_of(self, executor: StreamingCodeExecutor) -> str:
        """The name of a workspace in the journal."""
        return self._workspaces.get(str(executor.workspace.path or ""), f"@{place_of(executor)}")

    async def _put_changes(self, executor: object, n: int) -> None:
        """Change the files of a workspace as a process has changed them then."""
        if not isinstance(executor, StreamingCodeExecutor) or not self._history.files.has_changed(
            name := self._name_of(executor), n
        ):
            return
        await self._make_ready(executor)
        before, after = self._history.files.before(name, n), self._history.files.before(name, n + 1)
        changed = {path: file for path, file in after.items() if before.get(path) != file}
        gone = [path for path in before if path not in after]
        await put_files(executor.workspace, self._history.blobs, changed, gone)

    async def _make_ready(self, executor: object) -> None:
        """Start an executor, with the files that were there when it was started in the recorded run."""
        if not await is_contained(executor) and not self._beyond:
            raise JournalError(
                "its code can reach more than its workspace, and would repeat its effects there: change that by -s, or "
                "replay it with --beyond-workspace"
            )
        if not isinstance(executor, StreamingCodeExecutor):
            return
        name = self._name_of(executor)
        if name in self._ready:
            return
        self._ready.add(name)
        files = self._history.files.before(name, 1)
        warn_of_unkept(files, ())
        await put_files(executor.workspace, self._history.blobs, files)


def _told(outcome: JsonValue) -> str:
    return "done" if outcome is None else cut(json.dumps(outcome, ensure_ascii=False), _MAX_TOLD)
