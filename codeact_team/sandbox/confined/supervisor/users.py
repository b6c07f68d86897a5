"""The users that run the programs of root's sandboxes: others than root where that is possible, and always without capabilities.

In namespaces, files of root can be lent to a user of the sandbox's own. Without them, it is the owner of the workspace.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import NamedTuple

from codeact_team.sandbox.confined.protocol import Confinement
from codeact_team.sandbox.system import kernel
from codeact_team.sandbox.system.kernel import CLONE_NEWUSER, checked, libc
from codeact_team.sandbox.users import maps_all_users, private_user

_LAST_CAPABILITY = 63
_ALL_USERS = (1 << 32) - 1
_TIME_OF_PYTHON = 20
"""Seconds in which Python has to start and end."""


class User(NamedTuple):
    """Who runs programs in the place of root.

    Attributes:
        id: The number of the user.
        group: The number of its only group.
        lending: A descriptor of a user namespace that maps root to it, if root can lend it files.
        is_own: Whether nothing else of this machine is the user's.
    """

    id: int
    group: int
    lending: int | None = None
    is_own: bool = False


def user_in_namespaces() -> User | None:
    """A user of the sandbox's own, if this process is root's and the kernel can lend it root's files. Needs the machine's ``/proc``."""
    if os.getuid() != 0:
        return None
    user = private_user()
    # the two change places, all others stay
    map_ = f"0 {user} 1\n{user} 0 1\n1 1 {user - 1}\n{user + 1} {user + 1} {_ALL_USERS - user - 1}\n"
    entered, entering = os.pipe()
    if (child := os.fork()) == 0:
        try:
            if libc.unshare(CLONE_NEWUSER) == 0:
                os.write(entering, b"1")
                signal.pause()
        finally:
            os._exit(0)
    os.close(entering)
    try:
        if os.read(entered, 1):
            with suppress(OSError):
                for name in ("uid_map", "gid_map"):
                    with open(f"/proc/{child}/{name}", "w") as file:
                        file.write(map_)
                lending = os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
                return User(user, user, lending, is_own=True)
    finally:
        os.close(entered)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return None


def user_without_namespaces(settings: Confinement) -> User | None:
    """The user that runs programs where root cannot lend its files; ``None`` if it is the user of this process.

    It is the owner of the workspace, or a new user if that is temporary. If that user cannot run this Python, root does.
    """
    if os.getuid() != 0:
        return None
    workspace = settings.open_workspace()
    owner = os.fstat(workspace)
    os.close(workspace)
    if owner.st_uid != 0:
        user = User(owner.st_uid, owner.st_gid, is_own=settings.is_temporary)
        return user if _runs_python(user) else None
    is_new = settings.is_temporary and not settings.lent
    return _new_user() if is_new and _everybody_runs_python() else None


def _new_user() -> User:
    user = private_user(in_namespace=not maps_all_users())
    return User(user, user, is_own=True)


@cache
def _everybody_runs_python() -> bool:
    return _runs_python(_new_user())


def _runs_python(user: User) -> bool:
    command = [sys.executable, "-I", "-S", "-c", ""]

    def run() -> None:
        drop_privileges(user)
        subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIME_OF_PYTHON, check=True
        )

    return failure_of(run) is None


def give(user: User, directory: int) -> None:
    """Give a user a directory that is open as this descriptor, which is closed."""
    os.chown(f"/proc/self/fd/{directory}", user.id, user.group)
    os.close(directory)


def failure_of(action: Callable[[], object]) -> str | None:
    """Try ``action`` in a child of this process. Returns why it fails, or ``None``."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        try:
            action()
        except Exception as error:
            os.write(writer, (str(error) or repr(error)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as report:
        reason = report.read().decode(errors="replace")
    os.waitpid(child, 0)
    return reason or None


def drop_privileges(user: User | None = None) -> None:
    """Give up all capabilities, and the ways to gain new ones; become ``user``. Matters if this process is root's."""
    for capability in range(_LAST_CAPABILITY + 1):
        # fails for capabilities that this kernel does not know, and for users that have none
        kernel.prctl(kernel.PR_CAPBSET_DROP, capability)
    if user is not None:
        os.setgroups([])
        os.setresgid(user.group, user.group, user.group)
        os.setresuid(user.id, user.id, user.id)
        # another user's files in /proc would be root's
        checked(kernel.prctl(kernel.PR_SET_DUMPABLE, 1))
    checked(libc.capset(kernel.CAPABILITIES, bytes(kernel.SIZE_OF_CAPABILITIES)))
    checked(kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1))
