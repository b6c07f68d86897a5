"""The settings of a sandbox as a type checker and an editor know them: those of the executors, which a test compares."""

from __future__ import annotations

import os
from typing import Any, Literal, TypedDict

from codeact_team.network.rules import Credential, EgressRule


class CommonSettings(TypedDict, total=False):
    """Settings that every sandbox has."""

    timeout: int
    """Seconds that one code block may take."""
    work_dir: str | os.PathLike[str] | None
    """Directory of the host that is the code's workspace; made if missing. Default: a temporary one."""
    workspace_mib: int | None
    """The most MiB by which a workspace on the host may grow from the start on; counted about every
    second."""
    workspace_files: int | None
    """The most files, directories among them, that may be added to such a workspace."""
    packages: list[str]
    """Python packages that the code can import, such as `matplotlib>=3.8`. This machine gets them, as wheels,
    and nothing of them runs here; the sandbox needs no network for them."""
    packages_file: str | os.PathLike[str] | None
    """A requirements file, or a lock such as pylock.toml, with such packages."""
    data: list[str | os.PathLike[str]]
    """Files and directories of the host, such as `sales.csv`, of which the workspace gets copies before the
    first block. The originals are never changed. Hidden files in a directory are left out. The packages that
    read Excel and parquet files are added to `packages`."""
    egress: list[EgressRule | str] | Literal["report"] | None
    """The hosts that code may reach, by rules, of which the first that fits decides; what none fits is
    denied. A text, such as `pypi.org`, is a host that is allowed. `report` denies all, and lists what was
    asked for. Default: no network."""
    credentials: list[Credential]
    """Keys of this machine that go along with requests to the hosts of `egress` that are theirs. The code
    never has them."""
    extra_ca: list[str | os.PathLike[str]]
    """Files with certificates, in PEM, by which servers may prove who they are, beside those that this
    machine trusts."""
    modules: dict[str, str]
    """Modules that are there from the start: name in the code to module, such as `np: numpy`."""
    setup: str
    """Python code that runs in each fresh interpreter before the first block."""
    memory_mib: int
    """Memory limit in MiB: for all processes together if this machine delegates a control group, else for
    each. In a container: memory limit, swap included, in MiB."""
    pids: int
    """The most processes at once; threads count as well, except where namespaces are forbidden. In a
    container: the most processes and threads at once."""
    cpus: float
    """The processors whose time the code may take, such as 0.5, if this machine delegates a control group. In
    a container: the processors whose time the code may take, such as 0.5."""
    tmpfs_mib: int
    """Size of the private temporary directory and `/tmp` together, in MiB. It counts as memory. In a
    container: size of /tmp, and of a workspace inside the container, in MiB. Both count as memory."""
    environment: dict[str, str]
    """Variables of the code's environment. The code can read them all: no place for secrets."""


class ConfinedSettings(CommonSettings, total=False):
    """Settings of a sandbox of processes that Linux confines, as of :class:`ConfinedSessionCodeExecutorConfig`."""

    confinement: Literal["required", "best_effort"]
    """Whether to refuse if the kernel cannot enforce everything, or to continue with what it can enforce, and
    warn."""
    readable: list[str]
    """More files or directories of this machine that the code may read."""
    shared_memory: bool
    """Whether the code may use the machine's `/dev/shm`, where locks and queues of `multiprocessing` are, if
    its sandbox has none. It has none where namespaces are forbidden and it runs as the user of this program,
    whose programs all share it."""


class DockerSettings(CommonSettings, total=False):
    """Settings of a sandbox in a container, as of :class:`DockerSessionCodeExecutorConfig`."""

    image: str
    """Image with a POSIX shell and what the code needs; nothing else is required of it."""
    container_name: str | None
    """Name of the container; a suffix is added if it is taken. Default: a name made up by the engine."""
    pull: Literal["missing", "always", "never"]
    """When to pull the image from its registry."""
    workspace: Literal["host", "container"]
    """Where the code's files live: in a directory of the host that is bound into the container, or inside it
    only."""
    network: str
    """The container's network: `none`, or the name of a network of the engine, such as `bridge`."""
    unenforced_limits: list[Literal["memory_mib", "cpus", "pids"]]
    """Limits among `memory_mib`, `cpus` and `pids` that an engine need not enforce. A process then has
    `memory_mib` for its data, and its user `pids` processes; 1024 more where the code has the user of a
    rootless engine, which are counted with it. Default: an engine that cannot enforce one is refused."""
    user: str | None
    """User and group, `uid:gid`. Default: the owner of a bound work directory, else one of the sandbox's
    own."""
    read_only: bool
    """Whether the root file system is read-only. The workspace and /tmp are writable in any case."""
    max_file_mib: int
    """Size of the largest file the code may write, in MiB."""
    extra_volumes: dict[str, dict[str, str]]
    """More directories or volumes: host path to `{bind: container path, mode: ro or rw}`."""
    extra_hosts: dict[str, str]
    """More lines of /etc/hosts: name to address."""
    device_requests: list[dict[str, Any]]
    """Devices, as Docker's API names them: `{Driver: nvidia, Count: -1, Capabilities: [[gpu]]}`."""
    runtime: str | None
    """Another OCI runtime of the engine, such as `runsc`."""
    init_command: str | None
    """Shell command that runs in the workspace before the first block, as the same user and under the same
    limits."""
    auto_remove: bool
    """Whether the container is removed when it stops."""
    stop_container: bool
    """Whether the container ends with the process that started it, however that ends."""
    bind_dir: str | os.PathLike[str] | None
    """The same directory as the engine names it, where this program runs in a container itself."""
