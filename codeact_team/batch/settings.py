"""The settings of a batch, of its workers, and the configs of its jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

from autogen_core.code_executor import CodeExecutor
from autogen_core.models import ChatCompletionClient
from pydantic import ConfigDict, JsonValue, TypeAdapter

from codeact_team.agents.ledger import BudgetTermination, BudgetTerminationConfig
from codeact_team.batch.tasks import Job
from codeact_team.batch.throttle import BatchLimits
from codeact_team.config.components import DIRECTORY_FIELDS
from codeact_team.config.loading import CheckedConfig, read_config
from codeact_team.config.overrides import ForEvery
from codeact_team.core.accounting import Price
from codeact_team.core.autogen_internals import ComponentClass
from codeact_team.core.providers import Policy, schema_of
from codeact_team.errors import SettingError
from codeact_team.journal.seal import SealKey

SEALED_BY = "batch"
"""The name of the key that is derived from a user's key for batches. Workers on other machines have no other key."""


@dataclass(frozen=True, kw_only=True)
class _TaskSettings:
    """Settings of each task, on whatever machine.

    Attributes:
        policy: The components that the config may load; by default as the environment says.
        seconds: Wall-clock time that a task may take; ``None`` is no limit.
        retries: The number of times that a task may be tried again when its infrastructure fails: the container engine, a connection, or a model
            server that is overloaded.
    """

    policy: Policy = field(default_factory=Policy.from_environment)
    seconds: float | None = None
    retries: int = 4


@dataclass(frozen=True, kw_only=True)
class BatchSettings(_TaskSettings):
    """Settings of a batch by its caller: :func:`codeact_team.run_batch` explains each.

    Raises:
        SettingError: If a number is too small.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    overrides: Sequence[str | ForEvery] = ()
    allow_outside_files: bool = False
    checker: str | None = None
    checker_name: str = "the checker"
    epochs: int = 1
    limit: int | None = None
    only: Sequence[str] = ()
    failed: bool = False
    workers: int | None = None
    concurrency: int | None = None
    limits: BatchLimits = field(default_factory=BatchLimits)
    engine: str = "local"
    address: str | None = None

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("workers", 1), ("concurrency", 1), ("retries", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise SettingError(f"{name}: {value} is less than {least}")


BATCH_SETTINGS = TypeAdapter(BatchSettings)
"""Checks the types of settings, too."""


@dataclass(frozen=True, kw_only=True)
class WorkerSettings(_TaskSettings):
    """Settings of every worker of a batch; :data:`WORKER_SETTINGS` writes them as JSON.

    Attributes:
        config: The text of the config.
        config_name: The name of the config in error messages.
        directory: The directory of the batch.
        working_directory: The directory that relative paths start from.
        token: Proves that a worker sees the directory of the batch, and not another one of the same name.
        seal_key: The key that seals the runs, in hexadecimal digits; empty where there is none.
    """

    config: str
    config_name: str
    directory: str
    working_directory: str
    token: str = ""
    seal_key: str = field(default="", repr=False)

    @property
    def key(self) -> SealKey | None:
        """The key that seals the runs."""
        return SealKey(SEALED_BY, bytes.fromhex(self.seal_key)) if self.seal_key else None


WORKER_SETTINGS = TypeAdapter(WorkerSettings)


def own_directories(config: CheckedConfig) -> tuple[CheckedConfig, bool]:
    """Change a config so that each task gets its own workspace, and only the batch retries model calls.

    Returns:
        The changed config, and whether the config named a directory for the workspace.
    """
    had_any = False

    def change(component: ComponentClass, settings: dict[str, Any]) -> None:
        nonlocal had_any
        if issubclass(component, CodeExecutor):
            named = [settings.pop(name, None) for name in DIRECTORY_FIELDS]
            had_any = had_any or any(named)
        elif issubclass(component, ChatCompletionClient):
            if "max_retries" in schema_of(component).model_fields:
                settings["max_retries"] = 0

    return config.with_settings(change), had_any


def prices_of(config: CheckedConfig) -> tuple[Mapping[str, Price], str | None]:
    """The prices of models in the budgets of a config, and their currency; ``None`` if there are no prices."""
    prices, currency = dict[str, Price](), None
    for part in config.parts:
        if issubclass(part.component, BudgetTermination):
            settings = BudgetTerminationConfig.model_validate(part.config)
            prices |= settings.price_list
            currency = settings.currency
    return prices, currency if prices else None


class JobConfigs:
    """Makes the configs of jobs from the config of their batch."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings

    @cached_property
    def common(self) -> CheckedConfig:
        """The config of all jobs that change nothing."""
        return self._read((), {})

    def _read(self, overrides: Sequence[str], fields: Mapping[str, JsonValue]) -> CheckedConfig:
        config = read_config(
            self._settings.config, overrides=overrides, fields=fields, policy=self._settings.policy
        )
        return replace(config, document=replace(config.document, name=self._settings.config_name))

    def of(self, job: Job) -> CheckedConfig:
        """The config of a job."""
        config = self._read(job.overrides, job.fields) if job.overrides else self.common
        if not job.files:
            return config

        def add_files(_: type, settings: dict[str, Any]) -> None:
            settings["data"] = [*settings.get("data", ()), *job.files]

        return config.with_settings(add_files, CodeExecutor)
