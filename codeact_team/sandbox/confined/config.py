"""Settings of the confined sandbox, and the paths that its code may read."""

from __future__ import annotations

import glob
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from codeact_team.errors import SettingError
from codeact_team.sandbox.base import above_default

_SYSTEM = """
/usr /bin /sbin /lib /lib32 /lib64 /libx32 /nix/store
/etc/alternatives /etc/ca-certificates /etc/crypto-policies /etc/debian_version /etc/fonts /etc/java* /etc/ld.so.cache
/etc/localtime /etc/mime.types /etc/nsswitch.conf /etc/os-release /etc/pki/ca-trust/extracted /etc/pki/tls/certs
/etc/pki/tls/openssl.cnf /etc/protocols /etc/python* /etc/services /etc/ssl/certs /etc/ssl/openssl.cnf /etc/timezone
/dev/full /dev/null /dev/random /dev/urandom /dev/zero
/proc/cpuinfo /proc/loadavg /proc/meminfo /proc/self /proc/stat /proc/sys/vm/overcommit_memory /proc/uptime /proc/version
/sys/devices/system/cpu
""".split()
"""``/proc/self`` is the directory of the program's first process. The rest of ``/proc`` would show the arguments of every process."""
# not the installation itself: a virtual environment may be a project's or a home directory
_OF_AN_INSTALLATION = ("bin", "include", "lib", "lib64", "libexec", "share", "ssl", "pyvenv.cfg")


def readable_paths(extra: Sequence[str]) -> list[str]:
    """The existing paths that confined code may read and execute; the config adds ``extra``."""
    paths = [*_of_the_system(), *_interpreter()]
    for path in extra:
        if not os.path.exists(path):
            raise SettingError(f"readable: {path!r} does not exist")
        paths.append(os.path.abspath(path))
    return list(dict.fromkeys(paths))


@cache
def _of_the_system() -> Sequence[str]:
    # a link may lead nowhere, as that of the time zone in an image without time zones
    return [path for pattern in _SYSTEM for path in glob.glob(pattern) if os.path.exists(path)]


def _interpreter() -> Iterator[str]:
    if sys.executable:
        # also the target of the links of a virtual environment, of pyenv and the like
        yield from (sys.executable, os.path.realpath(sys.executable))
    home = Path(os.path.expanduser("~"))
    for prefix in dict.fromkeys(
        map(Path, (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix))
    ):
        if not home.is_relative_to(prefix):
            yield from (str(path) for name in _OF_AN_INSTALLATION if (path := prefix / name).exists())


def closed_to_others() -> str | None:
    """A part of this Python's installation that others than its owner may not read, if there is one."""
    for path in (*_interpreter(), os.__file__):
        needed = stat.S_IROTH | (stat.S_IXOTH if os.path.isdir(path) else 0)
        if ~os.stat(path).st_mode & needed:
            return path
    return None


class ConfinedSandboxConfig(BaseModel):
    """Settings of the confinement. Memory and sizes are in MiB."""

    model_config = ConfigDict(extra="forbid")

    confinement: Literal["required", "best_effort"] = "required"
    """Whether to refuse if the kernel cannot enforce everything, or to continue with what it can enforce, and warn."""
    memory_mib: int = Field(default=1024, ge=64)
    """Memory limit in MiB: for all processes together if this machine delegates a control group, else for each."""
    pids: int = Field(default=256, ge=8)
    """The most processes at once; threads count as well, except where namespaces are forbidden."""
    cpus: float = Field(default=1.0, gt=0)
    """The processors whose time the code may take, such as 0.5, if this machine delegates a control group."""
    tmpfs_mib: int = Field(default=256, ge=1)
    """Size of the private temporary directory and `/tmp` together, in MiB. It counts as memory."""
    readable: list[str] = Field(default_factory=list)
    """More files or directories of this machine that the code may read."""
    shared_memory: bool = False
    """Whether the code may use the machine's `/dev/shm`, where locks and queues of `multiprocessing` are, if its sandbox has none.
    It has none where namespaces are forbidden and it runs as the user of this program, whose programs all share it."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables of the code's environment. The code can read them all: no place for secrets."""

    @property
    def relaxations(self) -> tuple[str, ...]:
        """Each field that grants more than its default, as ``field: value``.

        What is missing with ``confinement: best_effort`` is told when a sandbox starts.
        """
        found = [f"readable: {', '.join(self.readable)}"] if self.readable else []
        if self.shared_memory:
            found.append("shared_memory: true")
        return (*found, *above_default(self, "memory_mib", "pids", "cpus", "tmpfs_mib"))
