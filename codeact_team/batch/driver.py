"""Gives jobs to workers, and takes their results."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict
from signal import Signals
from typing import cast

from codeact_team.batch.engines import AnyWorker, Engine
from codeact_team.batch.leases import Lease, LeaseFiles
from codeact_team.batch.results import (
    TASK_RESULT,
    BatchNoted,
    Doing,
    JobResult,
    TaskBegan,
    TaskEnded,
    TaskProgressed,
    TaskRetried,
)
from codeact_team.batch.settings import BatchSettings, WorkerSettings
from codeact_team.batch.store import ResultStore, described
from codeact_team.batch.tasks import Job
from codeact_team.batch.throttle import BATCH_ENDS, KEY_REFUSED, BatchLedger, CallEnded, RateLimit, Report
from codeact_team.core.accounting import ModelUsage
from codeact_team.core.child_process import ProcessLostError
from codeact_team.core.effects import Dispatcher
from codeact_team.errors import CodeActTeamError, JournalError
from codeact_team.journal.result import RunEnding

_MAX_LOST = 5
"""The most times that a job may lose its worker: the job may be what kills it, and other jobs die with it."""
_MAX_DEATHS = 10
"""The most workers in a row that may die without a result in between."""
_AT_ONCE = 8
"""Jobs that a worker runs at the same time by default. Most of them wait for their model."""
_WRITE_EVERY = 1.0
"""Seconds between two updates of ``results.jsonl``; more if an update takes long."""


class Driver:
    """Runs the jobs of a batch on its workers, whose :class:`DriverInterface` it is.

    Attributes:
        stop_reason: Why the batch stopped before all jobs were done.
        is_refused: Whether it stopped because a model's server refuses the key.
        signal: The signal that stopped it, if one did.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        selected: Sequence[Job],
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
        self._workers: set[AnyWorker] = set()
        self._is_only = False
        self._max_starts = 0
        self._starts = 0
        """The number of workers started since the last result."""
        self._ledger = ledger
        self._rate = RateLimit(settings.limits)
        self._dispatcher = dispatcher
        self._pending = deque(job for job in selected if not results.has_final(job))
        self._under_way: dict[str, Job] = {}
        self._refused: set[str] = set()
        """The jobs whose calls were refused."""
        self._is_served = False
        """Whether a model has answered since the start."""
        self._changed = asyncio.Event()
        """Set, and replaced by a new one, whenever lanes should look for work again."""
        self._starting: set[asyncio.Timeout] = set()
        self._lost: Counter[str] = Counter()
        self._writing: asyncio.TimerHandle | None = None
        self._write_every = _WRITE_EVERY
        self.stop_reason: str | None = None
        self.is_refused: bool = False
        self.signal: Signals | None = None

    async def run(self, begun: Callable[[int], None]) -> None:
        """Run all jobs that are not finished; ``begun`` is called with the number of workers, before they start.

        Raises:
            CodeActTeamError: If the workers cannot run.
        """
        self._dispatcher.check()
        if self._is_stopped():
            return
        async with AsyncExitStack() as stack:
            async with self._while_work_is_left():
                await stack.enter_async_context(self._engine)
            if self._is_stopped():
                return
            workers = self._settings.workers or self._engine.workers(len(self._pending))
            concurrency = self._settings.concurrency or workers * _AT_ONCE
            workers = min(workers, concurrency)
            self._is_only, self._max_starts = workers == 1, _MAX_DEATHS + workers
            begun(workers)
            try:
                lanes = range(min(concurrency, len(self._pending)))
                async with asyncio.TaskGroup() as group:
                    for first in lanes[:workers]:
                        group.create_task(self._run_worker(len(lanes[first::workers])))
            except BaseExceptionGroup as failures:
                raise _first_of(failures) from None
            finally:
                if self._writing is not None:
                    self._writing.cancel()
                self._results.write(self._all)

    def stop(self, number: Signals) -> bool:
        """Begin no more jobs, and stop the running ones in order. Returns that it does."""
        self.stop_reason, self.signal = "it was stopped", number
        self._dispatcher.emit(BatchNoted(level="note", text="stopping: running tasks are ended in order"))
        self._stop_workers()
        return True

    def _stop_workers(self) -> None:
        for worker in self._workers:
            worker.stop()
        self._wake()

    async def admit(self, job: str) -> str | None:
        await self._rate.admit(job, lambda: self._progress(job, Doing.WAITING))
        refusal = self.stop_reason if self.is_refused else self._ledger.refusal()
        if refusal is None:
            self._progress(job, Doing.ASKING)
        else:
            self.stop_reason = self.stop_reason or refusal
            self._rate.ended(job, CallEnded())
        return refusal

    def _progress(self, name: str, doing: Doing) -> None:
        if (job := self._under_way.get(name)) is not None:
            self._dispatcher.emit(TaskProgressed(id=job.task_id, epoch=job.epoch, doing=doing))

    async def holds(self, job: str, lease: str) -> bool:
        newest = self._newest.get(job)
        return newest is not None and newest.written == lease and self._leases.is_newest(newest)

    def report(self, job: str, report: Report) -> None:
        match report:
            case ModelUsage():
                self._ledger.enter(job, report)
            case CallEnded():
                self._rate.ended(job, report)
                self._progress(job, Doing.WORKING if report.is_answered else Doing.WAITING)
                self._is_served = self._is_served or report.is_answered
                if report.refusal is not None:
                    self._refuse(job, report.refusal, is_certain=report.is_unauthorized)
            case TaskRetried() | TaskProgressed() | BatchNoted():
                self._dispatcher.emit(report)

    def _refuse(self, job: str, refusal: str, *, is_certain: bool) -> None:
        """Stop the batch if a server refuses the key, and not only what one task asks with it."""
        self._refused.add(job)
        if self.stop_reason is None and (is_certain or (len(self._refused) > 1 and not self._is_served)):
            self.stop_reason, self.is_refused = f"{KEY_REFUSED}: {refusal}", True
            self._stop_workers()

    async def _run_worker(self, lanes: int) -> None:
        """Run jobs on a worker, so many at a time; and on another one where that is lost."""
        while self._has_work():
            self._starts += 1
            if self._starts > self._max_starts:
                raise CodeActTeamError(
                    f"{_MAX_DEATHS} workers have died one after the other: is there enough memory? --concurrency sets how "
                    "many tasks run at the same time"
                )
            async with AsyncExitStack() as stack:
                worker: AnyWorker | None = None
                # it may never start, as no node of the cluster has room
                async with self._while_work_is_left():
                    with suppress(ProcessLostError):
                        worker = await stack.enter_async_context(
                            self._engine.worker(self._worker_settings, self, is_only=self._is_only)
                        )
                if worker is None:
                    continue
                self._workers.add(worker)
                stack.callback(self._workers.discard, worker)
                async with asyncio.TaskGroup() as group:
                    for _ in range(lanes):
                        group.create_task(self._lane(worker))

    @asynccontextmanager
    async def _while_work_is_left(self) -> AsyncGenerator[None]:
        """Within it, waiting is cancelled once no work is left."""
        starting = asyncio.timeout(None)
        self._starting.add(starting)
        try:
            async with starting:
                yield
        except TimeoutError:
            if not starting.expired():
                raise
        finally:
            self._starting.discard(starting)

    async def _lane(self, worker: AnyWorker) -> None:
        """Run one job after the other."""
        while (job := await self._next_job(worker)) is not None:
            self._under_way[job.name] = job
            try:
                await self._run(job, worker)
            finally:
                del self._under_way[job.name]
                self._wake()

    async def _run(self, job: Job, worker: AnyWorker) -> None:
        self._dispatcher.emit(
            TaskBegan(id=job.task_id, epoch=job.epoch, goes_on=self._results.has_begun(job))
        )
        self._results.begin(job)
        lease = self._newest[job.name] = self._leases.grant(job.name)
        try:
            result = TASK_RESULT.validate_python(await worker.run(asdict(job), lease))
        except ProcessLostError as error:
            self._lose(job, str(error))
            return
        if not self._leases.is_newest(lease):
            raise JournalError(
                f"another process works on the batch in {self._worker_settings.directory}: wait until it has ended"
            )
        self._starts = 0
        self._end(job, result)
        self._leases.give_back(self._newest.pop(job.name))

    async def _next_job(self, worker: AnyWorker) -> Job | None:
        """The next job; ``None`` if none is left. It waits for running jobs, which come back if their worker is lost."""
        while self._has_work() and not worker.is_lost:
            if self._pending:
                return self._pending.popleft()
            await self._changed.wait()
        return None

    def _has_work(self) -> bool:
        self._dispatcher.check()
        return not self._is_stopped() and bool(self._pending or self._under_way)

    def _is_stopped(self) -> bool:
        self.stop_reason = self.stop_reason or self._ledger.refusal()
        return self.stop_reason is not None

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
        if self._is_stopped() or not (self._pending or self._under_way):
            # each only once: what it cancels may take a while to end
            while self._starting:
                self._starting.pop().reschedule(0)

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
            JobResult(
                id=job.task_id, epoch=job.epoch, outcome=RunEnding.FAILED, error=error, is_transient=True
            ),
        )

    def _end(self, job: Job, result: JobResult) -> None:
        if result.outcome is RunEnding.STOPPED:
            if (result.stop_reason or "").startswith(BATCH_ENDS):
                self.stop_reason = self.stop_reason or result.stop_reason
            return
        self._ledger.finish(job.name, result.prompt_tokens + result.completion_tokens, result.cost)
        self._results.add(job, result)
        result = described(result, job)
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


def _first_of(failure: BaseException) -> BaseException:
    if isinstance(failure, BaseExceptionGroup):
        return _first_of(cast("BaseExceptionGroup[BaseException]", failure).exceptions[0])
    return failure
