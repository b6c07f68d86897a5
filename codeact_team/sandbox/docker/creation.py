"""Creates and starts containers, their system call profile, and the volumes for their packages."""

from __future__ import annotations

import errno
import json
import secrets
import socket
import stat
import tarfile
import threading
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from docker.errors import APIError, NotFound
from docker.types import DeviceRequest, LogConfig, Mount, Ulimit

from codeact_team.core.trees import opened_own, walk
from codeact_team.errors import EngineError
from codeact_team.sandbox.archives import END, file_member, head
from codeact_team.sandbox.base import warn_once
from codeact_team.sandbox.docker.config import DockerSandboxConfig, is_host_path
from codeact_team.sandbox.docker.container import CONFLICT, Container, labels, remove
from codeact_team.sandbox.docker.engine import Client, open_stream, translated
from codeact_team.sandbox.docker.leftovers import noted_start
from codeact_team.sandbox.system.filters import COUNTED, MAKES_A_FILE, MODES, OF_ITSELF, OPENING, SET_ID
from codeact_team.sandbox.system.kernel import LOCKED_BYTES, MIB, OWN_DESCRIPTORS, PENDING_SIGNALS

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
_MEMORY_CALLS = """
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

# the flags of clone(2) for namespaces; those of clone3 are in memory, where no filter sees them, so programs have to use clone
_CLONE_NEW = 0x7E020000
_PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)
"""Linux, 32-bit Linux, either with an old kernel's version number, and the query of the present value."""
_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)
_AF_NETLINK, _NETLINK_ROUTE = 16, 0


@cache
def profile(architecture: str) -> str | None:
    """Our system call profile in the engine's format, as JSON; ``None`` if the arguments of the calls are not known there.

    It allows what the engines' default profiles allow to a container without capabilities, except calls that help attackers
    more than programs: io_uring, sockets of rare families, old calls with a history of holes, calls that inspect or change
    other processes, calls that use up resources of a whole user or machine, and 32-bit programs on 64-bit machines. It
    also refuses modes that let a file run with its owner's rights. It lists the allowed calls, as an engine ignores names that
    it is too old to know, and so refuses those calls.
    """
    if architecture not in _ARCHITECTURES:
        return None
    names = "".join((_FILES, _MEMORY_CALLS, _PROCESSES, _SIGNALS, _TIME, _COMMUNICATION)).split()
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
        # it allocates any part of the host's disk at once; if it is not supported, the C library writes instead
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
    """Of ``bits``, exactly those of ``value`` are set."""
    return {"index": position, "value": bits, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}


def _low(position: int, value: int) -> dict[str, Any]:
    """An argument of 32 bits has this value; the kernel ignores the upper half."""
    return _masked(position, 0xFFFFFFFF, value)


WORKSPACE = "/workspace"
PACKAGES = "/opt/codeact-team/packages"
_NOBODY = "65534:65534"
_ULIMITS = {
    "core": 0,
    # `exec.sh` and the supervisor of a session allow less to the code itself
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
) -> Container:
    """Create a container, attach to it, and start it. Blocks. If the engine refuses, nothing is left.

    Args:
        client: A client of the engine.
        url: The address of the engine.
        config: The settings of the container.
        binding: The directory of the host that becomes the workspace; ``None`` for a workspace inside the container.
        packages: A layer of Python packages to mount read-only: a directory, or the name of a volume.
        word: The beginning of the line that the first process writes when it is up.

    Raises:
        EngineError: If the engine refuses.
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
    return Container(
        client, url, id, stream, user=user, is_filtered=filter_ is not None, keep=not config.auto_remove
    )


def _filter_for(info: Mapping[str, Any], options: Set[str]) -> str | None:
    """The system call profile for an engine; ``None``, with a warning, if the engine takes none."""
    machine = info.get("Architecture", "")
    if "name=seccomp" not in options:
        why = "seccomp is off in the container engine, which so filters no system calls"
    elif "BuildahVersion" in info:
        # Podman takes the profile for the name of a file
        why = "Podman's own profile of system calls is in force, as it takes no other from its clients"
    elif (known := profile(machine)) is not None:
        return known
    else:
        why = f"the container engine's own profile of system calls is in force, as ours does not fit {machine!r}"
    warn_once(why)
    return None


def _others_can_enter(directory: Path) -> bool:
    """Whether other users of this machine than root can reach files that code leaves in a directory."""
    # the owner of a parent may open it at any time
    return all(
        status.st_uid != 0 or status.st_mode & _ENTER
        for status in (place.lstat() for place in (directory, *directory.parents))
    )


def _user_for(config: DockerSandboxConfig, binding: Binding | None, *, rootless: bool) -> str:
    """The user of the code: the configured one, or the owner of the bound directory, or one who owns nothing."""
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
    """Create, but do not start, a container whose first process gets ``settings`` as arguments. Returns its id."""
    arguments: dict[str, Any] = {
        "image": config.image,
        "entrypoint": ["/bin/sh"],
        "command": ["-c", _GUARD, "guard", _INIT, *settings],
        "user": user,
        "working_dir": WORKSPACE,
        "stdin_open": True,
        # if attached, the engine closes stdin when the host process is gone, which ends the container
        "detach": not config.stop_container,
        # /tmp is a directory that is writable for any image and user
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
    memory = config.memory_mib * MIB
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
            Ulimit(name="fsize", soft=config.max_file_mib * MIB, hard=config.max_file_mib * MIB),
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
    # exec: compiled languages have to run what they have built
    options = f"rw,exec,nosuid,nodev,size={config.tmpfs_mib}m"
    uid, _, gid = user.partition(":")
    owned = f"{options},uid={uid},gid={gid or uid}" if uid.isdigit() and (gid or uid).isdigit() else options
    # programs that look for a safe place take one of root's
    places = {"/tmp": f"{owned},mode=1777", "/var/tmp": f"{options},mode=1777"}
    for volume in config.extra_volumes.values():
        places.pop(volume["bind"], None)
    if inside:
        places[WORKSPACE] = f"{owned},mode=0700"
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
