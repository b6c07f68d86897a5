"""The protocol between the host and the sandbox: frames over one duplex byte stream.

The payload of a frame is JSON unless :class:`Kind` says otherwise. Between the host and the supervisor one request is in
progress at a time; only ``INTERRUPT``, ``KILL`` and ``ANSWER`` may come while a block runs. What is about processes, which run
next to the sessions, may come at any time.
"""

from __future__ import annotations

import struct

# pyright: reportUntypedNamedTuple=false
# typing, which has NamedTuple, takes longer to load than everything else here
from collections import namedtuple
from enum import IntEnum

from codeact_team.sandbox.system.framing import ProtocolError, frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Self

KIB = 1024
MIB = 1024 * KIB
MAX_FILE_BYTES = 64 * MIB
MAX_LISTED_FILES = 10_000
MAX_CODE_BYTES = 8 * MIB
MAX_ARTIFACTS, MAX_ARTIFACT_BYTES = 32, 32 * MIB
"""The limits for the artifacts of one block, or of one tool call that runs several blocks: their number and total size."""
MAX_FORMS, MAX_MIME_TYPE = 10, 100
"""The forms of one artifact, and the characters of the type of each."""
MAX_FILE_NAME = 1000
"""Characters of the path of a file that an artifact names."""
ARTIFACT_HEAD_BYTES = 32 * KIB
"""The largest line before the bytes of an artifact."""
MAX_LEFT_OPEN = 10
MAX_CALL_BYTES, MAX_ANSWER_BYTES = 1 * MIB, 16 * MIB
"""The largest tool call, and the largest answer to one."""
MAX_CALLS_AT_ONCE, MAX_CALL_BYTES_AT_ONCE = 64, 4 * MIB
"""The limits for the unanswered calls of a block: their number and total size. The interpreter holds back what exceeds
them, so more are an attack."""

LAUNCHER = """
import posix, sys
size = int(sys.argv.pop(2))
source = b""
while len(source) < size:
    source += posix.read(int(sys.argv[1]), size - len(source)) or sys.exit("the runner did not arrive")
exec(source)
_, fd, size, names, *arguments = sys.argv
Loaded(read(int(fd), int(size)), names).run(arguments)
"""
"""The program of a command line that starts the runner: it reads ``runner/bootstrap.py``, so that lists of processes stay
legible. Its arguments are the descriptor, the size of that source, and the arguments of the bootstrap behind the descriptor. All that
it imports is built in."""

PLAIN, ONLY_PROCESSES = "plain", "only-processes"
"""The argument of a supervisor whose first interpreter can be a fork of itself, and of one that has no interpreter."""

MAX_FORKS = 64
"""The most sessions, forks included, in one sandbox at a time."""
FORK_HEAD = struct.Struct(">I")
"""Precedes a piece of a fork's stream: the number of the fork."""
KEPT_APART = ".codeact-team"
"""A directory of the workspace for what a team needs itself while it runs."""
FORKS_PREFIX = f"{KEPT_APART}/forks-"
"""The prefix of the directory of the workspace in which a session keeps one directory for each of its forks, by number.
Sessions may share a workspace, so the rest of the name is random."""

_MAX_REPORT_BYTES = 512 * KIB
_MAX_OUTPUT_BYTES = 1 * MIB

MAX_PROCESSES = 200
"""The most processes of the host in one sandbox at a time."""
MAX_START_BYTES = 4 * MIB
"""The largest ``START``, without code: the kernel passes no more than 2 MiB of arguments and variables."""
MAX_INPUT_BYTES = 64 * KIB
MAX_PROGRESS_BYTES = 256 * KIB
"""The most bytes of each stream in one ``PROGRESS``."""
PROCESS_HEAD = struct.Struct(">I")
"""Precedes a frame about a process: its number."""
KILL_TREE = 0
"""Instead of a signal."""
MOST_SIGNALS = 64
_LARGEST_EXIT_CODE = 255

RUN_HEAD = struct.Struct(">II")
"""Precedes the code of a block: the number of the interpreter that is to run it, and the number of the block."""
_UNKNOWN = -1
_MAX_LOSS_BYTES = 2000


class Wait(IntEnum):
    """The event that a ``READ`` waits for."""

    NOT = 0
    """Until it is read."""
    FOR_OUTPUT = 1
    """Until something is written, or the process ends."""
    FOR_END = 2
    """Until the process ends, or much is written."""


class Obstacle(IntEnum):
    """What a process could not be started for."""

    PROGRAM = 0
    DIRECTORY = 1
    CODE_FILE = 2


class Kind(IntEnum):
    """The kind of a frame."""

    # from the host
    RUN = 1
    """Run a block of Python: :data:`RUN_HEAD`, then the code. It runs only in the interpreter with that number. Answered by
    ``OUTPUT`` and ``ARTIFACT`` frames while it runs, and one ``RESULT``."""
    INTERRUPT = 2
    """Send SIGINT to the running block; no effect if none runs. No payload, no answer."""
    KILL = 3
    """End the running block, and all it has started; no effect if none runs. No payload, no answer."""
    RESTART = 4
    """End everything and start a new interpreter. No payload; answered by ``READY``."""
    PUT = 5
    """Write a file: its ``path`` in the workspace as a line of JSON, then its bytes. Answered by ``DONE`` or ``FAILED``."""
    GET = 6
    """Read the file ``path``. Answered by ``FILE`` frames and ``DONE``, or by ``FAILED``."""
    LIST = 7
    """List the workspace. No payload; answered by ``DONE``."""
    TOOLS = 8
    """Declare the functions of the host that Python blocks may call from now on, also in later interpreters: ``tools``, a
    list of declarations (see :attr:`codeact_team.core.execution.HostTools.declarations`). Sent between blocks; no answer."""
    ANSWER = 9
    """The result of a ``CALL``: its ``id``, and either ``content``, a list of objects with a ``value``, or with
    ``mime_type`` and ``data`` (base64); or ``error``, a message, and ``outcome``, a
    :class:`codeact_team.core.execution.CallOutcome`. Dropped if the block has ended."""
    SHELL = 10
    """Run a block in a shell: its name, ``sh`` or ``bash``, as a line, then the code. Answered like ``RUN``."""
    SETUP = 11
    """Like ``RUN``, with code that every interpreter runs before its first block. If later interpreters inherit its effects,
    it does not run again."""
    FORK = 12
    """Fork the session between two blocks, each fork with a copy of its directory: ``forks``, new numbers for them, and
    ``directory``, the directory of the workspace that contains their directories. Answered by ``FORKED``."""
    PROMOTE = 13
    """Replace the interpreter and the files of this session by its fork's, number ``fork``. Answered by ``READY``."""
    FINISH = 22
    """End the interpreter in order, as one that has run a script ends: what it has open is written and closed, and what waits for
    its exit runs. A :data:`RUN_HEAD`. Answered like the ``RUN`` of a block that has ended the interpreter; if that has run
    nothing, at once. The report may have ``left_open``, the first files that the code had open for writing."""
    END = 14
    """End this fork, with all that it has started, and remove its directory. No payload; answered by ``DONE``."""

    EGRESS = 23
    """Take connections of code from now on, before any code runs: ``token`` and ``socket``, the secret of the sandbox and the path of
    a unix socket, and ``addresses``, pairs of an address and a port. Answered by ``FORWARDING``."""

    # from the host, about processes: each payload begins with :data:`PROCESS_HEAD`
    START = 15
    """Start a process: as a line of JSON ``argv``, ``env``, ``cwd`` (or null), ``timeout`` in seconds (or null), ``together`` (whether
    stderr goes to stdout), ``limit`` (how many unread bytes are kept for each stream), ``has_input`` (whether it has a stdin),
    ``terminal`` (rows and columns, or null), ``apart`` (whether it is kept from other processes where the kernel can), ``runs_out``
    (whether all that it leaves ends with it, without a ``CLOSE``, and its output is never dropped: it waits for a ``READ``), and
    ``code_file`` (the path of a file below its directory, the private directory from which that is run, and whether by a Python; or
    null). Then, with ``code_file``, the bytes of the file. Strings are file names as Python has them. Answered by ``STARTED``, unless it runs and
    ``runs_out``. The number must be a new one."""
    INPUT = 16
    """The next bytes for its stdin, at most :data:`MAX_INPUT_BYTES`; none for the end. Answered by ``TAKEN`` as soon as more
    would fit."""
    SIGNAL = 17
    """Send a signal: the number, one byte, to the group of the process; :data:`KILL_TREE` ends all that it has started. No answer."""
    RESIZE = 18
    """Change the size of its terminal: ``rows`` and ``columns``. No answer."""
    READ = 19
    """Ask for its output: a :class:`Wait`, one byte. Answered by ``PROGRESS``, at the latest when the next one comes."""
    POLL = 20
    """Ask whether it has ended. Answered by ``POLLED``, before which an ``EXITED`` has come if so."""
    CLOSE = 21
    """End the process with all that it has started. Answered by ``CLOSED``."""

    # from the supervisor
    READY = 33
    """The session takes requests: ``interpreter`` (the number of the present one, from 1), ``unguarded`` (how code could
    tamper with the supervisor, or null)."""
    OUTPUT = 34
    """Bytes that were written to stdout and stderr."""
    RESULT = 35
    """The end of a block: a :class:`ResultFrame`."""
    FILE = 36
    """The next bytes of a file."""
    DONE = 37
    """A file request has succeeded. For ``LIST``: ``files``, a list of pairs of path and size in bytes, as many as there is
    room for; otherwise no payload."""
    FAILED = 38
    """A request has failed: ``error``, the name of an ``OSError`` class, and ``message``."""
    FORKED = 39
    """The forks live; or there are none, and ``refused`` says why. The interpreter sends this to the supervisor, too."""

    FORWARDING = 46
    """Connections of code are taken; or none are, and ``problem`` says why."""

    # from the supervisor, about processes: each payload begins with :data:`PROCESS_HEAD`
    STARTED = 40
    """The process runs; or it does not: ``errno``, ``message``, and ``about``, the number of an :class:`Obstacle`."""
    TAKEN = 41
    """There is room for more input."""
    PROGRESS = 42
    """Output of the process since the last one: a :class:`ProgressFrame`."""
    EXITED = 43
    """The process has ended: an :class:`ExitedFrame`."""
    POLLED = 44
    """The answer to a ``POLL``."""
    CLOSED = 45
    """Nothing of the process is left."""

    # either way
    FORK_DATA = 48
    """A piece of the stream of a fork: :data:`FORK_HEAD`, then bytes. That stream consists of the frames between the host
    and the supervisor, except this one."""

    # from the interpreter to the supervisor, each payload preceded by the token of the block
    REPORT = 65
    """The end of a block by the code's own account: the exit code (one byte), and, if there is more to report, ``names``
    (a list of objects with ``name``, ``type``, ``size`` and ``preview``), ``omitted_names`` (how many more), ``answer`` (the
    argument of ``final_answer`` as text, or null), ``answer_is_json`` (whether that text is the JSON of the value),
    ``answer_problem`` (why the value has no JSON, or why the text is cut), ``denied`` (whether it ended with a call that was
    not approved)."""
    ARTIFACT = 66
    """A picture or the like: as a line of JSON ``mime_type``, ``file``, the path of the file in which the code has saved it itself,
    if it has, and ``others``, a list of pairs of the type and the size of each of its other forms, if there are any; then its
    bytes, and those of the other forms. The supervisor passes it to the host, without the token."""
    CALL = 67
    """Call a function of the host: first ``id`` (a number not in use), ``name`` (as declared), ``arguments`` (an object).
    Passed to the host, without the token, while the block runs; dropped otherwise. Answered by ``ANSWER``, in any order."""
    CANCEL = 68
    """The caller of ``id`` waits no longer; at most once per call. Passed to the host like a ``CALL``,
    which is answered all the same."""

    # from the supervisor to the interpreter, apart from those that it passes on
    MOVE = 97
    """Change to the same place in another directory: ``home``, the directory so far, and ``to``."""

    SEAL = 98
    """Serve only as zygote from now on: ``filter``, a program (base64) that protects this process from the code in its
    forks; and ``has_domain``, whether the descriptor of a Landlock ruleset for the forks was sent through the control
    socket. Answered by ``FORKED``; if that refuses, the interpreter can run blocks itself."""

    # a ``FORK`` from the supervisor to the interpreter has ``directories``, for each fork the place for its copy of ``home``,
    # or null. The descriptors of each fork are sent through the control socket. ``FORK`` has ``shared_memory``, why a fork would
    # have memory in common with the interpreter, or null.


class ResultFrame(
    namedtuple(
        "ResultFrame",
        "interpreter present ran exit_code oom_kills fork_failures microseconds loss output report",
    )
):
    """The end of a block, by the supervisor's account.

    Attributes:
        interpreter: The number of the interpreter that was to run the block; 0 for a shell.
        present: The number of the present interpreter. If it is another one, the first is lost, and the next block can run in this.
        ran: Whether the code began to run.
        exit_code: The exit code; ``None`` if the report contains it.
        oom_kills: Processes killed for memory since the block began; ``None`` if the kernel does not count them.
        fork_failures: Processes that could not be started since then; ``None`` if the kernel does not count them.
        microseconds: Processor time of everything in the sandbox since the last result; ``None`` if not known.
        loss: Why the interpreter before the present one was lost.
        output: The last of the block's output.
        report: The report of the interpreter, unchecked; empty if there is none.
    """

    __slots__ = ()
    HEAD = struct.Struct(">II?hiiqHI")
    interpreter: int
    present: int
    ran: bool
    exit_code: int | None
    oom_kills: int | None
    fork_failures: int | None
    microseconds: int | None
    loss: str
    output: bytes
    report: bytes

    @property
    def lost(self) -> str | None:
        """The reason if the interpreter of the block is lost."""
        return self.loss if self.interpreter not in (0, self.present) else None

    def pack(self) -> bytes:
        loss = self.loss.encode(errors="replace")[:_MAX_LOSS_BYTES]
        counts = _numbers(self.exit_code, self.oom_kills, self.fork_failures, self.microseconds)
        head = self.HEAD.pack(self.interpreter, self.present, self.ran, *counts, len(loss), len(self.output))
        return b"".join((head, loss, self.output, self.report))

    @classmethod
    def unpack(cls, payload: bytes) -> Self:
        """Read the payload of a frame. Raises a ``ProtocolError``."""
        *known, code, ooms, failures, used, size_of_loss, size_of_output = _unpack_head(cls.HEAD, payload)
        output = cls.HEAD.size + size_of_loss
        report = output + size_of_output
        if report > len(payload):
            raise ProtocolError("a result is cut short")
        loss = payload[cls.HEAD.size : output].decode(errors="replace") if size_of_loss else ""
        counts = _known(code, ooms, failures, used)
        return cls._make((*known, *counts, loss, payload[output:report], payload[report:]))


class ProgressFrame(namedtuple("ProgressFrame", "has_ended stdout_omitted stderr_omitted stdout stderr")):
    """Output of a process since the last one.

    Attributes:
        has_ended: Whether it has ended, and everything was read.
        stdout_omitted: How many bytes of stdout were dropped since the last one.
        stderr_omitted: The same for stderr.
        stdout: The bytes of stdout.
        stderr: Those of stderr.
    """

    __slots__ = ()
    HEAD = struct.Struct(">?QQI")
    has_ended: bool
    stdout_omitted: int
    stderr_omitted: int
    stdout: bytes
    stderr: bytes

    def pack(self) -> bytes:
        head = self.HEAD.pack(self.has_ended, self.stdout_omitted, self.stderr_omitted, len(self.stdout))
        return head + self.stdout + self.stderr

    @classmethod
    def unpack(cls, payload: bytes) -> Self:
        """Read the payload of a frame. Raises a ``ProtocolError``."""
        *head, length = _unpack_head(cls.HEAD, payload)
        content = payload[cls.HEAD.size :]
        if length > len(content):
            raise ProtocolError("a progress is cut short")
        return cls._make((*head, content[:length], content[length:]))


class ExitedFrame(namedtuple("ExitedFrame", "code timed_out leaves oom_kills fork_failures microseconds")):
    """The end of a process.

    Attributes:
        code: Its exit code, negative for a signal.
        timed_out: Whether its time was over.
        leaves: Whether something that it has started still runs, of which a ``CLOSED`` tells the end.
        oom_kills: Processes of the sandbox that were killed for memory since it began; ``None`` if the kernel does not count them.
        fork_failures: Processes that could not be started since then; ``None`` if the kernel does not count them.
        microseconds: Processor time of everything in the sandbox since then; ``None`` if not known.
    """

    __slots__ = ()
    HEAD = struct.Struct(">i??iiq")
    code: int
    timed_out: bool
    leaves: bool
    oom_kills: int | None
    fork_failures: int | None
    microseconds: int | None

    @property
    def shell_code(self) -> int:
        """Its exit code, as a shell counts: 128 + n for signal n."""
        return self.code if self.code >= 0 else 128 - self.code

    def pack(self) -> bytes:
        counts = _numbers(self.oom_kills, self.fork_failures, self.microseconds)
        return self.HEAD.pack(self.code, self.timed_out, self.leaves, *counts)

    @classmethod
    def unpack(cls, payload: bytes) -> Self:
        """Read the payload of a frame. Raises a ``ProtocolError``."""
        code, timed_out, leaves, *counts = _unpack_head(cls.HEAD, payload)
        if not -MOST_SIGNALS <= code <= _LARGEST_EXIT_CODE:
            raise ProtocolError("no process ends like that")
        return cls(code, timed_out, leaves, *_known(*counts))


def _unpack_head(head: struct.Struct, payload: bytes) -> tuple[Any, ...]:
    try:
        return head.unpack_from(payload)
    except struct.error:
        raise ProtocolError("a frame without its head") from None


def _numbers(*known: int | None) -> list[int]:
    return [_UNKNOWN if number is None else number for number in known]


def _known(*numbers: int) -> list[int | None]:
    return [None if number < 0 else number for number in numbers]


DESCRIPTORS_OF_A_FORK, BORN = 5, b"+"
"""The number of descriptors that are sent through the control socket for each fork; and the first byte of the message that a fork
sends there. Anything that follows is the reason for which the fork cannot live."""

TOKEN_BYTES = 16
"""The length of the token that belongs to each block. A report without it is forged."""

FROM_HOST: Mapping[int, int] = {
    Kind.RUN: MAX_CODE_BYTES + 1 * KIB,
    Kind.SHELL: MAX_CODE_BYTES + 1 * KIB,
    Kind.INTERRUPT: 0,
    Kind.KILL: 0,
    Kind.RESTART: 0,
    Kind.PUT: MAX_FILE_BYTES + 64 * KIB,
    Kind.GET: 64 * KIB,
    Kind.LIST: 0,
    Kind.TOOLS: 4 * MIB,
    Kind.ANSWER: MAX_ANSWER_BYTES,
    Kind.SETUP: MAX_CODE_BYTES + 1 * KIB,
    Kind.FORK: 1 * KIB,
    Kind.PROMOTE: 1 * KIB,
    Kind.FINISH: RUN_HEAD.size,
    Kind.END: 0,
    Kind.EGRESS: 4 * MIB,
    Kind.FORK_DATA: 1 * MIB,
    Kind.START: PROCESS_HEAD.size + MAX_START_BYTES + MAX_CODE_BYTES,
    Kind.INPUT: PROCESS_HEAD.size + MAX_INPUT_BYTES,
    Kind.SIGNAL: PROCESS_HEAD.size + 1,
    Kind.RESIZE: 1 * KIB,
    Kind.READ: PROCESS_HEAD.size + 1,
    Kind.POLL: PROCESS_HEAD.size,
    Kind.CLOSE: PROCESS_HEAD.size,
}
"""The frames that the host sends, with the size of the largest payload."""

FROM_SUPERVISOR: Mapping[int, int] = {
    Kind.READY: 64 * KIB,
    Kind.OUTPUT: _MAX_OUTPUT_BYTES,
    Kind.ARTIFACT: 8 * MIB + ARTIFACT_HEAD_BYTES,
    Kind.CALL: MAX_CALL_BYTES,
    Kind.CANCEL: 1 * KIB,
    Kind.RESULT: _MAX_OUTPUT_BYTES + _MAX_REPORT_BYTES + 128 * KIB,
    Kind.FILE: 1 * MIB,
    Kind.DONE: 4 * MIB,
    Kind.FAILED: 64 * KIB,
    Kind.FORKED: 64 * KIB,
    Kind.FORWARDING: 64 * KIB,
    Kind.FORK_DATA: 1 * MIB,
    Kind.STARTED: 64 * KIB,
    Kind.TAKEN: PROCESS_HEAD.size,
    Kind.PROGRESS: PROCESS_HEAD.size + ProgressFrame.HEAD.size + 2 * MAX_PROGRESS_BYTES,
    Kind.EXITED: PROCESS_HEAD.size + ExitedFrame.HEAD.size,
    Kind.POLLED: PROCESS_HEAD.size,
    Kind.CLOSED: PROCESS_HEAD.size,
}
"""The frames that the supervisor sends, with the size of the largest payload."""

OF_PROCESSES = frozenset((Kind.STARTED, Kind.TAKEN, Kind.PROGRESS, Kind.EXITED, Kind.POLLED, Kind.CLOSED))
"""Those of them that are about processes."""

TO_INTERPRETER: Mapping[int, int] = {
    Kind.RUN: FROM_HOST[Kind.RUN] + TOKEN_BYTES,
    Kind.SETUP: FROM_HOST[Kind.SETUP] + TOKEN_BYTES,
    Kind.FINISH: FROM_HOST[Kind.FINISH] + TOKEN_BYTES,
    Kind.TOOLS: FROM_HOST[Kind.TOOLS] + TOKEN_BYTES,
    Kind.FORK: 1 * MIB,
    Kind.MOVE: 64 * KIB,
    Kind.SEAL: 64 * KIB,
}
"""The frames that the supervisor sends to the interpreter as commands. The token of the block, or zeros, precedes the
payload."""

ANSWERS: Mapping[int, int] = {Kind.ANSWER: FROM_HOST[Kind.ANSWER] + TOKEN_BYTES}
"""The frames that the supervisor sends to the interpreter on a separate pipe: a thread waits for them while a block
runs."""

FROM_INTERPRETER: Mapping[int, int] = {
    Kind.REPORT: _MAX_REPORT_BYTES + TOKEN_BYTES,
    **{kind: FROM_SUPERVISOR[kind] + TOKEN_BYTES for kind in (Kind.ARTIFACT, Kind.CALL, Kind.CANCEL)},
    Kind.FORKED: 64 * KIB,
}
"""The frames that the interpreter sends, with the size of the largest payload, the token included."""


def of_fork(number: int, data: bytes) -> bytes:
    """The frames that carry a piece of the stream of a fork."""
    size = FROM_HOST[Kind.FORK_DATA] - FORK_HEAD.size
    pieces = (data[start : start + size] for start in range(0, len(data), size))
    return b"".join(frame(Kind.FORK_DATA, FORK_HEAD.pack(number), piece) for piece in pieces)
