"""The way out of a container that has no network: what the engine is asked for, and why some engines cannot give it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from docker.types import Mount, Ulimit

from codeact_team.errors import EngineError
from codeact_team.sandbox.base import WAY_OUT, WayOut
from codeact_team.sandbox.docker.config import DockerSandboxConfig
from codeact_team.sandbox.docker.description import EngineDescription
from codeact_team.sandbox.system.kernel import RELAY_DESCRIPTORS
from codeact_team.text.redaction import without_user_info

NEEDS_PYTHON = (
    "`egress` needs a `python3` in the image, 3.10 or newer, as a program of ours inside takes the connections of code: use an "
    "image that has one, or leave out `egress`"
)


def give_way_out(
    way_out: WayOut | None,
    host_config: dict[str, Any],
    engine: EngineDescription,
    config: DockerSandboxConfig,
    url: str,
    packages: str,
) -> Mapping[str, str]:
    """Add to what an engine is asked for what a way out needs, if there is one. Returns its variables. ``packages`` is where a layer of packages is.

    Raises an ``EngineError`` if no socket of this machine can be reached in the containers of this engine.
    """
    if way_out is None:
        return {}
    if not url.startswith("unix://"):
        raise EngineError(
            f"`egress` needs a container engine on this machine, where its proxy listens, and this one is at "
            f"{without_user_info(url)}: use an engine here or a confined executor, or leave out `egress`"
        )
    if engine.is_gvisor(config.runtime):
        raise EngineError(
            "`egress` needs a socket of this machine in the container, which gVisor lets nobody reach: use another "
            "`runtime`, or leave out `egress`"
        )
    if config.network != "none":
        raise EngineError(
            f"`egress` is for a container without a network, and this one has `network: {config.network}`: leave out one of them"
        )
    shown = {WAY_OUT: way_out.directory, **way_out.files}
    shown |= {f"{packages}/{name}": path for name, path in way_out.of_packages.items()}
    host_config["mounts"] += [
        Mount(place, str(path), type="bind", read_only=True) for place, path in shown.items()
    ]
    host_config["extra_hosts"] = {**way_out.hosts, **host_config["extra_hosts"]}
    # for names whose ports are 80 and 443
    host_config["sysctls"]["net.ipv4.ip_unprivileged_port_start"] = "0"
    host_config["ulimits"] = [
        Ulimit(name=one.name, soft=RELAY_DESCRIPTORS, hard=RELAY_DESCRIPTORS) if one.name == "nofile" else one
        for one in host_config["ulimits"]
    ]
    return way_out.environment


def unseen(directory: Path) -> str:
    """Why a container was refused whose engine does not see the directory of a way out."""
    return (
        f"the container engine does not see the directory {directory} of this machine, where the proxy of `egress` listens, as one "
        "in a virtual machine does not: use an engine that runs here itself or a confined executor, or leave out `egress`"
    )
