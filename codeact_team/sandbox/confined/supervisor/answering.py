"""Answers what confined code asks, where it has no namespaces of its own: a thread of the supervising process.

It has no capabilities, takes all that it reads for hostile, and never waits for the code. Whatever goes wrong is refused. If it
ends, all calls that are asked fail.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from codeact_team.sandbox.confined.supervisor import calls, isolation, users
from codeact_team.sandbox.confined.supervisor.asked_files import FileCalls, WritableDirectories
from codeact_team.sandbox.confined.supervisor.asked_network import NetworkCalls
from codeact_team.sandbox.confined.supervisor.asked_processes import GO_ON, Members, Signals, Starts
from codeact_team.sandbox.confined.supervisor.asked_sockets import SocketCalls
from codeact_team.sandbox.confined.supervisor.asked_terminals import TerminalCalls
from codeact_team.sandbox.confined.supervisor.listening import (
    Asked,
    Listener,
    install_asking,
    receive_listener,
    send_listener,
)
from codeact_team.sandbox.system import kernel
from codeact_team.sandbox.system.filters import names_of

_MOST_UNTAKEN = 1024
"""The most answers that are kept for threads that a signal has interrupted."""


class Answering:
    """Answers the questions of one program and all that it starts, until the last of them has ended.

    Args:
        listener: The descriptor of their listener, which is closed at the end.
        writable: Descriptors of the directories that they may write, which stay the caller's.
        most: The most processes and threads that they may be.
        network: Makes what decides on their connections of TCP, if they have a way out.
    """

    def __init__(
        self,
        listener: int,
        writable: Sequence[int],
        most: int,
        network: Callable[[Listener], NetworkCalls] | None = None,
    ) -> None:
        self._listener = Listener(listener)
        self._directories = WritableDirectories(writable)
        members = Members()
        self._starts = Starts(members, most)
        reached = None if network is None else network(self._listener)
        self._sockets = SocketCalls(self._listener, self._directories, reached)
        self._terminals = TerminalCalls(self._listener)
        of_whom: Sequence[tuple[Sequence[str], Callable[[str, Asked], object]]] = (
            (calls.OF_CHILDREN, self._starts.do),
            (calls.OF_SIGNALS, Signals(members).do),
            (calls.OF_SOCKETS, self._sockets.do),
            (calls.OF_TERMINALS, self._terminals.do),
            (calls.OF_FILES, FileCalls(self._directories).do),
        )
        self._do = {
            number: partial(do, name) for names, do in of_whom for number, name in names_of(names).items()
        }
        """By the number of a call: what does it."""
        self._untaken: dict[int, tuple[int, Sequence[int], int]] = {}
        """By thread: the call that was done, with the result that the thread has not got yet."""

    def start(self) -> None:
        """Answer in a thread."""
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        try:
            while (asked := self._listener.receive()) is not None:
                self._starts.note(asked.thread)
                self._answer(asked)
        finally:
            self._listener.close()
            self._sockets.close()
            self._terminals.close()
            self._directories.close()

    def _answer(self, asked: Asked) -> None:
        *call, result = self._untaken.pop(asked.thread, (0, (), 0))
        # before Linux 5.19, a signal interrupts a call that is asked, and it is made again
        if call != [asked.number, asked.arguments]:
            try:
                result = self._do[asked.number](asked)
            except OSError as error:
                result = -(error.errno or errno.EPERM)
            except Exception:  # the code has found a mistake of ours, and gets nothing for it
                result = -errno.EPERM
        if result is GO_ON:
            self._listener.go_on(asked)
        elif isinstance(result, int) and not self._listener.answer(asked, result):
            if len(self._untaken) >= _MOST_UNTAKEN:
                self._untaken.clear()
            self._untaken[asked.thread] = (asked.number, asked.arguments, result)


def failure(directory: str) -> str | None:
    """Try, in a child of this process, to have a call on ``directory`` asked, and to do it. Returns why that fails, or ``None``."""
    if kernel.landlock_abi() < 1:
        return (
            "this kernel has no Landlock, or does not use it: /sys/kernel/security/lsm must list `landlock`"
        )
    return users.failure_of(partial(_try_out, directory))


def _try_out(directory: str) -> None:
    kernel.checked(kernel.adopt_orphans())
    users.drop_privileges()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        if (child := os.fork()) == 0:
            try:
                isolation.allow_only([], [directory])
                send_listener(
                    theirs,
                    install_asking(calls.without_namespaces(kernel.landlock_abi(), kernel.landlock_scopes())),
                )
                os.chmod(directory, 0o700)
                os._exit(0)
            except OSError as error:
                theirs.sendall(f"{error.strerror}: {_cause_of(error)}".encode())
            finally:
                os._exit(1)
        theirs.close()
        opened = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        Answering(receive_listener(ours), [opened], 1).start()
        _, status = os.waitpid(child, 0)
        if status:
            raise OSError(ours.recv(1000).decode())


def _cause_of(error: OSError) -> str:
    if error.errno == errno.EBUSY:
        return "another listener is around this process already"
    with suppress(OSError), open("/proc/sys/kernel/yama/ptrace_scope") as file:
        if (scope := int(file.read())) > 1:
            return f"kernel.yama.ptrace_scope is {scope}, so system calls of the code cannot be read: set it to 1"
    return "perhaps a seccomp profile forbids it"
