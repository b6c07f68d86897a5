"""Creates and starts containers, and the volumes for their packages."""

from __future__ import annotations

import os
import secrets
import socket
import stat
import tarfile
import tempfile
import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from docker.errors import APIError, NotFound
from docker.types import DeviceRequest, LogConfig, Mount, Ulimit

from codeact_team.errors import EngineError
from codeact_team.files.trees import opened_own, walk
from codeact_team.sandbox.archives import END, file_member, head
from codeact_team.sandbox.base import WayOut, python_path, receiving, warn_once
from codeact_team.sandbox.docker import naming
from codeact_team.sandbox.docker.config import DockerSandboxConfig, is_host_path
from codeact_team.sandbox.docker.container import Container, labels, remove
from codeact_team.sandbox.docker.description import (
    EngineDescription,
    describe,
    is_ending,
    is_taken,
    refusal,
)
from codeact_team.sandbox.docker.engine import Client, open_stream, translated
from codeact_team.sandbox.docker.leftovers import noted_start
from codeact_team.sandbox.docker.system_calls import profile
from codeact_team.sandbox.docker.way_out import give_way_out
from codeact_team.sandbox.system.kernel import LOCKED_BYTES, MIB, OWN_DESCRIPTORS, PENDING_SIGNALS
from codeact_team.sandbox.users import USER_NAME, is_root, private_user

WORKSPACE = "/workspace"
PACKAGES = "/opt/codeact-team/packages"
_ULIMITS = {
    "core": 0,
    # the supervisor, or the shell in its place, allows less to the code itself
    "nofile": OWN_DESCRIPTORS,
    "memlock": LOCKED_BYTES,
    "sigpending": PENDING_SIGNALS,
    "msgqueue": 0,
}
_OF_GVISOR, _OF_GVISOR_EACH = 256, 32
"""The threads that gVisor may have for itself, and for each process, for which it was seen to take up to 20.

With too few it ends, and the container with it.
"""
_OF_AN_ENGINE = 1024
"""The processes and threads of a rootless engine itself, which count with the code if both have the same user."""
_IN_A_SHELL = {"core": ("c", 512), "fsize": ("f", 512), "data": ("d", 1024), "memlock": ("l", 1024)}
"""By what letter a POSIX shell knows a limit, and in units of how many bytes."""
_LEFT_TO_A_SHELL = {"data", "nproc"}
"""Limits that the engine does not get, as it would apply them to its own part of a start, which needs more."""
_START, _GUARD = (
    (resources.files(__name__.rpartition(".")[0]) / name).read_text() for name in ("start.sh", "guard.sh")
)
_ENTER = stat.S_IXGRP | stat.S_IXOTH


@dataclass(frozen=True)
class Binding:
    """A directory of the host that becomes the workspace."""

    directory: Path
    """Without links."""
    owner: str
    """Its user and group, by number."""
    source: Path
    """Its path on the engine's machine."""
    probe: str
    """The name of a file in it that must be visible in the container."""


def is_missing(directory: Path, error: EngineError) -> bool:
    """Whether the engine refused a container because a directory is missing on its machine."""
    text = str(error)
    # the second text is Docker Desktop's
    missing = "bind source path does not exist" in text or "ounts denied" in text
    return missing and str(directory) in text


def launch(
    client: Client,
    url: str,
    config: DockerSandboxConfig,
    binding: Binding | None,
    packages: Path | str | None,
    word: str,
    *,
    with_python: bool,
    way_out: WayOut | None = None,
) -> Container:
    """Create a container, attach to it, and start it. Blocks. If the engine refuses, nothing is left.

    Args:
        client: A client of the engine.
        url: The address of the engine.
        config: The settings of the container.
        binding: The directory of the host that becomes the workspace; ``None`` for a workspace inside the container.
        packages: A layer of Python packages to mount read-only: a directory, or the name of a volume.
        word: The beginning of the line that the first process writes when it is up.
        with_python: Whether a Python runs the supervisor there, if there is one.
        way_out: How connections of code leave it, if they do.

    Raises:
        EngineError: If the engine refuses, or cannot have that way out.
    """
    engine = describe(client, url)
    if (refused := refusal(engine, config)) is not None:
        raise EngineError(refused)
    if engine.is_podman:
        _check_what_podman_ignores(engine, config, url)
    user = _user_for(config, binding, engine)
    as_root = is_root(user) and not engine.is_rootless
    no_set_id = as_root and binding is not None and _others_can_enter(binding.directory)
    if as_root and binding is not None and config.user is None:
        warn_once(
            f"{binding.directory} belongs to root, so the code runs as uid 0 of the container, without capabilities"
        )
    probe = "" if binding is None else binding.probe
    # some engines make a missing directory instead of refusing it
    some = next(packages.iterdir(), None) if isinstance(packages, Path) else None
    layer = "" if some is None else f"{PACKAGES}/{some.name}"
    settings = [
        word,
        probe,
        layer,
        config.init_command or "",
        "1" if no_set_id else "",
        _limiting(engine, config, user),
        _GUARD,
        *(receiving("python3") if with_python else ()),
    ]
    host_config = _host_config(engine, config, user, binding)
    host_config["sysctls"] = {**_of_loopback(engine, config, url)}
    environment = {
        # the later wins
        **give_way_out(way_out, host_config, engine, config, url, PACKAGES),
        **config.environment,
        **({} if packages is None else python_path(PACKAGES, config.environment)),
    }
    if packages is not None:
        kind = "volume" if isinstance(packages, str) else "bind"
        host_config["mounts"].append(Mount(PACKAGES, str(packages), type=kind, read_only=True))
    named = naming.named_user(config, engine, url, user)
    if named is not None:
        host_config["mounts"].append(Mount(naming.PLACE, str(named.file), type="bind", read_only=True))
    with ExitStack() as failed:
        if named is not None:
            failed.callback(named.remove)
        try:
            id, stream, filter_ = _started(
                client, url, config, settings, environment, host_config, user, engine
            )
        except EngineError as error:
            # missing where the engine is, or closed to the user that it runs as
            if named is None or str(named.file) not in str(error):
                raise
            naming.forget(url)
            return launch(
                client, url, config, binding, packages, word, with_python=with_python, way_out=way_out
            )
        failed.pop_all()
    return Container(
        client,
        url,
        id,
        stream,
        engine=engine,
        user=user,
        # gVisor takes a filter, and by default does not apply it
        is_filtered=filter_ is not None and not engine.is_gvisor(config.runtime),
        limiting=_limiting(engine, config, user),
        keep=not config.auto_remove,
        named=named,
    )


def _started(
    client: Client,
    url: str,
    config: DockerSandboxConfig,
    settings: list[str],
    environment: Mapping[str, str],
    host_config: dict[str, Any],
    user: str,
    engine: EngineDescription,
) -> tuple[str, socket.socket, str | None]:
    """Create a container, attach to it, and start it. Its id, the stream, and the filter of system calls. For the rest see :func:`_create`."""
    with noted_start(url) as label:
        with _filter_for(engine, url) as filter_:
            if filter_ is not None:
                host_config["security_opt"].append(f"seccomp={filter_}")
            id = _create(client, config, settings, environment, host_config, user, label)
        with ExitStack() as failed:
            failed.callback(remove, client, url, id, keep=False)
            streams = "stream=1&stdin=1&stdout=1&stderr=1"
            stream = failed.enter_context(open_stream(client, url, f"/containers/{id}/attach?{streams}"))
            with translated(config.image):
                client.start(id)
            failed.pop_all()
    return id, stream, filter_


def _check_what_podman_ignores(engine: EngineDescription, config: DockerSandboxConfig, url: str) -> None:
    """Raise an ``EngineError`` for a setting that Podman would not refuse, but ignore."""
    if config.runtime not in (None, engine.default_runtime):
        raise EngineError(
            f"Podman takes no runtime from its clients, and this one runs {engine.default_runtime}: start it with "
            f"`podman --runtime {config.runtime} system service`, or leave out `runtime: {config.runtime}`"
        )
    if config.device_requests:
        raise EngineError("Podman does not know Docker's device requests: leave out `device_requests`")
    if not config.stop_container:
        raise EngineError(
            "under Podman a container ends with this process: leave out `stop_container: false`"
        )
    # it would make the directory
    for path in config.bound if url.startswith("unix://") else ():
        if not path.exists():
            raise EngineError(f"a directory of `extra_volumes` does not exist: {path}")


@contextmanager
def _filter_for(engine: EngineDescription, url: str) -> Generator[str | None]:
    """The system call profile, as the engine takes it; ``None``, with a warning, if it takes none.

    The value is valid within the context.
    """
    known = profile(engine.architecture)
    if not engine.filters_calls:
        warn_once("seccomp is off in the container engine, so no system calls are filtered")
    elif known is None:
        warn_once(
            f"the container engine's own seccomp profile is in force, as ours is not made for {engine.architecture!r}"
        )
    elif not engine.is_podman:
        yield known
        return
    elif url.startswith("unix://"):
        # Podman reads it from a file, of its own machine
        with tempfile.NamedTemporaryFile("w", prefix="codeact-team-", suffix=".json") as file:
            # the engine may run as another user
            os.fchmod(file.fileno(), 0o644)
            file.write(known)
            file.flush()
            yield file.name
        return
    else:
        warn_once("Podman's own seccomp profile is in force, as Podman takes none from another machine")
    yield None


def _others_can_enter(directory: Path) -> bool:
    """Whether other users of this machine than root can reach files that code leaves in a directory."""
    # the owner of a parent may open it at any time
    return all(
        status.st_uid != 0 or status.st_mode & _ENTER
        for status in (place.lstat() for place in (directory, *directory.parents))
    )


def _user_for(config: DockerSandboxConfig, binding: Binding | None, engine: EngineDescription) -> str:
    """The user of the code: the configured one, or the owner of the bound directory, or one of the sandbox's own."""
    if config.user is not None:
        return config.user
    if binding is None:
        user = private_user(in_namespace=engine.maps_users)
        return f"{user}:{user}"
    if engine.is_rootless:
        return "0:0"
    return binding.owner


def _create(
    client: Client,
    config: DockerSandboxConfig,
    settings: list[str],
    environment: Mapping[str, str],
    host_config: dict[str, Any],
    user: str,
    label: Mapping[str, str],
) -> str:
    """Create, but do not start, a container whose first process gets ``settings`` as arguments, and all the ``environment``.

    Returns its id.
    """
    arguments: dict[str, Any] = {
        "image": config.image,
        "entrypoint": ["/bin/sh"],
        "command": ["-c", _START, "start", *settings],
        "user": user,
        "working_dir": WORKSPACE,
        "stdin_open": True,
        # if attached, the engine closes stdin when the host process is gone, which ends the container
        "detach": not config.stop_container,
        "environment": {
            "HOME": naming.HOME,
            # no image has a name for its number
            "USER": USER_NAME,
            "LOGNAME": USER_NAME,
            # few images have others
            "LANG": "C.UTF-8",
            "PYTHONUNBUFFERED": "1",
            "PIP_QUIET": "1",
            **environment,
        },
        "labels": {**labels(), **label},
        # the docker command's own configuration may hold a proxy with a password
        "use_config_proxy": False,
    }
    with translated(config.image):
        arguments["host_config"] = client.create_host_config(**host_config)
        try:
            return str(client.create_container(name=config.container_name, **arguments)["Id"])
        except APIError as error:
            if config.container_name is None or not is_taken(error):
                raise
            name = f"{config.container_name}-{secrets.token_hex(4)}"
            return str(client.create_container(name=name, **arguments)["Id"])


def _host_config(
    engine: EngineDescription, config: DockerSandboxConfig, user: str, binding: Binding | None
) -> dict[str, Any]:
    memory = config.memory_mib * MIB
    is_gvisor = engine.is_gvisor(config.runtime)
    return {
        "network_mode": config.network,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "read_only": config.read_only,
        "mem_limit": memory,
        # equal to mem_limit: no swap on top
        "memswap_limit": memory,
        "nano_cpus": int(config.cpus * 1e9),
        # the threads of gVisor itself are counted, and its engine hangs where it cannot start one
        "pids_limit": _OF_GVISOR + config.pids * _OF_GVISOR_EACH if is_gvisor else config.pids,
        "ulimits": [
            Ulimit(name=name, soft=most, hard=most)
            for name, most in _ulimits(engine, config, user).items()
            if name not in _LEFT_TO_A_SHELL
        ],
        "tmpfs": _tmpfs(engine, config, user, inside=binding is None),
        "mounts": _mounts(config, binding),
        "extra_hosts": config.extra_hosts,
        "device_requests": [DeviceRequest(**request) for request in config.device_requests],
        "runtime": config.runtime,
        "auto_remove": config.auto_remove,
        # the first process is ours, and the only one that may be left, whatever the engine does by default
        "init": False,
        # a block can write to the first process' stdout, and a log on the host has no limit
        "log_config": LogConfig(type="none"),
    }


def _of_loopback(engine: EngineDescription, config: DockerSandboxConfig, url: str) -> Mapping[str, str]:
    """The settings by which ``::1``, too, is an address of a container without a network, where Docker has taken it away.

    Its ``/etc/hosts`` says that it is one, and ``asyncio`` binds all addresses of ``localhost``. A kernel without IPv6 refuses them.
    """
    is_docker = not engine.is_podman and not engine.is_gvisor(config.runtime)
    has_ipv6 = url.startswith("unix://") and Path("/proc/sys/net/ipv6").is_dir()
    if config.network != "none" or not is_docker or not has_ipv6:
        return {}
    return {"net.ipv6.conf.lo.disable_ipv6": "0"}


def _ulimits(engine: EngineDescription, config: DockerSandboxConfig, user: str) -> Mapping[str, int]:
    """The limits of each process, and of its user, stricter where no control group holds them."""
    limits = {**_ULIMITS, "fsize": config.max_file_mib * MIB}
    unenforced = {*engine.unenforced, *(config.unenforced_limits if engine.may_start_outside else ())}
    if "memory_mib" in unenforced:
        limits["data"] = config.memory_mib * MIB
    if engine.is_gvisor(config.runtime):
        # its own kernel counts what runs in the container, and only that
        limits["nproc"] = config.pids
    elif "pids" in unenforced:
        is_engines = engine.is_rootless and is_root(user)
        limits["nproc"] = config.pids + (_OF_AN_ENGINE if is_engines else 0)
    return limits


def _limiting(engine: EngineDescription, config: DockerSandboxConfig, user: str) -> str:
    """The shell commands for the limits that the engine does not set. A shell cannot set all of them."""
    limits = _ulimits(engine, config, user)
    words = [
        f"ulimit -{option} {limits[name] // unit}"
        for name, (option, unit) in _IN_A_SHELL.items()
        if name in limits and (engine.ignores_limits or name in _LEFT_TO_A_SHELL)
    ]
    if "nproc" in limits:
        # the letter depends on the shell
        words += [f"{{ ulimit -p {limits['nproc']} || ulimit -u {limits['nproc']}; }} 2>/dev/null"]
    return " && ".join(words)


def _tmpfs(
    engine: EngineDescription, config: DockerSandboxConfig, user: str, *, inside: bool
) -> dict[str, str]:
    # exec: compiled languages have to run what they have built
    options = f"rw,exec,nosuid,nodev,size={config.tmpfs_mib}m"
    uid, _, gid = user.partition(":")
    is_owned = not engine.is_podman and uid.isdigit() and (gid or uid).isdigit()
    owned = f"{options},uid={uid},gid={gid or uid}" if is_owned else options
    # programs that look for a safe place take one of root's
    places = {"/tmp": f"{owned},mode=1777", "/var/tmp": f"{options},mode=1777"}
    for volume in config.extra_volumes.values():
        places.pop(volume["bind"], None)
    if inside:
        # a container has one user, whom Podman does not make its owner
        places[WORKSPACE] = f"{owned},mode={'0700' if is_owned else '0777'}"
    return places


def _mounts(config: DockerSandboxConfig, binding: Binding | None) -> list[Mount]:
    # mounts, not -v, which would create a missing directory of the host, owned by root
    mounts = [] if binding is None else [Mount(target=WORKSPACE, source=str(binding.source), type="bind")]
    for source, volume in config.extra_volumes.items():
        kind = "bind" if is_host_path(source) else "volume"
        path = str(Path(source).expanduser().resolve()) if kind == "bind" else source
        read_only = volume.get("mode", "rw") != "rw"
        mounts.append(Mount(target=volume["bind"], source=path, type=kind, read_only=read_only))
    return mounts


_LABEL = "codeact-team.packages"
_COMPLETE = ".complete"
"""The file that is put into a volume last."""

_filling = threading.Lock()


def filled_volume(client: Client, url: str, image: str, layer: Path) -> str:
    """The name of a volume with the content of a layer of packages, which is filled unless it exists. Blocks."""
    name = f"codeact-team-packages-{layer.name}"
    with _filling, noted_start(url) as label, translated(url):
        client.create_volume(name, labels={_LABEL: layer.name})
        mounts = [Mount(PACKAGES, name, type="volume", no_copy=True)]
        host_config = client.create_host_config(mounts=mounts, network_mode="none")
        # never started: files can be put into a volume only by way of a container
        marks = {**labels(), **label}
        container = client.create_container(image, ["true"], labels=marks, host_config=host_config)["Id"]
        try:
            if not _is_complete(client, container):
                client.put_archive(container, PACKAGES, _archive(layer))
        finally:
            client.remove_container(container, force=True)
    return name


def remove_unused_volumes(client: Client, url: str) -> int:
    """Remove the volumes that no container uses. Returns their number. Blocks. Raises an ``EngineError``."""
    removed = 0
    with translated(url):
        for volume in client.volumes(filters={"label": _LABEL})["Volumes"] or ():
            try:
                client.remove_volume(volume["Name"])
                removed += 1
            except APIError as error:
                if not is_ending(error):
                    raise
    return removed


def _is_complete(client: Client, container: str) -> bool:
    try:
        pieces, _ = client.get_archive(container, f"{PACKAGES}/{_COMPLETE}")
    except NotFound:
        return False
    # read to the end, so that the connection can be used again
    return bool(b"".join(pieces))


def _archive(layer: Path) -> Iterator[bytes]:
    """A tar archive of a layer, piece by piece."""
    with opened_own(layer) as top:
        for directory in walk(top):
            for name, status in sorted(directory.entries()):
                member = tarfile.TarInfo("/".join([*directory.names, name]))
                if stat.S_ISDIR(status.st_mode):
                    directory.enter(name, status)
                    member.type, member.mode = tarfile.DIRTYPE, 0o755
                    yield head(member)
                    continue
                with open(layer.joinpath(*directory.names, name), "rb") as file:
                    member.size, member.mode = status.st_size, status.st_mode & 0o777
                    member.mtime = int(status.st_mtime)
                    yield from file_member(member, file)
    yield head(tarfile.TarInfo(_COMPLETE))
    yield END
