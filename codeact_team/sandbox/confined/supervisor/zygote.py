"""The zygote of the supervising processes of one host, which are forks of it, so that they start with everything loaded.

A program with nothing but the standard library. Its stdin is a socket to the host. It ends with the host, or when the host
closes the socket, and its forks end with it.
"""

from __future__ import annotations

import os
import select
import selectors
import signal
import socket
import sys
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from codeact_team.files import trees
from codeact_team.sandbox.confined.protocol import Confinement, Message, MessageSocket
from codeact_team.sandbox.confined.supervisor import answering, isolation, users
from codeact_team.sandbox.confined.supervisor.control_groups import ControlGroup
from codeact_team.sandbox.confined.supervisor.isolation import SHARED_MEMORY
from codeact_team.sandbox.confined.supervisor.starting import ForkingThread, PreloadedProgram
from codeact_team.sandbox.confined.supervisor.supervision import (
    BOUNDING,
    Capabilities,
    View,
    close_standard_streams,
    refuse,
    supervise,
)
from codeact_team.sandbox.system import kernel
from codeact_team.sandbox.system.process_tree import ProcessTree, drain, notice_ended_children

_OTHER_SYSTEM = f"it needs Linux, and this is {sys.platform}"


class _Supervising(NamedTuple):
    """A supervising process, and what has to be removed, with all rights, when it has ended."""

    pid: int
    group: ControlGroup | None
    private: str
    user: users.User | None
    """Whom programs run as, if not as the user of this process."""
    until_clean: int
    """A descriptor to be closed when everything is removed."""


class _Zygote:
    """Serves the host. For the arguments see :func:`supervise` and :class:`Capabilities`."""

    def __init__(
        self,
        control: socket.socket,
        host: int | None,
        program: PreloadedProgram | None,
        main_thread: ForkingThread,
    ) -> None:
        self._control = control
        self._messages = MessageSocket(control)
        self._host = host
        self._above = () if host is None else (host, os.pidfd_open(os.getpid()))
        """Processes with which the forks end."""
        self._program = program
        self._main_thread = main_thread
        self._has_namespaces = False
        """Whether namespaces have worked once."""
        self._has_listener = False
        """Whether a listener has been tried, and works."""
        self._ended, self._ending = notice_ended_children()
        self._children = ProcessTree(can_scan=True)
        self._cleaning: set[int] = set()
        """Children that remove what sandboxes have left."""
        self._supervising: dict[int, _Supervising] = {}
        """By the numbers that the host has given them."""

    def serve(self) -> None:
        """Do what the host requests until it goes away; then wait until all forks have ended."""
        with selectors.DefaultSelector() as selector:
            for fd in (self._control, self._ended, *(() if self._host is None else (self._host,))):
                selector.register(fd, selectors.EVENT_READ)
            with suppress(EOFError, ConnectionResetError):
                while self._host not in (ready := {key.fd for key, _ in selector.select()}):
                    self._reap()
                    if self._control.fileno() in ready:
                        self._take_messages()
        while self._supervising:
            select.select([self._ended], [], [])
            self._reap()

    def _take_messages(self) -> None:
        for kind, value in self._messages.receive():
            if kind == Message.FORK:
                number, settings = value
                control, until_clean = self._messages.take_descriptors(2)
                with socket.socket(fileno=control) as theirs:
                    try:
                        self._fork(number, Confinement(*settings), theirs, until_clean)
                    except OSError as error:
                        os.close(until_clean)
                        refuse(MessageSocket(theirs), error)
            elif value in self._supervising:
                os.kill(self._supervising[value].pid, signal.SIGKILL)

    def _fork(self, number: int, settings: Confinement, control: socket.socket, until_clean: int) -> None:
        group = _make_group(settings)
        born, birth = os.pipe()

        def begin() -> bool:
            try:
                os.close(born)
                os.close(until_clean)
                self._leave()
                supervise(control, settings, capabilities, self._main_thread, above=self._above, birth=birth)
            except BaseException:
                # a fork must not take the zygote's orders
                os._exit(1)
            return True

        try:
            capabilities = self._capabilities(settings, group)
            self._main_thread.fork(begin)
        except OSError:
            _remove(group, settings.private, None)
            os.close(born)
            raise
        finally:
            os.close(birth)
            if group is not None:
                group.close()
        with open(born, "rb") as reports:
            pid = reports.read()
        supervising = _Supervising(int(pid or 0), group, settings.private, capabilities.user, until_clean)
        if pid:
            self._supervising[number] = supervising
            self._children.add(supervising.pid)
        else:
            self._clean_up(supervising)

    def _capabilities(self, settings: Confinement, group: ControlGroup | None) -> Capabilities:
        """Find by trial the means to confine a sandbox with these settings."""
        no_namespaces = None
        if group is not None and not self._has_namespaces:
            set_up_mounts = partial(isolation.enter_mount_view, settings)
            no_namespaces = users.failure_of(partial(isolation.enter_namespaces, set_up_mounts))
            self._has_namespaces = no_namespaces is None
        is_bounded = group is not None and (os.getuid() != 0 or not BOUNDING & group.missing.keys())
        if is_bounded and no_namespaces is None and kernel.landlock_abi() > 0:
            return Capabilities(group, View.NAMESPACES, None, None, None, self._program)
        no_listener = None
        if not self._has_listener:
            no_listener = answering.failure(settings.private) if group is not None else _OTHER_SYSTEM
            self._has_listener = no_listener is None
        if no_listener is None:
            reason = no_namespaces or "without control groups they do not limit root"
            user = users.user_without_namespaces(settings)
            return Capabilities(group, View.LISTENER, reason, None, user, self._program)
        return Capabilities(group, View.NONE, no_namespaces, no_listener, None, self._program)

    def _leave(self) -> None:
        """Close, in a fork, what belongs to the zygote."""
        os.setsid()
        signal.set_wakeup_fd(-1)
        os.close(self._ended)
        os.close(self._ending)
        self._control.close()
        for one in self._supervising.values():
            os.close(one.until_clean)
        self._supervising.clear()

    def _reap(self) -> None:
        drain(self._ended)
        self._children.reap()
        self._cleaning = {one for one in self._cleaning if self._children.status(one) is None}
        for number, one in list(self._supervising.items()):
            if self._children.status(one.pid) is not None:
                del self._supervising[number]
                if self._has_listener:
                    self._end_orphans()
                self._clean_up(one)

    def _end_orphans(self) -> None:
        """End what a supervising process has left that was killed. In namespaces, the kernel does that."""
        # those of them that have ended meanwhile are noticed next time
        while not self._children.end_all({*self._cleaning, *(one.pid for one in self._supervising.values())}):
            pass

    def _clean_up(self, ended: _Supervising) -> None:
        try:
            # there may be much to remove, and others want to start
            if (child := os.fork()) == 0:
                try:
                    self._leave()
                    _remove(ended.group, ended.private, ended.user)
                finally:
                    os._exit(0)
            self._children.add(child)
            self._cleaning.add(child)
        except OSError:
            _remove(ended.group, ended.private, ended.user)
        os.close(ended.until_clean)


def _make_group(settings: Confinement) -> ControlGroup | None:
    return ControlGroup(settings) if sys.platform == "linux" else None


def _remove(group: ControlGroup | None, private: str, user: users.User | None) -> None:
    if group is not None:
        group.remove()
    if user is not None and user.is_own:
        with suppress(FileNotFoundError), os.scandir(SHARED_MEMORY) as segments:
            for segment in segments:
                if segment.stat(follow_symlinks=False).st_uid == user.id:
                    (trees.remove if segment.is_dir(follow_symlinks=False) else os.unlink)(segment.path)
    trees.remove(private)


def serve(main_thread: ForkingThread, program: PreloadedProgram | None) -> None:
    """Load everything, and start a thread that serves the host."""
    for number in (signal.SIGINT, signal.SIGXFSZ):
        # programs inherit ignored signals
        signal.signal(number, signal.SIG_DFL)
    control = socket.socket(fileno=os.dup(0))
    if sys.platform == "linux":
        # a supervising process in namespaces is a child's child
        kernel.checked(kernel.adopt_orphans())
    close_standard_streams()
    # a process that the host has forked may keep the other end of the socket open
    host = os.pidfd_open(os.getppid()) if sys.platform == "linux" else None
    kernel.share_memory_with_forks()
    zygote = _Zygote(control, host, program, main_thread)
    main_thread.serve(zygote.serve)
