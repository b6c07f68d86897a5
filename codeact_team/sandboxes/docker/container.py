"""From settings to a hardened container, in the engine's terms."""

from __future__ import annotations

import os
import platform
import secrets
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any

from docker.errors import APIError, NotFound
from docker.types import DeviceRequest, LogConfig, Mount, Ulimit
from requests.exceptions import Timeout

from codeact_team.errors import EngineError
from codeact_team.sandboxes.docker.config import DockerSandboxConfig
from codeact_team.sandboxes.docker.engine import Client, translated

WORKSPACE = "/workspace"
NOBODY = "65534:65534"
LABEL = "codeact-team"
"""On every container of ours; its value is the host's name and the process that owns the container."""

_MIB = 1024 * 1024
_INIT = (resources.files(__name__.rpartition(".")[0]) / "init.sh").read_text()
_CONFLICT = 409
_REMOVAL_TIMEOUT = 5
"""Seconds that an engine which removes a container already gets for it."""


def owner_label() -> str:
    """Who owns a container that this process makes."""
    return f"{platform.node()}:{os.getpid()}"


def is_rootless(client: Client, url: str) -> bool:
    """Whether uid 0 in a container is the engine's own unprivileged user."""
    with translated(url):
        options: list[str] = client.info().get("SecurityOptions") or []
    return any(option.startswith("name=rootless") for option in options)


def user_for(directory: Path | None, config: DockerSandboxConfig, *, rootless: bool) -> str:
    """The user of the code: as configured, else the owner of the bound directory, else one who owns nothing."""
    if config.user is not None:
        return config.user
    if directory is None:
        return NOBODY
    if rootless:
        return "0:0"
    status = directory.stat()
    return f"{status.st_uid}:{status.st_gid}"


def create(
    client: Client, config: DockerSandboxConfig, *, user: str, bound: Path | None, word: str, probe: str
) -> str:
    """Create, but do not start, the container. Blocks.

    Args:
        client: The engine.
        config: The settings.
        user: User and group of everything that runs inside.
        bound: Directory to bind at the workspace, as the engine names it; ``None`` for a workspace inside only.
        word: What the line that the first process says begins with.
        probe: Name of a file that must be seen in the workspace, or nothing.

    Returns:
        The container's id.

    Raises:
        EngineError: If the engine refuses.
    """
    arguments: dict[str, Any] = {
        "image": config.image,
        "entrypoint": ["/bin/sh"],
        "command": ["-c", _INIT, "init", word, probe, config.init_command or ""],
        "user": user,
        "working_dir": WORKSPACE,
        "stdin_open": True,
        # attached: the engine closes stdin, and with it the container, when the host process is gone
        "detach": not config.stop_container,
        # /tmp is the one place that is writable whatever the image and the user
        "environment": {"HOME": "/tmp", "PYTHONUNBUFFERED": "1", "PIP_QUIET": "1", **config.environment},
        "labels": {LABEL: owner_label()},
        # the docker command's own configuration may hold a proxy with a password
        "use_config_proxy": False,
    }
    with translated(config.image):
        arguments["host_config"] = client.create_host_config(**_host_config(config, user, bound))
        try:
            return str(client.create_container(name=config.container_name, **arguments)["Id"])
        except APIError as error:
            if config.container_name is None or error.status_code != _CONFLICT:
                raise
            name = f"{config.container_name}-{secrets.token_hex(4)}"
            return str(client.create_container(name=name, **arguments)["Id"])


def end(client: Client, container: str, *, remove: bool) -> None:
    """Kill what runs in a container, and remove it if asked. Blocks until that is done, by whomever."""
    try:
        if remove:
            client.remove_container(container, force=True, v=True)
        else:
            client.kill(container)
    except NotFound:
        pass
    except APIError as error:
        if error.status_code != _CONFLICT:
            raise
        if remove:
            # the engine is at it already; it may be done before this asks, and then some engines never answer
            with suppress(NotFound, Timeout):
                client.wait(container, timeout=_REMOVAL_TIMEOUT, condition="removed")


def is_unshared(error: EngineError, bound: Path | None) -> bool:
    """Whether the engine refused a container because it does not have the bound directory."""
    text = str(error)
    # the second text is Docker Desktop's
    return (
        bound is not None
        and str(bound) in text
        and ("bind source path does not exist" in text or "ounts denied" in text)
    )


def _host_config(config: DockerSandboxConfig, user: str, bound: Path | None) -> dict[str, Any]:
    memory = config.memory_mib * _MIB
    return {
        "network_mode": config.network,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "read_only": config.read_only,
        "mem_limit": memory,
        # equal to mem_limit: no swap on top
        "memswap_limit": memory,
        "nano_cpus": int(config.cpus * 1e9),
        "pids_limit": config.pids,
        "ulimits": [
            Ulimit(name="fsize", soft=config.max_file_mib * _MIB, hard=config.max_file_mib * _MIB),
            Ulimit(name="core", soft=0, hard=0),
        ],
        "tmpfs": _tmpfs(config, user, bound),
        "mounts": _mounts(config, bound),
        "extra_hosts": config.extra_hosts,
        "device_requests": [DeviceRequest(**request) for request in config.device_requests],
        "runtime": config.runtime,
        "auto_remove": config.auto_remove,
        # a block can write to the first process' stdout, and a log on the host has no limit
        "log_config": LogConfig(type="none"),
    }


def _tmpfs(config: DockerSandboxConfig, user: str, bound: Path | None) -> dict[str, str]:
    # exec: a compiled language has to run what it built
    options = f"rw,exec,nosuid,nodev,size={config.tmpfs_mib}m"
    uid, _, gid = user.partition(":")
    owned = f"{options},uid={uid},gid={gid or uid}" if uid.isdigit() and (gid or uid).isdigit() else options
    places = {"/tmp": f"{owned},mode=1777"}
    if bound is None:
        places[WORKSPACE] = f"{owned},mode=0700"
    return places


def _mounts(config: DockerSandboxConfig, bound: Path | None) -> list[Mount]:
    # mounts, not -v: that would make a missing directory of the host, owned by root
    mounts = [] if bound is None else [Mount(target=WORKSPACE, source=str(bound), type="bind")]
    for source, volume in config.extra_volumes.items():
        kind = "bind" if source.startswith(("/", ".", "~")) else "volume"
        path = str(Path(source).expanduser().resolve()) if kind == "bind" else source
        read_only = volume.get("mode", "rw") != "rw"
        mounts.append(Mount(target=volume["bind"], source=path, type=kind, read_only=read_only))
    return mounts
