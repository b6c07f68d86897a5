"""The executors in a container."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from string import Template
from typing import Annotated, Any, ClassVar, Self, TypeAlias

from autogen_core import Component
from autogen_core.code_executor import FunctionWithRequirements, FunctionWithRequirementsStr
from pydantic import Field, field_validator, model_validator

from codeact_team.core.autogen_internals import build_python_functions_file, to_stub
from codeact_team.core.settings import read_as, takes_settings
from codeact_team.errors import SettingError
from codeact_team.executors.base import SandboxedCodeExecutor
from codeact_team.executors.command_line import DEFAULT_LANGUAGES, CommandLineConfig, ProcessPerBlock
from codeact_team.executors.environment import Environment
from codeact_team.executors.running import Setup
from codeact_team.executors.session import InterpreterCodeExecutor, SessionConfig
from codeact_team.executors.settings import ExecutorConfig, HostDirectory
from codeact_team.executors.workspace.container_files import ContainerFiles
from codeact_team.executors.workspace.directory import wide_directories
from codeact_team.executors.workspace.files import WorkspaceFiles
from codeact_team.executors.workspace.workspace import Location
from codeact_team.files.opening import resolved
from codeact_team.sandbox.base import Sandbox
from codeact_team.sandbox.docker.config import DockerSandboxConfig
from codeact_team.sandbox.docker.sandbox import DockerSandbox
from codeact_team.sandbox.users import private_user

Function: TypeAlias = FunctionWithRequirements[Any, ...] | FunctionWithRequirementsStr | Callable[..., Any]


def _installation(functions: Sequence[Function], module: str) -> Iterator[Setup]:
    """The setup that installs ``functions`` as ``module`` in a workspace."""
    if not functions:
        return
    packages = sorted(
        {
            package
            for function in functions
            if isinstance(function, FunctionWithRequirements | FunctionWithRequirementsStr)
            for package in function.python_packages
        }
    )
    if packages:
        command = f"python3 -m pip install --user {shlex.join(packages)}"
        failure = (
            f"Pip install failed. The functions need {', '.join(packages)}: use an image that has them, or a network "
            "from which an index can be reached. "
        )
        yield Setup("sh", command, failure)
    source = f"# filename: {module}.py\n{build_python_functions_file(functions)}"
    yield Setup("python", source, "Functions failed to load: ")


class DockerExecutorConfig(DockerSandboxConfig, ExecutorConfig):
    """Settings of every executor in a container, beside the container's own."""

    bind_dir: HostDirectory = None
    """The same directory as the engine names it, where this program runs in a container itself."""

    @model_validator(mode="after")
    def _one_network(self) -> Self:
        if self.egress is not None and self.network != "none":
            raise ValueError(
                f"egress says what code may reach, and network: {self.network} lets it reach everything: leave one of them out"
            )
        return self

    @model_validator(mode="after")
    def _one_workspace(self) -> Self:
        if self.workspace == "container" and (self.work_dir or self.bind_dir):
            raise ValueError(
                "workspace: container has no directory on the host: leave out work_dir and bind_dir"
            )
        return self


class _DockerEnvironment(Environment):
    """A container. Its workspace is a directory of this machine, or in the container."""

    _config: DockerExecutorConfig

    def __init__(self, config: DockerExecutorConfig) -> None:
        super().__init__(config, owner=private_user())

    @property
    def _is_inside(self) -> bool:
        return self._config.workspace == "container"

    @property
    def relaxations(self) -> Sequence[str]:
        bound = wide_directories({"bind_dir": self._config.bind_dir})
        return (*self._config.relaxations, *super().relaxations, *bound)

    @property
    def writable(self) -> Sequence[Path]:
        return [*super().writable, *(path for path, mode in self._config.bound.items() if mode == "rw")]

    @property
    def reached(self) -> Sequence[Path]:
        return [*super().reached, *self._config.bound]

    @property
    def bound_to(self) -> str | None:
        if self._config.container_name is not None:
            return f"container_name: {self._config.container_name}"
        if not (self._config.auto_remove and self._config.stop_container):
            return "auto_remove: false" if self._config.stop_container else "stop_container: false"
        if self._config.bind_dir is not None:
            return f"bind_dir: {self._config.bind_dir}"
        return super().bound_to

    @property
    def bind_dir(self) -> Path:
        """The workspace's directory as the engine names it."""
        return self.directory.path if self._config.bind_dir is None else Path(self._config.bind_dir)

    def _make_sandbox(self, packages: Path | None) -> Sandbox:
        if self._is_inside:
            return DockerSandbox(self._config, packages=packages)
        return DockerSandbox(
            self._config,
            packages=packages,
            work_dir=self.directory.make(),
            bind_dir=None if self._config.bind_dir is None else self.bind_dir.absolute(),
            must_share=self._config.work_dir is not None,
        )

    def _make_temporary(self, workspace: Path, packages: Path | None = None) -> Sandbox:
        passing = {"container_name": None, "auto_remove": True, "stop_container": True}
        return DockerSandbox(self._config.model_copy(update=passing), packages=packages)

    @property
    def has_network(self) -> bool:
        return self._config.network != "none"

    @property
    def is_contained(self) -> bool:
        volumes = self._config.extra_volumes.values()
        return (
            not self.has_network
            and super().is_contained
            and all(volume.get("mode", "rw") == "ro" for volume in volumes)
        )

    @property
    def memory_mib(self) -> int:
        return self._config.memory_mib

    def _room(self) -> tuple[int | None, str]:
        return (self._config.tmpfs_mib, "tmpfs_mib") if self._is_inside else super()._room()

    def _disk(self) -> Path | None:
        return None if self._is_inside else super()._disk()

    def _files(self) -> WorkspaceFiles:
        sandbox = self.sandbox
        if isinstance(sandbox, DockerSandbox) and not sandbox.shared:
            return ContainerFiles(sandbox.spawn_beside, is_empty=self._config.init_command is None)
        return super()._files()

    def location(self) -> Location:
        is_shared = not isinstance(self.sandbox, DockerSandbox) or self.sandbox.shared
        return super().location() if is_shared and not self._is_inside else Location(None)

    def host_path(self, file: str) -> str | None:
        shared = isinstance(self.sandbox, DockerSandbox) and self.sandbox.shared
        return str(self.directory.path / file) if shared else None


class DockerCommandLineCodeExecutorConfig(DockerExecutorConfig, CommandLineConfig):  # noqa: D101 - editors show that of the class with these settings
    functions_module: str = "functions"
    """Name of the module that holds user-defined functions."""

    @field_validator("functions_module")
    @classmethod
    def _identifier(cls, name: str) -> str:
        if not name.isidentifier():
            raise ValueError("Module name must be a valid Python identifier")
        return name


class DockerCommandLineCodeExecutorSettings(DockerCommandLineCodeExecutorConfig):  # noqa: D101 - editors show that of the class with these settings
    # no config can have it
    functions: Annotated[Sequence[Function], read_as(tuple[Any, ...])] = Field(default=(), exclude=True)
    """Python functions that the code can import from ``functions_module``."""


class DockerCommandLineCodeExecutor(SandboxedCodeExecutor, Component[DockerCommandLineCodeExecutorConfig]):
    """Runs each code block as a fresh process in a hardened Docker container.

    A drop-in for AutoGen's class of that name, with the same parameters and more. The container starts on first use, or
    by ``start``, has no network and no privileges, and ends with this process at the latest. Processes that a block
    leaves running end with the block.

    Raises:
        ValueError: If a setting is contradictory or out of range.
    """

    component_config_schema = DockerCommandLineCodeExecutorConfig
    component_provider_override = "codeact_team.DockerCommandLineCodeExecutor"
    _environment: _DockerEnvironment

    SUPPORTED_LANGUAGES: ClassVar[list[str]] = list(DEFAULT_LANGUAGES)
    FUNCTION_PROMPT_TEMPLATE: ClassVar[str] = (
        "The following functions are defined in the module `$module_name`; import them, as in "
        "`from $module_name import name`.\n\n$functions"
    )

    @takes_settings(DockerCommandLineCodeExecutorSettings)
    def __init__(self, config: DockerCommandLineCodeExecutorSettings) -> None:  # noqa: D417 - the settings are its parameters
        """Runs each code block as a fresh process in a hardened Docker container.

        Args:
            image: Image with a POSIX shell and what the code needs; nothing else is required of it.
            container_name: Name of the container; a suffix is added if it is taken. Default: a name made up
                by the engine.
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
            pull: When to pull the image from its registry.
            workspace: Where the code's files live: in a directory of the host that is bound into the
                container, or inside it only.
            network: The container's network: `none`, or the name of a network of the engine, such as
                `bridge`.
            memory_mib: Memory limit, swap included, in MiB.
            cpus: The processors whose time the code may take, such as 0.5.
            pids: The most processes and threads at once.
            unenforced_limits: Limits among `memory_mib`, `cpus` and `pids` that an engine need not enforce. A
                process then has `memory_mib` for its data, and its user `pids` processes; 1024 more where the
                code has the user of a rootless engine, which are counted with it. Default: an engine that
                cannot enforce one is refused.
            user: User and group, `uid:gid`. Default: the owner of a bound work directory, else one of the
                sandbox's own.
            read_only: Whether the root file system is read-only. The workspace and /tmp are writable in any
                case.
            tmpfs_mib: Size of /tmp, and of a workspace inside the container, in MiB. Both count as memory.
            max_file_mib: Size of the largest file the code may write, in MiB.
            environment: Variables of the code's environment. The code can read them all: no place for
                secrets.
            extra_volumes: More directories or volumes: host path to `{bind: container path, mode: ro or rw}`.
            extra_hosts: More lines of /etc/hosts: name to address.
            device_requests: Devices, as Docker's API names them: `{Driver: nvidia, Count: -1, Capabilities:
                [[gpu]]}`.
            runtime: Another OCI runtime of the engine, such as `runsc`.
            init_command: Shell command that runs in the workspace before the first block, as the same user
                and under the same limits.
            auto_remove: Whether the container is removed when it stops.
            stop_container: Whether the container ends with the process that started it, however that ends.
            bind_dir: The same directory as the engine names it, where this program runs in a container
                itself.
            functions_module: Name of the module that holds user-defined functions.
            functions: Python functions that the code can import from ``functions_module``.
        """
        if config.work_dir is not None and resolved(config.work_dir) == Path.cwd():
            warnings.warn(
                "Using the current directory as work_dir is deprecated.", DeprecationWarning, stacklevel=3
            )
        self._functions = config.functions
        self._functions_module = config.functions_module
        runner = ProcessPerBlock(config)
        runner.setup += _installation(config.functions, config.functions_module)
        super().__init__(config, _DockerEnvironment(config), runner)

    @property
    def bind_dir(self) -> Path:
        """The workspace's directory as the engine names it."""
        return self._environment.bind_dir

    @property
    def functions(self) -> Sequence[Function]:
        """The functions that the code can import."""
        return self._functions

    @property
    def functions_module(self) -> str:
        """Name of the module they are in."""
        return self._functions_module

    def format_functions_for_prompt(self, prompt_template: str = FUNCTION_PROMPT_TEMPLATE) -> str:
        """The functions for a prompt: ``$module_name`` and ``$functions`` (signatures, docstrings) are filled in."""
        stubs = "\n\n".join(map(to_stub, self._functions))
        return Template(prompt_template).substitute(module_name=self._functions_module, functions=stubs)

    def _to_config(self) -> DockerCommandLineCodeExecutorConfig:
        if self._functions:
            names = ", ".join(getattr(function, "__name__", "function") for function in self._functions)
            raise SettingError(f"functions cannot be written to a config: {names}")
        return super()._to_config()


class DockerSessionCodeExecutorConfig(DockerExecutorConfig, SessionConfig):  # noqa: D101 - editors show that of the class with these settings
    pass


class DockerSessionCodeExecutor(InterpreterCodeExecutor, Component[DockerSessionCodeExecutorConfig]):
    """Runs Python blocks in one living interpreter in a hardened Docker container, and shell blocks beside it.

    Variables, imports and functions live on from block to block, as in a notebook; shell blocks share their working
    directory and exported variables. A block whose time is over is interrupted, and variables live on; an interpreter
    that does not notice within a second is replaced.

    The container starts on first use, or by ``start``, has no network and no privileges, and ends with this process at
    the latest. The image needs CPython 3.10 or newer and a POSIX shell.

    Raises:
        ValueError: If a setting is contradictory or out of range.
    """

    component_config_schema = DockerSessionCodeExecutorConfig
    component_provider_override = "codeact_team.DockerSessionCodeExecutor"
    _environment: _DockerEnvironment

    @takes_settings(DockerSessionCodeExecutorConfig)
    def __init__(self, config: DockerSessionCodeExecutorConfig) -> None:  # noqa: D417 - the settings are its parameters
        """Runs Python blocks in one living interpreter in a hardened Docker container, and shell blocks beside it.

        Args:
            image: Image with a POSIX shell and what the code needs; nothing else is required of it.
            container_name: Name of the container; a suffix is added if it is taken. Default: a name made up
                by the engine.
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
            pull: When to pull the image from its registry.
            workspace: Where the code's files live: in a directory of the host that is bound into the
                container, or inside it only.
            network: The container's network: `none`, or the name of a network of the engine, such as
                `bridge`.
            memory_mib: Memory limit, swap included, in MiB.
            cpus: The processors whose time the code may take, such as 0.5.
            pids: The most processes and threads at once.
            unenforced_limits: Limits among `memory_mib`, `cpus` and `pids` that an engine need not enforce. A
                process then has `memory_mib` for its data, and its user `pids` processes; 1024 more where the
                code has the user of a rootless engine, which are counted with it. Default: an engine that
                cannot enforce one is refused.
            user: User and group, `uid:gid`. Default: the owner of a bound work directory, else one of the
                sandbox's own.
            read_only: Whether the root file system is read-only. The workspace and /tmp are writable in any
                case.
            tmpfs_mib: Size of /tmp, and of a workspace inside the container, in MiB. Both count as memory.
            max_file_mib: Size of the largest file the code may write, in MiB.
            environment: Variables of the code's environment. The code can read them all: no place for
                secrets.
            extra_volumes: More directories or volumes: host path to `{bind: container path, mode: ro or rw}`.
            extra_hosts: More lines of /etc/hosts: name to address.
            device_requests: Devices, as Docker's API names them: `{Driver: nvidia, Count: -1, Capabilities:
                [[gpu]]}`.
            runtime: Another OCI runtime of the engine, such as `runsc`.
            init_command: Shell command that runs in the workspace before the first block, as the same user
                and under the same limits.
            auto_remove: Whether the container is removed when it stops.
            stop_container: Whether the container ends with the process that started it, however that ends.
            bind_dir: The same directory as the engine names it, where this program runs in a container
                itself.
        """
        super().__init__(config, _DockerEnvironment(config))

    @property
    def bind_dir(self) -> Path:
        """The workspace's directory as the engine names it."""
        return self._environment.bind_dir
