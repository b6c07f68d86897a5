"""Creates and starts containers, their system call profile, and the volumes for their packages."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import re
import secrets
import socket
import stat
import tarfile
import tempfile
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from docker.errors import APIError, NotFound
from docker.types import DeviceRequest, LogConfig, Mount, Ulimit

from codeact_team.errors import EngineError
from codeact_team.sandbox.archives import END, file_member, head
from codeact_team.sandbox.base import warn_once
from codeact_team.sandbox.docker.config import DockerSandboxConfig, is_host_path
from codeact_team.sandbox.docker.container import CONFLICT, LABEL, Container, labels, remove
from codeact_team.sandbox.docker.engine import REQUEST_TIMEOUT, Client, connect, open_stream, translated
from codeact_team.sandbox.system.filters import COUNTED, MAKES_A_FILE, MODES, OF_ITSELF, OPENING, SET_ID
from codeact_team.sandbox.system.kernel import LOCKED_BYTES, OWN_DESCRIPTORS, PENDING_SIGNALS
from codeact_team.sandbox.temporary import is_the_one, lock

_ARCHITECTURES = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}

_FILES = """
access chdir chown close close_range copy_file_range dup dup2 dup3 faccessat faccessat2 fadvise64 fchdir fchown
fchownat fcntl fdatasync fgetxattr flistxattr flock fremovexattr fsetxattr fstat fstatfs fsync ftruncate futimesat getcwd
getdents getdents64 getxattr getxattrat ioctl lchown
lgetxattr link linkat listxattr listxattrat llistxattr lremovexattr lseek lsetxattr lstat newfstatat pread64 preadv
preadv2 pwrite64 pwritev pwritev2 read readahead readlink readlinkat readv removexattr removexattrat rename renameat
renameat2 rmdir sendfile setxattr setxattrat splice stat statfs statx symlink symlinkat sync sync_file_range syncfs tee
truncate umask unlink unlinkat utime utimensat utimes vmsplice write writev
"""
_MEMORY = """
brk cachestat madvise map_shadow_stack memfd_create mincore mlock mlock2 mlockall mmap mprotect mremap mseal msync munlock
munlockall munmap pkey_alloc pkey_free pkey_mprotect
"""
_PROCESSES = """
arch_prctl capget capset execve execveat exit exit_group fork get_robust_list getcpu getegid geteuid getgid getgroups
getpgid getpgrp getpid getppid getpriority getresgid getresuid getrlimit getrusage getsid gettid getuid ioprio_get
landlock_add_rule landlock_create_ruleset landlock_restrict_self membarrier pidfd_open prctl
rseq sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr sched_getparam
sched_getscheduler sched_rr_get_interval sched_yield
seccomp set_robust_list set_tid_address setfsgid setfsuid setgid setgroups setpgid setregid setresgid
setresuid setreuid setrlimit setsid setuid sysinfo times uname vfork wait4 waitid
"""
_SIGNALS = """
kill pause pidfd_send_signal restart_syscall rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn
rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo sigaltstack signalfd signalfd4 tgkill tkill
"""
_TIME = """
adjtimex alarm clock_adjtime clock_getres clock_gettime clock_nanosleep getitimer gettimeofday nanosleep setitimer time
timer_create timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create timerfd_gettime timerfd_settime
"""
_COMMUNICATION = """
accept accept4 bind connect epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2
futex futex_requeue futex_wait futex_waitv futex_wake getpeername getrandom getsockname getsockopt listen mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend
mq_unlink msgctl msgget msgrcv msgsnd pipe pipe2 poll ppoll pselect6 recvfrom recvmmsg recvmsg select semctl semget semop
semtimedop sendmmsg sendmsg sendto setsockopt shmat shmctl shmdt shmget shutdown socketpair
"""

# namespaces, as clone(2) asks for them; clone3 has its flags where no filter sees them, and programs then try clone
_CLONE_NEW = 0x7E020000
_PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)
"""Linux, 32-bit Linux, either with an old kernel's number, and the question which one it is."""
_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)
_AF_NETLINK, _NETLINK_ROUTE = 16, 0


@cache
def profile(architecture: str) -> str | None:
    """The profile as JSON; ``None`` where the calls' arguments are not known, for the engine's own to be used."""
    if architecture not in _ARCHITECTURES:
        return None
    names = "".join((_FILES, _MEMORY, _PROCESSES, _SIGNALS, _TIME, _COMMUNICATION)).split()
    calls = [
        _allow(names),
        _allow(["clone"], _masked(0, _CLONE_NEW)),
        *(_allow(["personality"], _equal(0, value)) for value in _PERSONALITIES),
        *(_allow(["socket"], _equal(0, family)) for family in _FAMILIES),
        _allow(["socket"], _equal(0, _AF_NETLINK), _equal(2, _NETLINK_ROUTE)),
        *(_allow([name], *(_low(*each) for each in own.items())) for name, own in OF_ITSELF.items()),
        *(_allow([name], _masked(position, SET_ID)) for name, position in MODES.items()),
        *(_allow([name], _masked(MODES[name] - 1, MAKES_A_FILE)) for name in OPENING),
        _refuse(["clone3", "openat2"], errno.ENOSYS),
        # takes any part of the host's disk at once; where it is not supported, the C library writes instead
        _refuse(["fallocate"], errno.EOPNOTSUPP),
        *(_refuse([name], error) for name, error in COUNTED.items()),
    ]
    architectures = [_ARCHITECTURES[architecture]]
    rules = {"defaultAction": "SCMP_ACT_ERRNO", "architectures": architectures, "syscalls": calls}
    return json.dumps(rules, separators=(",", ":"))


def _allow(names: Sequence[str], *conditions: dict[str, Any]) -> dict[str, Any]:
    return {"names": names, "action": "SCMP_ACT_ALLOW", "args": conditions}


def _refuse(names: Sequence[str], error: int) -> dict[str, Any]:
    return {"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": error}


def _equal(position: int, value: int) -> dict[str, Any]:
    return {"index": position, "value": value, "op": "SCMP_CMP_EQ"}


def _masked(position: int, bits: int, value: int = 0) -> dict[str, Any]:
    """Of these bits, those of ``value`` are set, and no other."""
    return {"index": position, "value": bits, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}


def _low(position: int, value: int) -> dict[str, Any]:
    """What the kernel takes of an argument of 32 bits, whatever is in the others."""
    return _masked(position, 0xFFFFFFFF, value)


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
    with os.scandir(tempfile.gettempdir()) as entries:
        return [Path(entry.path) for entry in entries if _NAME.fullmatch(entry.name)]


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


_LABEL = "codeact-team.packages"
_COMPLETE = ".complete"
"""The last file that is put into a volume."""

_filling = threading.Lock()


def filled_volume(client: Client, url: str, image: str, layer: Path) -> str:
    """The name of the volume with what is in a layer; filled by a stream, unless it is there already. Blocks.

    Raises:
        EngineError: If the engine refuses.
    """
    name = f"codeact-team-packages-{layer.name}"
    with _filling, noted_start(url) as label, translated(url):
        client.create_volume(name, labels={_LABEL: layer.name})
        mounts = [Mount(PACKAGES, name, type="volume", no_copy=True)]
        host_config = client.create_host_config(mounts=mounts, network_mode="none")
        # never started: files can be put into a volume only where something has it
        marks = {**labels(), **label}
        container = client.create_container(image, ["true"], labels=marks, host_config=host_config)["Id"]
        try:
            if not _is_complete(client, container):
                client.put_archive(container, PACKAGES, _archive(layer))
        finally:
            client.remove_container(container, force=True)
    return name


def remove_unused_volumes(client: Client, url: str) -> int:
    """Remove the volumes that no container has, and tell how many. Blocks.

    Raises:
        EngineError: If the engine refuses.
    """
    removed = 0
    with translated(url):
        for volume in client.volumes(filters={"label": _LABEL})["Volumes"] or ():
            try:
                client.remove_volume(volume["Name"])
                removed += 1
            except APIError as error:
                if error.status_code != CONFLICT:
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
    """A tar archive of a layer, as it is written."""
    for directory, directories, files in os.walk(layer):
        directories.sort()
        for name in [*directories, *sorted(files)]:
            path = os.path.join(directory, name)
            member = tarfile.TarInfo(os.path.relpath(path, layer))
            if name in directories:
                member.type, member.mode = tarfile.DIRTYPE, 0o755
                yield head(member)
                continue
            with open(path, "rb") as file:
                status = os.fstat(file.fileno())
                member.size, member.mode = status.st_size, status.st_mode & 0o777
                member.mtime = int(status.st_mtime)
                yield from file_member(member, file)
    yield head(tarfile.TarInfo(_COMPLETE))
    yield END
