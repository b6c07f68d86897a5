"""Runs a team on many tasks."""

from __future__ import annotations

import logging
import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from signal import Signals
from typing import Any

from codeact_team.batch.driver import Driver
from codeact_team.batch.engines import LocalEngine, engine_of
from codeact_team.batch.evaluation import summarize, syntax_problems
from codeact_team.batch.leases import LeaseFiles
from codeact_team.batch.results import BatchBegan, BatchNoted, BatchResult, JobResult, LineBroken
from codeact_team.batch.serving import digest_of, digest_of_text
from codeact_team.batch.settings import (
    BATCH_SETTINGS,
    SEALED_BY,
    BatchSettings,
    JobConfigs,
    WorkerSettings,
    own_directories,
    prices_of,
)
from codeact_team.batch.store import ResultStore
from codeact_team.batch.tasks import (
    EachFile,
    Job,
    TaskError,
    jobs_of,
    read_tasks,
    refuse_unknown_fields,
)
from codeact_team.batch.throttle import BatchLedger, BatchLimits
from codeact_team.config.document import ConfigSource, name_of
from codeact_team.config.loading import CheckedConfig, read_config
from codeact_team.config.open import make_runnable
from codeact_team.config.overrides import ForEvery, field_names
from codeact_team.core.effects import Dispatcher, Listener
from codeact_team.core.providers import Policy, did_you_mean
from codeact_team.core.scope import Scope
from codeact_team.core.settings import setting_errors, suggests
from codeact_team.errors import JournalError, SettingError
from codeact_team.journal.seal import user_key

logger = logging.getLogger(__name__)

Tasks = str | os.PathLike[str] | EachFile | Iterable[Mapping[str, Any]]


@suggests
async def run_batch(
    config: ConfigSource,
    tasks: str | os.PathLike[str] | Iterable[Mapping[str, Any]],
    *,
    out: str | os.PathLike[str],
    listeners: Sequence[Listener] = (),
    policy: Policy | None = None,
    overrides: Sequence[str | ForEvery] = (),
    allow_outside_files: bool = False,
    checker: str | None = None,
    checker_name: str = "the checker",
    epochs: int = 1,
    limit: int | None = None,
    only: Sequence[str] = (),
    failed: bool = False,
    seconds: float | None = None,
    retries: int = 4,
    workers: int | None = None,
    concurrency: int | None = None,
    limits: BatchLimits | Mapping[str, float] | None = None,
    engine: str = "local",
    address: str | None = None,
) -> BatchResult:
    """Run a team, or a single agent, on many tasks, each in a sandbox of its own, and keep the results.

    The directory ``out`` gets ``results.jsonl``, with a line for each task, ``runs``, with the journal of each, and ``files``,
    with the files that each made or changed. A batch that was interrupted in any way resumes when it is started again.

    Args:
        config: As of :func:`codeact_team.open_team`.
        tasks: A file of JSON lines, CSV or Parquet, or the tasks themselves, each with ``id`` and ``text``.
        out: The directory of the batch.
        listeners: Are called with each event: :mod:`codeact_team.batch.results`.
        policy: Which components the config may load; by default what the environment says.
        overrides: Changes to the config, as of :func:`codeact_team.open_team`. ``{field}`` in one is replaced by the value
            that a task has under that name.
        allow_outside_files: Whether tasks may name files outside the directory of the tasks file.
        checker: Python code that judges the answers of tasks with neither a checker nor an expected answer of their own.
        checker_name: The name of that code in errors, such as the path of its file.
        epochs: How often each task runs.
        limit: Run only so many tasks, the first of the file; ``None`` for all.
        only: Run only the tasks with these ids; empty for all.
        failed: Run only what has failed before, or whose checker has.
        seconds: Wall-clock time that a task may take; ``None`` is no limit.
        retries: How often a task may retry when its infrastructure fails: the container engine, a connection, or a model
            server that is overloaded.
        workers: How many processes run tasks; by default one for each processor, or each node of a cluster.
        concurrency: How many tasks run at the same time; by default eight for each worker.
        limits: What all tasks together may use: a :class:`BatchLimits`, or a mapping with its fields.
        engine: Where workers run: ``local``, on this machine, or ``ray``, on the nodes of a Ray cluster.
        address: The address of the Ray cluster; ``local`` starts one on this machine alone. By default it is
            ``RAY_ADDRESS``, or the cluster that this machine is a node of.

    Raises:
        CodeActTeamError: If the batch cannot run at all. The failure of a single task is in its result.
    """
    given: dict[str, Any] = {
        "policy": policy,
        "overrides": overrides,
        "allow_outside_files": allow_outside_files,
        "checker": checker,
        "checker_name": checker_name,
        "epochs": epochs,
        "limit": limit,
        "only": only,
        "failed": failed,
        "seconds": seconds,
        "retries": retries,
        "workers": workers,
        "concurrency": concurrency,
        "limits": limits,
        "engine": engine,
        "address": address,
    }
    with setting_errors():
        settings = BATCH_SETTINGS.validate_python(
            {name: value for name, value in given.items() if value is not None}
        )
    return await Batch(config, tasks, out, settings, listeners=listeners).run()


class Batch:
    """A team, or a single agent, and the tasks to run it on: as of :func:`run_batch`, ``-`` for standard input, or one for each file.

    Raises:
        SettingError: If the engine does not exist, or is not installed.
    """

    def __init__(
        self,
        config: ConfigSource,
        tasks: Tasks,
        out: str | os.PathLike[str],
        settings: BatchSettings,
        *,
        listeners: Sequence[Listener] = (),
    ) -> None:
        self._source = config
        self._tasks = tasks
        self._out = Path(out)
        self._settings = settings
        self._engine = engine_of(settings.engine, settings.address)
        self._dispatcher = Dispatcher()
        for listener in listeners:
            self._dispatcher.listen(listener, essential=True)
        self._driver: Driver | None = None
        self._stopped_by: Signals | None = None

    async def run(self) -> BatchResult:
        """Run the tasks that have no result yet; returns the result of all.

        Raises:
            CodeActTeamError: If the batch cannot run at all.
        """
        settings = self._settings
        config = self._read_config()
        _, currency = prices_of(config)
        if settings.limits.max_cost is not None and currency is None:
            raise SettingError(
                "the cost of a batch can be limited only where the config says what models cost: give it a BudgetTermination "
                "with `prices`"
            )
        ledger = BatchLedger(settings.limits, currency)
        jobs, broken = await self._jobs(config)
        for line in broken:
            self._dispatcher.emit(line)
        if not jobs:
            raise SettingError(
                "there are no tasks" if not broken else "none of the lines is a task that can be run"
            )
        worker_settings = self._worker_settings(config)
        # raises before anything begins if something is missing that all tasks need, such as an API key
        async with Scope():
            make_runnable(JobConfigs(worker_settings).of(jobs[0]))
        with ResultStore(self._out, digest_of(config), digest_of_text(config.written)) as results:
            _refuse_changed(jobs, results)
            for result in results.of([job for job in jobs if results.has_final(job)]):
                ledger.add(result.prompt_tokens + result.completion_tokens, result.cost)
            selected = self._selected(jobs, results)
            done = [job for job in selected if results.has_final(job)]
            leases = LeaseFiles(self._out)
            self._driver = driver = Driver(
                jobs,
                selected,
                results,
                settings,
                replace(worker_settings, token=leases.begin(), seal_key=_seal_key()),
                # no cluster is needed where all is done
                engine=self._engine if len(done) < len(selected) else LocalEngine(),
                leases=leases,
                ledger=ledger,
                dispatcher=self._dispatcher,
            )
            if self._stopped_by is not None:
                driver.stop(self._stopped_by)
            began = partial(_began, results.of(done), str(self._out), len(selected), broken=len(broken))
            await driver.run(lambda workers: self._dispatcher.emit(began(workers=workers)))
            result = summarize(results.of(selected), settings.epochs)
            if not all(map(results.has_final, selected)):
                result.stop_reason, result.is_refused = driver.stop_reason, driver.is_refused
        result.directory, result.jobs, result.broken = str(self._out), len(selected), len(broken)
        result.tokens, result.cost, result.currency = ledger.tokens, ledger.cost, ledger.currency
        result.signal = driver.signal
        self._dispatcher.emit(result)
        self._dispatcher.check()
        return result

    def stop(self, number: Signals) -> bool:
        """Stop the batch in order, so that it can resume later; also before its first task. Returns that it does."""
        if self._stopped_by is None:
            self._stopped_by = number
            if self._driver is not None:
                self._driver.stop(number)
        return True

    def _read_config(self) -> CheckedConfig:
        settings = self._settings
        overrides = [each for each in settings.overrides if not (isinstance(each, str) and field_names(each))]
        config = read_config(self._source, overrides=overrides, policy=settings.policy)
        config, had_directory = own_directories(config)
        if had_directory:
            files = self._out / "files"
            note = f"each task has a workspace of its own, and not the `work_dir` of the config; what it makes is in {files}"
            self._dispatcher.emit(BatchNoted(level="note", text=note))
        return config

    def _worker_settings(self, config: CheckedConfig) -> WorkerSettings:
        return WorkerSettings(
            policy=self._settings.policy,
            seconds=self._settings.seconds,
            retries=self._settings.retries,
            config=config.written,
            config_name=name_of(self._source),
            directory=str(self._out),
            working_directory=os.getcwd(),
        )

    async def _jobs(self, config: CheckedConfig) -> tuple[list[Job], list[LineBroken]]:
        settings = self._settings
        tasks, broken = read_tasks(
            self._tasks, sys.stdin.buffer, allow_outside_files=settings.allow_outside_files
        )
        templates = [each for each in settings.overrides if isinstance(each, str) and field_names(each)]
        refuse_unknown_fields(templates, tasks)
        checkers = [each for each in (settings.checker, *(task.checker for task in tasks)) if each]
        problems: Mapping[str, tuple[int, str]] = {}
        if checkers:
            problems = await syntax_problems(checkers, config)
        if (problem := problems.get(settings.checker or "")) is not None:
            raise SettingError(f"{settings.checker_name}:{problem[0]}: this is not Python code: {problem[1]}")
        jobs: list[Job] = []
        for task in tasks:
            try:
                if (problem := problems.get(task.checker or "")) is not None:
                    raise TaskError(f"its `checker` is not Python code, in line {problem[0]}: {problem[1]}")
                jobs += jobs_of(task, epochs=settings.epochs, overrides=templates, checker=settings.checker)
            except TaskError as error:
                broken.append(LineBroken(line=task.line, problem=str(error)))
        return jobs, sorted(broken, key=lambda line: line.line)

    def _selected(self, jobs: Sequence[Job], results: ResultStore) -> list[Job]:
        """The jobs to run, and to report on; the others keep their results."""
        settings = self._settings
        ids = [*dict.fromkeys(job.task_id for job in jobs)]
        for name in settings.only:
            if name not in ids:
                near = did_you_mean(name, ids)
                raise SettingError(f"no task has the id {name!r}{near}")
        wanted = {*[each for each in ids if not settings.only or each in settings.only][: settings.limit]}
        selected = [job for job in jobs if job.task_id in wanted]
        if settings.failed:
            selected = [job for job in selected if results.has_failed(job)]
        if len(selected) < len(jobs):
            note = f"{len(selected)} of {len(jobs)} runs are selected; the others keep their results"
            self._dispatcher.emit(BatchNoted(level="note", text=note))
        return selected


def _began(
    before: Iterable[JobResult], directory: str, jobs: int, *, workers: int, broken: int
) -> BatchBegan:
    outcomes, correct = Counter[str](), Counter[bool | None]()
    reviewed = 0
    for result in before:
        outcomes[str(result.outcome)] += 1
        correct[result.correct] += 1
        reviewed += result.is_reviewed
    return BatchBegan(
        directory=directory,
        jobs=jobs,
        done=outcomes.total(),
        workers=workers,
        broken=broken,
        outcomes=dict(outcomes),
        reviewed=reviewed,
        right=correct[True],
        wrong=correct[False],
    )


def _seal_key() -> str:
    """The key with which workers seal their runs; empty if there is none."""
    try:
        return user_key().derived(SEALED_BY).secret.hex()
    except JournalError as error:
        logger.warning("%s: tasks of this batch that are interrupted cannot be resumed", error)
        return ""


def _refuse_changed(jobs: Sequence[Job], results: ResultStore) -> None:
    if changed := [job for job in jobs if results.changed(job)]:
        named = ", ".join(repr(job.task_id) for job in changed[:3]) + (", …" if changed[3:] else "")
        raise SettingError(
            f"{results.path.parent} has results of other tasks, or of other overrides, under these ids: {named}. Choose another --out, or give "
            "these tasks other ids"
        )
