"""Gives the jobs of a batch to workers, and keeps what comes of them."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from signal import Signals

from codeact_team.aio import to_the_end
from codeact_team.batch.events import BatchNoted, TaskBegan, TaskEnded, TaskRetried
from codeact_team.batch.host import OUT_OF_BUDGET, Begun, Called, Noted, Retried, Spent, Told
from codeact_team.batch.job_configs import WorkerSettings
from codeact_team.batch.links import Link, LocalLink, ProcessLink, Slot, WorkerLostError
from codeact_team.batch.results import Outcome, Results, TaskResult, load
from codeact_team.batch.tasks import Job
from codeact_team.batch.throttle import Ledger, RateLimit
from codeact_team.effects import Door
from codeact_team.errors import CodeActTeamError, JournalError

_MAX_LOST = 5
"""How often a job may lose its worker: it may be what kills it, but others die with that."""
_MAX_DEATHS = 10
"""How many workers may die one after the other with no result in between."""
_WRITE_EVERY = 1.0
"""Seconds between two writings of the results; more where these take long."""


class Driver:
    """The host of all workers.

    Args:
        jobs: All of the batch.
        results: Where what comes of them is kept.
        settings: What workers get.
        workers: How many processes there are; with one, the jobs run in this one.
        concurrency: How many jobs run at the same time.
        ledger: What was spent so far.
        rate: When models may be asked.
        door: Where it is told what happens.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        results: Results,
        settings: WorkerSettings,
        *,
        workers: int,
        concurrency: int,
        ledger: Ledger,
        rate: RateLimit,
        door: Door,
    ) -> None:
        self._all = jobs
        self._results = results
        self._settings = settings
        self._slots = [
            Slot(self._start_local if workers == 1 else self._start_process) for _ in range(workers)
        ]
        self._concurrency = concurrency
        self._ledger = ledger
        self._rate = rate
        self._door = door
        self._pending = deque(job for job in jobs if not results.has_final(job))
        self._jobs = {job.name: job for job in self._pending}
        self._lost: Counter[str] = Counter()
        self._starts = 0
        """How many processes were started since there was a result."""
        self._writing: asyncio.TimerHandle | None = None
        self._write_every = _WRITE_EVERY
        self.stop_reason: str | None = None
        """Why it has not come to its end."""
        self.signal: Signals | None = None
        """What has stopped it."""

    async def run(self) -> None:
        """Run all jobs that have no final result.

        Raises:
            CodeActTeamError: If that is not possible.
        """
        lanes = min(self._concurrency, len(self._pending))
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
        """Begin no more jobs, and stop those that run, in order; says that it does."""
        self.stop_reason, self.signal = "it was stopped", number
        self._door.tell(BatchNoted(level="note", text="stopping: what runs is ended in order"))
        for slot in self._slots:
            slot.stop()
        return True

    async def admit(self, job: str) -> str | None:
        await self._rate.admit(job)
        refusal = self._ledger.refusal()
        if refusal is not None:
            self.stop_reason = self.stop_reason or refusal
            self._rate.called(job, Called())
        return refusal

    def tell(self, job: str, told: Told) -> None:
        match told:
            case Begun():
                self._ledger.begin(job)
            case Called():
                self._rate.called(job, told)
            case Spent():
                self._ledger.enter(job, told)
            case Retried():
                known = self._jobs[job]
                self._door.tell(
                    TaskRetried(id=known.task_id, epoch=known.epoch, reason=told.reason, seconds=told.seconds)
                )
            case Noted():
                self._door.tell(BatchNoted(level=told.level, text=told.text))

    async def _start_local(self) -> Link:
        return await LocalLink.start(self._settings, self)

    async def _start_process(self) -> Link:
        self._starts += 1
        if self._starts > _MAX_DEATHS + len(self._slots):
            raise CodeActTeamError(
                f"{_MAX_DEATHS} worker processes have died one after the other: is there enough memory? --concurrency sets how "
                "many tasks run at the same time"
            )
        return await ProcessLink.start(self._settings, self)

    async def _lane(self, slot: Slot) -> None:
        """Run one job after the other."""
        while self._pending and self._may_begin():
            link = await slot.link()
            if not (self._pending and self._may_begin()):
                return
            job = self._pending.popleft()
            self._door.tell(TaskBegan(id=job.task_id, epoch=job.epoch, goes_on=self._results.has_begun(job)))
            self._results.begin(job)
            try:
                result = load(await link.run(asdict(job)))
            except WorkerLostError:
                self._lose(job)
            else:
                self._starts = 0
                self._end(job, result)

    def _may_begin(self) -> bool:
        self._door.check()
        self.stop_reason = self.stop_reason or self._ledger.refusal()
        return self.stop_reason is None

    def _lose(self, job: Job) -> None:
        self._rate.lost(job.name)
        self._lost[job.name] += 1
        if self._lost[job.name] < _MAX_LOST:
            self._door.tell(
                TaskRetried(id=job.task_id, epoch=job.epoch, reason="its worker process has died")
            )
            self._pending.appendleft(job)
            return
        error = f"the worker process that ran it has died {_MAX_LOST} times"
        self._end(
            job,
            TaskResult(
                id=job.task_id, epoch=job.epoch, outcome=Outcome.FAILED, error=error, is_transient=True
            ),
        )

    def _end(self, job: Job, result: TaskResult) -> None:
        if result.outcome is Outcome.STOPPED:
            if (result.stop_reason or "").startswith(OUT_OF_BUDGET):
                self.stop_reason = self.stop_reason or result.stop_reason
            return
        self._ledger.end(job.name)
        self._results.add(job, result)
        self._door.tell(TaskEnded(result=result, tokens=self._ledger.tokens, cost=self._ledger.cost))
        if self._writing is None:
            self._writing = asyncio.get_running_loop().call_later(self._write_every, self._write)

    def _write(self) -> None:
        loop = asyncio.get_running_loop()
        began, self._writing = loop.time(), None
        # what keeps it from being written is told at the end
        with suppress(JournalError):
            self._results.write(self._all)
        self._write_every = max(_WRITE_EVERY, 20 * (loop.time() - began))
