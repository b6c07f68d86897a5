"""Forks the interpreter between two blocks, and seals one as zygote, which only forks. Linux only."""

from __future__ import annotations

import gc
import os
import signal
import stat
import sys
import threading

# without the module around it, which the code may not need
from _socket import AF_UNIX, MSG_CMSG_CLOEXEC, MSG_DONTWAIT, SOCK_STREAM, socket
from _thread import _count as count_threads  # pyright: ignore[reportPrivateUsage]  # includes those of threading
from base64 import b64decode
from contextlib import nullcontext, suppress
from warnings import catch_warnings, simplefilter

from codeact_team.sandbox.system.framing import receive_with_descriptors
from codeact_team.sandbox.system.kernel import PR_SET_DUMPABLE, checked, enter_domain, install_filter, prctl
from codeact_team.sandbox.system.process_tree import shared_memory_of
from codeact_team.session.protocol import BORN, DESCRIPTORS_OF_A_FORK, FORKS_PREFIX
from codeact_team.session.runner.fork_directories import copy_content
from codeact_team.session.runner.interpreter.open_files import is_written
from codeact_team.session.runner.interpreter.open_sockets import descriptors_of, is_used, renewed, reset
from codeact_team.session.runner.interpreter.user_code import one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from codeact_team.session.runner.interpreter.blocks import Blocks
    from codeact_team.session.runner.interpreter.channel import Channel, Streams

_MAX_NAMES = 5


class Forks:
    """Forks this process. In the fork, the interpreter continues with new pipes."""

    def __init__(
        self,
        channel: Channel,
        streams: Streams,
        control: int,
        blocks: Blocks,
        lost_threads: int,
    ) -> None:
        self._channel = channel
        self._streams = streams
        self._control = control
        self._socket = socket(AF_UNIX, SOCK_STREAM, 0, control)
        self._blocks = blocks
        self._zygote: int | None = None
        """The sealed process: this one, or the one that it was forked from."""
        self._domain: int | None = None
        """A Landlock ruleset for the forks, if nothing else protects the sealed process from them."""
        self._blocked_signals: Iterable[int] = ()
        """The signals that were blocked before the process was sealed."""
        self._keeps_random_numbers = False
        self._children: list[int] = []
        """The forks of this process that were not reaped."""
        self._lost_threads = lost_threads
        """The number of threads that Python counts here though they exist only in the process that this is a fork of."""

    def seal(self, request: dict[str, Any], *, own_threads: int, keeps_random_numbers: bool) -> str | None:
        """Serve only as zygote from now on; see :attr:`Kind.SEAL`. Returns why that is impossible, or ``None``."""
        try:
            if request["has_domain"]:
                (self._domain,) = self._receive_descriptors(1)
            # all forks would find the connections of the sealed process reset, and none could make them again
            refused = self._obstacle(shared_memory_of("self"), own_threads)
            if (refused := refused or _open_socket(self._own_descriptors)) is None:
                self._blocked_signals = _seal(b64decode(request["filter"]), hide=self._domain is None)
                self._zygote, self._keeps_random_numbers = os.getpid(), keeps_random_numbers
                gc.collect()
                # the forks share these pages until a process writes to them
                gc.freeze()
                return None
        except Exception as error:
            refused = one_line(error)
        self._close_domain()
        return refused

    def fork(self, request: dict[str, Any], *, own_threads: int) -> tuple[bool, str | None]:
        """Fork this process; see :attr:`Kind.FORK`.

        Returns whether this process is a fork now; otherwise also why there are none, or ``None``.
        """
        births: list[tuple[int, ...]] = []
        try:
            births += [self._receive_descriptors(DESCRIPTORS_OF_A_FORK) for _ in request["directories"]]
            if self._zygote is None:
                self.reap()
                if (refused := self._obstacle(request["shared_memory"], own_threads, births)) is not None:
                    return False, refused
            set_random_numbers = _kept_random_numbers() if self._keeps_random_numbers else _reseed
            # a second fork copies all page tables a second time: nothing for a process that may have much memory
            number = self._fork_each(len(births)) if self._zygote is None else _fork_orphans(len(births))
            if number is not None:
                self._become(births[number], request, number, set_random_numbers)
            return number is not None, None
        except BaseException as error:
            return False, one_line(error)
        finally:
            for fd in sum(births, ()):
                os.close(fd)

    def _fork_each(self, count: int) -> int | None:
        """Fork this process ``count`` times. Returns the number of the fork in each of them, from 0, and here ``None``."""
        with catch_warnings():
            # there are no threads but the runner's own, which a fork does without
            simplefilter("ignore", DeprecationWarning)
            for number in range(count):
                if (pid := os.fork()) == 0:
                    self._children.clear()
                    return number
                self._children.append(pid)
        return None

    def reap(self) -> None:
        for pid in [*self._children]:
            try:
                ended, _ = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                # the code has waited for it
                ended = pid
            if ended:
                self._children.remove(pid)

    def send_birth(self, problem: str = "") -> None:
        """Report that this fork lives, or why it cannot."""
        self._socket.send(BORN + problem.encode("utf-8", "replace"))

    def _receive_descriptors(self, count: int) -> tuple[int, ...]:
        _, descriptors, _ = receive_with_descriptors(self._socket, 1, MSG_DONTWAIT | MSG_CMSG_CLOEXEC)
        if len(descriptors) != count:
            raise OSError("the descriptors of a fork have not arrived")
        return tuple(descriptors)

    @property
    def _own_descriptors(self) -> tuple[int, ...]:
        domain = () if self._domain is None else (self._domain,)
        loop = self._blocks.open_loop
        of_loop = () if loop is None else descriptors_of(loop)
        return (*self._channel.descriptors, *self._streams.descriptors, self._control, *domain, *of_loop)

    def _obstacle(
        self, shared_memory: str | None, own_threads: int, births: Sequence[tuple[int, ...]] = ()
    ) -> str | None:
        """Return the reason for which a fork would be no true copy, for the author of the code; ``None`` if it would be."""
        try:
            return (
                self._blocks.close_loop(is_used)
                or _python_threads(own_threads + self._lost_threads)
                or _native_threads(own_threads)
                or _shared_descriptors((*self._own_descriptors, *sum(births, ())))
                or shared_memory
            )
        except OSError as error:
            return f"what it has open cannot be seen here: {error}"

    def _close_domain(self) -> None:
        domain, self._domain = self._domain, None
        if domain is not None:
            os.close(domain)

    def _become(
        self,
        birth: tuple[int, ...],
        request: dict[str, Any],
        number: int,
        set_random_numbers: Callable[[], None],
    ) -> None:
        """Become a fork with these descriptors. Ends this process if that is impossible."""
        *pipes, control, output = birth
        self._lost_threads = count_threads()
        try:
            os.dup2(control, self._control, inheritable=False)
            os.setsid()
            for theirs, own in zip(pipes, self._channel.descriptors, strict=True):
                os.dup2(theirs, own, inheritable=False)
            self._channel.begin()
            self._streams.begin(output)
            if self._zygote is not None:
                self._unseal(self._zygote)
            loop = self._blocks.open_loop
            with nullcontext() if loop is None else renewed(loop):
                _reopen((*self._own_descriptors, *birth))
            if (directory := request["directories"][number]) is not None:
                copy_content(request["home"], directory, FORKS_PREFIX)
                change_directory(request["home"], directory)
            set_random_numbers()
        except BaseException as error:
            with suppress(OSError):
                self.send_birth(one_line(error))
            os._exit(1)

    def _unseal(self, zygote: int) -> None:
        """Undo, in a fork of a sealed process, what the code may undo, after protecting that process from it."""
        if self._domain is None:
            # the code may do what it likes with its own process
            checked(prctl(PR_SET_DUMPABLE, 1))
        else:
            enter_domain(self._domain)
            self._close_domain()
        _require_sealed(zygote)
        self._zygote, self._keeps_random_numbers = None, False
        # no signal is pending in a fork
        signal.pthread_sigmask(signal.SIG_SETMASK, self._blocked_signals)


def _seal(instructions: bytes, *, hide: bool) -> Iterable[int]:
    """Refuse system calls that are aimed at this process, here and in all its forks, and block all signals here.

    Returns the signals that were blocked before. Raises an ``OSError`` if the kernel does not do that.
    """
    if hide:
        checked(prctl(PR_SET_DUMPABLE, 0))
    install_filter(instructions)
    # an open file can send a signal to its owner, which may be any process
    return signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())


def _require_sealed(process: int) -> None:
    """Raise an ``OSError`` if code that runs here could change the memory of a process.

    Reading it would reveal nothing: its forks have everything that it has.
    """
    try:
        os.close(os.open(f"/proc/{process}/mem", os.O_WRONLY))
    except OSError:
        return
    raise OSError("the code could change the process that interpreters are forked from")


def change_directory(home: str, to: str) -> None:
    """Change from a place below ``home`` to the same place below ``to``. A process outside ``home`` stays where it is."""
    here = os.path.relpath(os.getcwd(), home)
    if here.split(os.sep)[0] != os.pardir:
        os.chdir(os.path.normpath(os.path.join(to, here)))


def _fork_orphans(count: int) -> int | None:
    """Fork this process ``count`` times, so that the process that adopts orphans becomes their parent.

    Returns the number of the fork in each of them, from 0; here ``None``, once they are adopted.
    """
    if between := os.fork():
        os.waitpid(between, 0)
        return None
    for number in range(count):
        if os.fork() == 0:
            return number
    os._exit(0)


def _reopen(own: tuple[int, ...]) -> None:
    """Give this fork its own position in each file and directory that it reads, and no part in connections."""
    for fd in _open_descriptors(own):
        try:
            mode = os.fstat(fd).st_mode
        except OSError:
            # the one that has listed them
            continue
        if stat.S_ISSOCK(mode):
            reset(fd)
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            continue
        position, is_inherited = os.lseek(fd, 0, os.SEEK_CUR), os.get_inheritable(fd)
        copy = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
        os.lseek(copy, position, os.SEEK_SET)
        os.dup2(copy, fd, is_inherited)
        os.close(copy)


def _kept_random_numbers() -> Callable[[], None]:
    """A function that sets the default random generators to their present state."""
    random, numpy = sys.modules.get("random"), sys.modules.get("numpy.random")
    states = [
        (random.setstate, random.getstate()) if random else None,
        (numpy.set_state, numpy.get_state()) if numpy else None,
    ]

    def restore() -> None:
        for set_state, state in filter(None, states):
            set_state(state)

    return restore


def _reseed() -> None:
    """Reseed the default random generator of numpy. The generator of ``random`` reseeds itself in a fork."""
    if numpy := sys.modules.get("numpy.random"):
        # the code may have put anything there
        with suppress(Exception):
            numpy.seed()


def _python_threads(own: int) -> str | None:
    if (others := count_threads() - own) <= 0:
        return None
    names = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    return (
        f"{others} Python thread(s) run ({_listed(names) or 'unnamed'}): join them, or shut their pool down"
    )


def _native_threads(own: int) -> str | None:
    expected = 1 + own
    if _threads() <= expected:
        return None
    # thread pools that support forks end their threads at a fork and restart them when needed; others remain
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)
    if (threads := _threads()) <= expected:
        return None
    more = f"{threads - expected} native thread(s) of a library run that a fork would lose"
    try:
        names = {_read(f"/proc/self/task/{task}/comm").strip() for task in os.listdir("/proc/self/task")}
    except PermissionError:
        return more
    return f"{more} (among {_listed(sorted(names))})"


def _threads() -> int:
    # as a directory, which need not be readable, it has a link for itself, for the one above, and for each in it
    return os.stat("/proc/self/task").st_nlink - 2


def _shared_descriptors(own: Iterable[int]) -> str | None:
    for fd in _open_descriptors(own):
        try:
            mode = os.fstat(fd).st_mode
        except OSError:
            # the one that lists them
            continue
        if is_written(fd):
            return f"{_name(fd)} is open for writing: close it (a database counts as a file)"
        kinds = (stat.S_ISREG, stat.S_ISDIR, stat.S_ISCHR, stat.S_ISSOCK)
        if not any(is_kind(mode) for is_kind in kinds):
            return f"{_name(fd)} is open (file descriptor {fd}), which cannot be copied: close it"
    return None


def _open_socket(own: Iterable[int]) -> str | None:
    for fd in _open_descriptors(own):
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                return f"a socket is open (file descriptor {fd}): close the connection"
    return None


def _open_descriptors(own: Iterable[int]) -> list[int]:
    """The descriptors that may be open, except the runner's ``own``."""
    try:
        found = {*map(int, os.listdir("/proc/self/fd"))}
    except PermissionError:
        # what a process sees of itself there may be its parent's only
        found = {*range(os.sysconf("SC_OPEN_MAX"))}
    return sorted(found - {*own})


def _name(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}")


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(map(repr, names[:_MAX_NAMES])) + more


def _read(path: str) -> str:
    with open(path, errors="replace") as file:
        return file.read()
