"""Gives tasks to workers, and takes their results."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import asdict
from signal import Signals
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeVar, get_args

from codeact_team.batch.job_configs import WorkerSettings
from codeact_team.batch.leases import Lease, LeaseFiles
from codeact_team.batch.links import Link, LocalLink, Slot, WorkerLostError
from codeact_team.batch.on_ray.engine import RayEngine
from codeact_team.batch.processes import ProcessLink
from codeact_team.batch.results import (
    BatchNoted,
    Outcome,
    Results,
    TaskBegan,
    TaskEnded,
    TaskResult,
    TaskRetried,
    load,
)
from codeact_team.batch.tasks import Job
from codeact_team.batch.throttle import (
    OUT_OF_BUDGET,
    Begun,
    Called,
    Host,
    Ledger,
    Noted,
    RateLimit,
    Retried,
    Spent,
    Told,
)
from codeact_team.core.aio import to_the_end
from codeact_team.core.effects import Door
from codeact_team.errors import CodeActTeamError, JournalError, SettingError

_TASKS_A_WORKER = 4
"""Fewer are not worth the start of a process, which imports for a second or two."""


EngineName = Literal["local", "ray"]


class Engine(Protocol):
    """Starts workers. An asynchronous context manager, within which they live."""

    def workers(self, jobs: int) -> int:
        """How many are there if nobody says.

        Args:
            jobs: How many jobs are to be run.
        """
        ...

    async def start(self, settings: WorkerSettings, host: Host, *, is_only: bool) -> Link:
        """Start one.

        Args:
            settings: What it gets.
            host: The driver.
            is_only: Whether there is to be no other.

        Raises:
            WorkerLostError: If it has died before it was ready.
            CodeActTeamError: If none can run there.
        """
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class LocalEngine:
    """Workers on this machine: the only one in this process, several in processes of their own."""

    def workers(self, jobs: int) -> int:
        return min(_processors(), -(-jobs // _TASKS_A_WORKER) or 1)

    async def start(self, settings: WorkerSettings, host: Host, *, is_only: bool) -> Link:
        if is_only:
            return await LocalLink.start(settings, host)
        return await ProcessLink.start(settings, host)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


def engine_of(name: EngineName, address: str | None) -> Engine:
    """An engine by its name.

    Raises:
        SettingError: If there is none of that name, it is not installed, or it has no address.
    """
    match name:
        case "local":
            if address is not None:
                raise SettingError("an address is that of a Ray cluster: say --engine ray, too")
            return LocalEngine()
        case "ray":
            return RayEngine(address)
        case _:
            raise SettingError(f"engine: {name!r} is none of {', '.join(get_args(EngineName))}")


def _processors() -> int:
    # those that this process may use
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


T = TypeVar("T")

_MAX_LOST = 5
"""How often a job may lose its worker: it may be what kills it, but others die with that."""
_MAX_DEATHS = 10
"""How many workers may die one after the other with no result in between."""
_AT_ONCE = 8
"""Tasks of each worker at the same time, by default: most of them wait for their model."""
_WRITE_EVERY = 1.0
"""Seconds between two writings of the results; more where these take long."""


class Driver:
    """The host of all workers.

    Args:
        jobs: All of the batch.
        results: Where what comes of them is kept.
        settings: What workers get.
        engine: Starts them.
        leases: What allows each to go on with a job.
        workers: How many there are, if not as many as the engine says.
        concurrency: How many jobs run at the same time; by default eight for each worker.
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
        engine: Engine,
        leases: LeaseFiles,
        workers: int | None,
        concurrency: int | None,
        ledger: Ledger,
        rate: RateLimit,
        door: Door,
    ) -> None:
        self._all = jobs
        self._results = results
        self._settings = settings
        self._engine = engine
        self._leases = leases
        self._newest: dict[str, Lease] = {}
        self._slots: list[Slot] = []
        self._workers = workers
        self._concurrency = concurrency
        self._ledger = ledger
        self._rate = rate
        self._door = door
        self._pending = deque(job for job in jobs if not results.has_final(job))
        self._jobs = {job.name: job for job in self._pending}
        self._under_way = 0
        self._changed = asyncio.Event()
        """Set, and replaced by another, when there may be something to do, or nothing more."""
        self._lost: Counter[str] = Counter()
        self._starts = 0
        """How many workers were started since there was a result."""
        self._writing: asyncio.TimerHandle | None = None
        self._write_every = _WRITE_EVERY
        self.stop_reason: str | None = None
        """Why it has not come to its end."""
        self.signal: Signals | None = None
        """What has stopped it."""

    async def run(self, begun: Callable[[int], None]) -> None:
        """Run all jobs that have no final result.

        Args:
            begun: Is told how many workers there are, before they start.

        Raises:
            CodeActTeamError: If that is not possible.
        """
        if await self._unless_over(self._engine.__aenter__(), self._may_begin) is None:
            return
        try:
            workers = self._workers or self._engine.workers(len(self._pending))
            concurrency = self._concurrency or workers * _AT_ONCE
            self._slots += [Slot(self._start) for _ in range(min(workers, concurrency))]
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
        """Begin no more jobs, and stop those that run, in order; says that it does."""
        self.stop_reason, self.signal = "it was stopped", number
        self._door.tell(BatchNoted(level="note", text="stopping: what runs is ended in order"))
        for slot in self._slots:
            slot.stop()
        self._tell_lanes()
        return True

    async def admit(self, job: str) -> str | None:
        await self._rate.admit(job)
        refusal = self._ledger.refusal()
        if refusal is not None:
            self.stop_reason = self.stop_reason or refusal
            self._rate.called(job, Called())
        return refusal

    async def holds(self, job: str, lease: str) -> bool:
        newest = self._newest.get(job)
        return newest is not None and newest.written == lease and self._leases.is_newest(newest)

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

    async def _start(self) -> Link:
        while True:
            self._starts += 1
            if self._starts > _MAX_DEATHS + len(self._slots):
                raise CodeActTeamError(
                    f"{_MAX_DEATHS} workers have died one after the other: is there enough memory? --concurrency sets how "
                    "many tasks run at the same time"
                )
            with suppress(WorkerLostError):
                return await self._engine.start(self._settings, self, is_only=len(self._slots) == 1)

    async def _lane(self, slot: Slot) -> None:
        """Run one job after the other."""
        # where no node has room, its worker may never start
        while (link := await self._unless_over(slot.link(), self._has_work)) is not None:
            if (job := await self._next_job()) is None:
                return
            if link.is_lost:
                self._pending.appendleft(job)
                continue
            self._under_way += 1
            try:
                await self._run(job, link)
            finally:
                self._under_way -= 1
                self._tell_lanes()

    async def _run(self, job: Job, link: Link) -> None:
        self._door.tell(TaskBegan(id=job.task_id, epoch=job.epoch, goes_on=self._results.has_begun(job)))
        self._results.begin(job)
        lease = self._newest[job.name] = self._leases.grant(job.name)
        try:
            result = load(await link.run(asdict(job), lease))
        except WorkerLostError as error:
            self._lose(job, str(error))
            return
        if not self._leases.is_newest(lease):
            raise JournalError(
                f"another process works on the batch in {self._settings.directory}: wait until it has ended"
            )
        self._starts = 0
        self._end(job, result)
        self._leases.give_back(self._newest.pop(job.name))

    async def _unless_over(self, work: Coroutine[Any, Any, T], goes_on: Callable[[], bool]) -> T | None:
        """Await ``work`` as long as it is wanted, which may be asked each time that something has changed."""
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
        """What is to be begun next. What is under way may come back, where its worker is lost."""
        while self._has_work():
            if self._pending:
                return self._pending.popleft()
            await self._changed.wait()
        return None

    def _has_work(self) -> bool:
        return self._may_begin() and bool(self._pending or self._under_way)

    def _tell_lanes(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _may_begin(self) -> bool:
        self._door.check()
        self.stop_reason = self.stop_reason or self._ledger.refusal()
        return self.stop_reason is None

    def _lose(self, job: Job, reason: str) -> None:
        self._rate.lost(job.name)
        self._lost[job.name] += 1
        if self._lost[job.name] < _MAX_LOST:
            self._door.tell(TaskRetried(id=job.task_id, epoch=job.epoch, reason=reason))
            self._pending.appendleft(job)
            return
        error = f"the worker that ran it was lost {_MAX_LOST} times: {reason}"
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
