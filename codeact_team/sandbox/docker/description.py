"""Describes an engine by its own account: which limits it enforces, and how it differs from others."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from docker.errors import APIError

from codeact_team.sandbox.docker.config import DockerSandboxConfig, LimitField
from codeact_team.sandbox.docker.engine import Client, translated

_INFO: dict[LimitField, str] = {"memory_mib": "MemoryLimit", "cpus": "CpuCfsQuota", "pids": "PidsLimit"}
_CONTROLLERS: dict[LimitField, str] = {"memory_mib": "memory", "cpus": "cpu", "pids": "pids"}
_PODMAN_INFO = "/v4.0.0/libpod/info"
_GO_NAMES = {"amd64": "x86_64", "arm64": "aarch64"}

_KNOWN_SECONDS = 60.0
"""For so long, what an engine says is taken to be as it was: to ask costs a good part of a container's start."""
_known: dict[str, tuple[float, EngineDescription]] = {}
"""Engines by address, each with when it was asked."""


@dataclass(frozen=True)
class EngineDescription:
    """An engine.

    Attributes:
        product: Docker, or what else serves Docker's API.
        version: Its version.
        system: The operating system of its machine.
        architecture: The processors of its machine.
        is_rootless: Whether it runs as a normal user, whose user namespace its containers are in.
        maps_users: Whether its containers are in a user namespace, with other user ids than its machine has.
        cgroup_version: The version of the control groups, ``"1"`` or ``"2"``.
        unenforced: The limits that it cannot enforce.
        counts_swap: Whether its limit of memory includes swap.
        filters_calls: Whether it filters system calls at all.
        default_runtime: The name of the runtime that it uses by default.
    """

    product: Literal["Docker", "Podman"]
    version: str
    system: str
    architecture: str
    is_rootless: bool
    maps_users: bool
    cgroup_version: str
    unenforced: Sequence[LimitField]
    counts_swap: bool
    filters_calls: bool
    default_runtime: str

    @property
    def is_podman(self) -> bool:
        return self.product == "Podman"

    @property
    def ignores_limits(self) -> bool:
        """Whether it ignores the limits of single processes, as a Podman does that is rootless and asked as Docker is."""
        return self.is_podman and self.is_rootless

    @property
    def may_start_outside(self) -> bool:
        """Whether the programs that it starts in a container may be outside the container's control group.

        A rootless Docker of a login session cannot move them there, and does not say so.
        """
        return self.is_rootless and not self.is_podman and self.cgroup_version == "2"

    def is_gvisor(self, runtime: str | None) -> bool:
        """Whether a runtime, ``None`` for the default one, is gVisor's."""
        return "runsc" in (runtime or self.default_runtime)

    @property
    def remedy(self) -> str:
        """Advice that lets its machine enforce all limits."""
        if self.cgroup_version == "1" and self.is_rootless:
            return (
                "a rootless engine needs control groups v2 (boot with `systemd.unified_cgroup_hierarchy=1`)"
            )
        if self.is_rootless:
            return (
                "have systemd delegate the controllers to its user (`Delegate=cpu memory pids` in a drop-in for "
                "user@.service)"
            )
        return "boot its machine with these control groups (`cgroup_enable=memory`)"

    def __str__(self) -> str:
        kind = "rootless" if self.is_rootless else "not rootless"
        return f"{self.product} {self.version}, {kind}, control groups v{self.cgroup_version}"


def describe(client: Client, url: str) -> EngineDescription:
    """The engine at ``url``, as it was within the last minute. Blocks. Raises an ``EngineError``."""
    asked, known = _known.get(url, (0.0, None))
    # Podman asks all its runtimes, and what they say stays as it is
    if known is not None and (known.is_podman or time.monotonic() - asked < _KNOWN_SECONDS):
        return known
    with translated(url):
        info: dict[str, Any] = client.info()
        # only Podman's libraries know it
        is_podman = "BuildahVersion" in info
        options = {option.partition(",")[0] for option in info.get("SecurityOptions") or ()}
        # Podman 4.3 says it in one place, Docker in the other
        is_rootless = bool(info.get("Rootless")) or "name=rootless" in options
        delegated = _delegated(client) if is_podman and is_rootless else None
    machine = str(info.get("Architecture", ""))
    found = EngineDescription(
        product="Podman" if is_podman else "Docker",
        version=str(info.get("ServerVersion", "")),
        system=str(info.get("OperatingSystem", "")),
        architecture=_GO_NAMES.get(machine, machine),
        is_rootless=is_rootless,
        maps_users=is_rootless or "name=userns" in options,
        cgroup_version=str(info.get("CgroupVersion", "unknown")),
        unenforced=_unenforced(info, delegated),
        counts_swap=bool(info.get("SwapLimit")),
        filters_calls="name=seccomp" in options,
        default_runtime=str(info.get("DefaultRuntime", "")),
    )
    _known[url] = time.monotonic(), found
    return found


def _delegated(client: Client) -> Sequence[str]:
    """The controllers that a rootless Podman may use: its Docker-like answer has the machine's."""
    return client.get(f"{client.base_url}{_PODMAN_INFO}").json()["host"].get("cgroupControllers") or ()


def _unenforced(info: Mapping[str, Any], delegated: Sequence[str] | None) -> list[LimitField]:
    if delegated is not None:
        return [field for field, controller in _CONTROLLERS.items() if controller not in delegated]
    return [field for field, key in _INFO.items() if not info.get(key)]


def refusal(
    engine: EngineDescription, config: DockerSandboxConfig, *, starts_outside: bool = False
) -> str | None:
    """Return a refusal that names the limits which the engine cannot enforce; ``None`` if the config accepts that.

    Args:
        engine: The engine.
        config: The settings of the container.
        starts_outside: Whether its programs are outside the container's control group, so that none is enforced.
    """
    unenforced, remedy = engine.unenforced, engine.remedy
    if starts_outside:
        unenforced = [*_INFO]
        remedy = (
            "it belongs to a login session, so programs in a container are outside the container's control group; run it "
            "as a service (`systemctl --user start docker`)"
        )
    missing = ", ".join(field for field in unenforced if field not in config.unenforced_limits)
    if not missing:
        return None
    return (
        f"the container engine ({engine}) cannot enforce {missing}: {remedy}; or accept it with "
        f"`unenforced_limits: [{missing}]`"
    )


def is_taken(error: APIError) -> bool:
    """Whether a container was refused because another one has its name."""
    # Podman answers 500
    return error.status_code == 409 or "already in use" in str(error.explanation)


def is_ending(error: APIError) -> bool:
    """Whether a request was refused because the container ends already."""
    return error.status_code == 409 or "container state improper" in str(error.explanation)
