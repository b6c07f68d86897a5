"""Settings of a container that runs hostile code: safe by default, with a field for every relaxation."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypeAlias

from docker.types import DeviceRequest
from pydantic import BaseModel, ConfigDict, Field, field_validator

from codeact_team.sandbox.base import Cause, Limits, above_default
from codeact_team.sandbox.users import is_root

LimitField: TypeAlias = Literal["memory_mib", "cpus", "pids"]
"""The setting of a limit that takes a control group."""

_DEVICE_KEYS = frozenset({"Driver", "Count", "DeviceIDs", "Capabilities", "Options"})


def is_host_path(source: str) -> bool:
    """Whether the source of a volume is a path of the host and not the name of a volume."""
    return source.startswith(("/", ".", "~"))


class DockerSandboxConfig(BaseModel):
    """Settings of the container. Memory and sizes are in MiB."""

    model_config = ConfigDict(extra="forbid")

    # positional as well, as in AutoGen's executor
    image: str = Field(default="python:3-slim", kw_only=False)
    """Image with a POSIX shell and what the code needs; nothing else is required of it."""
    container_name: str | None = Field(default=None, kw_only=False)
    """Name of the container; a suffix is added if it is taken. Default: a name made up by the engine."""
    pull: Literal["missing", "always", "never"] = "missing"
    """When to pull the image from its registry."""
    workspace: Literal["host", "container"] = "host"
    """Where the code's files live: in a directory of the host that is bound into the container, or inside it only."""
    network: str = "none"
    """The container's network: `none`, or the name of a network of the engine, such as `bridge`."""
    memory_mib: int = Field(default=1024, ge=16)
    """Memory limit, swap included, in MiB."""
    cpus: float = Field(default=1.0, gt=0)
    """The processors whose time the code may take, such as 0.5."""
    pids: int = Field(default=256, ge=8)
    """The most processes and threads at once."""
    unenforced_limits: list[LimitField] = Field(default_factory=list[LimitField])
    """Limits among `memory_mib`, `cpus` and `pids` that an engine need not enforce. A process then has `memory_mib` for its
    data, and its user `pids` processes; 1024 more where the code has the user of a rootless engine, which are counted with it.
    Default: an engine that cannot enforce one is refused."""
    user: str | None = None
    """User and group, `uid:gid`. Default: the owner of a bound work directory, else one of the sandbox's own."""
    read_only: bool = True
    """Whether the root file system is read-only. The workspace and /tmp are writable in any case."""
    tmpfs_mib: int = Field(default=256, ge=1)
    """Size of /tmp, and of a workspace inside the container, in MiB. Both count as memory."""
    max_file_mib: int = Field(default=1024, ge=1)
    """Size of the largest file the code may write, in MiB."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables of the code's environment. The code can read them all: no place for secrets."""
    extra_volumes: dict[str, dict[str, str]] = Field(default_factory=dict)
    """More directories or volumes: host path to `{bind: container path, mode: ro or rw}`."""
    extra_hosts: dict[str, str] = Field(default_factory=dict)
    """More lines of /etc/hosts: name to address."""
    device_requests: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]])
    """Devices, as Docker's API names them: `{Driver: nvidia, Count: -1, Capabilities: [[gpu]]}`."""
    runtime: str | None = None
    """Another OCI runtime of the engine, such as `runsc`."""
    init_command: str | None = None
    """Shell command that runs in the workspace before the first block, as the same user and under the same limits."""
    auto_remove: bool = True
    """Whether the container is removed when it stops."""
    stop_container: bool = True
    """Whether the container ends with the process that started it, however that ends."""

    @field_validator("extra_volumes")
    @classmethod
    def _volumes(cls, volumes: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
        for source, volume in volumes.items():
            # a misspelt mode must not become a writable directory
            if set(volume) - {"mode"} != {"bind"} or volume.get("mode", "rw") not in ("ro", "rw"):
                raise ValueError(
                    f"{source!r} needs {{bind: a path in the container, mode: ro or rw}}, not {volume}"
                )
        return volumes

    @field_validator("device_requests")
    @classmethod
    def _devices(cls, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for request in requests:
            if unknown := set(request) - _DEVICE_KEYS:
                raise ValueError(f"unknown keys {sorted(unknown)}; there are {sorted(_DEVICE_KEYS)}")
            # raises ValueError where a value has the wrong type
            DeviceRequest(**request)
        return requests

    @property
    def limits(self) -> Limits:
        """The limits in force, by the config field that sets each."""
        limits = {
            Cause.MEMORY: f"memory_mib: {self.memory_mib}",
            Cause.PROCESSES: f"pids: {self.pids}",
            Cause.DISK: f"tmpfs_mib: {self.tmpfs_mib}, max_file_mib: {self.max_file_mib}",
            Cause.FILES: f"user: {self.user or 'the owner of the work directory'}",
        }
        if self.network == "none":
            limits[Cause.NETWORK] = "network: none"
        if self.read_only:
            limits[Cause.READ_ONLY] = "read_only: true; only the workspace and /tmp can be written"
        return limits

    @property
    def bound(self) -> dict[Path, str]:
        """The directories of the host that the code can reach beside the workspace, each with its mode."""
        return {
            Path(source).expanduser(): volume.get("mode", "rw")
            for source, volume in self.extra_volumes.items()
            if is_host_path(source)
        }

    @property
    def relaxations(self) -> tuple[str, ...]:
        """Each field that grants more than its default, as ``field: value``."""
        fields = type(self).model_fields
        found = [
            f"{name}: {getattr(self, name)}"
            for name in (
                "network",
                "read_only",
                "stop_container",
                "unenforced_limits",
                "extra_volumes",
                "device_requests",
            )
            if getattr(self, name) != fields[name].get_default(call_default_factory=True)
        ]
        found += above_default(self, "memory_mib", "cpus", "pids", "tmpfs_mib", "max_file_mib")
        if self.user is not None and is_root(self.user):
            found.append(f"user: {self.user}")
        return tuple(found)
