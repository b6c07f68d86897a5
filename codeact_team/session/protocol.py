"""What the host and the sandbox say to each other: frames over one duplex byte stream.

A frame is a kind (one byte), the length of its payload (four bytes, big-endian), and the payload: JSON, unless
:class:`Kind` says otherwise. Between the host and the supervisor one request is under way at a time; only
``INTERRUPT``, ``KILL`` and ``ANSWER`` may come while a block runs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from enum import IntEnum

KIB = 1024
MIB = 1024 * KIB
MAX_FILE_BYTES = 64 * MIB
MAX_LISTED_FILES = 10_000
MAX_CODE_BYTES = 8 * MIB
MAX_ARTIFACTS, MAX_ARTIFACT_BYTES = 32, 32 * MIB
"""How many artifacts one block, or one call of several, may have, and how much these may hold together."""
MAX_CALL_BYTES, MAX_ANSWER_BYTES = 1 * MIB, 16 * MIB
"""How long the call of a tool, and the answer to one, may be."""
MAX_CALLS_AT_ONCE, MAX_CALL_BYTES_AT_ONCE = 64, 4 * MIB
"""How many calls of a block may be unanswered, and how long these may be together. The interpreter holds back what
exceeds it, so more are an attack."""

MAX_BRANCHES = 64
"""How many branches one session may have at a time."""
BRANCH_HEAD = struct.Struct(">I")
"""What precedes a piece of a branch's stream: the number of the branch."""
KEPT_APART = ".codeact-team"
"""A directory of the workspace for what a team needs for itself, for as long as it runs."""
BRANCHES = f"{KEPT_APART}/branches-"
"""How the path begins of the directory of the workspace in which a session has one for each of its branches, by number;
sessions may share a workspace."""

_MAX_REPORT_BYTES = 512 * KIB
_MAX_OUTPUT_BYTES = 1 * MIB

_HEADER = struct.Struct(">BI")
RUN_HEAD = struct.Struct(">II")
"""What precedes the code of a block: the number of the interpreter that is meant, and that of the block."""
RESULT_HEAD = struct.Struct(">II?hiiqHI")
"""What a result begins with; see :attr:`Kind.RESULT`."""
NONE = -1
"""Stands for a number that is not known."""


class Kind(IntEnum):
    """What a frame is."""

    # from the host
    RUN = 1
    """Run a block of Python: :data:`RUN_HEAD`, then the code. It runs in the interpreter with that number and in no other.
    The supervisor passes it on as it is. Answered by ``OUTPUT`` and ``ARTIFACT`` frames while it runs, and one
    ``RESULT``."""
    INTERRUPT = 2
    """Send SIGINT to the block that runs; without effect if none does. No payload, no answer of its own."""
    KILL = 3
    """End the block that runs, and all it has started; without effect if none does. No payload, no answer of its own."""
    RESTART = 4
    """End everything and start a fresh interpreter. No payload; answered by ``READY``."""
    PUT = 5
    """Write a file: its ``path`` in the workspace as a line of JSON, then its bytes. Answered by ``DONE`` or ``FAILED``."""
    GET = 6
    """Read the file ``path``. Answered by ``FILE`` frames and ``DONE``, or ``FAILED``."""
    LIST = 7
    """List the workspace. No payload; answered by ``DONE``."""
    TOOLS = 8
    """The functions of the host that Python blocks may call from now on, also in the interpreters to come: ``tools``, a
    list of declarations (see :attr:`codeact_team.core.execution.HostTools.declarations`). Comes between blocks; no answer."""
    ANSWER = 9
    """What came of a ``CALL``: its ``id``, and either ``content``, a list of objects that have a ``value``, or
    ``mime_type`` and ``data`` (base64); or ``error``, a message, and ``outcome``, a
    :class:`codeact_team.core.execution.CallOutcome`. Dropped where the block has ended."""
    SHELL = 10
    """Run a block in a shell: its name, ``sh`` or ``bash``, as a line, then the code. Answered like ``RUN``."""
    SETUP = 11
    """Like ``RUN``, with what is to be in every interpreter before its first block: the interpreters to come may have it
    already, and then nothing runs."""
    FORK = 12
    """Make branches of the interpreter, as it is between two blocks, each with a copy of its directory: ``branches``,
    their numbers, which were never used before, and ``directory``, where their own are, below the workspace. Answered by
    ``FORKED``."""
    PROMOTE = 13
    """Let the branch with the number ``branch`` go on in the place of the one that gets this: its interpreter and its
    files, for which those that are there are given up. Answered by ``READY``."""
    END = 14
    """End this branch, with all that it has started and its directory. No payload; answered by ``DONE``."""

    # from the supervisor
    READY = 33
    """The supervisor can be asked: ``interpreter`` (the number of the present one; they are numbered from 1),
    ``unguarded`` (why code could tamper with it, or null)."""
    OUTPUT = 34
    """Bytes that were written to stdout and stderr."""
    RESULT = 35
    """How a block ended: :data:`RESULT_HEAD`, which holds

    - the number of the interpreter that was to run the block, 0 for a shell, and that of the present one. If they
      differ, the block's is gone, and the next block can have the present one;
    - whether the code began to run; the exit code, ``NONE`` if the interpreter reports it;
    - how often, since the block began, a process was killed for memory, and could not be started: each ``NONE`` where
      nobody counts;
    - the microseconds of processor time that everything here has used since the last result, ``NONE`` if not known;
    - the lengths of the first two texts that follow: why the interpreter before the present one is gone; the last of
      the output; and the interpreter's report, if there is one, whatever it has sent as that."""
    FILE = 36
    """The next bytes of a file."""
    DONE = 37
    """A file request is done: ``files`` for ``LIST``, a list of pairs of path and size in bytes, as many as there is room
    for; else no payload."""
    FAILED = 38
    """A file request cannot be done: ``error``, the name of an ``OSError`` class or ``OSError``, and ``message``."""
    FORKED = 39
    """The branches are there; or there are none, and ``refused`` says why. From an interpreter, too."""

    # either way
    BRANCH = 48
    """A piece of the stream of a branch: :data:`BRANCH_HEAD`, then bytes. The frames of that stream are those between the
    host and the supervisor, but for this one."""

    # from the interpreter to the supervisor, each payload preceded by the token of the block
    REPORT = 65
    """How a block ended, by the code's own account: the exit code (one byte), and, if there is more to say, ``names`` (a
    list of objects with ``name``, ``type``, ``size`` and ``preview``), ``omitted_names`` (how many more), ``answer``
    (what ``final_answer`` was called with, as text, or null), ``answer_is_json`` (whether that is the JSON of the value),
    ``answer_problem`` (why JSON does not have the value, or why the text is cut), ``denied`` (whether it ended with a
    call that was not approved)."""
    ARTIFACT = 66
    """A picture or the like: ``mime_type`` as a line of JSON, then its bytes. The supervisor passes it on, without the
    token."""
    CALL = 67
    """Call a function of the host: first ``id`` (a number not in use), ``name`` (as declared), ``arguments`` (an object).
    Passed on to the host, without the token, while the block runs; dropped otherwise. Answered by ``ANSWER``, in any
    order."""
    CANCEL = 68
    """Nobody waits for the answer to the call ``id`` any more; at most once for each. Passed on like that. It is answered
    all the same."""

    # from the supervisor to the interpreter, beside those that it passes on
    MOVE = 97
    """Go on in another directory, at the same place below it: ``home``, where it was, and ``to``."""

    SEAL = 98
    """Have what is there only to be forked from now on: ``filter``, a program (base64) that keeps the code's hands off it;
    and ``has_domain``, whether the descriptor of a Landlock ruleset for the forks has come through the control socket.
    Answered by ``FORKED``, which may say why it cannot be forked; then it may run blocks itself."""

    # ``FORK`` from the supervisor to the interpreter has ``directories``, one for each fork: where its copy of ``home`` is to
    # be, or null. Of what each fork needs, the descriptors have come through the control socket.


OF_A_FORK, BORN = 5, b"+"
"""How many descriptors go through the control socket for each fork; and how the message begins that a fork sends there: what
follows keeps it from living, if something follows."""

TOKEN_BYTES = 16
"""How long the token is that belongs to each block, and that only its report may bear."""

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
    Kind.END: 0,
    Kind.BRANCH: 1 * MIB,
}
"""The frames that the host sends, with the size of the largest payload."""

FROM_SUPERVISOR: Mapping[int, int] = {
    Kind.READY: 64 * KIB,
    Kind.OUTPUT: _MAX_OUTPUT_BYTES,
    Kind.ARTIFACT: 8 * MIB,
    Kind.CALL: MAX_CALL_BYTES,
    Kind.CANCEL: 1 * KIB,
    Kind.RESULT: _MAX_OUTPUT_BYTES + _MAX_REPORT_BYTES + 128 * KIB,
    Kind.FILE: 1 * MIB,
    Kind.DONE: 4 * MIB,
    Kind.FAILED: 64 * KIB,
    Kind.FORKED: 64 * KIB,
    Kind.BRANCH: 1 * MIB,
}
"""The frames that the supervisor sends, with the size of the largest payload."""

TO_INTERPRETER: Mapping[int, int] = {
    Kind.RUN: FROM_HOST[Kind.RUN] + TOKEN_BYTES,
    Kind.SETUP: FROM_HOST[Kind.SETUP] + TOKEN_BYTES,
    Kind.TOOLS: FROM_HOST[Kind.TOOLS] + TOKEN_BYTES,
    Kind.FORK: 1 * MIB,
    Kind.MOVE: 64 * KIB,
    Kind.SEAL: 64 * KIB,
}
"""The frames that the supervisor sends to the interpreter as commands; the token of the block, zeros where there is
none, precedes the payload."""

ANSWERS: Mapping[int, int] = {Kind.ANSWER: FROM_HOST[Kind.ANSWER] + TOKEN_BYTES}
"""The frames that the supervisor sends to the interpreter on a pipe of their own: a thread of it waits for them while a
block runs."""

FROM_INTERPRETER: Mapping[int, int] = {
    Kind.REPORT: _MAX_REPORT_BYTES + TOKEN_BYTES,
    **{kind: FROM_SUPERVISOR[kind] + TOKEN_BYTES for kind in (Kind.ARTIFACT, Kind.CALL, Kind.CANCEL)},
    Kind.FORKED: 64 * KIB,
}
"""The frames that the interpreter sends, with the size of the largest payload, the token included."""


class ProtocolError(Exception):
    """Bytes that are no frame of those expected."""


def frame(kind: Kind, *payload: bytes) -> bytes:
    """A frame of ``kind``, its payload given in pieces."""
    return b"".join((_HEADER.pack(kind, sum(map(len, payload))), *payload))


def of_branch(number: int, data: bytes) -> bytes:
    """The frames that carry a piece of the stream of a branch."""
    size = FROM_HOST[Kind.BRANCH] - BRANCH_HEAD.size
    pieces = (data[start : start + size] for start in range(0, len(data), size))
    return b"".join(frame(Kind.BRANCH, BRANCH_HEAD.pack(number), piece) for piece in pieces)


class FrameReader:
    """Takes frames out of a byte stream that may hold anything.

    Holds back no more than one frame, and none that is not ``expected``: of another kind, or larger than said there.
    """

    def __init__(self, expected: Mapping[int, int]) -> None:
        self._expected = {int(kind): (Kind(kind), limit) for kind, limit in expected.items()}
        self._buffer = bytearray()

    @property
    def held(self) -> bytes:
        """What has come of a frame that is not complete yet."""
        return bytes(self._buffer)

    def feed(self, data: bytes) -> Iterator[tuple[Kind, bytes]]:
        """The frames that are complete with ``data``. To be read to the end.

        Raises:
            ProtocolError: If what comes is no frame of those expected.
        """
        held = self._buffer
        if held:
            held += data
        stream = held or data
        size, start = len(stream), 0
        try:
            while size - start >= _HEADER.size:
                number, length = _HEADER.unpack_from(stream, start)
                kind, limit = self._expected.get(number, (None, 0))
                if kind is None:
                    raise ProtocolError(f"no frame of kind {number} is expected")
                if length > limit:
                    raise ProtocolError(f"a frame of kind {number} has {length} bytes, more than {limit}")
                end = start + _HEADER.size + length
                if size < end:
                    break
                payload = bytes(stream[start + _HEADER.size : end])
                start = end
                yield kind, payload
        finally:
            if held:
                del held[:start]
            elif start < size:
                held += memoryview(data)[start:]
