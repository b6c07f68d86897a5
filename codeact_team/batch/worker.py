"""Runs jobs, many at once: each is a run with its journal, which goes on where it was interrupted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from signal import SIGINT
from typing import Any, Self

from codeact_team.batch.evaluation import matches, objection_of
from codeact_team.batch.host import OUT_OF_BUDGET, Begun, Host
from codeact_team.batch.job_configs import JobConfigs, WorkerSettings
from codeact_team.batch.leases import HeldLease, Lease, LeasedRun, LeaseFiles
from codeact_team.batch.metering import Meter, Retries
from codeact_team.batch.results import Outcome, ResultFile, TaskResult, dump
from codeact_team.batch.tasks import Job
from codeact_team.batch.trust import trust_shared
from codeact_team.executors import SandboxPool
from codeact_team.journal import RecordedRun, RunDirectory
from codeact_team.runs import RunEnding, RunResult, TeamRunner, explain, resumed
from codeact_team.runs.failures import is_of_infrastructure
from codeact_team.system.named_paths import remove_named

logger = logging.getLogger(__name__)

_DYING = 15.0
"""Seconds in which a worker that was killed, or whose driver was, lets go of its runs."""
_READY = 2
"""Sandboxes that each worker keeps ready."""


class Worker:
    """Runs jobs. An asynchronous context manager, within which sandboxes for them are started ahead.

    Args:
        settings: What they have in common.
        host: The driver.
        directory: Where it keeps its runs if it does not see the directory of the batch.
        end: Ends the process, with all that it does, where another worker goes on with one of its runs.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        host: Host,
        *,
        directory: Path | None = None,
        end: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._end = end
        self._configs = JobConfigs(settings)
        self._host = host
        self._directory = directory or Path(settings.directory)
        self._leases = LeaseFiles(self._directory) if directory is None else None
        self._pool = SandboxPool(size=_READY)
        self._shared = ExitStack()
        self._runners: set[TeamRunner] = set()
        self._stopped = asyncio.Event()

    async def run(self, job: dict[str, Any], lease: Lease) -> dict[str, Any]:
        """Run a job to its end, and judge its answer; whatever goes wrong is told by the result.

        Args:
            job: A :class:`Job`, as JSON.
            lease: Allows that.

        Returns:
            A :class:`TaskResult`, as JSON.
        """
        with self._pool.used():
            return dump(await self._tried(Job(**job), lease))

    async def __aenter__(self) -> Self:
        # imports what makes the clients
        _ = self._configs.common
        self._shared.enter_context(trust_shared())
        await self._pool.__aenter__()
        return self

    async def __aexit__(self, *failure: Any) -> None:
        self._shared.close()
        await self._pool.__aexit__(*failure)

    def stop(self) -> None:
        """Stop all that runs, in order, so that it can go on later."""
        self._stopped.set()
        for runner in self._runners:
            runner.stop(SIGINT)

    async def _tried(self, job: Job, lease: Lease) -> TaskResult:
        held = HeldLease(lease, self._leases, self._host, self._end)
        retries = Retries(self._settings.retries, partial(self._host.tell, job.name))
        while True:
            stopped = TaskResult(id=job.task_id, epoch=job.epoch, outcome=Outcome.STOPPED)
            if self._stopped.is_set():
                return stopped
            try:
                result = await self._once(job, retries, held)
                fails_around = result.is_transient
            except Exception as error:  # one task that nobody foresaw must not end the others
                logger.debug("a task failed", exc_info=error)
                fails_around = is_of_infrastructure(error)
                result = replace(
                    stopped, outcome=Outcome.FAILED, error=explain(error), is_transient=fails_around
                )
            if not fails_around or (wait := retries.take(result.error or "")) is None:
                return result
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), wait)

    async def _once(self, job: Job, retries: Retries, held: HeldLease) -> TaskResult:
        run = LeasedRun(self._directory / "runs" / job.name, held, self._settings.key)
        files = self._directory / "files" / job.name
        await self._until_free(run)
        await held.enter(run)
        ended = self._known_end(run)
        if ended is None:
            # of a try before, which makes them again
            with suppress(FileNotFoundError):
                remove_named(files)
            ended = await self._run(job, run, files, retries, held)
        result = _result(job, ended)
        if result.stop_reason is not None:
            # it may say where the run is
            told = result.stop_reason.replace(str(self._directory), self._settings.directory)
            result = replace(result, stop_reason=told)
        if not result.is_final or (job.checker is None and job.expected is None):
            return result
        if result.answer is None:
            return replace(result, correct=False)
        if job.checker is None:
            return replace(result, correct=matches(result.answer, job.expected))
        checking = asyncio.ensure_future(
            objection_of(
                job.checker, self._configs.of(job), answer=result.answer, expected=job.expected, files=files
            )
        )
        stopping = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait({checking, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not checking.done():
                # its run is kept, and the answer judged the next time
                return replace(result, outcome=Outcome.STOPPED)
            objection = checking.result()
        finally:
            stopping.cancel()
            checking.cancel()
            await asyncio.gather(checking, stopping, return_exceptions=True)
        return replace(result, correct=objection is None, check=objection)

    async def _until_free(self, directory: RunDirectory) -> None:
        """Wait until nobody works on a run, as far as that can be seen; not for ever."""
        run = RecordedRun(directory)
        with suppress(TimeoutError):
            async with asyncio.timeout(_DYING):
                while run.is_running:  # noqa: ASYNC110 - a process that ends elsewhere tells nobody
                    await asyncio.sleep(0.05)

    def _known_end(self, directory: RunDirectory) -> RunResult | None:
        """What a run has come to that somebody else has finished."""
        if not directory.is_begun:
            return None
        last = RecordedRun(directory).last_event()
        if not isinstance(last, RunResult) or last.ending not in (RunEnding.ACCEPTED, RunEnding.NOT_ACCEPTED):
            return None
        return None if last.files_due or (last.stop_reason or "").startswith(OUT_OF_BUDGET) else last

    async def _run(
        self, job: Job, run: RunDirectory, files: Path, retries: Retries, held: HeldLease
    ) -> RunResult:
        if run.is_begun:
            runner, task = resumed(run, policy=self._settings.policy, out=files)
        else:
            runner, task = TeamRunner(self._configs.of(job), record=run, out=files), job.text
        meter = Meter(job.name, self._host, retries, runner.break_off)
        runner.put_inside(meter.stand)
        # as near to what is done as can be: a call may have waited long to be admitted
        runner.put_inside(held.stand)
        runner.listen(meter)
        self._runners.add(runner)
        self._host.tell(job.name, Begun())
        try:
            return await runner.run_once(task, seconds=self._settings.seconds)
        finally:
            self._runners.remove(runner)


def _result(job: Job, ended: RunResult) -> TaskResult:
    outcome = Outcome(ended.ending.value)
    error = ended.error
    if (ended.stop_reason or "").startswith(OUT_OF_BUDGET):
        outcome = Outcome.STOPPED
    elif ended.files_due:
        # the same batch copies them, once that is possible
        reasons = dict.fromkeys(file.problem for file in ended.files if file.problem)
        outcome, error = Outcome.FAILED, f"its files could not be copied: {', '.join(reasons)}"
    return TaskResult(
        id=job.task_id,
        epoch=job.epoch,
        outcome=outcome,
        answer=ended.answer,
        stop_reason=ended.stop_reason,
        objection=ended.objection,
        error=error,
        is_transient=ended.is_of_infrastructure,
        steps=ended.steps,
        messages=ended.messages,
        prompt_tokens=ended.usage.prompt_tokens,
        completion_tokens=ended.usage.completion_tokens,
        cost=None if ended.cost is None else ended.cost.amount,
        currency=None if ended.cost is None else ended.cost.currency,
        files=[ResultFile(file.path, file.size, file.change, file.problem) for file in ended.files],
        run=f"runs/{job.name}",
    )
