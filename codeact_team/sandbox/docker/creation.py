"""Creates and starts containers, so that none is left that nobody knows.

Containers that are about to start are noted: where this process is killed before they do, the next run removes them. A
container that is made ends with this process once it has started, and not before that.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import secrets
import stat
import tempfile
import time
from collections.abc import Generator, Mapping, Set
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from docker.errors import APIError
from docker.types import DeviceRequest, LogConfig, Mount, Ulimit

from codeact_team.errors import EngineError
from codeact_team.sandbox.base import warn_once
from codeact_team.sandbox.docker.config import DockerSandboxConfig, is_host_path
from codeact_team.sandbox.docker.container import CONFLICT, LABEL, Container, labels, remove
from codeact_team.sandbox.docker.engine import REQUEST_TIMEOUT, Client, connect, open_stream, translated
from codeact_team.sandbox.docker.seccomp import profile
from codeact_team.sandbox.system.limits import LOCKED_BYTES, OWN_DESCRIPTORS, PENDING_SIGNALS
from codeact_team.sandbox.temporary import is_the_one, lock

logger = logging.getLogger(__name__)

START_LABEL = f"{LABEL}.start"
"""The label that names the start of a container; its note knows it."""

_NAME = re.compile(r"codeact-team-\d+-[0-9a-f]{16}\.start")
_NEW = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_THERE = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAX_NOTE = 4096
_MAX_AGE = 7 * 24 * 60 * 60
"""Seconds after which an engine that never answers is asked no more."""


@contextmanager
def noted_start(url: str) -> Generator[Mapping[str, str]]:
    """Within it, a container is made and started at the engine at ``url``; the labels that it gets. Blocks.

    The note stays where the engine has not said what became of the container.
    """
    start = secrets.token_hex(8)
    path, descriptor = _make_note(f"{start} {url}")
    try:
        yield {START_LABEL: start}
        os.unlink(path)
    except EngineError as error:
        if isinstance(error.__cause__, APIError):
            os.unlink(path)
        raise
    finally:
        os.close(descriptor)


def left_notes() -> list[Path]:
    """The notes of this user, some of which may be in use."""
    place = Path(tempfile.gettempdir())
    return [place / name for name in os.listdir(place) if _NAME.fullmatch(name)]


def remove_noted(note: Path) -> None:
    """Remove the container that a note tells of, if it has never started and its process has ended; and the note. Blocks.

    Raises:
        OSError: If the note cannot be read.
        EngineError: If its engine does not answer; the note stays, for a week.
    """
    with suppress(FileNotFoundError):
        descriptor = os.open(note, _THERE)
        try:
            status = os.fstat(descriptor)
            # whoever writes one says where this process connects to
            is_ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
            if is_ours and lock(descriptor) and is_the_one(descriptor, str(note)):
                start, _, url = os.pread(descriptor, _MAX_NOTE, 0).decode(errors="replace").partition(" ")
                age = time.time() - status.st_mtime
                try:
                    # one that was asked for when its process was killed may be made later
                    is_done = not url or _remove_unstarted(start, url) or age > REQUEST_TIMEOUT
                except EngineError:
                    if age > _MAX_AGE:
                        os.unlink(note)
                    raise
                if is_done:
                    os.unlink(note)
        finally:
            os.close(descriptor)


def _make_note(text: str) -> tuple[str, int]:
    """A new note, and what locks it while it is open."""
    while True:
        name = f"codeact-team-{os.getpid()}-{secrets.token_hex(8)}.start"
        path = os.path.join(tempfile.gettempdir(), name)
        descriptor = os.open(path, _NEW, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        # another process may have taken it for one that was left
        if is_the_one(descriptor, path):
            os.write(descriptor, text.encode())
            return path, descriptor
        os.close(descriptor)


def _remove_unstarted(start: str, url: str) -> bool:
    """Remove a container that was made and never started; whether there was one."""
    with closing(connect(url)) as client, translated(url):
        filters = {"label": f"{START_LABEL}={start}", "status": "created"}
        found = client.containers(all=True, filters=filters)
        for container in found:
            # not by force: should it start after all, it ends by itself
            client.remove_container(container["Id"], v=True)
    return bool(found)


WORKSPACE = "/workspace"
PACKAGES = "/opt/codeact-team/packages"
_NOBODY = "65534:65534"
_MIB = 1024 * 1024
_ULIMITS = {
    "core": 0,
    # of the code itself, `exec.sh` and the supervisor of a session allow less
    "nofile": OWN_DESCRIPTORS,
    "memlock": LOCKED_BYTES,
    "sigpending": PENDING_SIGNALS,
    "msgqueue": 0,
}
_GUARD, _INIT = (
    (resources.files(__name__.rpartition(".")[0]) / name).read_text() for name in ("guard.sh", "init.sh")
)
_ENTER = stat.S_IXGRP | stat.S_IXOTH


@dataclass(frozen=True)
class Binding:
    """A directory of the host that is to be the workspace."""

    directory: Path
    """Without links."""
    owner: str
    """Its user and group, by number."""
    source: Path
    """Its name at the engine."""
    probe: str
    """The name of a file there that must be seen in the container."""


def is_missing(directory: Path, error: EngineError) -> bool:
    """Whether the engine refused a container because it does not have a directory."""
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
) -> Container:
    """Create a container, attach to it, and start it. Blocks; where the engine refuses, nothing is left.

    Without a binding, the workspace is inside. A layer of Python packages, a directory or
    the name of a volume, is there read-only. The line that the first
    process says begins with ``word``.
    """
    with translated(url):
        info: dict[str, Any] = client.info()
    options = {option.partition(",")[0] for option in info.get("SecurityOptions") or ()}
    rootless = "name=rootless" in options
    filter_ = _filter_for(info, options)
    user = _user_for(config, binding, rootless=rootless)
    as_root = user.partition(":")[0] in ("0", "root") and not rootless
    no_set_id = as_root and binding is not None and _others_can_enter(binding.directory)
    if as_root and binding is not None and config.user is None:
        warn_once(
            f"{binding.directory} belongs to root, so the code runs as uid 0 of the container, without capabilities"
        )
    probe = "" if binding is None else binding.probe
    settings = [word, probe, config.init_command or "", "1" if no_set_id else ""]
    host_config = _host_config(config, user, binding, filter_)
    if packages is not None:
        kind = "volume" if isinstance(packages, str) else "bind"
        host_config["mounts"].append(Mount(PACKAGES, str(packages), type=kind, read_only=True))
    with noted_start(url) as label:
        id = _create(client, config, settings, host_config, user, label)
        with ExitStack() as failed:
            failed.callback(remove, client, url, id, keep=False)
            streams = "stream=1&stdin=1&stdout=1&stderr=1"
            stream = failed.enter_context(open_stream(client, url, f"/containers/{id}/attach?{streams}"))
            with translated(config.image):
                client.start(id)
            failed.pop_all()
    return Container(client, url, id, stream, keep=not config.auto_remove)


def _filter_for(info: Mapping[str, Any], options: Set[str]) -> str | None:
    """The profile of system calls for an engine; ``None`` where the engine takes none, which is said once."""
    machine = info.get("Architecture", "")
    if "name=seccomp" not in options:
        why = "seccomp is off in the container engine, which so filters no system calls"
    elif "BuildahVersion" in info:
        # it takes the profile for the name of a file
        why = "Podman's own profile of system calls is in force, as it takes no other from its clients"
    elif (known := profile(machine)) is not None:
        return known
    else:
        why = f"the container engine's own profile of system calls is in force, as ours does not fit {machine!r}"
    warn_once(why)
    return None


def _others_can_enter(directory: Path) -> bool:
    """Whether users of this machine other than root can reach what code leaves in a directory."""
    # who owns one may open it at any time
    return all(
        status.st_uid != 0 or status.st_mode & _ENTER
        for status in (place.lstat() for place in (directory, *directory.parents))
    )


def _user_for(config: DockerSandboxConfig, binding: Binding | None, *, rootless: bool) -> str:
    """The user of the code: as configured, else the owner of the bound directory, else one who owns nothing."""
    if config.user is not None:
        return config.user
    if binding is None:
        return _NOBODY
    if rootless:
        return "0:0"
    return binding.owner


def _create(
    client: Client,
    config: DockerSandboxConfig,
    settings: list[str],
    host_config: dict[str, Any],
    user: str,
    label: Mapping[str, str],
) -> str:
    """Create, but do not start, a container whose first process gets ``settings``."""
    arguments: dict[str, Any] = {
        "image": config.image,
        "entrypoint": ["/bin/sh"],
        "command": ["-c", _GUARD, "guard", _INIT, *settings],
        "user": user,
        "working_dir": WORKSPACE,
        "stdin_open": True,
        # attached: the engine closes stdin, and with it the container, when the host process is gone
        "detach": not config.stop_container,
        # /tmp is the one place that is writable whatever the image and the user
        "environment": {"HOME": "/tmp", "PYTHONUNBUFFERED": "1", "PIP_QUIET": "1", **config.environment},
        "labels": {**labels(), **label},
        # the docker command's own configuration may hold a proxy with a password
        "use_config_proxy": False,
    }
    with translated(config.image):
        arguments["host_config"] = client.create_host_config(**host_config)
        try:
            return str(client.create_container(name=config.container_name, **arguments)["Id"])
        except APIError as error:
            if config.container_name is None or error.status_code != CONFLICT:
                raise
            name = f"{config.container_name}-{secrets.token_hex(4)}"
            return str(client.create_container(name=name, **arguments)["Id"])


def _host_config(
    config: DockerSandboxConfig, user: str, binding: Binding | None, filter_: str | None
) -> dict[str, Any]:
    memory = config.memory_mib * _MIB
    filtered = [] if filter_ is None else [f"seccomp={filter_}"]
    return {
        "network_mode": config.network,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges", *filtered],
        "read_only": config.read_only,
        "mem_limit": memory,
        # equal to mem_limit: no swap on top
        "memswap_limit": memory,
        "nano_cpus": int(config.cpus * 1e9),
        "pids_limit": config.pids,
        "ulimits": [
            Ulimit(name="fsize", soft=config.max_file_mib * _MIB, hard=config.max_file_mib * _MIB),
            *(Ulimit(name=name, soft=most, hard=most) for name, most in _ULIMITS.items()),
        ],
        "tmpfs": _tmpfs(config, user, inside=binding is None),
        "mounts": _mounts(config, binding),
        "extra_hosts": config.extra_hosts,
        "device_requests": [DeviceRequest(**request) for request in config.device_requests],
        "runtime": config.runtime,
        "auto_remove": config.auto_remove,
        # a block can write to the first process' stdout, and a log on the host has no limit
        "log_config": LogConfig(type="none"),
    }


def _tmpfs(config: DockerSandboxConfig, user: str, *, inside: bool) -> dict[str, str]:
    # exec: a compiled language has to run what it built
    options = f"rw,exec,nosuid,nodev,size={config.tmpfs_mib}m"
    uid, _, gid = user.partition(":")
    owned = f"{options},uid={uid},gid={gid or uid}" if uid.isdigit() and (gid or uid).isdigit() else options
    places = {"/tmp": f"{owned},mode=1777"}
    if inside:
        places[WORKSPACE] = f"{owned},mode=0700"
    return places


def _mounts(config: DockerSandboxConfig, binding: Binding | None) -> list[Mount]:
    # mounts, not -v: that would make a missing directory of the host, owned by root
    mounts = [] if binding is None else [Mount(target=WORKSPACE, source=str(binding.source), type="bind")]
    for source, volume in config.extra_volumes.items():
        kind = "bind" if is_host_path(source) else "volume"
        path = str(Path(source).expanduser().resolve()) if kind == "bind" else source
        read_only = volume.get("mode", "rw") != "rw"
        mounts.append(Mount(target=volume["bind"], source=path, type=kind, read_only=read_only))
    return mounts
