"""Blocks of sh and bash: a fresh shell each, which goes on where the one before has ended."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from contextlib import ExitStack, suppress

from codeact_team.session.protocol import KIB, MIB
from codeact_team.session.runner.supervisor.pipes import make_pipe, read_some
from codeact_team.session.runner.supervisor.process_family import Family
from codeact_team.session.runner.supervisor.relay import Output

SHELLS = ("sh", "bash")

_STATE_FD = 9
"""The highest that every shell can redirect to."""
_MAX_STATE_BYTES = 1 * MIB
_MAX_VARIABLES = 10_000
_MAX_VARIABLE_BYTES = 128 * KIB - 1
"""More than this the kernel does not pass on in one."""
_OWN_VARIABLES = (b"_", b"SHLVL")
"""What each shell sets by itself."""

# the trap does not change the exit code; the empty entry at the end says that nothing is missing
_STATE = """{{ printf '%s\\0' "$PWD"; {env} -0 && printf '\\0'; }} 2>/dev/null >&{fd}"""


class Shells:
    """The shells of a session or of a branch of it, which write to ``output`` and begin in ``home``."""

    def __init__(self, family: Family, output: Output, home: str) -> None:
        self._family = family
        self._output = output
        self._places = os.environ.get("PATH", os.defpath)
        self._home = home
        self._script = ""
        self._directory = home
        self._variables: Mapping[bytes, bytes] = dict(os.environb)
        self._sessions: set[int] = set()

    @property
    def sessions(self) -> set[int]:
        """The sessions in which something of a shell block may still run."""
        for session in tuple(self._sessions):
            # non-interactive shells leave their jobs in their own group
            try:
                os.killpg(session, 0)
            except ProcessLookupError:
                self._sessions.remove(session)
            except PermissionError:
                pass
        return self._sessions

    def start(self, name: str, code: bytes) -> Shell:
        """Start a block in the shell ``name``. Raises an ``OSError``; ``FileNotFoundError`` if there is no such shell."""
        program = self._find(name)
        self._store(code)
        trap = _STATE.format(env=_quoted(self._find("env")), fd=_STATE_FD)
        with ExitStack() as given:
            output = self._output.open()
            given.callback(os.close, output)
            reader, writer = make_pipe()
            given.callback(os.close, writer)
            try:
                pid = self._family.start(
                    [program, "-c", f"trap {_quoted(trap)} EXIT\n. {_quoted(self._script)}"],
                    environment=self._variables,
                    output=output,
                    inherited={_STATE_FD: writer},
                    directory=self._directory,
                )
            except OSError:
                os.close(reader)
                raise
        self._sessions = self.sessions | {pid}
        return Shell(pid, reader)

    def ended(self, shell: Shell) -> None:
        """Take over where a shell has ended, if it says so."""
        self.remove()
        state = shell.close()
        if state is None:
            return
        directory, *entries = state
        self._directory = os.fsdecode(directory)
        # one that is missing is not missed
        variables = (entry.partition(b"=") for entry in entries)
        self._variables = {
            name: value for name, sign, value in variables if name and sign and name not in _OWN_VARIABLES
        }

    def go_on_from(self, other: Shells) -> None:
        """Go on where the shells of another branch have ended, in this one's own directory."""
        here = os.path.relpath(other._directory, other._home)
        is_inside = here.split(os.sep)[0] != os.pardir
        self._directory = os.path.normpath(os.path.join(self._home, here)) if is_inside else other._directory
        self._variables = other._variables

    def reset(self) -> None:
        """Begin again in the directory in which the first has begun."""
        self._directory = self._home
        self._variables = dict(os.environb)

    def remove(self) -> None:
        """Remove what is left of the last block's file."""
        with suppress(OSError):
            os.unlink(self._script)

    def _find(self, name: str) -> str:
        for place in self._places.split(os.pathsep):
            path = os.path.join(place, name)
            if os.path.isfile(path) and os.access(path, os.X_OK):
                return path
        raise FileNotFoundError(errno.ENOENT, "not found")

    def _store(self, code: bytes) -> None:
        """Write the block to a file that nobody else has a say in."""
        name = f"codeact-{os.urandom(8).hex()}"
        failure: OSError | None = None
        # the code may have filled the first place, or removed it
        for place in (os.environ.get("TMPDIR") or "/tmp", self._home):
            self._script = os.path.join(place, name)
            try:
                fd = os.open(self._script, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                with open(fd, "wb") as file:
                    file.write(code)
                return
            except OSError as error:
                failure = error
                self.remove()
        raise OSError(f"the block cannot be stored: {failure and failure.strerror}")


class Shell:
    """A shell that runs a block.

    Attributes:
        pid: Its process id, and that of its group and session.
        fd: Where it says how it ends; to be read when there is something.
    """

    def __init__(self, pid: int, fd: int) -> None:
        self.pid = pid
        self.fd = fd
        self._said = bytearray()
        os.set_blocking(fd, False)

    def read(self) -> bool:
        """Read what there is; whether there may be more."""
        try:
            piece = read_some(self.fd)
        except BlockingIOError:
            return False
        # a byte more than is allowed tells of too much
        self._said += piece[: _MAX_STATE_BYTES + 1 - len(self._said)]
        return bool(piece)

    def close(self) -> list[bytes] | None:
        """The directory and the environment, as ``NAME=value``, in which it has ended, if it has said so properly."""
        while len(self._said) <= _MAX_STATE_BYTES and self.read():
            pass
        os.close(self.fd)
        said = bytes(self._said)
        if not said.endswith(b"\0\0") or len(said) > _MAX_STATE_BYTES:
            return None
        entries = said[:-2].split(b"\0")
        if len(entries) > _MAX_VARIABLES or any(len(entry) > _MAX_VARIABLE_BYTES for entry in entries):
            return None
        return entries


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
