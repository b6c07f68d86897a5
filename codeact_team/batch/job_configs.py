"""The config of a batch, and the configs of its jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from autogen_core.code_executor import CodeExecutor
from autogen_core.models import ChatCompletionClient
from pydantic import JsonValue

from codeact_team.agents.ledger import BudgetTermination, BudgetTerminationConfig
from codeact_team.batch.settings import WorkerSettings
from codeact_team.batch.tasks import Job
from codeact_team.config.components import DIRECTORY_FIELDS
from codeact_team.config.loading import CheckedConfig, read_config
from codeact_team.core.accounting import Price
from codeact_team.core.autogen_internals import ComponentClass
from codeact_team.core.providers import schema_of


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
    """Makes the configs of jobs from that of their batch."""

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
