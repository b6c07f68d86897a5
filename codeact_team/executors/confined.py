"""The executors in confined processes of this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autogen_core import Component

from codeact_team.core.settings import takes_settings
from codeact_team.executors.base import SandboxedCodeExecutor
from codeact_team.executors.command_line import CommandLineConfig, ProcessPerBlock
from codeact_team.executors.environment import Environment
from codeact_team.executors.session import InterpreterCodeExecutor, SessionConfig
from codeact_team.executors.settings import ExecutorConfig
from codeact_team.sandbox.base import Sandbox, ZygoteProgram
from codeact_team.sandbox.confined.config import ConfinedSandboxConfig, readable_paths
from codeact_team.sandbox.confined.sandbox import ConfinedSandbox, Enforced
from codeact_team.session.shipping import zygote_program


class ConfinedExecutorConfig(ConfinedSandboxConfig, ExecutorConfig):
    """Settings of every executor in confined processes, beside the sandbox's own."""


class ConfinedEnvironment(Environment):
    """Confined processes of this machine, and a directory of it; the zygote loads ``program``, if given."""

    _config: ConfinedExecutorConfig

    def __init__(self, config: ConfinedExecutorConfig, program: ZygoteProgram | None = None) -> None:
        super().__init__(config)
        self._program = program
        self.must_guard: bool = config.confinement == "required"

    @property
    def relaxations(self) -> Sequence[str]:
        return [*self._config.relaxations, *super().relaxations]

    @property
    def reached(self) -> Sequence[Path]:
        return [*super().reached, *map(Path, readable_paths(self._config.readable))]

    def _make_sandbox(self, packages: Path | None) -> Sandbox:
        return ConfinedSandbox(
            self._config,
            workspace=self.directory.make(),
            is_temporary=not self.directory.lasts,
            workspace_mib=self._config.workspace_mib,
            packages=packages,
            program=self._program,
        )

    def _make_temporary(self, workspace: Path, packages: Path | None = None) -> Sandbox:
        return ConfinedSandbox(self._config, workspace=workspace, packages=packages)

    @property
    def has_network(self) -> bool | None:
        # a kernel may lack what denies it
        return False if self._config.confinement == "required" else None

    @property
    def is_contained(self) -> bool:
        needed = {Enforced.NETWORK, Enforced.WRITES}
        is_closed = isinstance(self.sandbox, ConfinedSandbox) and needed <= self.sandbox.enforced
        return is_closed and super().is_contained

    @property
    def memory_mib(self) -> int:
        return self._config.memory_mib

    def host_path(self, file: str) -> str | None:
        return str(self.directory.path / file)


class ConfinedCommandLineCodeExecutorConfig(ConfinedExecutorConfig, CommandLineConfig):  # noqa: D101 - editors show that of the class with these settings
    pass


class ConfinedCommandLineCodeExecutor(
    SandboxedCodeExecutor, Component[ConfinedCommandLineCodeExecutorConfig]
):
    """Runs each code block as a fresh process of this machine that may write its workspace and nothing else.

    No container and no daemon: Landlock and seccomp of the Linux kernel deny network, other files and other
    processes. Processes that a block leaves running end with the block.

    Raises:
        ValueError: If a setting is out of range.
    """

    component_config_schema = ConfinedCommandLineCodeExecutorConfig
    component_provider_override = "codeact_team.ConfinedCommandLineCodeExecutor"

    @takes_settings(ConfinedCommandLineCodeExecutorConfig)
    def __init__(self, config: ConfinedCommandLineCodeExecutorConfig) -> None:  # noqa: D417 - the settings are its parameters
        """Runs each code block as a fresh process of this machine that may write its workspace and nothing else.

        Args:
            timeout: Seconds that one code block may take.
            work_dir: Directory of the host that is the code's workspace; made if missing. Default: a
                temporary one.
            workspace_mib: The most MiB by which a workspace on the host may grow from the start on; counted
                about every second.
            workspace_files: The most files, directories among them, that may be added to such a workspace.
            packages: Python packages that the code can import, such as `matplotlib>=3.8`. This machine gets
                them, as wheels, and nothing of them runs here; the sandbox needs no network for them.
            packages_file: A requirements file, or a lock such as pylock.toml, with such packages.
            data: Files and directories of the host, such as `sales.csv`, of which the workspace gets copies
                before the first block. The originals are never changed. Hidden files in a directory are left
                out. The packages that read Excel and parquet files are added to `packages`.
            egress: The hosts that code may reach, by rules, of which the first that fits decides; what none
                fits is denied. A text, such as `pypi.org`, is a host that is allowed. `report` denies all,
                and lists what was asked for. Default: no network.
            credentials: Keys of this machine that go along with requests to the hosts of `egress` that are
                theirs. The code never has them.
            extra_ca: Files with certificates, in PEM, by which servers may prove who they are, beside those
                that this machine trusts.
            delete_tmp_files: Whether the files that hold the code blocks are deleted as soon as these have
                run; `false` keeps them for good. Default: they are deleted when the executor stops. Those
                that name themselves stay.
            languages: More languages: label to command, which gets the block's file as its last argument.
            confinement: Whether to refuse if the kernel cannot enforce everything, or to continue with what
                it can enforce, and warn.
            memory_mib: Memory limit in MiB: for all processes together if this machine delegates a control
                group, else for each.
            pids: The most processes at once; threads count as well, except where namespaces are forbidden.
            cpus: The processors whose time the code may take, such as 0.5, if this machine delegates a
                control group.
            tmpfs_mib: Size of the private temporary directory and `/tmp` together, in MiB. It counts as
                memory.
            readable: More files or directories of this machine that the code may read.
            shared_memory: Whether the code may use the machine's `/dev/shm`, where locks and queues of
                `multiprocessing` are, if its sandbox has none. It has none where namespaces are forbidden and
                it runs as the user of this program, whose programs all share it.
            environment: Variables of the code's environment. The code can read them all: no place for
                secrets.
        """
        super().__init__(config, ConfinedEnvironment(config), ProcessPerBlock(config))


class ConfinedSessionCodeExecutorConfig(ConfinedExecutorConfig, SessionConfig):  # noqa: D101 - editors show that of the class with these settings
    pass


class ConfinedSessionCodeExecutor(InterpreterCodeExecutor, Component[ConfinedSessionCodeExecutorConfig]):
    """Runs Python blocks in one living interpreter of this machine that may write its workspace and nothing else.

    Variables, imports and functions live on from block to block, as in a notebook; shell blocks share their working
    directory and exported variables. A block whose time is over is interrupted, and variables live on; an interpreter
    that does not notice within a second is replaced.

    No container and no daemon: Landlock and seccomp of the Linux kernel deny network, other files and other processes.
    The interpreter is this program's own, with its packages.

    Raises:
        ValueError: If a setting is out of range.
    """

    component_config_schema = ConfinedSessionCodeExecutorConfig
    component_provider_override = "codeact_team.ConfinedSessionCodeExecutor"

    @takes_settings(ConfinedSessionCodeExecutorConfig)
    def __init__(self, config: ConfinedSessionCodeExecutorConfig) -> None:  # noqa: D417 - the settings are its parameters
        """Runs Python blocks in one living interpreter of this machine that may write its workspace and nothing else.

        Args:
            timeout: Seconds that one code block may take.
            work_dir: Directory of the host that is the code's workspace; made if missing. Default: a
                temporary one.
            workspace_mib: The most MiB by which a workspace on the host may grow from the start on; counted
                about every second.
            workspace_files: The most files, directories among them, that may be added to such a workspace.
            packages: Python packages that the code can import, such as `matplotlib>=3.8`. This machine gets
                them, as wheels, and nothing of them runs here; the sandbox needs no network for them.
            packages_file: A requirements file, or a lock such as pylock.toml, with such packages.
            data: Files and directories of the host, such as `sales.csv`, of which the workspace gets copies
                before the first block. The originals are never changed. Hidden files in a directory are left
                out. The packages that read Excel and parquet files are added to `packages`.
            egress: The hosts that code may reach, by rules, of which the first that fits decides; what none
                fits is denied. A text, such as `pypi.org`, is a host that is allowed. `report` denies all,
                and lists what was asked for. Default: no network.
            credentials: Keys of this machine that go along with requests to the hosts of `egress` that are
                theirs. The code never has them.
            extra_ca: Files with certificates, in PEM, by which servers may prove who they are, beside those
                that this machine trusts.
            modules: Modules that are there from the start: name in the code to module, such as `np: numpy`.
            setup: Python code that runs in each fresh interpreter before the first block.
            confinement: Whether to refuse if the kernel cannot enforce everything, or to continue with what
                it can enforce, and warn.
            memory_mib: Memory limit in MiB: for all processes together if this machine delegates a control
                group, else for each.
            pids: The most processes at once; threads count as well, except where namespaces are forbidden.
            cpus: The processors whose time the code may take, such as 0.5, if this machine delegates a
                control group.
            tmpfs_mib: Size of the private temporary directory and `/tmp` together, in MiB. It counts as
                memory.
            readable: More files or directories of this machine that the code may read.
            shared_memory: Whether the code may use the machine's `/dev/shm`, where locks and queues of
                `multiprocessing` are, if its sandbox has none. It has none where namespaces are forbidden and
                it runs as the user of this program, whose programs all share it.
            environment: Variables of the code's environment. The code can read them all: no place for
                secrets.
        """
        super().__init__(config, ConfinedEnvironment(config, zygote_program()))
