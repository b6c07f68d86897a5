"""Works on tasks, one after the other: runs, meters, evaluates."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import ssl
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from functools import cache, partial
from math import comb, sqrt
from pathlib import Path
from signal import SIGINT
from typing import Any, Self

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from pydantic import JsonValue

from codeact_team.batch import exact_json
from codeact_team.batch.job_configs import JobConfigs, WorkerSettings
from codeact_team.batch.leases import HeldLease, Lease, LeasedRun, LeaseFiles
from codeact_team.batch.results import Outcome, ResultFile, TaskResult, dump
from codeact_team.batch.tasks import Job
from codeact_team.batch.throttle import OUT_OF_BUDGET, Begun, Called, Host, Retried, Spent
from codeact_team.config.components import DIRECTORY_FIELDS
from codeact_team.config.loading import CheckedConfig
from codeact_team.core.effects import Effect, Event, Perform
from codeact_team.core.events import ModelCallEnded
from codeact_team.core.executor_interface import StreamingCodeExecutor
from codeact_team.core.files import remove_named
from codeact_team.core.scope import Scope
from codeact_team.errors import SettingError
from codeact_team.executors.pool import SandboxPool
from codeact_team.models.clients import ModelCall
from codeact_team.runs.journal.recorded_run import RecordedRun
from codeact_team.runs.journal.run_directory import RunDirectory
from codeact_team.runs.result import (
    RunEnding,
    RunResult,
    explain,
    is_of_infrastructure,
    is_too_many,
    retry_after,
)
from codeact_team.runs.resuming import resumed
from codeact_team.runs.team_runner import TeamRunner

_Z = 1.959963984540054
"""Of the normal distribution: 95 % lie within so many deviations on both sides."""


def wilson_interval(share: float, trials: float) -> tuple[float, float]:
    """Wilson's interval for a share, with a confidence of 95 %.

    Args:
        share: What was found, from 0 to 1.
        trials: How many independent trials it was found in, more than 0.
    """
    spread = _Z * _Z / trials
    middle = (share + spread / 2) / (1 + spread)
    half = _Z * sqrt(share * (1 - share) / trials + spread / (4 * trials)) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)


def pass_at(k: int, samples: int, passed: int) -> float:
    """The chance that at least one of ``k`` runs passes, by the unbiased estimator of Chen et al. (2021).

    Args:
        k: How many runs, at most ``samples``.
        samples: How many there were.
        passed: How many of these passed.
    """
    return 1.0 - comb(samples - passed, k) / comb(samples, k)


def mean_pass_at(k: int, counts: Iterable[tuple[int, int]]) -> float | None:
    """The mean of :func:`pass_at` over tasks, each with its samples and how many passed; ``None`` if none has ``k``."""
    each = [pass_at(k, samples, passed) for samples, passed in counts if samples >= k]
    return sum(each) / len(each) if each else None


_USERS = ("httpx._transports.default", "httpx2._transports.default")
"""Modules that make a context for each client, of the two packages that OpenAI's is built on."""


@contextmanager
def trust_shared() -> Generator[None]:
    """Within it, HTTP clients that ask for nothing special share what they trust; never a connection."""
    modules = [sys.modules[name] for name in _USERS if name in sys.modules]
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


_FIRST_WAIT = 0.5
_LONGEST_WAIT = 60.0


class Retries:
    """How often something may still be tried again for one job, as what is around it has failed.

    Args:
        most: How often in all.
        tell: Is told of each.
    """

    def __init__(self, most: int, tell: Callable[[Retried], None]) -> None:
        self._most = most
        self._taken = 0
        self._tell = tell

    def take(self, reason: str) -> float | None:
        """How many seconds to wait before the next try; ``None`` if there is none left."""
        if self._taken >= self._most:
            return None
        seconds = min(_LONGEST_WAIT, _FIRST_WAIT * 2**self._taken)
        self._taken += 1
        self._tell(Retried(reason, seconds))
        return seconds


class Meter:
    """A handler and a listener: asks the driver before a model is asked, and tells it what that has used.

    Args:
        job: The name of the job.
        host: The driver.
        retries: For calls that fail by what is around them.
        end: Ends the run, with the reason why no model may be asked any more.
    """

    def __init__(self, job: str, host: Host, retries: Retries, end: Callable[[str], None]) -> None:
        self._job = job
        self._host = host
        self._retries = retries
        self._end = end

    def __call__(self, event: Event) -> None:
        """Tell what was spent, be it answered by a journal: so it counts for whoever goes on with a batch, too."""
        if isinstance(event, ModelCallEnded) and not event.cached and (usage := event.usage) is not None:
            self._host.tell(self._job, Spent(event.model, usage.prompt_tokens, usage.completion_tokens))

    async def stand(self, effect: Effect[Any], do: Perform) -> Any:
        """Let a call of a model pass when that is allowed.

        Raises:
            CancelledError: If it is not any more; the run ends.
        """
        if not isinstance(effect, ModelCall):
            return await do()
        while True:
            if (refusal := await self._host.admit(self._job)) is not None:
                self._end(refusal)
                raise asyncio.CancelledError
            called = Called()
            try:
                outcome = await do()
                called = Called(tokens=outcome.usage.prompt_tokens + outcome.usage.completion_tokens)
                return outcome
            except Exception as error:
                called = Called(is_limited=is_too_many(error), retry_after=retry_after(error))
                if not is_of_infrastructure(error) or (wait := self._retries.take(explain(error))) is None:
                    raise
            finally:
                self._host.tell(self._job, called)
            # too many requests are a matter of all, whom the driver lets wait
            if not called.is_limited:
                await asyncio.sleep(wait)


_MAX_SAID = 2000
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_FILES = "task-files"
"""What a checker's sandbox calls the files of the task: as no module is called."""


def matches(answer: str, expected: JsonValue) -> bool:
    """Whether an answer is the expected one: the same text, number, or JSON. White space around it does not matter."""
    answer = answer.strip()
    if isinstance(expected, str):
        wanted = expected.strip()
        number = _number(wanted)
        return answer == wanted or (number is not None and _number(answer) == number)
    try:
        # true is not 1
        return _normal_text(exact_json.loads(answer)) == _normal_text(expected)
    except (ValueError, RecursionError):
        return False


def _number(text: str) -> Decimal | None:
    """The number that a text is, with all its digits; Python's float would take 1_000, other scripts and nan as well."""
    try:
        return Decimal(text) if _NUMBER.fullmatch(text) else None
    except InvalidOperation:
        # an exponent of twenty digits
        return None


def _normal_text(value: JsonValue) -> str:
    return json.dumps(_normal(value), sort_keys=True)


def _normal(value: Any) -> Any:
    match value:
        case float():
            return exact_json.whole(value)
        case dict():
            return {key: _normal(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
        case list() | tuple():
            return [_normal(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
        case _:
            return value


async def objection_of(
    checker: str, config: CheckedConfig, *, answer: str, expected: JsonValue, files: Path
) -> str | None:
    """What a checker has against an answer; ``None`` if nothing.

    It runs in a new sandbox, as the first executor of the config makes them. It finds ``answer``, ``expected`` and ``files``,
    the path of a directory with what the task has made or changed, and raises where something is wrong.

    Args:
        checker: Python.
        config: That of the task.
        answer: What is to be checked; hostile.
        expected: What the task says of it.
        files: Where on this machine the files of the task are; there may be no such directory.

    Raises:
        SettingError: If the config has no executor for it.
        SandboxError: If its sandbox does not start.
    """
    async with Scope():
        executor = _executor(config, files)
        await executor.prepare()
        block = CodeBlock(code=f"{_given(answer, expected, files)}\n{checker}", language="python")
        result = await executor.execute_code_blocks([block], CancellationToken())
    return None if result.exit_code == 0 else result.output[-_MAX_SAID:].strip() or "the checker has failed"


def _given(answer: str, expected: JsonValue, files: Path) -> str:
    """Code that sets what a checker finds."""
    # in ASCII, and as literals: nothing that an answer says is taken for code, and no module is imported that files of the
    # task could stand in for
    given = f"answer, expected, files = {(answer, expected, _FILES)!a}"
    if not files.is_dir():
        return given
    # the directory has the name of the task, which may be that of a module; `os` is loaded before any code runs
    return f"__import__('os').rename({files.name!a}, {_FILES!r})\n{given}"


def _executor(config: CheckedConfig, files: Path) -> StreamingCodeExecutor:
    part = next((part for part in config.parts if issubclass(part.component, StreamingCodeExecutor)), None)
    if part is None:
        raise SettingError(
            "the checker has no sandbox to run in: the config has no code executor of codeact_team"
        )

    def change(_: type, settings: dict[str, Any]) -> None:
        settings["data"] = [str(files)] if files.is_dir() else []
        # not in a workspace where the task has left anything
        for name in DIRECTORY_FIELDS:
            settings.pop(name, None)

    made = config.only(part).with_settings(change).make()
    assert isinstance(made, StreamingCodeExecutor)
    return made


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
        last = RecordedRun(directory).result()
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
