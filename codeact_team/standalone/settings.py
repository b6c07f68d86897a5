"""The settings of a sandbox as a type checker and an editor know them: those of the executors, which a test compares."""

from __future__ import annotations

import os
from typing import Any, Literal, TypedDict


class CommonSettings(TypedDict, total=False):
    """Settings that every sandbox has."""

    timeout: int
    work_dir: str | os.PathLike[str] | None
    workspace_mib: int | None
    workspace_files: int | None
    packages: list[str]
    packages_file: str | os.PathLike[str] | None
    data: list[str | os.PathLike[str]]
    modules: dict[str, str]
    setup: str
    memory_mib: int
    pids: int
    cpus: float
    tmpfs_mib: int
    environment: dict[str, str]


class ConfinedSettings(CommonSettings, total=False):
    """Settings of a sandbox of processes that Linux confines, as of :class:`ConfinedSessionCodeExecutorConfig`."""

    confinement: Literal["required", "best_effort"]
    readable: list[str]
    shared_memory: bool


class DockerSettings(CommonSettings, total=False):
    """Settings of a sandbox in a container, as of :class:`DockerSessionCodeExecutorConfig`."""

    image: str
    bind_dir: str | os.PathLike[str] | None
    container_name: str | None
    pull: Literal["missing", "always", "never"]
    workspace: Literal["host", "container"]
    network: str
    unenforced_limits: list[Literal["memory_mib", "cpus", "pids"]]
    user: str | None
    read_only: bool
    max_file_mib: int
    extra_volumes: dict[str, dict[str, str]]
    extra_hosts: dict[str, str]
    device_requests: list[dict[str, Any]]
    runtime: str | None
    init_command: str | None
    auto_remove: bool
    stop_container: bool
