"""What a confined program sees of this machine's files: a root of its own, with nothing but what is named. Linux only.

What is not there can be neither read nor listed, nor can a socket there be reached, which Landlock does not refuse.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from codeact_team.sandbox.system.kernel import checked, libc, syscall

_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_PRIVATE = 0x1, 0x2, 0x4, 0x8, 0x4000, 0x40000
_MNT_DETACH = 2
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_OPEN_TREE_CLONE, _MOVE_MOUNT_F_EMPTY_PATH, _MOUNT_ATTR_RDONLY = 0x1, 0x4, 0x1
# the same number on every architecture
_SYS_OPEN_TREE, _SYS_MOVE_MOUNT, _SYS_MOUNT_SETATTR = 428, 429, 442

SHARED_MEMORY = "/dev/shm"
"""Private, so that the semaphores of ``multiprocessing`` work there."""
_SHARED_MEMORY_MIB = 64
_ROOT_MIB = 1
"""For the root itself, which has directories and links."""
_MOST_FILES = 1 << 16
"""How many a file system in memory may have: each takes memory beside its content."""
_MOST_LINKS = 40
"""How many the kernel follows on the way to a file."""
_PROC = "/proc"
_OWN_FILES = f"{_PROC}/self/fd"
_LINKS = {
    "/dev/fd": _OWN_FILES,
    **{f"/dev/{name}": f"{_OWN_FILES}/{number}" for number, name in enumerate(("stdin", "stdout", "stderr"))},
}
"""What programs expect besides what is shown."""
_ABOUT_THE_MACHINE = {"cpuinfo", "filesystems", "loadavg", "meminfo", "stat", "sys", "uptime", "version"}
"""What is to be seen of ``/proc`` besides processes. Some of the rest is closed to all users but root, which may be this one."""


class View(NamedTuple):
    """What is to be seen, by absolute paths.

    Attributes:
        readable: Files and directories of this machine, where they are, which cannot be changed.
        writable: A directory of this machine, where it is.
        identity: Device and inode of that: something else may be in its place by now.
        private: A directory in whose place there is an empty one in memory, which counts as memory.
        private_mib: How much that may hold, in MiB.
    """

    readable: Sequence[str]
    writable: str
    identity: Sequence[int]
    private: str
    private_mib: int

    def enter(self, moved: Iterable[tuple[str, str]] = ()) -> None:
        """See this from now on. Needs mounts and processes of its own, and the rights over them.

        Args:
            moved: More directories, each with where it is to be seen.

        Raises:
            OSError: If the kernel does not let it; this process may be of no more use then.
        """
        checked(libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None))
        writable = _tree(self.writable)
        status = os.fstat(writable)
        if [status.st_dev, status.st_ino] != [*self.identity]:
            raise OSError(f"{self.writable} was replaced")
        place = self.private
        _mount_memory(place, _ROOT_MIB)
        ways = _Ways(path for path in self.readable if not _is_below(path, _PROC))
        shown = ways.ends
        for path in shown:
            _show(_tree(path), f"{place}{path}")
        for source, target in moved:
            _show(_tree(source), f"{place}{target}")
        for path, target in {**ways.links, **_LINKS}.items():
            if not any(_is_below(path, above) for above in shown):
                os.makedirs(os.path.dirname(f"{place}{path}"), exist_ok=True)
                os.symlink(target, f"{place}{path}")
        for path in (*ways.passed, self.writable, self.private, _PROC, SHARED_MEMORY):
            os.makedirs(f"{place}{path}", exist_ok=True)
        read_only = struct.pack("=QQQQ", _MOUNT_ATTR_RDONLY, 0, 0, 0)
        arguments = (os.fsencode(place), _AT_RECURSIVE, read_only, len(read_only))
        checked(syscall(_SYS_MOUNT_SETATTR, _AT_FDCWD, *arguments))
        _attach(writable, f"{place}{self.writable}")
        _mount_processes(f"{place}{_PROC}", empty=f"{place}{self.private}")
        _mount_memory(f"{place}{SHARED_MEMORY}", _SHARED_MEMORY_MIB, _MS_NOEXEC)
        _mount_memory(f"{place}{self.private}", self.private_mib)
        _make_root(place)


class _Ways:
    """Where paths lead, and how.

    Attributes:
        ends: The places that they lead to, but for those below others of them.
        links: All links on the way, with their targets.
        passed: Directories that a path leads into and out of again.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self.ends: list[str] = []
        self.links: dict[str, str] = {}
        self.passed: set[str] = set()
        for place in sorted({*map(self._follow, paths)}, key=len):
            if not any(_is_below(place, above) for above in (_PROC, *self.ends)):
                self.ends.append(place)

    def _follow(self, path: str) -> str:
        """Where a path leads, as the kernel goes there."""
        place, names, followed = "/", path.split("/")[::-1], 0
        # what is below that depends on who looks
        while names and place != _PROC:
            name = names.pop()
            here = os.path.normpath(os.path.join(place, name))
            if name == "..":
                self.passed.add(place)
            if name in {"", ".", ".."} or not os.path.islink(here):
                place = here
                continue
            if (followed := followed + 1) > _MOST_LINKS:
                raise OSError(f"{path}: too many links on the way")
            self.links[here] = target = os.readlink(here)
            names += target.split("/")[::-1]
            place = "/" if target.startswith("/") else place
        return place


def _is_below(path: str, above: str) -> bool:
    """Whether a path is that one, or leads through it."""
    return path == above or path.startswith(f"{above.rstrip('/')}/")


def _show(tree: int, place: str) -> None:
    if stat.S_ISDIR(os.fstat(tree).st_mode):
        os.makedirs(place, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(place), exist_ok=True)
        os.close(os.open(place, os.O_CREAT | os.O_RDONLY | os.O_CLOEXEC, 0o600))
    _attach(tree, place)


def _tree(path: str) -> int:
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_RECURSIVE
    return checked(syscall(_SYS_OPEN_TREE, _AT_FDCWD, os.fsencode(path), flags))


def _attach(tree: int, place: str) -> None:
    checked(syscall(_SYS_MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(place), _MOVE_MOUNT_F_EMPTY_PATH))
    os.close(tree)


def _mount_processes(place: str, empty: str) -> None:
    flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC | _MS_RDONLY
    checked(libc.mount(b"proc", os.fsencode(place), b"proc", flags, None))
    with os.scandir(place) as entries:
        for entry in entries:
            if entry.name.isdigit() or entry.is_symlink() or entry.name in _ABOUT_THE_MACHINE:
                continue
            _attach(_tree(empty if entry.is_dir() else os.devnull), entry.path)


def _mount_memory(place: str, mib: int, flags: int = 0) -> None:
    options = f"mode=0700,size={mib}m,nr_inodes={_MOST_FILES}".encode()
    flags |= _MS_NOSUID | _MS_NODEV
    checked(libc.mount(b"tmpfs", os.fsencode(place), b"tmpfs", flags, options))


def _make_root(place: str) -> None:
    """See nothing any more but what is below ``place``."""
    os.chdir(place)
    checked(libc.pivot_root(b".", b"."))
    # what was the root is below the new one now, in the same place
    checked(libc.umount2(b".", _MNT_DETACH))
    os.chdir("/")
