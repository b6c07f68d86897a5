"""Forks the interpreter between two blocks. Linux only."""

from __future__ import annotations

import gc
import os
import stat
import sys
from _thread import _count as count_threads  # pyright: ignore[reportPrivateUsage]  # of threading, too
from base64 import b64decode
from contextlib import suppress
from warnings import catch_warnings, simplefilter

from codeact_team.session.protocol import BRANCHES, OF_A_FORK
from codeact_team.session.runner.interpreter import sealing
from codeact_team.session.runner.interpreter.control import Control
from codeact_team.session.runner.interpreter.fork_obstacles import obstacle, open_descriptors
from codeact_team.session.runner.interpreter.tracebacks import one_line
from codeact_team.session.runner.interpreter.tree_copy import copy_content

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from codeact_team.session.runner.interpreter.channel import Channel
    from codeact_team.session.runner.interpreter.streams import Streams


class Forks:
    """Forks this process, and is in the fork what it was here.

    Args:
        channel: How commands come here, and reports go.
        streams: Standard input and output.
        control: The number of the socket by which descriptors come.
        close_loop: Closes the event loop of the blocks, or says why that cannot be.
    """

    def __init__(
        self, channel: Channel, streams: Streams, control: int, close_loop: Callable[[], str | None]
    ) -> None:
        self._channel = channel
        self._streams = streams
        self._control = Control(control)
        self._close_loop = close_loop
        self._zygote: int | None = None
        """This process, or that which it was forked from, if that is only there to be forked."""
        self._domain: int | None = None
        """A Landlock ruleset, by which the forks are in a domain within that of this process, where nothing else keeps them
        from it."""
        self._untaken: Iterable[int] = ()
        """The signals that forks of a sealed process do not take either."""
        self._keeps_random_numbers = False
        self._born: list[int] = []
        """The forks of this process that have not been reaped."""
        # one, where a thread has become this process
        self._left_behind = count_threads()
        """How many threads Python counts here that are those of the process this is a fork of."""

    def seal(self, request: dict[str, Any], *, own_threads: int, keeps_random_numbers: bool) -> str | None:
        """Be there only to be forked from now on; see :attr:`Kind.SEAL`.

        Args:
            request: The payload.
            own_threads: How many threads are the runner's, beside the main one.
            keeps_random_numbers: Whether the forks go on with the random generators as they are here.

        Returns:
            Why that cannot be, or ``None``.
        """
        try:
            if request["has_domain"]:
                (self._domain,) = self._control.receive(1)
            if (refused := self._obstacle(own_threads)) is None:
                self._untaken = sealing.seal(b64decode(request["filter"]), hide=self._domain is None)
                self._zygote, self._keeps_random_numbers = os.getpid(), keeps_random_numbers
                gc.collect()
                # the forks share these pages as long as nobody writes to them
                gc.freeze()
                return None
        except Exception as error:
            refused = one_line(error)
        self._close_domain()
        return refused

    def fork(self, request: dict[str, Any], *, own_threads: int) -> tuple[bool, str | None]:
        """Fork this process; see :attr:`Kind.FORK`.

        Args:
            request: The payload.
            own_threads: How many threads are the runner's, beside the main one.

        Returns:
            Whether this is a fork now. If not: why there are none, or ``None``.
        """
        births: list[tuple[int, ...]] = []
        try:
            births += [self._control.receive(OF_A_FORK) for _ in request["directories"]]
            if self._zygote is None:
                self.reap()
                if (refused := self._obstacle(own_threads, births)) is not None:
                    return False, refused
            keep = _random_numbers() if self._keeps_random_numbers else _reseed
            # to fork twice is to copy all tables of pages twice: nothing for a process that may have much memory
            number = self._fork_each(len(births)) if self._zygote is None else _leave_each(len(births))
            if number is not None:
                self._become(births[number], request, number, keep)
            return number is not None, None
        except BaseException as error:
            return False, one_line(error)
        finally:
            for fd in sum(births, ()):
                os.close(fd)

    def _fork_each(self, count: int) -> int | None:
        """Fork this process so many times; the number of the fork in each of them, from 0, and here ``None``."""
        with catch_warnings():
            # of threads there is only the runner's own, which a fork does without
            simplefilter("ignore", DeprecationWarning)
            for number in range(count):
                if (pid := os.fork()) == 0:
                    self._born.clear()
                    return number
                self._born.append(pid)
        return None

    def reap(self) -> None:
        """Let those forks be gone that have ended."""
        for pid in [*self._born]:
            try:
                ended, _ = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                # the code has waited for it
                ended = pid
            if ended:
                self._born.remove(pid)

    def announce(self) -> None:
        """Say of this fork that it lives."""
        self._control.send()

    @property
    def _own(self) -> tuple[int, ...]:
        domain = () if self._domain is None else (self._domain,)
        return (*self._channel.descriptors, *self._streams.descriptors, self._control.fd, *domain)

    def _obstacle(self, own_threads: int, births: Sequence[tuple[int, ...]] = ()) -> str | None:
        descriptors = (*self._own, *sum(births, ()))
        return self._close_loop() or obstacle(descriptors, own_threads, self._left_behind)

    def _close_domain(self) -> None:
        domain, self._domain = self._domain, None
        if domain is not None:
            os.close(domain)

    def _become(
        self,
        birth: tuple[int, ...],
        request: dict[str, Any],
        number: int,
        keep_random_numbers: Callable[[], None],
    ) -> None:
        """Be a fork, with these descriptors; ends this process where that cannot be."""
        *pipes, control, output = birth
        self._left_behind = count_threads()
        try:
            os.dup2(control, self._control.fd, inheritable=False)
            os.setsid()
            for theirs, own in zip(pipes, self._channel.descriptors, strict=True):
                os.dup2(theirs, own, inheritable=False)
            self._channel.begin()
            self._streams.begin(output)
            if self._zygote is not None:
                if self._domain is None:
                    sealing.show()
                else:
                    sealing.enter_domain(self._domain)
                    self._close_domain()
                sealing.require_sealed(self._zygote)
                self._zygote, self._keeps_random_numbers = None, False
                sealing.take_signals(but=self._untaken)
            _reopen_files(self._own)
            if (directory := request["directories"][number]) is not None:
                copy_content(request["home"], directory, BRANCHES)
                go_along(request["home"], directory)
            keep_random_numbers()
        except BaseException as error:
            with suppress(OSError):
                self._control.send(one_line(error))
            os._exit(1)


def go_along(home: str, to: str) -> None:
    """Be in the directory ``to``, at the place where this process was below ``home``; if it was outside, it stays."""
    here = os.path.relpath(os.getcwd(), home)
    if here.split(os.sep)[0] != os.pardir:
        os.chdir(os.path.normpath(os.path.join(to, here)))


def move(home: str, to: str) -> None:
    """Like :func:`go_along`, as far as that is possible: the code may have removed where it was."""
    with suppress(OSError):
        go_along(home, to)


def _leave_each(count: int) -> int | None:
    """Fork this process so many times, the forks as children of whoever adopts orphans.

    Returns in each of them its number, from 0; here ``None``, once they are adopted.
    """
    if between := os.fork():
        os.waitpid(between, 0)
        return None
    for number in range(count):
        if os.fork() == 0:
            return number
    os._exit(0)


def _reopen_files(own: tuple[int, ...]) -> None:
    """Give this fork a position of its own in each file and directory that it reads."""
    for fd in open_descriptors(own):
        try:
            mode = os.fstat(fd).st_mode
        except OSError:
            # the one that has listed them
            continue
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            continue
        position, is_inherited = os.lseek(fd, 0, os.SEEK_CUR), os.get_inheritable(fd)
        copy = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
        os.lseek(copy, position, os.SEEK_SET)
        os.dup2(copy, fd, is_inherited)
        os.close(copy)


def _random_numbers() -> Callable[[], None]:
    """What puts the default random generators back to where they are now."""
    random, numpy = sys.modules.get("random"), sys.modules.get("numpy.random")
    states = [
        (random.setstate, random.getstate()) if random else None,
        (numpy.set_state, numpy.get_state()) if numpy else None,
    ]

    def put_back() -> None:
        for put, state in filter(None, states):
            put(state)

    return put_back


def _reseed() -> None:
    """Have the default random generators go ways of their own; that of ``random`` does so by itself in a fork."""
    if numpy := sys.modules.get("numpy.random"):
        # the code may have put anything there
        with suppress(Exception):
            numpy.seed()
