"""Creates the control group of everything that runs in a sandbox, if this process may. Linux only.

Of version 1, it is a directory below the group of this process for each controller. Of version 2, whose groups contain
either processes or groups, it is one directory next to the group of this process.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import NamedTuple

from codeact_team.sandbox.confined.protocol import Confinement
from codeact_team.sandbox.system.control_groups import GroupCounters
from codeact_team.sandbox.system.kernel import MIB

CONTROLLERS = frozenset({"memory", "pids", "cpu"})

_NAME = "codeact-team-"
_PERIOD = 100_000
"""Microseconds, the kernel's default."""
_LEAST_QUOTA = 1000
_PART_FOR_SOCKETS = 8
"""The part of its memory that a sandbox may have in sockets, too, where those are counted apart."""
OWN_TASKS = 1
"""The supervising process is in the group as well."""


def _limit_files(settings: Confinement, controller: str, hierarchy: _Hierarchy) -> Mapping[str, str]:
    """The files that limit a group, with their values."""
    version = hierarchy.version
    if controller == "memory":
        name = "memory.max" if version == 2 else "memory.limit_in_bytes"
        return {name: str(settings.memory_mib * MIB)}
    if controller == "pids":
        return {"pids.max": str(settings.pids + OWN_TASKS)}
    # of version 1, a group may not have more than those around it
    cpus = settings.cpus if version == 2 else min(settings.cpus, _processors_of(hierarchy))
    quota = max(_LEAST_QUOTA, int(cpus * _PERIOD))
    if version == 2:
        return {"cpu.max": f"{quota} {_PERIOD}"}
    return {"cpu.cfs_period_us": str(_PERIOD), "cpu.cfs_quota_us": str(quota)}


def _processors_of(hierarchy: _Hierarchy) -> float:
    """Return the processors that this process's groups may use; all of the machine if none limits them."""
    least = float(os.cpu_count() or 1)
    directory: str = hierarchy.parent
    while True:
        with suppress(OSError, ValueError):
            quota, period = (_number(f"{directory}/cpu.cfs_{name}_us") for name in ("quota", "period"))
            if quota > 0:
                least = min(least, quota / period)
        if directory in (hierarchy.mount, "/"):
            return least
        directory = os.path.dirname(directory)


def _number(path: str) -> int:
    with open(path) as file:
        return int(file.read())


def _memory_files(settings: Confinement) -> Mapping[str, str]:
    """The files that keep memory from being beyond the limit, on a disk or in sockets. Not every kernel has all of them."""
    memory = str(settings.memory_mib * MIB)
    return {
        "memory.swap.max": "0",
        "memory.memsw.limit_in_bytes": memory,
        "memory.swappiness": "0",
        # of version 1, memory in sockets is counted only if it has a limit
        "memory.kmem.tcp.limit_in_bytes": str(settings.memory_mib * MIB // _PART_FOR_SOCKETS),
    }


class _Hierarchy(NamedTuple):
    """A mounted hierarchy of groups."""

    version: int
    mount: str
    own: str
    """The group of this process."""
    controllers: frozenset[str]
    """The controllers that can limit groups there."""

    @property
    def parent(self) -> str:
        """The group in which new groups are created."""
        return self.own if self.version == 1 or self.own == self.mount else os.path.dirname(self.own)


class _Group(NamedTuple):
    directory: str
    hierarchy: _Hierarchy
    members: int
    """An open file, by which a process joins the group."""
    lock: int
    """An open file, whose lock shows others that the group is in use: while this process or a fork of it has it open."""


class ControlGroup:
    """A group with the limits of a sandbox, empty at first.

    Attributes:
        counters: Reads what the group has used.
        missing: For each controller that is not available, the reason.
    """

    def __init__(self, settings: Confinement) -> None:
        self.missing: dict[str, str] = dict.fromkeys(sorted(CONTROLLERS), "this machine does not offer it")
        self.counters: GroupCounters = GroupCounters()
        self._groups: list[_Group] = []
        for hierarchy in _hierarchies():
            # one may be mounted more than once
            if wanted := hierarchy.controllers & self.missing.keys():
                with self._missing_if_it_fails(wanted):
                    self._groups.append(group := _make(hierarchy))
                    for controller in wanted:
                        with self._missing_if_it_fails({controller}):
                            self._limit(group, controller, settings)

    @contextmanager
    def _missing_if_it_fails(self, controllers: Iterable[str]) -> Generator[None]:
        try:
            yield
        except OSError as error:
            for controller in controllers:
                self.missing[controller] = error.strerror or str(error)
                self.counters.drop(controller)

    def _limit(self, group: _Group, controller: str, settings: Confinement) -> None:
        version = group.hierarchy.version
        if version == 2:
            _enable(group.hierarchy, controller)
        for name, value in _limit_files(settings, controller, group.hierarchy).items():
            _write(f"{group.directory}/{name}", value)
        if controller == "memory":
            for name, value in _memory_files(settings).items():
                with suppress(FileNotFoundError):
                    _write(f"{group.directory}/{name}", value)
        if controller == "cpu":
            # of version 1, it may be in a hierarchy of its own
            with suppress(FileNotFoundError):
                self.counters.open_usage(group.directory, version)
        else:
            self.counters.open_events(controller, group.directory, version)
        del self.missing[controller]

    @property
    def mounts(self) -> list[tuple[str, str]]:
        """The directories of the group, each with the place where programs look for their own group."""
        return [(group.directory, group.hierarchy.mount) for group in self._groups]

    def enter(self) -> None:
        """Move this process, and all that it will start, into the group."""
        for group in self._groups:
            with self._missing_if_it_fails(group.hierarchy.controllers):
                os.write(group.members, b"0")

    def close(self) -> None:
        """Close the open files. A process that was forked before still has them."""
        groups = (fd for group in self._groups for fd in (group.members, group.lock))
        for fd in (*groups, *self.counters.descriptors):
            os.close(fd)

    def remove(self) -> None:
        """Remove the group, which must not contain processes any more."""
        for group in self._groups:
            # the creation of the next group removes it
            with suppress(OSError):
                os.rmdir(group.directory)


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
    # opened now: what a process may do with it depends on the rights of the one that has opened it
    members = os.open(f"{directory}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
    return _Group(directory, hierarchy, members, lock)


def _make_locked(parent: str) -> tuple[str, int]:
    """Create a directory. Returns it with a descriptor that locks it while it is open."""
    while True:
        directory = f"{parent}/{_NAME}{os.urandom(8).hex()}"
        os.mkdir(directory)
        # until it is locked, another process may take it for an orphan
        with suppress(FileNotFoundError):
            lock = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if os.path.isdir(directory):
                return directory, lock
            os.close(lock)


def _remove_orphans(parent: str) -> None:
    for name in os.listdir(parent):
        if name.startswith(_NAME):
            # it may belong to another user, be in use, or be gone by now
            with suppress(OSError):
                fd = os.open(f"{parent}/{name}", os.O_RDONLY | os.O_CLOEXEC)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.rmdir(f"{parent}/{name}")
                finally:
                    os.close(fd)


def _enable(hierarchy: _Hierarchy, controller: str) -> None:
    """Enable a controller for the groups below the parent, on the whole way from the root to it."""
    names = os.path.relpath(hierarchy.parent, hierarchy.mount).split("/")
    for depth in range(len(names) + 1):
        control = os.path.normpath(os.path.join(hierarchy.mount, *names[:depth], "cgroup.subtree_control"))
        with open(control) as file:
            enabled = file.read().split()
        if controller not in enabled:
            _write(control, f"+{controller}")


def _write(path: str, value: str) -> None:
    # a mode that does not create the file
    with open(path, "rb+", buffering=0) as file:
        file.write(value.encode())
