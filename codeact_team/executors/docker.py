"""The executors in a hardened container."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar, Unpack

from autogen_core import Component
from pydantic import field_validator, model_validator

from codeact_team.errors import SettingError
from codeact_team.execution import ExecutionResult
from codeact_team.executors.base import ExecutorConfig, SandboxedCodeExecutor
from codeact_team.executors.command_line import CommandLineCodeExecutor, CommandLineConfig
from codeact_team.executors.functions import PROMPT_TEMPLATE, Function, format_for_prompt, installation
from codeact_team.executors.session import InterpreterCodeExecutor, SessionConfig
from codeact_team.executors.supervision import Call
from codeact_team.executors.workspace import HostWorkspace
from codeact_team.sandboxes.base import Sandbox
from codeact_team.sandboxes.docker import (
    DockerContainerOptions,
    DockerSandbox,
    DockerSandboxConfig,
    DockerSandboxOptions,
)

logger = logging.getLogger(__name__)

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


_Config = TypeVar("_Config", bound=DockerExecutorConfig)


class InDocker(SandboxedCodeExecutor, Generic[_Config]):
    """An executor whose sandbox is a container. Subclasses set ``_config`` before all else."""

    _config: _Config

    @property
    def loosenings(self) -> Sequence[str]:
        return self._config.loosenings

    @property
    def bind_dir(self) -> Path:
        """The workspace's directory as the engine names it."""
        return self.work_dir if self._config.bind_dir is None else Path(self._config.bind_dir)

    async def _make_sandbox(self) -> Sandbox:
        for loosening in self.loosenings:
            logger.warning("the sandbox is looser than its default: %s", loosening)
        if self._config.workspace == "container":
            return DockerSandbox(self._config)
        return DockerSandbox(
            self._config,
            work_dir=self._workspace.make(),
            bind_dir=None if self._config.bind_dir is None else self.bind_dir.resolve(),
            must_share=self._config.work_dir is not None,
        )

    def _host_path(self, file: str) -> str | None:
        shared = isinstance(self._sandbox, DockerSandbox) and self._sandbox.shared
        return str(self.work_dir / file) if shared else None

    def _to_config(self) -> _Config:
        return self._config.model_copy(deep=True)

    @classmethod
    def _from_config(cls, config: _Config) -> Self:
        return cls(**config.model_dump())


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


class DockerCommandLineCodeExecutor(
    InDocker[DockerCommandLineCodeExecutorConfig],
    CommandLineCodeExecutor,
    Component[DockerCommandLineCodeExecutorConfig],
):
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
        auto_remove: Whether the container is removed when it stops.
        stop_container: Whether the container ends with this process.
        device_requests: Devices for the container, such as GPUs.
        functions: Python functions that the code can import from ``functions_module``.
        functions_module: Name of that module.
        extra_volumes: More directories or volumes: host path to ``{"bind": container path, "mode": "ro" or "rw"}``.
        extra_hosts: More lines of /etc/hosts.
        init_command: Shell command that runs before the first block.
        delete_tmp_files: Whether the files that hold the code blocks are deleted after they ran.
        languages: More languages: label to command.
        **container: See the fields of :class:`~codeact_team.sandboxes.docker.DockerSandboxConfig`.

    Raises:
        ValueError: If a setting is unknown, contradictory or out of range.
    """

    component_config_schema = DockerCommandLineCodeExecutorConfig
    component_provider_override = "codeact_team.DockerCommandLineCodeExecutor"

    FUNCTION_PROMPT_TEMPLATE: ClassVar[str] = PROMPT_TEMPLATE

    def __init__(
        self,
        image: str = "python:3-slim",
        container_name: str | None = None,
        *,
        timeout: int = 60,
        work_dir: Path | str | None = None,
        bind_dir: Path | str | None = None,
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
        self._config = DockerCommandLineCodeExecutorConfig(
            image=image,
            container_name=container_name,
            timeout=timeout,
            work_dir=None if work_dir is None else str(work_dir),
            bind_dir=None if bind_dir is None else str(bind_dir),
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
        super().__init__(self._config, HostWorkspace(self._config.work_dir, owner=_NOBODY))
        self._functions = tuple(functions)

    @property
    def functions(self) -> Sequence[Function]:
        """The functions that the code can import."""
        return self._functions

    @property
    def functions_module(self) -> str:
        """Name of the module they are in."""
        return self._config.functions_module

    def format_functions_for_prompt(self, prompt_template: str = FUNCTION_PROMPT_TEMPLATE) -> str:
        """The functions for a prompt: ``$module_name`` and ``$functions`` (signatures, docstrings) are filled in."""
        return format_for_prompt(self._functions, self.functions_module, prompt_template)

    async def _prepare(self, call: Call) -> None:
        for block, failure in installation(self._functions, self.functions_module):
            result = ExecutionResult(exit_code=0, output="")
            async with aclosing(self._run_all([block], call)) as items:
                async for item in items:
                    if isinstance(item, ExecutionResult):
                        result = item
            if call.stop.done():
                return
            if result.exit_code != 0:
                raise SettingError(f"{failure} {result.output}")
        # not the call's own
        call.files.clear()
        self._prepared = True

    def _to_config(self) -> DockerCommandLineCodeExecutorConfig:
        if self._functions:
            names = ", ".join(getattr(function, "__name__", "function") for function in self._functions)
            raise SettingError(f"functions cannot be written to a config: {names}")
        return super()._to_config()


class DockerSessionCodeExecutorConfig(DockerExecutorConfig, SessionConfig):
    """Settings of :class:`DockerSessionCodeExecutor`."""


class DockerSessionCodeExecutor(
    InDocker[DockerSessionCodeExecutorConfig],
    InterpreterCodeExecutor,
    Component[DockerSessionCodeExecutorConfig],
):
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
        modules: Mapping[str, str] | None = None,
        setup: str = "",
        **container: Unpack[DockerContainerOptions],
    ) -> None:
        self._config = DockerSessionCodeExecutorConfig(
            image=image,
            timeout=timeout,
            work_dir=None if work_dir is None else str(work_dir),
            bind_dir=None if bind_dir is None else str(bind_dir),
            modules=dict(modules or {}),
            setup=setup,
            **container,
        )
        super().__init__(self._config, HostWorkspace(self._config.work_dir, owner=_NOBODY))
