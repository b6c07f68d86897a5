"""Runs a team on many tasks."""

from __future__ import annotations

import logging
import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from signal import Signals
from typing import Any

from codeact_team.agents.ledger import BudgetTermination, BudgetTerminationConfig, Price
from codeact_team.batch.driver import Driver, EngineName, LocalEngine, engine_of
from codeact_team.batch.job_configs import SEALED_BY, JobConfigs, WorkerSettings, own_directories
from codeact_team.batch.leases import LeaseFiles
from codeact_team.batch.results import (
    BatchBegan,
    BatchNoted,
    BatchResult,
    LineBroken,
    Results,
    Share,
    TaskResult,
)
from codeact_team.batch.tasks import BatchTask, BrokenLine, Job, TaskError, jobs_of, read_tasks
from codeact_team.batch.throttle import BatchLimits, Ledger, RateLimit
from codeact_team.batch.worker import mean_pass_at, wilson_interval
from codeact_team.config.document import ConfigSource, name_of
from codeact_team.config.loading import CheckedConfig, read_config
from codeact_team.config.open import make_runnable
from codeact_team.config.overrides import ForEvery, field_names
from codeact_team.core.effects import Door, Listener
from codeact_team.core.providers import Policy
from codeact_team.core.scope import Scope
from codeact_team.errors import JournalError, SettingError
from codeact_team.runs.journal.seal import user_key

logger = logging.getLogger(__name__)

Tasks = str | os.PathLike[str] | Iterable[Mapping[str, Any]]


async def run_batch(
    config: ConfigSource, tasks: Tasks, *, out: str | os.PathLike[str], **settings: Any
) -> BatchResult:
    """Run a team, or a single agent, on many tasks, each in a sandbox of its own, and keep what comes of each.

    In ``out`` there are then ``results.jsonl``, with a line for each task, ``runs``, with the journal of each, and ``files``,
    with what each has made or changed. A batch that was interrupted, however that was, goes on when it is started again.

    Args:
        config: As of :func:`codeact_team.open_team`.
        tasks: A file of JSON lines or of CSV, or the tasks themselves, each with ``id`` and ``text``.
        out: The directory of the batch.
        settings: As of :class:`Batch`.

    Raises:
        CodeActTeamError: If it cannot run at all. What a single task comes to is told by its result.
    """
    return await Batch(config, tasks, out=out, **settings).run()


class Batch:
    """A team, or a single agent, and the tasks that it is to be run on.

    Args:
        config: As of :func:`codeact_team.open_team`, and so is ``policy``.
        tasks: As of :func:`run_batch`, and so is ``out``; ``-`` is standard input.
        overrides: As of :func:`codeact_team.open_team`. ``{field}`` in one stands for what a task says there.
        allow_outside_files: As of :func:`codeact_team.batch.tasks.read_tasks`.
        checker: Python that judges the answers of tasks which bring neither a checker nor an expected answer.
        epochs: How often each task runs.
        workers: How many processes run tasks, each of them many; by default one for each processor, or each node.
        concurrency: How many tasks run at the same time; by default eight for each worker.
        seconds: Wall-clock time that each task may take.
        retries: How often something of a task is tried again, when what is around it fails: the engine, a connection, or a
            server that has too many requests.
        limits: What all tasks together may use.
        engine: Where they run: ``local``, on this machine, or ``ray``, on the nodes of a Ray cluster.
        address: Of the cluster; ``local`` starts one of this machine alone. By default what ``RAY_ADDRESS`` says, or the
            one that this machine is a node of.
        listeners: Are told what happens: :mod:`codeact_team.batch.results`.
    """

    def __init__(
        self,
        config: ConfigSource,
        tasks: Tasks,
        *,
        out: str | os.PathLike[str],
        overrides: Sequence[str | ForEvery] = (),
        policy: Policy | None = None,
        allow_outside_files: bool = False,
        checker: str | None = None,
        epochs: int = 1,
        workers: int | None = None,
        concurrency: int | None = None,
        seconds: float | None = None,
        retries: int = 4,
        limits: BatchLimits | None = None,
        engine: EngineName = "local",
        address: str | None = None,
        listeners: Sequence[Listener] = (),
    ) -> None:
        self._source = config
        self._tasks = tasks
        self._out = Path(out)
        self._overrides = overrides
        self._policy = policy or Policy.from_environment()
        self._allow_outside_files = allow_outside_files
        self._checker = checker
        self._epochs = _at_least(1, epochs, "epochs")
        self._workers = None if workers is None else _at_least(1, workers, "workers")
        self._concurrency = None if concurrency is None else _at_least(1, concurrency, "concurrency")
        self._seconds = seconds
        self._retries = _at_least(0, retries, "retries")
        self._limits = limits or BatchLimits()
        self._engine = engine_of(engine, address)
        self._door = Door()
        for listener in listeners:
            self._door.listen(listener, essential=True)
        self._driver: Driver | None = None
        self._stopped_by: Signals | None = None

    async def run(self) -> BatchResult:
        """Run what has no result yet, and tell what came of all.

        Raises:
            CodeActTeamError: If it cannot run at all.
        """
        config = self._read_config()
        ledger = self._ledger(config)
        text = config.written
        jobs, broken = self._jobs()
        for line in broken:
            self._door.tell(LineBroken(line=line.number, problem=line.problem))
        if not jobs:
            raise SettingError("there are no tasks" if not broken else "no line is a task that can run")
        settings = self._settings(text)
        await _try_to_make(JobConfigs(settings).of(jobs[0]))
        with Results(self._out, sha256(text.encode(errors="backslashreplace")).hexdigest()[:32]) as results:
            _refuse_changed(jobs, results)
            done = [job for job in jobs if results.has_final(job)]
            for result in results.of(done):
                ledger.add(result.prompt_tokens + result.completion_tokens, result.cost)
            leases = LeaseFiles(self._out)
            self._driver = driver = Driver(
                jobs,
                results,
                replace(settings, token=leases.begin(), seal_key=_seal_key()),
                engine=self._engine if len(done) < len(jobs) else LocalEngine(),
                leases=leases,
                workers=self._workers,
                concurrency=self._concurrency,
                ledger=ledger,
                rate=RateLimit(self._limits),
                door=self._door,
            )

            if self._stopped_by is not None:
                driver.stop(self._stopped_by)

            def begun(workers: int) -> None:
                began = BatchBegan(directory=str(self._out), jobs=len(jobs), done=len(done), workers=workers)
                began.broken = len(broken)
                self._door.tell(began)

            await driver.run(begun)
            result = _summary(results.of(jobs), self._epochs)
        result.directory, result.jobs, result.broken = str(self._out), len(jobs), len(broken)
        result.tokens, result.cost = ledger.tokens, ledger.cost
        result.currency = None if ledger.cost is None else ledger.currency
        if result.left:
            result.stop_reason = driver.stop_reason
        result.signal = driver.signal
        self._door.tell(result)
        self._door.check()
        return result

    def _settings(self, config: str) -> WorkerSettings:
        return WorkerSettings(
            config=config,
            config_name=name_of(self._source),
            namespaces=sorted(self._policy.namespaces),
            allow_unsafe=self._policy.allow_unsafe,
            directory=str(self._out),
            seconds=self._seconds,
            retries=self._retries,
            working_directory=os.getcwd(),
        )

    def stop(self, number: Signals) -> bool:
        """Stop it, in order, so that it can go on, also before its first task; says that it does."""
        if self._stopped_by is None:
            self._stopped_by = number
            if self._driver is not None:
                self._driver.stop(number)
        return True

    def _read_config(self) -> CheckedConfig:
        overrides = [each for each in self._overrides if not (isinstance(each, str) and field_names(each))]
        config = read_config(self._source, overrides=overrides, policy=self._policy)
        config, had_directory = own_directories(config)
        if had_directory:
            files = self._out / "files"
            note = f"each task has a workspace of its own, and not the `work_dir` of the config; what it makes is in {files}"
            self._door.tell(BatchNoted(level="note", text=note))
        return config

    def _ledger(self, config: CheckedConfig) -> Ledger:
        prices, currency = dict[str, Price](), "USD"
        for part in config.parts:
            if issubclass(part.component, BudgetTermination):
                settings = BudgetTerminationConfig.model_validate(part.config)
                prices |= settings.price_list
                currency = settings.currency
        if self._limits.max_cost is not None and not prices:
            raise SettingError(
                "the cost of a batch can be limited only where the config says what models cost: give it a BudgetTermination "
                "with `prices`"
            )
        return Ledger(self._limits, prices, currency)

    def _jobs(self) -> tuple[list[Job], list[BrokenLine]]:
        tasks, broken = read_tasks(
            self._tasks, sys.stdin.buffer, allow_outside_files=self._allow_outside_files
        )
        templates = [each for each in self._overrides if isinstance(each, str) and field_names(each)]
        jobs: list[Job] = []
        for task in tasks:
            try:
                jobs += self._jobs_of(task, templates)
            except TaskError as error:
                broken.append(BrokenLine(task.line, str(error)))
        return jobs, sorted(broken, key=lambda line: line.number)

    def _jobs_of(self, task: BatchTask, templates: Sequence[str]) -> list[Job]:
        return jobs_of(task, epochs=self._epochs, overrides=templates, checker=self._checker)


def _seal_key() -> str:
    """What the workers seal their runs with."""
    try:
        return user_key().derived(SEALED_BY).secret.hex()
    except JournalError as error:
        logger.warning("%s: what is interrupted of this batch cannot go on", error)
        return ""


async def _try_to_make(config: CheckedConfig) -> None:
    """Find out before anything begins what no task could run without, such as a key."""
    async with Scope():
        make_runnable(config)


def _at_least(least: int, value: int, name: str) -> int:
    if value < least:
        raise SettingError(f"{name}: {value} is less than {least}")
    return value


def _refuse_changed(jobs: Sequence[Job], results: Results) -> None:
    if changed := [job for job in jobs if results.changed(job)]:
        named = ", ".join(repr(job.task_id) for job in changed[:3]) + (", …" if changed[3:] else "")
        raise SettingError(
            f"{results.path.parent} has other tasks, or other overrides for them, under the ids of these: {named}. Choose another --out, or give "
            "them other ids"
        )


def _summary(results: Iterable[TaskResult], epochs: int) -> BatchResult:
    """What came of all, as far as results tell it."""
    outcomes: Counter[str] = Counter()
    accepted, right = dict[str, list[bool]](), dict[str, list[bool]]()
    passes = dict[str, list[bool]]()
    transient = wrong = 0
    for result in results:
        outcomes[result.outcome.value] += 1
        transient += result.is_transient
        if result.is_final:
            accepted.setdefault(result.id, []).append(result.outcome.value == "accepted")
            passes.setdefault(result.id, []).append(result.passes)
            if result.correct is not None:
                right.setdefault(result.id, []).append(result.correct)
                wrong += not result.correct
    counts = [(len(each), sum(each)) for each in passes.values()]
    pass_at = {k: mean_pass_at(k, counts) for k in _ks(epochs)}
    return BatchResult(
        directory="",
        jobs=0,
        outcomes=dict(outcomes),
        transient=transient,
        wrong=wrong,
        accuracy=_share(right),
        acceptance=_share(accepted),
        pass_at={k: round(value, 6) for k, value in pass_at.items() if value is not None},
    )


def _ks(epochs: int) -> list[int]:
    if epochs == 1:
        return []
    return sorted({1, *(2**power for power in range(1, epochs.bit_length()) if 2**power <= epochs), epochs})


def _share(found: Mapping[str, Sequence[bool]]) -> Share | None:
    if not found:
        return None
    # runs of one task are no independent trials
    value = sum(sum(each) / len(each) for each in found.values()) / len(found)
    low, high = wilson_interval(value, len(found))
    return Share(round(value, 6), round(low, 6), round(high, 6), len(found))
