"""The executors in processes that this machine's kernel confines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from autogen_core import Component

from codeact_team.executors.base import ExecutorConfig, SandboxedCodeExecutor
from codeact_team.executors.command_line import CommandLineConfig, ProcessPerBlock
from codeact_team.executors.place import Place
from codeact_team.executors.session import InterpreterCodeExecutor, SessionConfig
from codeact_team.executors.workspace import HostWorkspace, wide_directories
from codeact_team.sandboxes.base import Sandbox
from codeact_team.sandboxes.confined import ConfinedSandbox, ConfinedSandboxConfig
from codeact_team.sandboxes.limits import above_default


class ConfinedExecutorConfig(ConfinedSandboxConfig, ExecutorConfig):
    """Settings of every executor in confined processes, beside those of the sandbox."""


class ConfinedPlace(Place):
    """Confined processes of this machine, in a directory of it.

    Args:
        config: The settings.
    """

    def __init__(self, config: ConfinedExecutorConfig) -> None:
        super().__init__(
            HostWorkspace(config.work_dir), mib=config.workspace_mib, files=config.workspace_files
        )
        self.must_guard = config.confinement == "required"
        self._config = config

    @property
    def loosenings(self) -> Sequence[str]:
        growth = above_default(self._config, "workspace_mib", "workspace_files")
        return [*self._config.loosenings, *growth, *wide_directories({"work_dir": self._config.work_dir})]

    def _make_sandbox(self) -> Sandbox:
        return ConfinedSandbox(
            self._config, workspace=self.workspace.make(), workspace_mib=self._config.workspace_mib
        )

    def host_path(self, file: str) -> str | None:
        return str(self.workspace.path / file)


class ConfinedCommandLineCodeExecutorConfig(ConfinedExecutorConfig, CommandLineConfig):
    """Settings of :class:`ConfinedCommandLineCodeExecutor`."""


class ConfinedCommandLineCodeExecutor(
    SandboxedCodeExecutor, Component[ConfinedCommandLineCodeExecutorConfig]
):
    """Runs each code block as a fresh process of this machine that may write its workspace and nothing else.

    No container and no daemon: Landlock and seccomp of the Linux kernel deny network, other files and other
    processes. What a block leaves running ends with the block.

    Args:
        timeout: Seconds that one code block may take.
        work_dir: Directory that is the code's workspace. Default: a temporary one, removed at the end.
        confinement: ``required`` refuses where the kernel cannot enforce everything; ``best_effort`` goes on with
            what it can, and says so once.
        memory_mib: Memory limit in MiB: altogether where this machine delegates a control group, else for each process.
        pids: How many processes there may be at once.
        cpus: How many processors' worth of time the code may take, where this machine delegates a control group.
        tmpfs_mib: Size of the private temporary directory, in MiB. It counts as memory.
        workspace_mib: How much the workspace may grow, in MiB; ``None`` for no limit.
        workspace_files: How many files may be added to the workspace; ``None`` for no limit.
        readable: More files or directories that the code may read.
        environment: Variables of the code's environment.
        delete_tmp_files: Whether the files that hold the code blocks are deleted after they ran; those that name
            themselves stay.
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
        cpus: float = 1.0,
        tmpfs_mib: int = 256,
        workspace_mib: int | None = 4096,
        workspace_files: int | None = 100_000,
        readable: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        delete_tmp_files: bool = False,
        languages: Mapping[str, str] | None = None,
    ) -> None:
        config = ConfinedCommandLineCodeExecutorConfig(
            timeout=timeout,
            work_dir=None if work_dir is None else str(work_dir),
            confinement=confinement,
            memory_mib=memory_mib,
            pids=pids,
            cpus=cpus,
            tmpfs_mib=tmpfs_mib,
            workspace_mib=workspace_mib,
            workspace_files=workspace_files,
            readable=list(readable),
            environment=dict(environment or {}),
            delete_tmp_files=delete_tmp_files,
            languages=dict(languages or {}),
        )
        super().__init__(config, ConfinedPlace(config), ProcessPerBlock(config))


class ConfinedSessionCodeExecutorConfig(ConfinedExecutorConfig, SessionConfig):
    """Settings of :class:`ConfinedSessionCodeExecutor`."""


class ConfinedSessionCodeExecutor(InterpreterCodeExecutor, Component[ConfinedSessionCodeExecutorConfig]):
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
        memory_mib: Memory limit in MiB: altogether where this machine delegates a control group, else for each process.
        pids: How many processes there may be at once.
        cpus: How many processors' worth of time the code may take, where this machine delegates a control group.
        tmpfs_mib: Size of the private temporary directory, in MiB. It counts as memory.
        workspace_mib: How much the workspace may grow, in MiB; ``None`` for no limit.
        workspace_files: How many files may be added to the workspace; ``None`` for no limit.
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
        cpus: float = 1.0,
        tmpfs_mib: int = 256,
        workspace_mib: int | None = 4096,
        workspace_files: int | None = 100_000,
        readable: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        modules: Mapping[str, str] | None = None,
        setup: str = "",
    ) -> None:
        config = ConfinedSessionCodeExecutorConfig(
            timeout=timeout,
            work_dir=None if work_dir is None else str(work_dir),
            confinement=confinement,
            memory_mib=memory_mib,
            pids=pids,
            cpus=cpus,
            tmpfs_mib=tmpfs_mib,
            workspace_mib=workspace_mib,
            workspace_files=workspace_files,
            readable=list(readable),
            environment=dict(environment or {}),
            modules=dict(modules or {}),
            setup=setup,
        )
        super().__init__(config, ConfinedPlace(config))
