"""Isolates the supervising process, and all that it will start: namespaces, mounts, rights, Landlock and system calls.

A program sees a root of its own, with nothing but the named paths. Others can be neither read nor listed, and no
socket there can be reached, which Landlock does not refuse. Linux only.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import stat
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from codeact_team.sandbox.confined.protocol import Confinement
from codeact_team.sandbox.confined.supervisor.users import User
from codeact_team.sandbox.system import kernel
from codeact_team.sandbox.system.kernel import CLONE_NEWUSER, PROCESS_TERMINALS, checked, libc, syscall
from codeact_team.sandbox.users import USER_NAME

_T = TypeVar("_T")

_CLONE_NEWNS, _CLONE_NEWIPC, _CLONE_NEWNET = 0x00020000, 0x08000000, 0x40000000
_CLONE_NEWPID = 0x20000000

_SIOCSIFFLAGS, _IFF_UP = 0x8914, 0x1
_OF_CONNECTIONS = {"tcp_rmem": "4096 65536 262144", "tcp_wmem": "4096 16384 262144"}
"""Settings of a sandbox's network: the bytes that a connection may hold there and back, at least, at first and at most. The
machine's own let one process hold all that there may be for all connections of the machine."""
_OF_PORTS = {"ip_unprivileged_port_start": "0"}

_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_PRIVATE = 0x1, 0x2, 0x4, 0x8, 0x4000, 0x40000
_MNT_DETACH = 2
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_OPEN_TREE_CLONE, _MOVE_MOUNT_F_EMPTY_PATH, _AT_EMPTY_PATH = 0x1, 0x4, 0x1000
_MOUNT_ATTR_RDONLY, _MOUNT_ATTR_IDMAP = 0x1, 0x100000
# the same number on every architecture
_SYS_OPEN_TREE, _SYS_MOVE_MOUNT, _SYS_MOUNT_SETATTR = 428, 429, 442

SHARED_MEMORY = "/dev/shm"
"""Private to a sandbox, where the semaphores of ``multiprocessing`` need it."""
_SHARED_MEMORY_MIB = 64
TEMPORARY = "/tmp"
"""Private to a sandbox, too, where its mounts allow that: many programs do not ask for ``TMPDIR``."""
TERMINALS, NEW_TERMINAL, OWN_TERMINAL = "/dev/pts", "/dev/ptmx", "/dev/tty"
"""The directory of a sandbox's pseudo-terminals, the device that makes one, and a process's own terminal."""
MOST_TERMINALS = 128
"""The most pseudo-terminals of a sandbox: their number is limited for the whole machine, and no limit counts their memory."""
_LASTING_TEMPORARY = "/var/tmp"
_PASSWD, _GROUP, _HOSTS = _OWN_FILES = ("/etc/passwd", "/etc/group", "/etc/hosts")
"""Files that a sandbox has of its own unless it sees the machine's."""
_ROOT_MIB = 1
"""The size of the root itself, which contains directories and links."""
_MOST_FILES = 1 << 16
"""The most files of a file system in memory: each takes memory besides its content."""
_MOST_LINKS = 40
"""The most links that the kernel follows on the way to a file."""
_PROC = "/proc"
_OWN_DESCRIPTORS = f"{_PROC}/self/fd"
_LINKS = {
    "/dev/fd": _OWN_DESCRIPTORS,
    NEW_TERMINAL: "pts/ptmx",
    **{
        f"/dev/{name}": f"{_OWN_DESCRIPTORS}/{number}"
        for number, name in enumerate(("stdin", "stdout", "stderr"))
    },
}
"""Links that programs expect."""
_ABOUT_THE_MACHINE = {"cpuinfo", "filesystems", "loadavg", "meminfo", "stat", "sys", "uptime", "version"}
"""The visible parts of ``/proc`` besides processes. Some others are closed to all users but root, which may be this one."""
_WITHOUT_OWNERS = ("/dev", "/sys")
"""Where files are equal for all users, in file systems that cannot show other owners."""


def enter_namespaces(
    set_up_mounts: Callable[[], _T], birth: int | None = None, *, any_port: bool = False
) -> _T:
    """Enter new namespaces for processes, network, IPC and mounts, and set up the mounts there. Returns its result.

    Continues in a child, whose process id is written to the pipe ``birth``; this process ends. The child is the first
    process of its namespace: when it ends, the kernel ends all others there. With ``any_port``, programs there may listen at
    ports that are elsewhere for root alone.

    Raises:
        OSError: If the kernel refuses it. The process may be of no more use then, so try with :func:`failure_of` first.
    """
    uid, gid = os.getuid(), os.getgid()
    # in a namespace of its own, the processes of a user are counted apart, which the limit of root does not concern
    if uid != 0 or libc.unshare(_CLONE_NEWPID) < 0:
        checked(libc.unshare(_CLONE_NEWPID | CLONE_NEWUSER))
        maps = {"setgroups": "deny", "uid_map": f"{uid} {uid} 1", "gid_map": f"{gid} {gid} 1"}
        for name, line in maps.items():
            with open(f"/proc/self/{name}", "w") as file:
                file.write(line)
    _continue_in_a_child(birth)
    checked(libc.unshare(_CLONE_NEWNS | _CLONE_NEWIPC | _CLONE_NEWNET))
    _set_up_network(_OF_CONNECTIONS | _OF_PORTS if any_port else _OF_CONNECTIONS)
    return set_up_mounts()


def _continue_in_a_child(birth: int | None) -> None:
    me = os.pidfd_open(os.getpid())
    if child := os.fork():
        try:
            if birth is not None:
                os.write(birth, str(child).encode())
        finally:
            os._exit(0)
    # from then on, its parent is the process with which it has to end
    select.select([me], [], [])
    os.close(me)


def _set_up_network(settings: Mapping[str, str]) -> None:
    """Bring up the loopback of this process's own network, and have nothing else in it. Raises an ``OSError``."""
    for name, value in settings.items():
        # below it, everybody sees their own network
        with open(f"/proc/sys/net/ipv4/{name}", "w") as file:
            file.write(value)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as to_ask:
        fcntl.ioctl(to_ask, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))


def allow_only(
    readable: Sequence[str], writable: Sequence[str | int], *, has_own_network: bool = False
) -> None:
    """Restrict this process, and all that it starts, as :func:`make_domain` says. Raises as that does."""
    ruleset = make_domain(readable, writable, has_own_network=has_own_network)
    kernel.enter_domain(ruleset)
    os.close(ruleset)


def make_domain(
    readable: Sequence[str],
    writable: Sequence[str | int],
    *,
    scoped: bool = True,
    has_own_network: bool = False,
) -> int:
    """The ruleset of a domain that is restricted to these paths, or what is open as these descriptors, as far as this kernel's Landlock can.

    Readable files may be executed, and writable ones may be read. Since Linux 6.12, it also protects all processes outside it
    against signals, if it is ``scoped``. Ports are refused, unless the sandbox has a network of its own.

    Raises:
        OSError: If the kernel has no Landlock.
    """
    abi = kernel.landlock_abi()
    all_of_files = kernel.rights_over_files(abi)
    ruleset = kernel.make_ruleset(
        all_of_files,
        tcp=kernel.ALL_OF_TCP if abi >= kernel.ABI_OF_TCP and not has_own_network else 0,
        scopes=kernel.landlock_scopes() if scoped else 0,
    )
    for path in readable:
        kernel.allow(ruleset, path, kernel.EXECUTE | kernel.READ_FILE | kernel.READ_DIRECTORY)
    for path in writable:
        kernel.allow(ruleset, path, all_of_files)
    return ruleset


def enter_mount_view(
    settings: Confinement, moved: Iterable[tuple[str, str]] = (), user: User | None = None
) -> User | None:
    """Make a root for this process that contains only what its programs may see, as ``user`` or as this process's own user.

    Needs its own namespaces of mounts and processes, and rights over them. The private directory is replaced by an empty file
    system in memory, which counts as memory, and is at ``/tmp``, too, unless programs have to see the machine's own.
    Each directory of ``moved`` is shown at the place named with it.

    Returns:
        The ``user``; ``None`` if a file system cannot lend it root's files.

    Raises:
        OSError: If the kernel refuses it. This process may be of no more use then.
    """
    checked(libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None))
    paths = _TracedPaths(path for path in settings.readable if not _is_below(path, _PROC))
    shown = paths.ends
    # opened before anything is mounted, which would be visible in them
    (writable, *visible), user = _trees(settings.workspace, shown, settings.lent, user)
    status = os.fstat(writable)
    if [status.st_dev, status.st_ino] != [*settings.workspace_identity]:
        raise OSError(f"{settings.workspace} was replaced")
    place = settings.private
    _mount_memory(place, _ROOT_MIB, user=user)
    # directories above the visible ones may be entered by all
    umask = os.umask(0o022)
    for path, tree in zip(shown, visible, strict=True):
        _show(tree, f"{place}{path}")
    for source, target in (*moved, *settings.way_out):
        _require_own(place, target, shown)
        _show(_tree(source), f"{place}{target}")
    if os.path.exists(OWN_TERMINAL) and not any(_is_below(OWN_TERMINAL, path) for path in shown):
        _show(_tree(OWN_TERMINAL), f"{place}{OWN_TERMINAL}")
    has_temporary = _can_have_temporary(settings, paths)
    links = _LINKS | ({_LASTING_TEMPORARY: TEMPORARY} if has_temporary else {}) | paths.links
    for path, target in links.items():
        if not any(_is_below(path, above) for above in shown):
            os.makedirs(os.path.dirname(f"{place}{path}"), exist_ok=True)
            os.symlink(target, f"{place}{path}")
    # nothing is made in a directory of the machine's
    terminals = [
        path
        for path in (TERMINALS, PROCESS_TERMINALS)
        if os.path.isdir(f"{place}{path}") or not any(_is_below(path, above) for above in shown)
    ]
    for path in (*paths.passed, settings.workspace, settings.private, _PROC, SHARED_MEMORY, *terminals):
        os.makedirs(f"{place}{path}", exist_ok=True)
    uid, gid = (os.getuid(), os.getgid()) if user is None else (user.id, user.id)
    _write_own_files(place, uid, gid, settings, (*shown, *paths.links))
    _set_attributes(_AT_FDCWD, os.fsencode(place), 0, _MOUNT_ATTR_RDONLY)
    _mount_processes(f"{place}{_PROC}", empty=f"{place}{settings.private}")
    _mount_memory(f"{place}{SHARED_MEMORY}", _SHARED_MEMORY_MIB, _MS_NOEXEC, user=user)
    for path in terminals:
        _mount_terminals(f"{place}{path}")
    if has_temporary:
        _mount_temporary(place, settings.private, settings.tmpfs_mib, user)
    else:
        _mount_memory(f"{place}{settings.private}", settings.tmpfs_mib, user=user)
    os.umask(umask)
    _attach(writable, f"{place}{settings.workspace}")
    _make_root(place)
    return user


def _can_have_temporary(settings: Confinement, paths: _TracedPaths) -> bool:
    """Whether ``/tmp`` need not be the one of this machine, nor a link, nor hold a link that code could replace."""
    shown = any(_is_below(TEMPORARY, path) for path in (*paths.ends, settings.workspace))
    return not shown and not any(TEMPORARY in (path, os.path.dirname(path)) for path in paths.links)


def _mount_temporary(place: str, private: str, mib: int, user: User | None) -> None:
    """Mount a file system in memory as ``/tmp``, and as the private directory, in the new root at ``place``.

    The names in ``/tmp`` that lead to visible paths stay read-only. Each is a mount, so that code can neither rename nor
    replace it.
    """
    temporary = f"{place}{TEMPORARY}"
    os.makedirs(temporary, exist_ok=True)
    is_below = os.path.dirname(private) == TEMPORARY
    names = set(os.listdir(temporary)) - ({os.path.basename(private)} if is_below else set())
    trees = {name: _tree(f"{temporary}/{name}") for name in names}
    _mount_memory(temporary, mib, user=user)
    for name, tree in trees.items():
        _show(tree, f"{temporary}/{name}")
    source = f"{place}{private}" if is_below else temporary
    os.makedirs(source, 0o700, exist_ok=True)
    if user is not None:
        os.chown(source, user.id, user.id)
    # a mount, as the names above
    _attach(_tree(source), f"{place}{private}")


def own_temporary(settings: Confinement) -> Sequence[str]:
    """``/tmp``, if this process sees one of its sandbox's own."""
    with suppress(OSError):
        if os.stat(TEMPORARY).st_dev == os.stat(settings.private).st_dev:
            return [TEMPORARY]
    return []


def _require_own(place: str, target: str, shown: Sequence[str]) -> None:
    """Raise an ``OSError`` if ``target`` would have to be made in a directory of the machine's."""
    if not os.path.exists(f"{place}{target}") and any(_is_below(target, above) for above in shown):
        raise OSError(f"{target} cannot be shown in a directory of this machine that has no such file")


def _write_own_files(place: str, uid: int, gid: int, settings: Confinement, taken: Sequence[str]) -> None:
    """Write the files by which programs find out who and where they are, unless the machine's are ``taken``."""
    home = settings.private
    users = {0: "root", 65534: "nobody", **({} if uid in (0, 65534) else {uid: USER_NAME})}
    groups = {0: "root", 65534: "nogroup", **({} if gid in (0, 65534) else {gid: USER_NAME})}
    lines = [
        f"{name}:x:{number}:{gid if number == uid else number}::{home if number == uid else '/nonexistent'}:/bin/sh\n"
        for number, name in users.items()
    ]
    contents = {
        _PASSWD: "".join(lines),
        _GROUP: "".join(f"{name}:x:{number}:\n" for number, name in groups.items()),
        _HOSTS: f"127.0.0.1 localhost {os.uname().nodename}\n::1 localhost\n"
        + "".join(f"{address} {name}\n" for name, address in settings.hosts.items()),
    }
    if settings.hosts and any(_is_below(_HOSTS, above) for above in taken):
        raise OSError(f"with `egress`, code needs a {_HOSTS} of its own: name less of /etc in `readable`")
    for path, content in contents.items():
        if not any(_is_below(path, above) for above in taken):
            os.makedirs(os.path.dirname(f"{place}{path}"), exist_ok=True)
            with open(f"{place}{path}", "w") as file:
                file.write(content)


def own_files() -> Sequence[str]:
    """The files that programs can read in a root of their own."""
    return [*filter(os.path.exists, _OWN_FILES)]


def own_terminals() -> Sequence[str]:
    """The paths of the sandbox's pseudo-terminals, if this process, in a root of its own, has got any."""
    paths = (TERMINALS, PROCESS_TERMINALS, NEW_TERMINAL, OWN_TERMINAL)
    return [*filter(os.path.exists, paths)] if os.path.exists(f"{TERMINALS}/ptmx") else []


class _TracedPaths:
    """Follows links, as the kernel does.

    Attributes:
        ends: The places that the paths lead to, without those below others of them.
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
        """The place that a path leads to."""
        place, names, followed = "/", path.split("/")[::-1], 0
        # the links below that depend on the process that follows them
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
    """Whether a path is ``above``, or leads through it."""
    return path == above or path.startswith(f"{above.rstrip('/')}/")


def _show(tree: int, place: str) -> None:
    if stat.S_ISDIR(os.fstat(tree).st_mode):
        os.makedirs(place, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(place), exist_ok=True)
        os.close(os.open(place, os.O_CREAT | os.O_RDONLY | os.O_CLOEXEC, 0o600))
    _attach(tree, place)


def _trees(
    workspace: str, paths: Sequence[str], lent: Sequence[str], user: User | None
) -> tuple[Sequence[int], User | None]:
    """A tree for the workspace, and for each path. With the ``user``, or ``None`` if a file system cannot lend it root's files."""
    trees: list[int] = []
    # whatever else root has to itself stays so
    to_lend = [workspace, *map(os.path.realpath, lent)]
    try:
        for path in (workspace, *paths):
            is_lent = path in to_lend and not any(_is_below(path, above) for above in _WITHOUT_OWNERS)
            trees.append(_tree(path, user if is_lent else None))
    except OSError:
        for tree in trees:
            os.close(tree)
        if user is None:
            raise
        return _trees(workspace, paths, lent, None)
    return trees, user


def _tree(path: str, user: User | None = None) -> int:
    """A copy of the mounts from this path on, to be attached to another one. Files of root belong to ``user`` there."""
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_RECURSIVE
    tree = checked(syscall(_SYS_OPEN_TREE, _AT_FDCWD, os.fsencode(path), flags))
    if user is not None:
        try:
            _set_attributes(tree, b"", _AT_EMPTY_PATH, _MOUNT_ATTR_IDMAP, user.lending or 0)
        except OSError:
            os.close(tree)
            raise
    return tree


def _set_attributes(directory: int, path: bytes, flags: int, attributes: int, namespace: int = 0) -> None:
    """Set attributes of a mount, and of those below it."""
    arguments = struct.pack("=QQQQ", attributes, 0, 0, namespace)
    checked(syscall(_SYS_MOUNT_SETATTR, directory, path, flags | _AT_RECURSIVE, arguments, len(arguments)))


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


def _mount_memory(place: str, mib: int, flags: int = 0, *, user: User | None = None) -> None:
    owner = "" if user is None else f",uid={user.id},gid={user.id}"
    options = f"mode=0700,size={mib}m,nr_inodes={_MOST_FILES}{owner}".encode()
    flags |= _MS_NOSUID | _MS_NODEV
    checked(libc.mount(b"tmpfs", os.fsencode(place), b"tmpfs", flags, options))


def _mount_terminals(place: str) -> None:
    """Mount pseudo-terminals for this sandbox alone; if the kernel refuses, an empty directory, which hides the machine's."""
    options = f"mode=0620,ptmxmode=0666,max={MOST_TERMINALS}".encode()
    if libc.mount(b"devpts", os.fsencode(place), b"devpts", _MS_NOSUID | _MS_NOEXEC, options) < 0:
        _mount_memory(place, _ROOT_MIB, _MS_RDONLY)


def _make_root(place: str) -> None:
    """Make ``place`` the root, and detach everything else."""
    os.chdir(place)
    checked(libc.pivot_root(b".", b"."))
    # the old root is mounted over the new one now
    checked(libc.umount2(b".", _MNT_DETACH))
    os.chdir("/")
