"""Blocks that run. Those of sh and bash run each in a new shell, with the directory and environment that the last one ended with."""

from __future__ import annotations

import errno
import os
from contextlib import ExitStack, suppress

from codeact_team.sandbox.system.framing import ProtocolError
from codeact_team.sandbox.system.process_tree import now
from codeact_team.session.protocol import KIB, MAX_ARTIFACT_BYTES, MAX_ARTIFACTS, MIB, TOKEN_BYTES
from codeact_team.session.runner.supervisor.streams import make_pipe, read_available

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from codeact_team.sandbox.system.process_tree import ProcessInfo
    from codeact_team.session.runner.supervisor.interpreter_process import Context
    from codeact_team.session.runner.supervisor.streams import OutputPipe

SHELLS = ("sh", "bash")

_STATE_FD = 9
"""The highest descriptor that every shell can redirect to."""
_MAX_STATE_BYTES = 1 * MIB
_MAX_VARIABLES = 10_000
_MAX_VARIABLE_BYTES = 128 * KIB - 1
"""The kernel passes no longer string to a program."""
_OWN_VARIABLES = (b"_", b"SHLVL")
"""Variables that each shell sets by itself."""

# the trap does not change the exit code; the empty entry at the end shows that nothing is missing
_STATE = """{{ printf '%s\\0' "$PWD"; {env} -0 && printf '\\0'; }} 2>/dev/null >&{fd}"""


class RunningBlock:
    """A block that runs.

    Attributes:
        token: The token that its report must have.
        interpreter: The number of the interpreter that is to run it; 0 for a shell.
        shell: The shell that runs it.
        is_given: Whether the interpreter has been given it.
        interrupted: Whether it was interrupted.
        is_last: Whether the interpreter ends with it, in order, and no other is wanted.
        report: Of such a one, what the interpreter has reported before its end.
    """

    def __init__(self, interpreter: int) -> None:
        self.interpreter = interpreter
        self.token: bytes = os.urandom(TOKEN_BYTES)
        self.shell: Shell | None = None
        self.is_given = False
        self.interrupted = self.is_last = False
        self.report = b""
        self._began = now()
        self._artifacts = 0
        self._artifact_bytes = 0

    def add_artifact(self, artifact: bytes) -> None:
        """Count an artifact. Raises a ``ProtocolError`` if there are too many."""
        self._artifacts += 1
        self._artifact_bytes += len(artifact)
        if self._artifacts > MAX_ARTIFACTS or self._artifact_bytes > MAX_ARTIFACT_BYTES:
            raise ProtocolError("there are too many artifacts")

    def may_have_started(self, process: ProcessInfo) -> bool:
        """Whether a process was started since the block began, or within the same tick of the clock."""
        return process.started >= self._began


class Shells:
    """The shells of one session. They write to ``output`` and start in ``home``."""

    def __init__(self, context: Context, output: OutputPipe, home: str) -> None:
        self._context = context
        self._output = output
        self._path = os.environ.get("PATH", os.defpath)
        self._home = home
        self._script = ""
        self._directory = home
        self._variables: Mapping[bytes, bytes] = dict(os.environb)
        self._sessions: set[int] = set()

    @property
    def sessions(self) -> set[int]:
        """The kernel's sessions in which processes of shell blocks may still run."""
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
        """Start a block in the shell ``name``. Raises an ``OSError``: a ``FileNotFoundError`` if there is no such shell."""
        program = self._find(name)
        self._store(code)
        trap = _STATE.format(env=_quoted(self._find("env")), fd=_STATE_FD)
        with ExitStack() as given:
            output = self._output.open()
            given.callback(os.close, output)
            reader, writer = make_pipe()
            given.callback(os.close, writer)
            try:
                pid = self._context.start(
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

    def on_end(self, shell: Shell) -> None:
        """Keep the directory and environment of a shell that has ended, if it has reported them."""
        self.remove()
        state = shell.close()
        if state is None:
            return
        directory, *entries = state
        self._directory = os.fsdecode(directory)
        # invalid entries are left out
        variables = (entry.partition(b"=") for entry in entries)
        self._variables = {
            name: value for name, sign, value in variables if name and sign and name not in _OWN_VARIABLES
        }

    def continue_from(self, other: Shells) -> None:
        """Continue from the state of another session's shells, in the directory of this session."""
        here = os.path.relpath(other._directory, other._home)
        is_inside = here.split(os.sep)[0] != os.pardir
        self._directory = os.path.normpath(os.path.join(self._home, here)) if is_inside else other._directory
        self._variables = other._variables

    def reset(self) -> None:
        self._directory = self._home
        self._variables = dict(os.environb)

    def remove(self) -> None:
        with suppress(OSError):
            os.unlink(self._script)

    def _find(self, name: str) -> str:
        for place in self._path.split(os.pathsep):
            path = os.path.join(place, name)
            if os.path.isfile(path) and os.access(path, os.X_OK):
                return path
        raise FileNotFoundError(errno.ENOENT, "not found")

    def _store(self, code: bytes) -> None:
        """Write the block to a file that no other user can change."""
        name = f"codeact-{os.urandom(8).hex()}"
        failure: OSError | None = None
        # the code may have filled or removed the first directory
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
        pid: Its process id, and the id of its group and session.
        fd: Where it reports its state; to be read when something comes.
    """

    def __init__(self, pid: int, fd: int) -> None:
        self.pid = pid
        self.fd = fd
        self._state = bytearray()
        os.set_blocking(fd, False)

    def read(self) -> bool:
        """Read what is available. Returns whether there may be more."""
        try:
            piece = read_available(self.fd)
        except BlockingIOError:
            return False
        # one byte more than is allowed shows that it was too much
        self._state += piece[: _MAX_STATE_BYTES + 1 - len(self._state)]
        return bool(piece)

    def close(self) -> list[bytes] | None:
        """Close it. Returns its last directory and its environment, as ``NAME=value``, if it has reported them completely."""
        while len(self._state) <= _MAX_STATE_BYTES and self.read():
            pass
        os.close(self.fd)
        state = bytes(self._state)
        if not state.endswith(b"\0\0") or len(state) > _MAX_STATE_BYTES:
            return None
        entries = state[:-2].split(b"\0")
        if len(entries) > _MAX_VARIABLES or any(len(entry) > _MAX_VARIABLE_BYTES for entry in entries):
            return None
        return entries


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
