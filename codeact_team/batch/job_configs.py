"""The config of a batch, and that of each of its jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from autogen_core.code_executor import CodeExecutor
from autogen_core.models import ChatCompletionClient
from pydantic import JsonValue

from codeact_team.batch.tasks import Job
from codeact_team.config.components import DIRECTORY_FIELDS
from codeact_team.config.loading import CheckedConfig, read_config
from codeact_team.core.autogen_internals import ComponentClass
from codeact_team.core.providers import Policy, schema_of
from codeact_team.runs.journal.seal import SealKey

SEALED_BY = "batch"
"""The name of the key that a user's key gives to all batches: workers on other machines have no other one."""


@dataclass(frozen=True)
class WorkerSettings:
    """What all jobs of a batch have in common; plain data.

    Attributes:
        config: The text of the config.
        config_name: What errors call it.
        namespaces: As of :class:`Policy`, and so is ``allow_unsafe``.
        directory: That of the batch.
        seconds: Wall-clock time that each run may take; ``None`` for any.
        retries: How often a job may be tried again as what is around it has failed.
        working_directory: From which relative paths lead.
        token: Tells the directory of the batch from another of the same name.
        seal_key: What seals its runs, wherever they are made, in hexadecimal digits; empty where there is no key.
    """

    config: str
    config_name: str
    namespaces: Sequence[str]
    allow_unsafe: bool
    directory: str
    seconds: float | None
    retries: int
    working_directory: str
    token: str = ""
    seal_key: str = field(default="", repr=False)

    @property
    def key(self) -> SealKey | None:
        """The same, as a key."""
        return SealKey(SEALED_BY, bytes.fromhex(self.seal_key)) if self.seal_key else None

    @property
    def policy(self) -> Policy:
        """What may be loaded."""
        return Policy(frozenset(self.namespaces), self.allow_unsafe)


def own_directories(config: CheckedConfig) -> tuple[CheckedConfig, bool]:
    """A config by which each task has a workspace of its own, and calls of models are tried again by the batch alone.

    Returns:
        The config, and whether it named a directory for the workspace.
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


class JobConfigs:
    """The configs of jobs.

    Args:
        settings: What they have in common.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings

    @cached_property
    def common(self) -> CheckedConfig:
        """The config of all that say nothing else."""
        return self._read((), {})

    def _read(self, overrides: Sequence[str], fields: Mapping[str, JsonValue]) -> CheckedConfig:
        config = read_config(
            self._settings.config, overrides=overrides, fields=fields, policy=self._settings.policy
        )
        return replace(config, document=replace(config.document, name=self._settings.config_name))

    def of(self, job: Job) -> CheckedConfig:
        """The config that a job runs with."""
        config = self._read(job.overrides, job.fields) if job.overrides else self.common
        if not job.files:
            return config

        def add_files(_: type, settings: dict[str, Any]) -> None:
            settings["data"] = [*settings.get("data", ()), *job.files]

        return config.with_settings(add_files, CodeExecutor)
