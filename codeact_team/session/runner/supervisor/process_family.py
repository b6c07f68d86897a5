"""Starting processes, finding whatever they have become, and ending it."""

from __future__ import annotations

import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress

from codeact_team.sandbox.system.kernel import PR_SET_DUMPABLE, prctl
from codeact_team.sandbox.system.limits import CODE_DESCRIPTORS, limit
from codeact_team.sandbox.system.oom_score import OomScore
from codeact_team.session.runner.supervisor.guard import Guard

_END_SECONDS = 1.0
"""How long ended processes get to be gone: some hundred times what they need."""
_LEAST_LOOKS = 20
"""How often they are looked at in any case: a busy machine may take the time from this process, too."""
_PAUSE = 0.001
_SOME = 8
_EXIT_CODE = 49
"""Where in what ``/proc`` says of a process, behind its name."""
_ROUNDS_OF_STOPS = 8
"""How often new processes may turn up while their makers are stopped, before those that were seen are killed."""
_TICKS = os.sysconf("SC_CLK_TCK")
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_LONG_AFTER = sys.maxsize

_LAST_DESCRIPTOR = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
_AT_THE_START = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGPIPE: signal.SIG_IGN,
    signal.SIGXFSZ: signal.SIG_IGN,
}
_CHILDREN = "/proc/{}/task/{}/children"


def now() -> int:
    """The time in the unit of :attr:`Descendant.started`."""
    return int(time.clock_gettime(_CLOCK) * _TICKS)


class Descendant:
    """A living descendant of this process.

    Attributes:
        started: When it was forked, in clock ticks since the machine started; long after now if that is not known.
        session: The id of its session, which is the id of the process that made it; 0 if not known.
        line: The child of this process, or the one that is watched, that it has come of; itself if it is one.
    """

    def __init__(self, pid: int, started: int, session: int, line: int) -> None:
        self.pid = pid
        self.started = started
        self.session = session
        self.line = line


Choice = Callable[[Descendant], bool]


class Family:
    """This process's children, and whatever has come of them.

    They are found by the lists of children that the kernel keeps in ``/proc``. Where these cannot be read, only the
    children started here are known, and are ended with their process groups; of what has left those, no more is known
    than that something is left in the end.
    """

    def __init__(self, guard: Guard, oom_score: OomScore) -> None:
        self._guard = guard
        self._oom_score = oom_score
        self._me = os.getpid()
        self._listable = os.access(_CHILDREN.format(self._me, self._me), os.R_OK)
        self._running: set[int] = set()
        self._ended: dict[int, int] = {}
        self._watched: set[int] = set()
        self._has_killed_others = False

    def start(
        self,
        argv: list[str] | None,
        *,
        environment: Mapping[bytes, bytes],
        output: int,
        inherited: Mapping[int, int],
        directory: str | None = None,
    ) -> int:
        """Start a program in a session of its own, stdin empty. It ends with code 126 if that cannot be after all.

        Args:
            argv: The program's path and its arguments; ``None`` to go on in a fork of this one.
            environment: All its environment.
            output: What it gets as stdout and stderr, for itself and what it starts alone.
            inherited: File descriptors it gets beside these: its number there, and the one here.
            directory: Where it starts, if that still exists; else in this process's directory.

        Returns:
            Its process id; 0 in a fork of this program, which has its streams, and of the rest only what it inherits.
        """
        with self._oom_score:
            pid = os.fork()
        if pid == 0:
            try:
                os.setsid()
                limit(resource.RLIMIT_NOFILE, CODE_DESCRIPTORS)
                self._guard.enter_child()
                self._become(output, inherited, directory)
                if argv is None:
                    _keep_only(inherited)
                    return 0
                os.execve(argv[0], argv, environment)
            except BaseException as error:
                os.write(output, f"{argv[0] if argv else 'fork'}: {error}\n".encode())
            os._exit(126)
        self._running.add(pid)
        # of another one, whose end nobody has asked for
        self._ended.pop(pid, None)
        return pid

    def _become(self, output: int, inherited: Mapping[int, int], directory: str | None) -> None:
        # what is ignored stays so in a new program
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            with suppress(OSError):
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if directory is not None:
            with suppress(OSError):
                os.chdir(directory)
        nothing = os.open(os.devnull, os.O_RDWR)
        for there, here in ((0, nothing), (1, output), (2, output), *inherited.items()):
            os.dup2(here, there)
            os.set_inheritable(there, True)

    @property
    def can_list(self) -> bool:
        """Whether descendants can be found that were not started here."""
        return self._listable

    def adopt(self, pid: int) -> bool:
        """Take a process that was not started here for one of those that were; whether it is a child of this one."""
        if pid in self._running or pid not in _children_of(self._me):
            return False
        self._running.add(pid)
        self._ended.pop(pid, None)
        return True

    def watch(self, pid: int, parent: int) -> int | None:
        """Watch a process that a child has forked as if it were one.

        Returns:
            A descriptor that can be read once it has ended; ``None`` if it is no child of that one, or cannot be watched.
        """
        if pid not in _children_of(parent) or not hasattr(os, "pidfd_open"):
            return None
        try:
            watching = os.pidfd_open(pid)
        except OSError:
            return None
        self._watched.add(pid)
        return watching

    def forget(self, pid: int) -> None:
        """Watch a process no more that has ended."""
        self._watched.discard(pid)
        self._ended.pop(pid, None)

    def status_of_watched(self, pid: int) -> int | None:
        """How a process that was watched has ended, as :func:`os.waitpid` would say it; ``None`` where nobody can tell."""
        if (status := self.status(pid)) is not None:
            return status
        try:
            # of one that its parent has not waited for; not everybody may see it
            return int(_fields_of(pid)[_EXIT_CODE]) or None
        except (OSError, ValueError, IndexError):
            return None

    def has_room(self) -> bool:
        """Whether some more processes may be started. A sandbox that counts them can lose count of those killed here."""
        if not self._has_killed_others:
            return True
        self._has_killed_others = False
        reader, writer = os.pipe()
        children: list[int] = []
        try:
            for _ in range(_SOME):
                if (pid := os.fork()) == 0:
                    os.close(writer)
                    os.read(reader, 1)
                    os._exit(0)
                children.append(pid)
        except OSError:
            return False
        finally:
            os.close(writer)
            os.close(reader)
            for pid in children:
                os.waitpid(pid, 0)
        return True

    def has(self, chosen: Choice) -> bool:
        """Whether any living descendant is ``chosen``."""
        return any(map(chosen, self._alive()))

    def reap(self) -> int:
        """Reap whatever has ended, and count it."""
        count = 0
        with suppress(ChildProcessError):
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                # a wait that could block: sandboxes that count processes take only those to be gone that it was for
                pid, status = os.waitpid(ended.si_pid, 0)
                count += 1
                if pid in self._running or pid in self._watched:
                    self._running.discard(pid)
                    self._ended[pid] = status
        return count

    def status(self, pid: int) -> int | None:
        """How a child started here has ended, as :func:`os.waitpid` says it, or ``None``. Said once."""
        return self._ended.pop(pid, None)

    def end(self, chosen: Choice) -> bool:
        """Kill the descendants that are ``chosen``, and those they start meanwhile.

        Returns whether none is left. If some are, they had a second to end, and were looked at several times.
        """
        deadline = time.monotonic() + _END_SECONDS
        killed: set[int] = set()
        looks = 0
        while looks < _LEAST_LOOKS or time.monotonic() < deadline:
            looks += 1
            # one that forks and ends, again and again, may never be seen alive, but leaves something to reap
            reaped = self.reap()
            targets = self._stopped(chosen, killed)
            # what ends while one looks hands up those below it, which were not seen there then
            if not targets and not reaped and not self.reap():
                return True
            self._has_killed_others = self._has_killed_others or not targets <= self._running
            for pid in targets:
                self._signal(pid, signal.SIGKILL)
            killed |= targets
            time.sleep(_PAUSE)
        return False

    def end_all(self, spared: int | None = None) -> bool:
        """Kill all descendants but the child ``spared``; see :meth:`end`."""
        return self.end(lambda descendant: descendant.pid != spared) and self._has_no_child_but(spared)

    def interrupt(self, leader: int) -> None:
        """Send SIGINT to the process group of a child started here."""
        try:
            os.killpg(leader, signal.SIGINT)
        except ProcessLookupError:
            # it has ended, or does not lead a group yet
            if leader in self._running:
                os.kill(leader, signal.SIGINT)

    def _stopped(self, chosen: Choice, killed: set[int]) -> set[int]:
        """The chosen, stopped: then they cannot fork, and hold the places that the process limit leaves to others."""
        stopped: set[int] = set()
        for _ in range(_ROUNDS_OF_STOPS):
            before = len(stopped)
            for descendant in self._alive():
                # it takes a moment to die, and a sandbox may not tell what is dead
                dying = descendant.started == _LONG_AFTER and descendant.pid in killed
                if descendant.pid not in stopped and not dying and chosen(descendant):
                    # at once: each one that runs on takes time from this process
                    self._signal(descendant.pid, signal.SIGSTOP)
                    stopped.add(descendant.pid)
            if len(stopped) == before:
                break
        return stopped

    def _signal(self, pid: int, number: int) -> None:
        # it may have ended, and a sandbox may refuse to signal what has
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid if self._listable else -pid, number)

    def _alive(self) -> Iterator[Descendant]:
        if not self._listable:
            yield from [Descendant(pid, _LONG_AFTER, pid, pid) for pid in self._running]
            return
        found = [self._me]
        lines = {self._me: self._me}
        for pid in found:
            for child in _children_of(pid):
                if child not in lines:
                    leads = pid == self._me or child in self._watched
                    lines[child] = child if leads else lines[pid]
                    found.append(child)
                    if descendant := _descendant(child, lines[child]):
                        yield descendant

    def _has_no_child_but(self, spared: int | None) -> bool:
        # some may have died since
        self.reap()
        if spared is not None:
            return _children_of(self._me) == [spared]
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return True
        return False


def _keep_only(descriptors: Iterable[int]) -> None:
    """Be, from a fork of this program on, as Python is at its start."""
    for number, handler in _AT_THE_START.items():
        signal.signal(number, handler)
    signal.set_wakeup_fd(-1)
    prctl(PR_SET_DUMPABLE, 1)
    last = 2
    for fd in (*sorted(descriptors), _LAST_DESCRIPTOR):
        os.closerange(last + 1, fd)
        last = fd


def _children_of(pid: int) -> list[int]:
    children: list[int] = []
    # a process, or one of its threads, may have ended, or not be shown
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                children += map(int, _read(_CHILDREN.format(pid, task)).split())
    return children


def _descendant(pid: int, line: int) -> Descendant | None:
    """``None`` if it is dead."""
    try:
        fields = _fields_of(pid)
    except (FileNotFoundError, ProcessLookupError):
        return None
    except PermissionError:
        # some sandboxes show a process only once it has asked them for something, and none that has ended
        return None if _has_ended(pid) else Descendant(pid, _LONG_AFTER, 0, line)
    state, session, threads, started = fields[0], fields[3], fields[17], fields[19]
    # where the first thread has ended but not the others, it looks like a zombie
    if state in (b"Z", b"X") and int(threads) <= 1:
        return None
    return Descendant(pid, int(started), int(session), line)


def _has_ended(pid: int) -> bool:
    if not hasattr(os, "pidfd_open"):
        return False
    try:
        watching = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    try:
        return bool(select.select([watching], (), (), 0)[0])
    finally:
        os.close(watching)


def _fields_of(pid: int) -> list[bytes]:
    # the name before them may hold blanks and brackets
    return _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = b""
        while piece := os.read(fd, 65536):
            data += piece
    finally:
        os.close(fd)
    return data
