"""Gives jobs to workers, and takes their results."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import asdict
from signal import Signals
from typing import Any, TypeVar

from codeact_team.batch.child_process import WorkerLostError
from codeact_team.batch.engines import Engine, WorkerHandle, WorkerSlot
from codeact_team.batch.leases import Lease, LeaseFiles
from codeact_team.batch.results import (
    BatchNoted,
    ResultStore,
    TaskBegan,
    TaskEnded,
    TaskOutcome,
    TaskResult,
    TaskRetried,
    load,
)
from codeact_team.batch.settings import BatchSettings, WorkerSettings
from codeact_team.batch.tasks import Job
from codeact_team.batch.throttle import (
    OUT_OF_BUDGET,
    BatchLedger,
    CallEnded,
    NoticeLogged,
    RateLimit,
    Report,
    RetryPlanned,
)
from codeact_team.core.accounting import ModelUsage
from codeact_team.core.aio import to_the_end
from codeact_team.core.effects import Dispatcher
from codeact_team.errors import CodeActTeamError, JournalError

T = TypeVar("T")

_MAX_LOST = 5
"""How often a job may lose its worker. It may be the job that kills it, and other jobs die with it."""
_MAX_DEATHS = 10
"""How many workers in a row may die without a result in between."""
_AT_ONCE = 8
"""How many jobs a worker runs at the same time by default. Most of them wait for their model."""
_WRITE_EVERY = 1.0
"""Seconds between two updates of ``results.jsonl``; more if an update takes long."""


class Driver:
    """Runs the jobs of a batch on its workers, whose :class:`DriverInterface` it is.

    Args:
        jobs: All jobs of the batch.
        results: Keeps their results.
        settings: The settings of the batch.
        worker_settings: The settings of its workers.
        engine: Starts workers.
        leases: Give workers the right to run a job.
        ledger: What the jobs have used so far.
        dispatcher: Gets the events.

    Attributes:
        stop_reason: Why the batch stopped before all jobs were done.
        signal: The signal that stopped it, if one did.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        results: ResultStore,
        settings: BatchSettings,
        worker_settings: WorkerSettings,
        *,
        engine: Engine,
        leases: LeaseFiles,
        ledger: BatchLedger,
        dispatcher: Dispatcher,
    ) -> None:
        self._all = jobs
        self._results = results
        self._settings = settings
        self._worker_settings = worker_settings
        self._engine = engine
        self._leases = leases
        self._newest: dict[str, Lease] = {}
        self._slots: list[WorkerSlot] = []
        self._ledger = ledger
        self._rate = RateLimit(settings.limits)
        self._dispatcher = dispatcher
        self._pending = deque(job for job in jobs if not results.has_final(job))
        self._jobs = {job.name: job for job in self._pending}
        self._under_way = 0
        self._changed = asyncio.Event()
        """Set, and replaced by a new one, whenever lanes should look for work again."""
        self._lost: Counter[str] = Counter()
        self._starts = 0
        """How many workers were started since the last result."""
        self._writing: asyncio.TimerHandle | None = None
        self._write_every = _WRITE_EVERY
        self.stop_reason: str | None = None
        self.signal: Signals | None = None

    async def run(self, begun: Callable[[int], None]) -> None:
        """Run all jobs that are not finished.

        Args:
            begun: Is called with the number of workers, before they start.

        Raises:
            CodeActTeamError: If the workers cannot run.
        """
        if await self._unless_over(self._engine.__aenter__(), self._may_begin) is None:
            return
        try:
            workers = self._settings.workers or self._engine.workers(len(self._pending))
            concurrency = self._settings.concurrency or workers * _AT_ONCE
            self._slots += [WorkerSlot(self._start) for _ in range(min(workers, concurrency))]
            begun(len(self._slots))
            await self._run_all(min(concurrency, len(self._pending)))
        finally:
            await to_the_end(self._engine.__aexit__(None, None, None))

    async def _run_all(self, lanes: int) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(lanes):
                    group.create_task(self._lane(self._slots[number % len(self._slots)]))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            if self._writing is not None:
                self._writing.cancel()
            await to_the_end(asyncio.gather(*(slot.close() for slot in self._slots)))
            self._results.write(self._all)

    def stop(self, number: Signals) -> bool:
        """Begin no more jobs, and stop the running ones in order. Returns that it does."""
        self.stop_reason, self.signal = "it was stopped", number
        self._dispatcher.emit(BatchNoted(level="note", text="stopping: what runs is ended in order"))
        for slot in self._slots:
            slot.stop()
        self._wake_lanes()
        return True

    async def admit(self, job: str) -> str | None:
        await self._rate.admit(job)
        refusal = self._ledger.refusal()
        if refusal is not None:
            self.stop_reason = self.stop_reason or refusal
            self._rate.ended(job, CallEnded())
        return refusal

    async def holds(self, job: str, lease: str) -> bool:
        newest = self._newest.get(job)
        return newest is not None and newest.written == lease and self._leases.is_newest(newest)

    def report(self, job: str, report: Report) -> None:
        match report:
            case ModelUsage():
                self._ledger.enter(job, report)
            case CallEnded():
                self._rate.ended(job, report)
            case RetryPlanned(reason=reason, seconds=seconds):
                known = self._jobs[job]
                self._dispatcher.emit(
                    TaskRetried(id=known.task_id, epoch=known.epoch, reason=reason, seconds=seconds)
                )
            case NoticeLogged(level=level, text=text):
                self._dispatcher.emit(BatchNoted(level=level, text=text))

    async def _start(self) -> WorkerHandle:
        while True:
            self._starts += 1
            if self._starts > _MAX_DEATHS + len(self._slots):
                raise CodeActTeamError(
                    f"{_MAX_DEATHS} workers have died one after the other: is there enough memory? --concurrency sets how "
                    "many tasks run at the same time"
                )
            with suppress(WorkerLostError):
                return await self._engine.start(self._worker_settings, self, is_only=len(self._slots) == 1)

    async def _lane(self, slot: WorkerSlot) -> None:
        """Run one job after the other."""
        # a worker may never start, as no node of the cluster has room
        while (worker := await self._unless_over(slot.worker(), self._has_work)) is not None:
            if (job := await self._next_job()) is None:
                return
            if worker.is_lost:
                self._pending.appendleft(job)
                continue
            self._under_way += 1
            try:
                await self._run(job, worker)
            finally:
                self._under_way -= 1
                self._wake_lanes()

    async def _run(self, job: Job, worker: WorkerHandle) -> None:
        self._dispatcher.emit(
            TaskBegan(id=job.task_id, epoch=job.epoch, goes_on=self._results.has_begun(job))
        )
        self._results.begin(job)
        lease = self._newest[job.name] = self._leases.grant(job.name)
        try:
            result = load(await worker.run(asdict(job), lease))
        except WorkerLostError as error:
            self._lose(job, str(error))
            return
        if not self._leases.is_newest(lease):
            raise JournalError(
                f"another process works on the batch in {self._worker_settings.directory}: wait until it has ended"
            )
        self._starts = 0
        self._end(job, result)
        self._leases.give_back(self._newest.pop(job.name))

    async def _unless_over(self, work: Coroutine[Any, Any, T], goes_on: Callable[[], bool]) -> T | None:
        """Await ``work`` while ``goes_on()``; returns ``None`` once that is false, and cancels the work."""
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                if not goes_on():
                    return None
                waiting = asyncio.ensure_future(self._changed.wait())
                await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
            return task.result()
        finally:
            task.cancel()
            await to_the_end(asyncio.wait({task}))

    async def _next_job(self) -> Job | None:
        """The next job; ``None`` if there is none left. It waits for running jobs, which come back if their worker is lost."""
        while self._has_work():
            if self._pending:
                return self._pending.popleft()
            await self._changed.wait()
        return None

    def _has_work(self) -> bool:
        return self._may_begin() and bool(self._pending or self._under_way)

    def _wake_lanes(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _may_begin(self) -> bool:
        self._dispatcher.check()
        self.stop_reason = self.stop_reason or self._ledger.refusal()
        return self.stop_reason is None

    def _lose(self, job: Job, reason: str) -> None:
        self._rate.lost(job.name)
        self._lost[job.name] += 1
        if self._lost[job.name] < _MAX_LOST:
            self._dispatcher.emit(TaskRetried(id=job.task_id, epoch=job.epoch, reason=reason))
            self._pending.appendleft(job)
            return
        error = f"the worker that ran it was lost {_MAX_LOST} times: {reason}"
        self._end(
            job,
            TaskResult(
                id=job.task_id, epoch=job.epoch, outcome=TaskOutcome.FAILED, error=error, is_transient=True
            ),
        )

    def _end(self, job: Job, result: TaskResult) -> None:
        if result.outcome is TaskOutcome.STOPPED:
            if (result.stop_reason or "").startswith(OUT_OF_BUDGET):
                self.stop_reason = self.stop_reason or result.stop_reason
            return
        self._ledger.finish(job.name)
        self._results.add(job, result)
        self._dispatcher.emit(TaskEnded(result=result, tokens=self._ledger.tokens, cost=self._ledger.cost))
        if self._writing is None:
            self._writing = asyncio.get_running_loop().call_later(self._write_every, self._write)

    def _write(self) -> None:
        loop = asyncio.get_running_loop()
        began, self._writing = loop.time(), None
        # an error is raised when they are written at the end
        with suppress(JournalError):
            self._results.write(self._all)
        self._write_every = max(_WRITE_EVERY, 20 * (loop.time() - began))
