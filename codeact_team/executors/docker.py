"""The executors in a hardened container."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, Unpack

from autogen_core import Component
from pydantic import field_validator, model_validator

from codeact_team.errors import SettingError
from codeact_team.executors.base import ExecutorConfig, SandboxedCodeExecutor
from codeact_team.executors.block_files import DEFAULT_LANGUAGES
from codeact_team.executors.code_runner import Setup
from codeact_team.executors.command_line import CommandLineConfig, ProcessPerBlock
from codeact_team.executors.place import Place
from codeact_team.executors.session import InterpreterCodeExecutor, SessionConfig
from codeact_team.executors.user_functions import (
    PROMPT_TEMPLATE,
    Function,
    format_for_prompt,
    installation,
)
from codeact_team.executors.workspace import HostWorkspace, wide_directories
from codeact_team.sandboxes.base import Sandbox
from codeact_team.sandboxes.docker import (
    DockerContainerOptions,
    DockerSandbox,
    DockerSandboxConfig,
    DockerSandboxOptions,
)
from codeact_team.sandboxes.limits import above_default

_NOBODY = 65534
"""Owns nothing but what is made for the code."""


class DockerExecutorConfig(DockerSandboxConfig, ExecutorConfig):
    """Settings of every executor in a container, beside those of the container."""

    bind_dir: str | None = None
    """The same directory as the engine names it, where this program runs in a container itself."""

    @model_validator(mode="after")
    def _one_workspace(self) -> Self:
        if self.workspace == "container" and (self.work_dir or self.bind_dir):
            raise ValueError(
                "workspace: container has no directory on the host: leave out work_dir and bind_dir"
            )
        return self


class DockerPlace(Place):
    """A container, and as its workspace a directory of this machine unless it is to be in the container.

    Args:
        config: The settings.
    """

    def __init__(self, config: DockerExecutorConfig) -> None:
        super().__init__(
            HostWorkspace(config.work_dir, owner=_NOBODY),
            mib=config.workspace_mib,
            files=config.workspace_files,
        )
        self._config = config

    @property
    def loosenings(self) -> Sequence[str]:
        directories = {"work_dir": self._config.work_dir, "bind_dir": self._config.bind_dir}
        growth = above_default(self._config, "workspace_mib", "workspace_files")
        return (*self._config.loosenings, *growth, *wide_directories(directories))

    @property
    def bind_dir(self) -> Path:
        """The workspace's directory as the engine names it."""
        return self.workspace.path if self._config.bind_dir is None else Path(self._config.bind_dir)

    def _make_sandbox(self) -> Sandbox:
        if self._config.workspace == "container":
            return DockerSandbox(self._config)
        return DockerSandbox(
            self._config,
            work_dir=self.workspace.make(),
            bind_dir=None if self._config.bind_dir is None else self.bind_dir.resolve(),
            must_share=self._config.work_dir is not None,
        )

    def host_path(self, file: str) -> str | None:
        shared = isinstance(self.sandbox, DockerSandbox) and self.sandbox.shared
        return str(self.workspace.path / file) if shared else None


class DockerCommandLineCodeExecutorConfig(DockerExecutorConfig, CommandLineConfig):
    """Settings of :class:`DockerCommandLineCodeExecutor`."""

    functions_module: str = "functions"
    """Name of the module that holds user-defined functions."""

    @field_validator("functions_module")
    @classmethod
    def _identifier(cls, name: str) -> str:
        if not name.isidentifier():
            raise ValueError("Module name must be a valid Python identifier")
        return name


class DockerCommandLineCodeExecutor(SandboxedCodeExecutor, Component[DockerCommandLineCodeExecutorConfig]):
    """Runs each code block as a fresh process in a hardened Docker container.

    A drop-in for AutoGen's class of that name, with the same parameters; those beside AutoGen's are the fields of
    :class:`~codeact_team.sandboxes.docker.DockerSandboxConfig`. The container starts on first use, or by ``start``,
    has no network and no privileges, and ends with this process at the latest. What a block leaves running ends with
    the block.

    Args:
        image: Image with a POSIX shell and what the code needs.
        container_name: Name of the container; a suffix is added where it is taken.
        timeout: Seconds that one code block may take.
        work_dir: Directory of the host that is the code's workspace. Default: a temporary one, removed at the end.
        bind_dir: The same directory as the engine names it.
        workspace_mib: How much a workspace on the host may grow, in MiB; ``None`` for no limit.
        workspace_files: How many files may be added to such a workspace; ``None`` for no limit.
        auto_remove: Whether the container is removed when it stops.
        stop_container: Whether the container ends with this process.
        device_requests: Devices for the container, such as GPUs.
        functions: Python functions that the code can import from ``functions_module``.
        functions_module: Name of that module.
        extra_volumes: More directories or volumes: host path to ``{"bind": container path, "mode": "ro" or "rw"}``.
        extra_hosts: More lines of /etc/hosts.
        init_command: Shell command that runs before the first block.
        delete_tmp_files: Whether the files that hold the code blocks are deleted after they ran; those that name
            themselves stay.
        languages: More languages: label to command.
        **container: See the fields of :class:`~codeact_team.sandboxes.docker.DockerSandboxConfig`.

    Raises:
        ValueError: If a setting is unknown, contradictory or out of range.
    """

    component_config_schema = DockerCommandLineCodeExecutorConfig
    component_provider_override = "codeact_team.DockerCommandLineCodeExecutor"

    SUPPORTED_LANGUAGES: ClassVar[list[str]] = list(DEFAULT_LANGUAGES)
    FUNCTION_PROMPT_TEMPLATE: ClassVar[str] = PROMPT_TEMPLATE

    def __init__(
        self,
        image: str = "python:3-slim",
        container_name: str | None = None,
        *,
        timeout: int = 60,
        work_dir: Path | str | None = None,
        bind_dir: Path | str | None = None,
        workspace_mib: int | None = 4096,
        workspace_files: int | None = 100_000,
        auto_remove: bool = True,
        stop_container: bool = True,
        device_requests: Sequence[Mapping[str, Any]] | None = None,
        functions: Sequence[Function] = (),
        functions_module: str = "functions",
        extra_volumes: dict[str, dict[str, str]] | None = None,
        extra_hosts: dict[str, str] | None = None,
        init_command: str | None = None,
        delete_tmp_files: bool = False,
        languages: Mapping[str, str] | None = None,
        **container: Unpack[DockerSandboxOptions],
    ) -> None:
        config = DockerCommandLineCodeExecutorConfig(
            image=image,
            container_name=container_name,
            timeout=timeout,
            work_dir=None if work_dir is None else str(work_dir),
            bind_dir=None if bind_dir is None else str(bind_dir),
            workspace_mib=workspace_mib,
            workspace_files=workspace_files,
            auto_remove=auto_remove,
            stop_container=stop_container,
            device_requests=[dict(request) for request in device_requests or ()],
            functions_module=functions_module,
            extra_volumes=extra_volumes or {},
            extra_hosts=extra_hosts or {},
            init_command=init_command,
            delete_tmp_files=delete_tmp_files,
            languages=dict(languages or {}),
            **container,
        )
        if work_dir is not None and Path(work_dir).resolve() == Path.cwd():
            warnings.warn(
                "Using the current directory as work_dir is deprecated.", DeprecationWarning, stacklevel=2
            )
        self._functions = tuple(functions)
        self._functions_module = functions_module
        self._docker = DockerPlace(config)
        runner = ProcessPerBlock(config)
        runner.setup += [
            Setup(block, f"{failure} ") for block, failure in installation(functions, functions_module)
        ]
        super().__init__(config, self._docker, runner)

    @property
    def bind_dir(self) -> Path:
        """The workspace's directory as the engine names it."""
        return self._docker.bind_dir

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
        return format_for_prompt(self._functions, self.functions_module, prompt_template)

    def _to_config(self) -> DockerCommandLineCodeExecutorConfig:
        if self._functions:
            names = ", ".join(getattr(function, "__name__", "function") for function in self._functions)
            raise SettingError(f"functions cannot be written to a config: {names}")
        return super()._to_config()


class DockerSessionCodeExecutorConfig(DockerExecutorConfig, SessionConfig):
    """Settings of :class:`DockerSessionCodeExecutor`."""


class DockerSessionCodeExecutor(InterpreterCodeExecutor, Component[DockerSessionCodeExecutorConfig]):
    """Runs Python blocks in one living interpreter in a hardened Docker container, and shell blocks beside it.

    Variables, imports and functions live on from block to block, as in a notebook; shell blocks share their working
    directory and exported variables. The container starts on first use, or by ``start``, has no network and no
    privileges, and ends with this process at the latest. The image needs CPython 3.10 or newer and a POSIX shell.

    Args:
        image: Image with what the code needs.
        timeout: Seconds that one code block may take. It is then interrupted, and variables live on; an interpreter
            that does not notice within a second is replaced.
        work_dir: Directory of the host that is the code's workspace. Default: a temporary one, removed at the end.
        bind_dir: The same directory as the engine names it.
        workspace_mib: How much a workspace on the host may grow, in MiB; ``None`` for no limit.
        workspace_files: How many files may be added to such a workspace; ``None`` for no limit.
        modules: Modules that are there from the start: name in the code to module, such as ``{"np": "numpy"}``.
        setup: Python code that runs in each fresh interpreter before the first block.
        **container: See the fields of :class:`~codeact_team.sandboxes.docker.DockerSandboxConfig`.

    Raises:
        ValueError: If a setting is unknown, contradictory or out of range.
    """

    component_config_schema = DockerSessionCodeExecutorConfig
    component_provider_override = "codeact_team.DockerSessionCodeExecutor"

    def __init__(
        self,
        image: str = "python:3-slim",
        *,
        timeout: int = 60,
        work_dir: Path | str | None = None,
        bind_dir: Path | str | None = None,
        workspace_mib: int | None = 4096,
        workspace_files: int | None = 100_000,
        modules: Mapping[str, str] | None = None,
        setup: str = "",
        **container: Unpack[DockerContainerOptions],
    ) -> None:
        config = DockerSessionCodeExecutorConfig(
            image=image,
            timeout=timeout,
            work_dir=None if work_dir is None else str(work_dir),
            bind_dir=None if bind_dir is None else str(bind_dir),
            workspace_mib=workspace_mib,
            workspace_files=workspace_files,
            modules=dict(modules or {}),
            setup=setup,
            **container,
        )
        self._docker = DockerPlace(config)
        super().__init__(config, self._docker)

    @property
    def bind_dir(self) -> Path:
        """The workspace's directory as the engine names it."""
        return self._docker.bind_dir
