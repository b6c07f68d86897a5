"""The template of the supervising processes of one host: they are forks of it, so that each has at once all that they load.

A program with nothing but the standard library and, where it is needed and can be imported from the directory in its
arguments, sandlock. Its stdin is a socket to the host. A message is a line of JSON: ``fork`` comes with the settings, a
socket by which the new process and the host talk, and a pipe that is closed when that has ended and all is cleaned up;
``kill`` is for the one of that number. The template ends with the host, or when the host closes the socket, and what it has
forked ends with it.
"""

from __future__ import annotations

import os
import select
import selectors
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

# the package's directory: without site it is not among the paths
sys.path.append(os.path.abspath(f"{__file__}/../../../../.."))

import hardening
import main_thread
from descendants import drain, ignore_deaths, notice_deaths
from loaded import LoadedProgram
from means import Machine
from messages import Messages
from programs import close_standard_streams
from supervision import Surroundings, refuse, supervise

from codeact_team.sandbox.system import kernel


def _load_sandlock(directory: str | None = None) -> Any:
    """The module, or why it cannot be used."""
    if sys.platform != "linux":
        return f"it runs on Linux, and this is {sys.platform}"
    if directory is None:
        return "it is not installed: pip install sandlock"
    sys.path.append(directory)
    try:
        import sandlock
    except (ImportError, OSError, RuntimeError) as error:
        return f"it cannot be loaded: {error}"
    kernel.share_memory_with_forks()
    if sandlock.landlock_abi_version() < 1:
        return "this kernel has no Landlock: it wants Linux 6.12, with `landlock` in /sys/kernel/security/lsm"
    failure = hardening.failure_of(partial(_try_sandlock, sandlock))
    return sandlock if failure is None else f"it does not work here, maybe for a seccomp profile: {failure}"


def _try_sandlock(sandlock: Any) -> None:
    """Start a program as a supervising process would. What becomes of it does not matter."""
    hardening.drop_privileges()
    sandlock.Sandbox(allow_degraded=list(sandlock.Protection)).popen(["true"]).wait()


class _Template:
    def __init__(
        self,
        control: socket.socket,
        host: int | None,
        sandlock: Callable[[], Any],
        program: LoadedProgram | None,
    ) -> None:
        self._control = control
        self._messages = Messages(control)
        self._host = host
        self._machine = Machine(sandlock, program)
        self._deaths = notice_deaths()
        self._supervising: dict[int, _Supervising] = {}
        """By the numbers that the host has given them."""

    def serve(self) -> None:
        """Do what the host says until it goes away, and wait until all that was forked has ended."""
        with selectors.DefaultSelector() as selector:
            for fd in (self._control, self._deaths[0], *(() if self._host is None else (self._host,))):
                selector.register(fd, selectors.EVENT_READ)
            with suppress(EOFError, ConnectionResetError):
                while self._host not in (ready := {key.fd for key, _ in selector.select()}):
                    self._reap()
                    if self._control.fileno() in ready:
                        self._obey()
        while self._supervising:
            select.select([self._deaths[0]], [], [])
            self._reap()

    def _obey(self) -> None:
        for message in self._messages.receive():
            number = message["number"]
            if message["do"] == "fork":
                control, until_clean = self._messages.take_descriptors(2)
                with socket.socket(fileno=control) as theirs:
                    try:
                        self._fork(number, message["settings"], theirs, until_clean)
                    except OSError as error:
                        os.close(until_clean)
                        refuse(theirs, error)
            elif number in self._supervising:
                os.kill(self._supervising[number].pid, signal.SIGKILL)

    def _fork(self, number: int, settings: dict[str, Any], control: socket.socket, until_clean: int) -> None:
        surroundings = Surroundings(settings)
        born, birth = os.pipe()

        def begin() -> bool:
            try:
                os.close(born)
                os.close(until_clean)
                self._forget()
                supervise(control, settings, means, host=self._host, birth=birth)
            except BaseException:
                # not as one who obeys the template
                os._exit(1)
            return True

        try:
            means = self._machine.means_for(settings, surroundings.group)
            main_thread.fork(begin)
        except OSError:
            surroundings.remove()
            os.close(born)
            raise
        finally:
            os.close(birth)
            surroundings.leave()
        with open(born, "rb") as said:
            pid = said.read()
        if pid:
            self._supervising[number] = _Supervising(int(pid), surroundings, until_clean)
        else:
            self._clean_up(surroundings, until_clean)

    def _forget(self) -> None:
        """Let go, in a fork, of what is the template's."""
        os.setsid()
        ignore_deaths(self._deaths)
        self._control.close()
        for one in self._supervising.values():
            os.close(one.until_clean)
        self._supervising.clear()

    def _reap(self) -> None:
        drain(self._deaths[0])
        with suppress(ChildProcessError):
            while ended := os.waitpid(-1, os.WNOHANG)[0]:
                for number, one in list(self._supervising.items()):
                    if one.pid == ended:
                        del self._supervising[number]
                        self._clean_up(one.surroundings, one.until_clean)

    def _clean_up(self, surroundings: Surroundings, until_clean: int) -> None:
        try:
            # there may be much to remove, and others want to start
            if os.fork() == 0:
                try:
                    self._forget()
                    surroundings.remove()
                finally:
                    os._exit(0)
        except OSError:
            surroundings.remove()
        os.close(until_clean)


class _Supervising(NamedTuple):
    pid: int
    surroundings: Surroundings
    until_clean: int
    """A descriptor to be held until all is cleaned up."""


def serve(program: LoadedProgram | None, arguments: Sequence[str]) -> None:
    """Load everything, and let a thread serve the host.

    Args:
        program: What was loaded ahead, if anything.
        arguments: The directory to import sandlock from, if it is installed.
    """
    for number in (signal.SIGINT, signal.SIGXFSZ):
        # what is started inherits what is ignored
        signal.signal(number, signal.SIG_DFL)
    control = socket.socket(fileno=os.dup(0))
    if sys.platform == "linux":
        # what goes on in namespaces is a child's child
        kernel.checked(kernel.adopt_orphans())
    close_standard_streams()
    # a process that the host has forked may hold the other end of the socket open
    host = os.pidfd_open(os.getppid()) if sys.platform == "linux" else None
    kernel.share_memory_with_forks()
    main_thread.serve(_Template(control, host, partial(_load_sandlock, *arguments), program).serve)
