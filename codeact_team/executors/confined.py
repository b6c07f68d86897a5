"""The executors in processes that this machine's kernel confines."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Generic, Literal, Self, TypeVar

from autogen_core import Component
from pydantic import Field

from codeact_team.executors.base import ExecutorConfig, SandboxedCodeExecutor
from codeact_team.executors.command_line import CommandLineCodeExecutor, CommandLineConfig
from codeact_team.executors.session import InterpreterCodeExecutor, SessionConfig
from codeact_team.executors.workspace import HostWorkspace
from codeact_team.sandboxes.base import Sandbox
from codeact_team.sandboxes.confined import ConfinedSandbox
from codeact_team.sessions.accounts import Greeting

logger = logging.getLogger(__name__)


class ConfinedExecutorConfig(ExecutorConfig):
    """Settings of every executor in confined processes. Memory is in MiB."""

    confinement: Literal["required", "best_effort"] = "required"
    """Whether to refuse where the kernel cannot enforce everything, or to go on with what it can and say so."""
    memory_mib: int = Field(1024, ge=64)
    """Memory limit in MiB."""
    pids: int = Field(64, ge=8)
    """How many processes there may be at once."""
    readable: list[str] = Field(default_factory=list)
    """More files or directories of this machine that the code may read."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables of the code's environment. The code can read them all: no place for secrets."""


_Config = TypeVar("_Config", bound=ConfinedExecutorConfig)


class Confined(SandboxedCodeExecutor, Generic[_Config]):
    """An executor whose sandbox is a confined process. Subclasses set ``_config`` before all else."""

    _config: _Config

    @property
    def loosenings(self) -> Sequence[str]:
        required = self._config.confinement == "required"
        found = [] if required else ["confinement: best_effort"]
        if self._config.readable:
            found.append(f"readable: {', '.join(self._config.readable)}")
        return found

    async def _make_sandbox(self) -> Sandbox:
        return ConfinedSandbox(
            workspace=self._workspace.make(),
            confinement=self._config.confinement,
            memory_mib=self._config.memory_mib,
            pids=self._config.pids,
            readable=self._config.readable,
            environment=self._config.environment,
        )

    def _host_path(self, file: str) -> str | None:
        return str(self.work_dir / file)

    def _to_config(self) -> _Config:
        return self._config.model_copy(deep=True)

    @classmethod
    def _from_config(cls, config: _Config) -> Self:
        return cls(**config.model_dump())


class ConfinedCommandLineCodeExecutorConfig(ConfinedExecutorConfig, CommandLineConfig):
    """Settings of :class:`ConfinedCommandLineCodeExecutor`."""


class ConfinedCommandLineCodeExecutor(
    Confined[ConfinedCommandLineCodeExecutorConfig],
    CommandLineCodeExecutor,
    Component[ConfinedCommandLineCodeExecutorConfig],
):
    """Runs each code block as a fresh process of this machine that may write its workspace and nothing else.

    No container and no daemon: Landlock and seccomp of the Linux kernel deny network, other files and other
    processes. What a block leaves running ends with the block.

    Args:
        timeout: Seconds that one code block may take.
        work_dir: Directory that is the code's workspace. Default: a temporary one, removed at the end.
        confinement: ``required`` refuses where the kernel cannot enforce everything; ``best_effort`` goes on with
            what it can, and says so once.
        memory_mib: Memory limit in MiB.
        pids: How many processes there may be at once.
        readable: More files or directories that the code may read.
        environment: Variables of the code's environment.
        delete_tmp_files: Whether the files that hold the code blocks are deleted after they ran.
        languages: More languages: label to command.

    Raises:
        ValueError: If a setting is out of range.
    """

    component_config_schema = ConfinedCommandLineCodeExecutorConfig
    component_provider_override = "codeact_team.ConfinedCommandLineCodeExecutor"

    def __init__(
        self,
        *,
        timeout: int = 60,
        work_dir: Path | str | None = None,
        confinement: Literal["required", "best_effort"] = "required",
        memory_mib: int = 1024,
        pids: int = 64,
        readable: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        delete_tmp_files: bool = False,
        languages: Mapping[str, str] | None = None,
    ) -> None:
        self._config = ConfinedCommandLineCodeExecutorConfig(
            timeout=timeout,
            work_dir=None if work_dir is None else str(work_dir),
            confinement=confinement,
            memory_mib=memory_mib,
            pids=pids,
            readable=list(readable),
            environment=dict(environment or {}),
            delete_tmp_files=delete_tmp_files,
            languages=dict(languages or {}),
        )
        super().__init__(self._config, HostWorkspace(self._config.work_dir))


class ConfinedSessionCodeExecutorConfig(ConfinedExecutorConfig, SessionConfig):
    """Settings of :class:`ConfinedSessionCodeExecutor`."""


class ConfinedSessionCodeExecutor(
    Confined[ConfinedSessionCodeExecutorConfig],
    InterpreterCodeExecutor,
    Component[ConfinedSessionCodeExecutorConfig],
):
    """Runs Python blocks in one living interpreter of this machine that may write its workspace and nothing else.

    Variables, imports and functions live on from block to block, as in a notebook; shell blocks share their working
    directory and exported variables. No container and no daemon: Landlock and seccomp of the Linux kernel deny network,
    other files and other processes. The interpreter is this program's own, with its packages.

    Args:
        timeout: Seconds that one code block may take. It is then interrupted, and variables live on; an interpreter
            that does not notice within a second is replaced.
        work_dir: Directory that is the code's workspace. Default: a temporary one, removed at the end.
        confinement: ``required`` refuses where the kernel cannot enforce everything; ``best_effort`` goes on with
            what it can, and says so once.
        memory_mib: Memory limit in MiB.
        pids: How many processes there may be at once.
        readable: More files or directories that the code may read.
        environment: Variables of the code's environment.
        modules: Modules that are there from the start: name in the code to module, such as ``{"np": "numpy"}``.
        setup: Python code that runs in each fresh interpreter before the first block.

    Raises:
        ValueError: If a setting is out of range.
    """

    component_config_schema = ConfinedSessionCodeExecutorConfig
    component_provider_override = "codeact_team.ConfinedSessionCodeExecutor"

    def __init__(
        self,
        *,
        timeout: int = 60,
        work_dir: Path | str | None = None,
        confinement: Literal["required", "best_effort"] = "required",
        memory_mib: int = 1024,
        pids: int = 64,
        readable: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        modules: Mapping[str, str] | None = None,
        setup: str = "",
    ) -> None:
        self._config = ConfinedSessionCodeExecutorConfig(
            timeout=timeout,
            work_dir=None if work_dir is None else str(work_dir),
            confinement=confinement,
            memory_mib=memory_mib,
            pids=pids,
            readable=list(readable),
            environment=dict(environment or {}),
            modules=dict(modules or {}),
            setup=setup,
        )
        super().__init__(self._config, HostWorkspace(self._config.work_dir))

    def _accept(self, greeting: Greeting) -> None:
        if self._config.confinement == "required" or greeting.unguarded is None:
            super()._accept(greeting)
        else:
            logger.warning("%s", greeting.unguarded)
