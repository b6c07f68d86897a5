"""The control group of all that runs in a sandbox, where the machine delegates one. Linux only.

Of version 1, it is a directory below the group of this process for each controller; of version 2, where a group does not
hold both processes and groups, one directory beside it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import NamedTuple

CONTROLLERS = frozenset({"memory", "pids", "cpu"})

_NAME = "codeact-team-"
_KEYS = {"memory": b"oom_kill", "pids": b"max"}
"""Under which the kernel counts what a limit has killed, or refused."""
_PERIOD = 100_000
"""Microseconds, the kernel's default."""
_LEAST_QUOTA = 1000


class Limits(NamedTuple):
    """What all processes of a group may use together."""

    memory: int
    """In bytes."""
    tasks: int
    """Processes and threads."""
    cpus: float

    def files(self, version: int) -> Mapping[str, Mapping[str, str]]:
        """What to write into which file, by controller."""
        memory, tasks = str(self.memory), str(self.tasks)
        quota = str(max(_LEAST_QUOTA, int(self.cpus * _PERIOD)))
        if version == 1:
            cpu = {"cpu.cfs_period_us": str(_PERIOD), "cpu.cfs_quota_us": quota}
            return {"memory": {"memory.limit_in_bytes": memory}, "pids": {"pids.max": tasks}, "cpu": cpu}
        cpu = {"cpu.max": f"{quota} {_PERIOD}"}
        return {"memory": {"memory.max": memory}, "pids": {"pids.max": tasks}, "cpu": cpu}

    @property
    def swap_files(self) -> Mapping[str, str]:
        """What keeps memory from being swapped out beyond the limit. Which of these files there are differs."""
        memory = str(self.memory)
        return {"memory.swap.max": "0", "memory.memsw.limit_in_bytes": memory, "memory.swappiness": "0"}


class _Hierarchy(NamedTuple):
    """Where groups are made."""

    version: int
    mount: str
    own: str
    """The group of this process."""
    controllers: frozenset[str]
    """What can be limited."""

    @property
    def parent(self) -> str:
        return self.own if self.version == 1 or self.own == self.mount else os.path.dirname(self.own)


class _Group(NamedTuple):
    directory: str
    hierarchy: _Hierarchy
    members: int
    """An open file by which a process becomes a member."""
    lock: int
    """An open file by which others know that it is in use: while this process, or one that it has forked, has it open."""


class ControlGroup:
    """A group with limits, empty at first."""

    def __init__(self, limits: Limits) -> None:
        self.missing = dict.fromkeys(sorted(CONTROLLERS), "this machine does not offer it")
        """Why a controller cannot be had, by its name."""
        self._groups: list[_Group] = []
        self._counters: dict[str, int] = {}
        self._usage: tuple[int, int] | None = None
        """The file that says how much processor time was used, and its units in a second."""
        for hierarchy in _hierarchies():
            # one may be mounted more than once
            if wanted := hierarchy.controllers & self.missing.keys():
                with self._missing_if_it_fails(wanted):
                    self._groups.append(group := _make(hierarchy))
                    for controller in wanted:
                        with self._missing_if_it_fails({controller}):
                            self._limit(group, controller, limits)

    @contextmanager
    def _missing_if_it_fails(self, controllers: Iterable[str]) -> Generator[None]:
        try:
            yield
        except OSError as error:
            self.missing |= dict.fromkeys(controllers, error.strerror)

    def _limit(self, group: _Group, controller: str, limits: Limits) -> None:
        version = group.hierarchy.version
        if version == 2:
            _enable(group.hierarchy, controller)
        for name, value in limits.files(version)[controller].items():
            _write(f"{group.directory}/{name}", value)
        if controller == "memory":
            for name, value in limits.swap_files.items():
                with suppress(FileNotFoundError):
                    _write(f"{group.directory}/{name}", value)
        if controller in _KEYS:
            name = "memory.oom_control" if (version, controller) == (1, "memory") else f"{controller}.events"
            self._counters[controller] = os.open(f"{group.directory}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        if controller == "cpu":
            name, units = ("cpuacct.usage", 1_000_000_000) if version == 1 else ("cpu.stat", 1_000_000)
            # of version 1, it may be in a hierarchy of its own
            with suppress(FileNotFoundError):
                self._usage = os.open(f"{group.directory}/{name}", os.O_RDONLY | os.O_CLOEXEC), units
        del self.missing[controller]

    @property
    def mounts(self) -> list[tuple[str, str]]:
        """The directories of the group, and where a program looks for those of its own group."""
        return [(group.directory, group.hierarchy.mount) for group in self._groups]

    def enter(self) -> None:
        """Let this process, and all that it will start, belong to the group."""
        for group in self._groups:
            with self._missing_if_it_fails(group.hierarchy.controllers):
                os.write(group.members, b"0")

    def close(self) -> None:
        """Let go of what is open. A process that was forked before has it still."""
        usage = () if self._usage is None else (self._usage[0],)
        groups = (fd for group in self._groups for fd in (group.members, group.lock))
        for fd in (*groups, *self._counters.values(), *usage):
            os.close(fd)

    def remove(self) -> None:
        """Remove the group, in which no process may be left."""
        for group in self._groups:
            # what is left of it is removed when another one is made beside it
            with suppress(OSError):
                os.rmdir(group.directory)

    def count(self, controller: str) -> int | None:
        """How many processes a limit has killed, or refused; ``None`` where nobody counts."""
        if controller not in self._counters or controller in self.missing:
            return None
        lines = (line.split() for line in os.pread(self._counters[controller], 4096, 0).splitlines())
        return next((int(line[1]) for line in lines if line[0] == _KEYS[controller]), None)

    @property
    def processor_time(self) -> Callable[[], float] | None:
        """Says how many seconds of processor time the group has used; ``None`` where it does not count."""
        if self._usage is None or "cpu" in self.missing:
            return None
        file, units = self._usage
        # a number alone, or first of all after its key
        return lambda: int(os.pread(file, 4096, 0).split(None, 2)[:2][-1]) / units


def _hierarchies() -> Iterator[_Hierarchy]:
    with open("/proc/self/cgroup") as file:
        lines = [line.rstrip("\n").split(":", 2) for line in file]
    own = {name: path for _, names, path in lines for name in names.split(",")}
    with open("/proc/self/mountinfo") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            (root, mount), (kind, _, options) = before.split()[3:5], after.split()[:3]
            if kind == "cgroup" and (found := CONTROLLERS.intersection(options.split(",")) & own.keys()):
                yield _Hierarchy(1, mount, _below(mount, root, own[min(found)]), found)
            elif kind == "cgroup2" and "" in own:
                hierarchy = _Hierarchy(2, mount, _below(mount, root, own[""]), frozenset())
                with suppress(OSError), open(f"{mount}/cgroup.controllers") as controllers:
                    if found := CONTROLLERS.intersection(controllers.read().split()):
                        yield hierarchy._replace(controllers=found)


def _below(mount: str, root: str, path: str) -> str:
    return os.path.normpath(os.path.join(mount, os.path.relpath(path, root)))


def _make(hierarchy: _Hierarchy) -> _Group:
    _remove_orphans(hierarchy.parent)
    directory, lock = _make_locked(hierarchy.parent)
    # opened now: what a process may do with it depends on the rights of who has opened it
    members = os.open(f"{directory}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
    return _Group(directory, hierarchy, members, lock)


def _make_locked(parent: str) -> tuple[str, int]:
    """A new directory, and what locks it while it is open."""
    while True:
        directory = f"{parent}/{_NAME}{os.urandom(8).hex()}"
        os.mkdir(directory)
        lock = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(lock, fcntl.LOCK_EX)
        # another process may have taken it for an orphan
        if os.path.isdir(directory):
            return directory, lock
        os.close(lock)


def _remove_orphans(parent: str) -> None:
    for name in os.listdir(parent):
        if name.startswith(_NAME):
            # of another user, in use, or gone by now
            with suppress(OSError):
                fd = os.open(f"{parent}/{name}", os.O_RDONLY | os.O_CLOEXEC)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.rmdir(f"{parent}/{name}")
                finally:
                    os.close(fd)


def _enable(hierarchy: _Hierarchy, controller: str) -> None:
    """Let a controller limit the groups below the parent, on the whole way to it."""
    names = os.path.relpath(hierarchy.parent, hierarchy.mount).split("/")
    for depth in range(len(names) + 1):
        control = os.path.normpath(os.path.join(hierarchy.mount, *names[:depth], "cgroup.subtree_control"))
        with open(control) as file:
            enabled = file.read().split()
        if controller not in enabled:
            _write(control, f"+{controller}")


def _write(path: str, value: str) -> None:
    # a mode that does not make the file
    with open(path, "rb+", buffering=0) as file:
        file.write(value.encode())
