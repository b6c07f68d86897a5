"""Runs tasks: each in a run with a journal of its own, which the driver meters and may interrupt."""

from __future__ import annotations

import asyncio
import logging
import ssl
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from signal import SIGINT
from typing import Any, Self

from codeact_team.batch.evaluation import Judgement, judged, matches
from codeact_team.batch.leases import HeldLease, Lease, LeasedRun, LeaseFiles
from codeact_team.batch.results import (
    TASK_RESULT,
    UNCHECKED,
    Doing,
    JobResult,
    ResultFile,
    TaskProgressed,
    TaskRetried,
)
from codeact_team.batch.serving import changes_of_servers
from codeact_team.batch.settings import JobConfigs, WorkerSettings, prices_of
from codeact_team.batch.tasks import Job
from codeact_team.batch.throttle import BATCH_ENDS, CallEnded, DriverInterface
from codeact_team.core.accounting import ModelUsage, Price
from codeact_team.core.effects import Effect, Event, Perform
from codeact_team.core.events import ModelCallEnded
from codeact_team.errors import CodeActTeamError
from codeact_team.executors.pool import SandboxPool
from codeact_team.files.opening import remove_named
from codeact_team.journal.recorded_run import RecordedRun
from codeact_team.journal.result import (
    RunEnding,
    RunResult,
    explain,
    is_of_infrastructure,
    is_refused,
    is_too_many,
    is_unauthorized,
    retry_after,
)
from codeact_team.journal.run_directory import RunDirectory
from codeact_team.models.clients import ModelCall
from codeact_team.runs.resuming import resumed
from codeact_team.runs.run import TeamRun

logger = logging.getLogger(__name__)

_FIRST_WAIT = 0.5
"""Seconds before the first retry; doubled each time."""
_LONGEST_WAIT = 60.0


class Meter:
    """An interceptor and a listener of a job's runs: the driver admits each model call, and gets reports of their usage.

    The job has so many ``retries`` for failures of its infrastructure.
    """

    _shares_a_key = True
    """Whether other jobs find out, too, if a server refuses the key."""

    def __init__(self, job: Job, driver: DriverInterface, prices: Mapping[str, Price], retries: int) -> None:
        self._job = job
        self._driver = driver
        self._prices = prices
        self._retries = retries
        self._taken = 0

    def attach(self, runner: TeamRun) -> None:
        """Meter a run from its begin on."""
        self._usage = ModelUsage()
        self._end = runner.break_off
        runner.dispatcher.add_innermost(self.intercept)
        runner.dispatcher.listen(self)

    def take_retry(self, reason: str) -> float | None:
        """Take a retry and report it; the seconds to wait before it, or ``None`` if none is left."""
        if self._taken >= self._retries:
            return None
        seconds = min(_LONGEST_WAIT, _FIRST_WAIT * 2**self._taken)
        self._taken += 1
        job = self._job
        self._driver.report(
            job.name, TaskRetried(id=job.task_id, epoch=job.epoch, reason=reason, seconds=seconds)
        )
        return seconds

    def __call__(self, event: Event) -> None:
        """Report the usage so far. Calls that a journal answers count too, as their driver may be a new one."""
        if isinstance(event, ModelCallEnded) and not event.cached and event.usage is not None:
            self._usage.add(event.model, event.usage, self._prices)
            self._driver.report(self._job.name, replace(self._usage))

    async def intercept(self, effect: Effect[Any], do: Perform) -> Any:
        """Perform an effect; a model call once the driver admits it. If it refuses, the run is cancelled."""
        if not isinstance(effect, ModelCall):
            return await do()
        was_refused = False
        while True:
            if (refusal := await self._driver.admit(self._job.name)) is not None:
                self._end(refusal)
                raise asyncio.CancelledError
            call = CallEnded()
            try:
                outcome = await do()
                used = effect.usage(outcome)
                call = CallEnded(tokens=used.prompt_tokens + used.completion_tokens, is_answered=True)
                return outcome
            except Exception as error:
                call = CallEnded(
                    is_limited=is_too_many(error),
                    retry_after=retry_after(error),
                    refusal=explain(error) if is_refused(error) else None,
                    is_unauthorized=is_unauthorized(error),
                )
                if is_refused(error) and self._shares_a_key and not was_refused:
                    # once more: the driver does not admit it if it takes the key for a wrong one
                    was_refused, wait = True, 0.0
                elif not is_of_infrastructure(error) or (wait := self.take_retry(explain(error))) is None:
                    raise
            finally:
                self._driver.report(self._job.name, call)
            # after too many requests, the driver lets all calls wait
            if not call.is_limited:
                await asyncio.sleep(wait)


_DYING = 15.0
"""Seconds in which the journals of a dead worker, or of one whose driver is dead, are unlocked."""
_READY = 2
"""The number of warm sandboxes that each worker keeps."""


class Worker:
    """Runs jobs. An asynchronous context manager, within which it keeps sandboxes ready for jobs that begin there.

    Args:
        settings: Those of all workers of the batch.
        driver: Admits model calls, and takes reports.
        directory: Where runs are kept if this machine does not see the directory of the batch.
        end: Ends this process at once, where another worker has taken over one of its runs.
    """

    is_lost = False

    def __init__(
        self,
        settings: WorkerSettings,
        driver: DriverInterface,
        *,
        directory: Path | None = None,
        end: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._driver = driver
        self._end = end
        self._configs = JobConfigs(settings)
        self._prices: Mapping[str, Price] = {}
        self._directory = directory or Path(settings.directory)
        self._leases = LeaseFiles(self._directory) if directory is None else None
        self._within = AsyncExitStack()
        self._runners: set[TeamRun] = set()
        self._stopped = asyncio.Event()

    async def run(self, job: dict[str, Any], lease: Lease) -> dict[str, Any]:
        """Run a :class:`Job`, as JSON data, to its end, and judge its answer. Whatever goes wrong is in the result.

        Returns:
            A :class:`JobResult`, as JSON data.
        """
        result = await self._run_with_retries(Job(**job), lease)
        return TASK_RESULT.dump_python(result, mode="json")

    async def __aenter__(self) -> Self:
        # this imports the modules of model clients
        self._prices, _ = prices_of(self._configs.common)
        await self._within.enter_async_context(SandboxPool(size=_READY))
        self._within.enter_context(_shared_trust())
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self._within.aclose()

    def stop(self) -> None:
        """Interrupt all runs in order, so that they can resume later."""
        self._stopped.set()
        for runner in self._runners:
            runner.stop(SIGINT)

    async def _run_with_retries(self, job: Job, lease: Lease) -> JobResult:
        held = HeldLease(lease, self._leases, self._driver, self._end)
        meter = Meter(job, self._driver, self._prices, self._settings.retries)
        while True:
            stopped = JobResult(id=job.task_id, epoch=job.epoch, outcome=RunEnding.STOPPED)
            if self._stopped.is_set():
                return stopped
            try:
                result = await self._run_once(job, meter, held)
            except Exception as error:  # an unforeseen failure of one task must not end the others
                logger.debug("a task failed", exc_info=error)
                is_transient = is_of_infrastructure(error)
                result = replace(
                    stopped, outcome=RunEnding.FAILED, error=explain(error), is_transient=is_transient
                )
            if not result.is_transient or (wait := meter.take_retry(result.error or "")) is None:
                return result
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), wait)

    async def _run_once(self, job: Job, meter: Meter, held: HeldLease) -> JobResult:
        run = LeasedRun(self._directory / "runs" / job.name, held, self._settings.key)
        files = self._directory / "files" / job.name
        await self._until_free(run)
        await held.enter(run)
        ended = self._finished(run)
        if ended is None:
            # an earlier attempt has made them; this one makes them again
            with suppress(FileNotFoundError):
                remove_named(files)
            ended = await self._run(job, run, files, meter, held)
        result = _result(job, ended)
        if result.stop_reason is not None:
            # it may name the directory of the run
            reason = result.stop_reason.replace(str(self._directory), self._settings.directory)
            result = replace(result, stop_reason=reason)
        return await self._judged(job, result, files) if result.is_final else result

    async def _judged(self, job: Job, result: JobResult, files: Path) -> JobResult:
        """The result of a finished run, with the judgement of its answer where one is possible."""
        if job.checker is None and job.expected is None:
            return result
        if result.answer is None:
            return replace(result, correct=False)
        if job.checker is None:
            return replace(result, correct=matches(result.answer, job.expected))
        doing = TaskProgressed(id=job.task_id, epoch=job.epoch, doing=Doing.CHECKING)
        self._driver.report(job.name, doing)
        checking = asyncio.ensure_future(
            judged(
                job.checker, self._configs.of(job), answer=result.answer, expected=job.expected, files=files
            )
        )
        stopping = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait({checking, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not checking.done():
                # the run is kept, and its answer is judged the next time
                return replace(result, outcome=RunEnding.STOPPED)
            judgement = checking.result()
        except CodeActTeamError as error:
            if is_of_infrastructure(error):
                raise
            judgement = Judgement(is_right=None, failure=explain(error))
        finally:
            stopping.cancel()
            checking.cancel()
            await asyncio.gather(checking, stopping, return_exceptions=True)
        result = replace(result, correct=judgement.is_right, check=judgement.output)
        if judgement.failure is None:
            return result
        return replace(result, outcome=UNCHECKED, error=judgement.failure)

    async def _until_free(self, directory: RunDirectory) -> None:
        """Wait until no process has the journal of a run open, but not without end."""
        run = RecordedRun(directory)
        with suppress(TimeoutError):
            async with asyncio.timeout(_DYING):
                while run.is_running:  # noqa: ASYNC110 - no event announces the end of a process of another machine
                    await asyncio.sleep(0.05)

    def _finished(self, directory: RunDirectory) -> RunResult | None:
        """The result of a run that another worker has finished; ``None`` if none has."""
        if not directory.is_begun:
            return None
        last = RecordedRun(directory).result()
        if last is None or not last.ending.is_final:
            return None
        return None if last.files_due or (last.stop_reason or "").startswith(BATCH_ENDS) else last

    async def _run(
        self, job: Job, run: RunDirectory, files: Path, meter: Meter, held: HeldLease
    ) -> RunResult:
        if run.is_begun:
            servers = changes_of_servers(self._configs.of(job), run.config())
            runner, task = resumed(run, overrides=servers, policy=self._settings.policy, out=files)
        else:
            runner, task = TeamRun(self._configs.of(job), record=run, out=files), job.text
        meter.attach(runner)
        # nearest to the effect itself, as a call may have waited long to be admitted
        runner.dispatcher.add_innermost(held.intercept)
        self._runners.add(runner)
        try:
            return await runner.run_once(task, seconds=self._settings.seconds)
        finally:
            self._runners.remove(runner)


def _result(job: Job, ended: RunResult) -> JobResult:
    outcome, error = ended.ending, ended.error
    if (ended.stop_reason or "").startswith(BATCH_ENDS):
        outcome = RunEnding.STOPPED
    elif ended.files_due:
        # the next start of the batch copies them, once that is possible
        reasons = dict.fromkeys(file.problem for file in ended.files if file.problem)
        outcome, error = RunEnding.FAILED, f"its files could not be copied: {', '.join(reasons)}"
    return JobResult(
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
        is_estimated=ended.is_estimated,
        cost=None if ended.cost is None else ended.cost.amount,
        currency=None if ended.cost is None else ended.cost.currency,
        missing_hosts=ended.missing_hosts,
        files=[ResultFile(file.path, file.size, file.change, file.problem) for file in ended.files],
        run=f"runs/{job.name}",
    )


_MAKERS = ("httpx._transports.default", "httpx2._transports.default")
"""The modules that make an SSL context for each client, in the packages that OpenAI's client is built on."""


@contextmanager
def _shared_trust() -> Generator[None]:
    """Within it, HTTP clients with default settings share the certificates that they trust, but no connections."""
    modules = [sys.modules[name] for name in _MAKERS if name in sys.modules]
    before = [
        (module, module.create_ssl_context) for module in modules if hasattr(module, "create_ssl_context")
    ]
    for module, make in before:
        module.create_ssl_context = _sharing(make)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        for module, make in before:
            module.create_ssl_context = make  # pyright: ignore[reportAttributeAccessIssue]


def _sharing(make: Any) -> Any:
    @cache
    def shared(trust_env: bool) -> ssl.SSLContext:
        return make(verify=True, cert=None, trust_env=trust_env)

    def create(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
        if verify is True and cert is None:
            return shared(trust_env)
        return make(verify=verify, cert=cert, trust_env=trust_env)

    return create
